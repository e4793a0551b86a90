#include "op/gemv/panels.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "format/int4_g128.h"
#include "format/q4_0.h"
#include "format/q8_0.h"

namespace ridge {
namespace {

constexpr int kScaleBytes = 2 * kPanelRows;

void pack_codes(const Q8_0::Block& block, int row, std::byte* codes) {
  for (int column = 0; column < 32; ++column)
    codes[64 * (column / 4) + 4 * row + column % 4] = std::byte(uint8_t(block.q[column] + 128));
}

void pack_codes(const Q4_0::Block& block, int row, std::byte* codes) {
  // q[i] holds columns i (low) and i + 16 (high): exactly the pair a panel byte holds.
  for (int i = 0; i < 16; ++i) codes[64 * (i / 4) + 4 * row + i % 4] = std::byte(block.q[i]);
}

void pack_codes(const Int4G128::Block& block, int row, std::byte* codes) {
  const auto nibble = [&](int column) { return block.q[column / 2] >> 4 * (column % 2) & 0xF; };
  for (int first = 0; first < Int4G128::kGroup; first += kPanelGroup)
    for (int i = 0; i < 16; ++i)
      codes[PanelUnit<Int4G128>::kGroupBytes * (first / kPanelGroup) + 64 * (i / 4) + 4 * row + i % 4] =
          std::byte(nibble(first + i) | nibble(first + 16 + i) << 4);
}

/// The first row with a scale that is not finite; n_rows where all are.
template <class F>
int64_t pack_panel(int64_t n_rows, int64_t n_in, const std::byte* rows, std::byte* panel) {
  const int64_t n_units = n_in / F::kGroup;
  int64_t first_bad = n_rows;
  for (int row = 0; row < kPanelRows; ++row) {
    for (int64_t unit = 0; unit < n_units; ++unit) {
      typename F::Block block{};
      if (row < n_rows) std::memcpy(&block, rows + (row * n_units + unit) * int64_t(sizeof block), sizeof block);
      std::byte* out = panel + unit * PanelUnit<F>::kBytes;
      std::memcpy(out + 2 * row, &block.scale, 2);
      pack_codes(block, row, out + kScaleBytes);
      constexpr unsigned kExponent = 0x7C00;  // all ones: infinite or NaN
      if ((block.scale & kExponent) == kExponent) first_bad = std::min<int64_t>(first_bad, row);
    }
  }
  return first_bad;
}

}  // namespace

bool has_panels(const WeightFormat& format) {
  return format.name == Q8_0::kName || format.name == Q4_0::kName || format.name == Int4G128::kName;
}

int64_t panel_bytes(const WeightFormat& format, int64_t n_out, int64_t n_in) {
  return (n_out + kPanelRows - 1) / kPanelRows * kPanelRows * format.row_bytes(n_in);
}

int64_t pack_panels(CpuContext& context, const WeightFormat& format, int64_t n_out, int64_t n_in, const std::byte* rows,
                    std::byte* panels) {
  RIDGE_CHECK(has_panels(format), "{} has no panel layout", format.name);
  const auto pack = format.name == Q8_0::kName   ? pack_panel<Q8_0>
                    : format.name == Q4_0::kName ? pack_panel<Q4_0>
                                                 : pack_panel<Int4G128>;
  const int64_t panel_size = panel_bytes(format, kPanelRows, n_in);
  std::atomic<int64_t> first_bad{n_out};
  context.pool.for_each((n_out + kPanelRows - 1) / kPanelRows, [&](int64_t panel, int) {
    const int64_t first = panel * kPanelRows, n = std::min<int64_t>(kPanelRows, n_out - first);
    const int64_t bad = pack(n, n_in, rows + first * format.row_bytes(n_in), panels + panel * panel_size);
    for (int64_t known = first_bad; bad < n && first + bad < known;)
      if (first_bad.compare_exchange_weak(known, first + bad)) break;
  });
  return first_bad < n_out ? first_bad.load() : -1;
}

void quantize_group_ref(const float* x, int8_t* q, float& scale, int32_t& sum) {
  float top = 0;
  bool finite = true;
  for (int i = 0; i < kPanelGroup; ++i) {
    top = std::max(top, std::abs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  scale = finite ? top / 127.0f : NAN;
  const float inverse = group_inverse(top);
  sum = 0;
  for (int i = 0; i < kPanelGroup; ++i) {
    q[i] = finite ? int8_t(std::nearbyint(x[i] * inverse)) : int8_t(0);
    sum += q[i];
  }
}

}  // namespace ridge
