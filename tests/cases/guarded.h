// Buffers that notice what a kernel must not do, and the random data it is fed, shared by tests and benches.
//
// Guarded: a poisoned margin on both sides, checked after the call; the body starts as NaN, so an element nobody wrote
// is not mistaken for a result. FencedBytes: the last byte touches an inaccessible page, so a read past the end stops
// the program in every build, not only under a sanitizer.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/rng.h"
#include "base/view.h"

namespace ridge {

/// `n` elements at `offset` elements past a 64-byte boundary, between two margins.
template <class T>
class Guarded {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  explicit Guarded(int64_t n, int64_t offset = 0)
      : n_(n), storage_(size_t(n + offset) * sizeof(T) + 2 * kMargin + 64, kPoison) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kMargin;
    first_ = ((address + 63) / 64 * 64 - address) + kMargin + size_t(offset) * sizeof(T);
    if constexpr (std::is_floating_point_v<T>) std::fill(begin(), end(), std::numeric_limits<T>::quiet_NaN());
  }
  Guarded(int64_t n, int64_t offset, std::span<const T> values) : Guarded(n, offset) {
    std::copy(values.begin(), values.end(), begin());
  }

  T* data() { return reinterpret_cast<T*>(storage_.data() + first_); }
  const T* data() const { return reinterpret_cast<const T*>(storage_.data() + first_); }
  T* begin() { return data(); }
  T* end() { return data() + n_; }
  int64_t size() const { return n_; }
  T& operator[](int64_t i) { return data()[i]; }
  std::span<T> span() { return {data(), size_t(n_)}; }
  std::span<const T> span() const { return {data(), size_t(n_)}; }

  /// Both margins are as they were.
  bool intact() const {
    const auto poisoned = [](uint8_t byte) { return byte == kPoison; };
    return std::all_of(storage_.begin(), storage_.begin() + int64_t(first_), poisoned) &&
           std::all_of(storage_.begin() + int64_t(first_ + size_t(n_) * sizeof(T)), storage_.end(), poisoned);
  }

 private:
  static constexpr size_t kMargin = 256;
  static constexpr uint8_t kPoison = 0xFF;  // as floats and f16: NaN, so a read of the margin shows in the result
  int64_t n_;
  std::vector<uint8_t> storage_;
  size_t first_;
};

/// A [rows, cols] matrix whose rows are `gap` elements apart; the gaps are guarded like the margins.
class GuardedMatrix {
 public:
  GuardedMatrix(int64_t rows, int64_t cols, int64_t gap = 3, int64_t offset = 1)
      : rows_(rows), cols_(cols), stride_(cols + gap), buffer_(rows * (cols + gap), offset) {
    std::memset(buffer_.data(), 0xFF, size_t(buffer_.size()) * sizeof(float));
  }
  View2<float> view() { return {buffer_.data(), rows_, cols_, stride_}; }
  /// The rows one after another, without gaps.
  std::vector<float> values() {
    std::vector<float> packed;
    for (int64_t r = 0; r < rows_; ++r) packed.insert(packed.end(), view().row(r).begin(), view().row(r).end());
    return packed;
  }
  bool intact() {
    if (!buffer_.intact()) return false;
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t i = r * stride_ + cols_; i < (r + 1) * stride_; ++i)
        if (std::bit_cast<uint32_t>(buffer_[i]) != 0xFFFFFFFFu) return false;
    return true;
  }

 private:
  int64_t rows_, cols_, stride_;
  Guarded<float> buffer_;
};

/// `bytes` readable and writable bytes that end, `slack` bytes later, at an inaccessible page. The slack is 0xFF.
class FencedBytes {
 public:
  explicit FencedBytes(int64_t bytes, int64_t slack = 0) : bytes_(bytes) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const size_t used = (size_t(bytes + slack) + page - 1) / page * page;
    mapped_ = used + page;
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for a test buffer");
    base_ = static_cast<std::byte*>(memory);
    if (mprotect(base_ + used, page, PROT_NONE) != 0) throw std::runtime_error("cannot protect a page");
    first_ = base_ + used - size_t(bytes + slack);
    std::memset(base_, 0xFF, used);
  }
  FencedBytes(FencedBytes&& other) noexcept { *this = std::move(other); }
  FencedBytes& operator=(FencedBytes&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    std::swap(base_, other.base_);
    std::swap(first_, other.first_);
    return *this;
  }
  ~FencedBytes() {
    if (base_) munmap(base_, mapped_);
  }
  std::byte* data() { return first_; }
  const std::byte* data() const { return first_; }
  int64_t bytes() const { return bytes_; }
  std::span<std::byte> span() { return {first_, size_t(bytes_)}; }

 private:
  int64_t bytes_ = 0;
  size_t mapped_ = 0;
  std::byte* base_ = nullptr;
  std::byte* first_ = nullptr;
};

/// Kinds of data kernels meet.
enum class Fill { normal, outliers, zeros, tiny, huge };
inline constexpr std::array kFills = {Fill::normal, Fill::outliers, Fill::zeros, Fill::tiny, Fill::huge};

inline std::string_view fill_name(Fill fill) {
  switch (fill) {
    case Fill::normal: return "normal";
    case Fill::outliers: return "outliers";
    case Fill::zeros: return "zeros";
    case Fill::tiny: return "tiny";
    case Fill::huge: return "huge";
  }
  return "?";
}

/// Standard normal values, changed by kind: outliers makes one in 40 fifty times larger; tiny scales to 1e-6 (fp16
/// subnormals); huge scales to 1e3 (near the top of what fp16 holds, with sums far from float's).
inline void fill(Rng& rng, Fill kind, std::span<float> out) {
  for (float& x : out) {
    const double value = rng.normal();
    const bool outlier = rng.next() % 40 == 0;
    switch (kind) {
      case Fill::normal: x = float(value); break;
      case Fill::outliers: x = float(outlier ? 50 * value : value); break;
      case Fill::zeros: x = 0; break;
      case Fill::tiny: x = float(1e-6 * value); break;
      case Fill::huge: x = float(1e3 * value); break;
    }
  }
}

inline std::vector<float> random_floats(uint64_t seed, int64_t n, Fill kind = Fill::normal) {
  std::vector<float> values(size_t(n), 0.0f);
  Rng rng(seed);
  fill(rng, kind, values);
  return values;
}

/// fp16 bit patterns of every class: zeros, subnormals, normals, largest, negative.
inline constexpr std::array<uint16_t, 10> kF16Classes = {0x0000, 0x8000, 0x0001, 0x03FF, 0x0400,
                                                         0x2E66, 0x3C00, 0x7BFF, 0xBC01, 0x8001};

}  // namespace ridge
