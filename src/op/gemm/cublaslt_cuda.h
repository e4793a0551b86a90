// Matmuls with f16 weights by NVIDIA's cuBLASLt: the yardstick of resident f16 weights in bench gemv, and
// the second half of the literal two ops. The library is opened when it is first asked for; nothing else here needs it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/device.h"

namespace ridge {

/// y [n_tokens, n_out] floats = x [n_tokens, n_in] f16 times w [n_out, n_in] f16, float sums; pointers aligned to
/// 256.
class LibraryGemm {
 public:
  /// Why the library cannot be used here; empty when it can.
  static std::string why_not();
  /// Throws Error(no_device) with why_not(), Error(failure) when the library has no kernel for the shape.
  LibraryGemm(int n_tokens, int n_out, int n_in);
  ~LibraryGemm();
  LibraryGemm(const LibraryGemm&) = delete;
  LibraryGemm& operator=(const LibraryGemm&) = delete;

  /// May be captured.
  void run(gpu::StreamHandle stream, const uint16_t* x, const uint16_t* w, float* y) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// n floats to f16, to nearest.
void device_to_f16(gpu::StreamHandle stream, const float* x, int64_t n, uint16_t* out);
/// Blocks of int4_g128 as they lie in rows to f16, 128 each.
void device_dequantize_int4(gpu::StreamHandle stream, const void* blocks, int64_t n_blocks, uint16_t* out);

}  // namespace ridge
