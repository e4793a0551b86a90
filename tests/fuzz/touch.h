// Reads everything that a parser returned, so that the sanitizers see a span that leaves its buffer.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "io/tensor.h"

namespace ridge::io {

/// Keeps the compiler from dropping a read.
inline void use(uint64_t value) { asm volatile("" : : "r"(value)); }

/// Reads every byte of the tensor and checks that its size is what its shape says.
inline void touch(const Tensor& tensor) {
  uint64_t sum = tensor.name.size();
  for (const std::byte byte : tensor.data) sum += uint64_t(byte);
  use(sum);
  const Result<uint64_t> bytes = storage_bytes(*tensor.format, tensor.shape);
  RIDGE_CHECK(bytes.has_value() && *bytes == tensor.data.size(), "tensor of {} bytes", tensor.data.size());
}

/// A typed access may fail, but then with a message.
template <class T>
void touch(const Result<T>& result) {
  if (!result) RIDGE_CHECK(!result.error().message.empty(), "a failure without a message");
}

}  // namespace ridge::io
