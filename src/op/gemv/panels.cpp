#include "op/gemv/panels.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

namespace ridge {
namespace {

/// Codes of a block in the order of columns.
template <class Block>
void split_nibbles(const Block& block, uint8_t* codes) {  // groups of 32: low nibbles, then high ones
  for (size_t first = 0; first < sizeof block.q; first += 16)
    for (size_t i = 0; i < 16; ++i) {
      codes[2 * first + i] = block.q[first + i] & 0xF;
      codes[2 * first + 16 + i] = block.q[first + i] >> 4;
    }
}
void split(const Q8_0::Block& block, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = uint8_t(block.q[i] + 128);
}
void split(const Q4_0::Block& block, uint8_t* codes) { split_nibbles(block, codes); }
void split(const Q4_1::Block& block, uint8_t* codes) { split_nibbles(block, codes); }
void split(const IQ4_NL::Block& block, uint8_t* codes) { split_nibbles(block, codes); }
void split(const IQ4_XS::Block& block, uint8_t* codes) { split_nibbles(block, codes); }
void split(const MXFP4::Block& block, uint8_t* codes) { split_nibbles(block, codes); }
void split(const NVFP4::Block& block, uint8_t* codes) {
  for (int i = 0; i < NVFP4::kGroup; ++i) codes[i] = uint8_t(NVFP4::code(block, i));
}
void split(const Int4G128::Block& block, uint8_t* codes) {
  for (int i = 0; i < Int4G128::kGroup / 2; ++i) {
    codes[2 * i] = block.q[i] & 0xF;
    codes[2 * i + 1] = block.q[i] >> 4;
  }
}
/// Bit k of eight in byte k.
uint64_t spread(int bits) {
  const uint64_t own = uint64_t(bits) * 0x0101010101010101u & 0x8040201008040201u;  // byte k: bit k or 0
  return (own + 0x7F7F7F7F7F7F7F7Fu) >> 7 & 0x0101010101010101u;
}
/// Nibbles of 32 columns, and their fifth bits, a byte of eight columns.
template <class Block>
void split_five_bits(const Block& block, uint8_t* codes) {
  split_nibbles(block, codes);
  for (int j = 0; j < 4; ++j) {
    uint64_t eight;
    std::memcpy(&eight, codes + 8 * j, 8);
    eight |= spread(block.high[j]) << 4;
    std::memcpy(codes + 8 * j, &eight, 8);
  }
}
void split(const Q5_0::Block& block, uint8_t* codes) { split_five_bits(block, codes); }
void split(const Q5_1::Block& block, uint8_t* codes) { split_five_bits(block, codes); }
void split_sub_blocks(const uint8_t* q, uint8_t* codes) {
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      codes[64 * pair + i] = q[32 * pair + i] & 0xF;
      codes[64 * pair + 32 + i] = q[32 * pair + i] >> 4;
    }
}
void split(const Q4_K::Block& block, uint8_t* codes) { split_sub_blocks(block.q, codes); }
void split(const Q5_K::Block& block, uint8_t* codes) {
  split_sub_blocks(block.q, codes);
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 32; ++i) codes[32 * j + i] |= uint8_t((block.high[i] >> j & 1) << 4);
}
void split(const Q6_K::Block& block, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int quarter = 0; quarter < 4; ++quarter)
      for (int l = 0; l < 32; ++l)
        codes[128 * half + 32 * quarter + l] =
            uint8_t((block.low[64 * half + 32 * (quarter % 2) + l] >> (quarter / 2 * 4) & 0xF) |
                    (block.high[32 * half + l] >> (2 * quarter) & 3) << 4);
}
void split_crumbs(const uint8_t* q, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int quarter = 0; quarter < 4; ++quarter)
      for (int l = 0; l < 32; ++l) codes[128 * half + 32 * quarter + l] = q[32 * half + l] >> (2 * quarter) & 3;
}
void split(const Q3_K::Block& block, uint8_t* codes) {
  split_crumbs(block.q, codes);
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 32; ++i) codes[32 * j + i] |= uint8_t((block.high[i] >> j & 1) << 2);
}
void split(const Q2_K::Block& block, uint8_t* codes) { split_crumbs(block.q, codes); }

void split(const TQ2_0::Block& block, uint8_t* codes) { split_crumbs(block.q, codes); }
void split(const TQ1_0::Block& block, uint8_t* codes) {
  for (int p = 0; p < TQ1_0::kParts; ++p) {
    const TQ1_0::Part part = TQ1_0::part_of(p);
    const uint8_t* const bytes = part.first_byte < 48 ? block.q + part.first_byte : block.high;
    for (int n = 0, power = 1; n < part.n_digits; ++n, power *= 3)
      for (int i = 0; i < part.n_bytes; ++i)
        codes[part.first + part.n_bytes * n + i] = uint8_t((bytes[i] * power & 0xFF) * 3 >> 8);
  }
}

/// Levels of a grid's points, a byte a weight: eight of two bits in a word, or four of three bits. Words take a search
/// each, so they become a table.
template <class Levels, int (*kWord)(int point), int n>
const Levels* grid_levels() {
  static const std::array<Levels, n> kAll = [] {
    constexpr int kBits = sizeof(Levels) == 8 ? 2 : 3;
    std::array<Levels, n> all{};
    for (int i = 0; i < n; ++i)
      for (size_t k = 0; k < sizeof(Levels); ++k)
        all[size_t(i)] |= Levels(kWord(i) >> (kBits * k) & ((1 << kBits) - 1)) << (8 * k);
    return all;
  }();
  return kAll.data();
}
/// Levels 0 to 2 of eight weights, plus 4 where a bit of `high` is set.
void put_eight(uint64_t levels, int high, uint8_t* codes) {
  levels |= spread(high) << 2;
  std::memcpy(codes, &levels, 8);
}
void split(const IQ2_XXS::Block& block, uint8_t* codes) {
  const uint64_t* const levels = grid_levels<uint64_t, iq2_xxs_word, 256>();
  for (int g = 0; g < 32; ++g) {
    uint32_t signs;
    std::memcpy(&signs, block.q + 8 * (g / 4) + 4, 4);
    put_eight(levels[block.q[8 * (g / 4) + g % 4]], even_signs(int(signs >> (g % 4 * 7) & 127)), codes + 8 * g);
  }
}
void split(const IQ2_XS::Block& block, uint8_t* codes) {
  const uint64_t* const levels = grid_levels<uint64_t, iq2_xs_word, 512>();
  for (int g = 0; g < 32; ++g) put_eight(levels[block.q[g] & 511], even_signs(block.q[g] >> 9), codes + 8 * g);
}
void split(const IQ2_S::Block& block, uint8_t* codes) {
  const uint64_t* const levels = grid_levels<uint64_t, iq2_s_word, 1024>();
  for (int g = 0; g < 32; ++g)
    put_eight(levels[block.q[g] | (block.high[g / 4] >> (g % 4 * 2) & 3) << 8], block.signs[g], codes + 8 * g);
}
void split(const IQ1_S::Block& block, uint8_t* codes) {
  const uint64_t* const levels = grid_levels<uint64_t, iq1_word, 2048>();
  for (int g = 0; g < 32; ++g)
    put_eight(levels[block.q[g] | (block.high[g / 4] >> (g % 4 * 3) & 7) << 8], 0, codes + 8 * g);
}
void split(const IQ1_M::Block& block, uint8_t* codes) {
  const uint64_t* const levels = grid_levels<uint64_t, iq1_word, 2048>();
  for (int g = 0; g < 32; ++g) {
    const int high = block.high[g / 2] >> (g % 2 * 4);
    put_eight(levels[block.q[g] | (high & 7) << 8], high >> 3 & 1 ? 0xFF : 0, codes + 8 * g);
  }
}
/// Levels 0 to 7 of four weights, plus 8 where a bit of `signs` is set.
void put_four(uint32_t levels, int signs, uint8_t* codes) {
  levels |= uint32_t(spread(signs & 0xF)) << 3;
  std::memcpy(codes, &levels, 4);
}
void split(const IQ3_XXS::Block& block, uint8_t* codes) {
  const uint32_t* const levels = grid_levels<uint32_t, iq3_xxs_word, 256>();
  for (int g = 0; g < 64; ++g) {
    uint32_t signs;
    std::memcpy(&signs, block.signs + 4 * (g / 8), 4);
    put_four(levels[block.q[g]], even_signs(int(signs >> (g % 8 / 2 * 7) & 127)) >> (g % 2 * 4), codes + 4 * g);
  }
}
void split(const IQ3_S::Block& block, uint8_t* codes) {
  const uint32_t* const levels = grid_levels<uint32_t, iq3_s_word, 512>();
  for (int g = 0; g < 64; ++g)
    put_four(levels[block.q[g] | (block.high[g / 8] >> (g % 8) & 1) << 8], block.signs[g / 2] >> (g % 2 * 4),
             codes + 4 * g);
}

/// A row's codes of 32 columns to their places among the group's vectors (panels.h), four columns at a time.
template <int kLow, int kHigh>
void pack_codes(const uint8_t* codes, int row, std::byte* out) {
  constexpr uint32_t kLowBits = 0x01010101u * ((1u << kLow) - 1), kHighBits = 0x01010101u * ((1u << kHigh) - 1);
  uint32_t words[kLow + kHigh] = {};
  for (int k = 0; k < 8; ++k) {
    uint32_t four;
    std::memcpy(&four, codes + 4 * k, 4);
    if constexpr (kLow == 8) words[k] = four;
    if constexpr (kLow == 4) words[k % 4] |= (four & kLowBits) << (k / 4 * 4);
    if constexpr (kLow == 2) words[k / 4] |= (four & kLowBits) << (k % 4 * 2);
    if constexpr (kHigh > 0) words[kLow + k * kHigh / 8] |= (four >> kLow & kHighBits) << (k % (8 / kHigh) * kHigh);
  }
  for (int v = 0; v < kLow + kHigh; ++v) std::memcpy(out + 64 * v + 4 * row, &words[v], 4);
}

/// Value `i` of `n`, each of six bits, in 3 n / 4 bytes: the last quarter is the upper two bits of the others.
void put_six(std::byte* out, int n, int i, int value) {
  const int part = n / 4;
  if (i < 3 * part) out[i] |= std::byte(value);
  else
    for (int j = 0; j < 3; ++j) out[j * part + i - 3 * part] |= std::byte((value >> 2 * j & 3) << 6);
}

void put_f16(std::byte* out, int row, uint16_t value) { std::memcpy(out + 2 * row, &value, 2); }
constexpr int kF16Bytes = 2 * kPanelRows;
bool is_finite_f16(uint16_t value) { return (value & 0x7C00) != 0x7C00; }

/// The block's fp16 scale d and its minimum, if any.
template <class Block>
uint16_t d_of(const Block& block) {
  if constexpr (requires { block.d; }) return block.d;
  else return block.scale;
}
uint16_t d_of(const IQ1_M::Block& block) {
  uint32_t d = 0;
  for (int k = 0; k < 4; ++k) d |= uint32_t(block.scales[k] >> 12) << (4 * k);
  return uint16_t(d);
}
template <class Block>
uint16_t dmin_of(const Block& block) {
  if constexpr (requires { block.dmin; }) return block.dmin;
  else return block.min;
}

/// Integer scale j of a block as the head of a unit has it, and its minimum.
ScaleMin integers_of(const Q4_K::Block& block, int j) { return unpack_scale_min(block.scales, j); }
ScaleMin integers_of(const Q5_K::Block& block, int j) { return unpack_scale_min(block.scales, j); }
ScaleMin integers_of(const Q6_K::Block& block, int j) { return {uint8_t(block.scales[j]), 0}; }
ScaleMin integers_of(const Q3_K::Block& block, int j) { return {Q3_K::scale_of(block, j) + 32, 0}; }
ScaleMin integers_of(const Q2_K::Block& block, int j) { return {block.scales[j], 0}; }  // both nibbles
ScaleMin integers_of(const IQ4_XS::Block& block, int j) { return {IQ4_XS::scale_of(block, j) + 32, 0}; }
/// Nibbles of odd scales.
int nibble(const uint8_t* nibbles, int j) { return nibbles[j / 2] >> (j % 2 * 4) & 0xF; }
ScaleMin integers_of(const IQ2_XXS::Block& block, int j) { return {block.q[8 * j + 7] >> 4, 0}; }
ScaleMin integers_of(const IQ2_XS::Block& block, int j) { return {nibble(block.scales, j), 0}; }
ScaleMin integers_of(const IQ2_S::Block& block, int j) { return {nibble(block.scales, j), 0}; }
ScaleMin integers_of(const IQ3_XXS::Block& block, int j) { return {block.signs[4 * j + 3] >> 4, 0}; }
ScaleMin integers_of(const IQ3_S::Block& block, int j) { return {nibble(block.scales, j), 0}; }
ScaleMin integers_of(const IQ1_S::Block& block, int j) {  // bit 3 is the sign of the shift
  return {(block.high[j] >> 12 & 7) | block.high[j] >> 15 << 3, 0};
}
ScaleMin integers_of(const IQ1_M::Block& block, int j) { return {block.scales[j / 4] >> (j % 4 * 3) & 7, 0}; }

/// A row's part of the head of a unit; false where a scale is not finite.
template <class F>
bool pack_head(const typename F::Block& block, int row, std::byte* head) {
  using Unit = PanelUnit<F>;
  if constexpr (Unit::kScales == PanelScales::power) {
    head[row] = std::byte(block.exponent);
    return true;
  } else if constexpr (Unit::kScales == PanelScales::halves) {  // levels are twice the values
    for (int j = 0; j < F::kGroup / Unit::kScaled; ++j)
      put_f16(head + kF16Bytes * j, row, f32_to_f16(e4m3_value(block.scales[j]) / 2));
    return true;
  } else {
    constexpr bool kMin = Unit::kMinima == PanelMinima::f16 || Unit::kMinima == PanelMinima::integers;
    put_f16(head, row, d_of(block));
    bool finite = is_finite_f16(d_of(block));
    if constexpr (kMin) {
      put_f16(head + kF16Bytes, row, dmin_of(block));
      finite = finite && is_finite_f16(dmin_of(block));
    }
    if constexpr (Unit::kScales != PanelScales::f16) {
      std::byte* const packed = head + (kMin ? 2 : 1) * kF16Bytes;
      constexpr int n = F::kGroup / Unit::kScaled;
      for (int j = 0; j < n; ++j) {
        const ScaleMin integers = integers_of(block, j);
        const int at = kPanelRows * j + row;
        if constexpr (Unit::kScales == PanelScales::six_bits) {
          constexpr int kAll = kPanelRows * (kMin ? 2 * n : n);
          put_six(packed, kAll, at, integers.scale);
          if constexpr (kMin) put_six(packed, kAll, kPanelRows * n + at, integers.min);
        } else if constexpr (Unit::kScales >= PanelScales::odd) {  // the second half are high nibbles
          packed[at % (kPanelRows * n / 2)] |= std::byte(integers.scale << (j / (n / 2) * 4));
        } else {
          packed[at] = std::byte(integers.scale);
        }
      }
    }
    return finite;
  }
}

/// The first row with a scale that is not finite; n_rows where all are.
template <class F>
int64_t pack_panel(int64_t n_rows, int64_t n_in, const std::byte* rows, std::byte* panel) {
  using Unit = PanelUnit<F>;
  const int64_t n_units = n_in / F::kGroup;
  int64_t first_bad = n_rows;
  for (int64_t unit = 0; unit < n_units; ++unit) {
    std::byte* const head = panel + unit * Unit::kBytes;
    std::memset(head, 0, Unit::kHeadBytes);
    for (int row = 0; row < kPanelRows; ++row) {
      typename F::Block block{};
      if (row < n_rows) std::memcpy(&block, rows + (row * n_units + unit) * int64_t(sizeof block), sizeof block);
      if (!pack_head<F>(block, row, head)) first_bad = std::min<int64_t>(first_bad, row);
      uint8_t codes[F::kGroup];
      split(block, codes);
      for (int group = 0; group < Unit::kGroups; ++group)
        pack_codes<Unit::kLow, Unit::kHigh>(codes + group * kPanelGroup, row,
                                            head + Unit::kHeadBytes + group * Unit::kGroupBytes);
    }
  }
  return first_bad;
}

/// As pack_panel, for FloatPanels.
int64_t pack_float_panel(int64_t n_rows, int64_t n_in, const std::byte* rows, std::byte* panel) {
  const int64_t n_units = n_in / FP8_G32::kGroup;
  int64_t first_bad = n_rows;
  for (int64_t unit = 0; unit < n_units; ++unit, panel += FloatPanels::kUnitBytes)
    for (int row = 0; row < kPanelRows; ++row) {
      FP8_G32::Block block{};
      if (row < n_rows) std::memcpy(&block, rows + (row * n_units + unit) * int64_t(sizeof block), sizeof block);
      const float scale = 256 * block.scale;
      if (!std::isfinite(scale)) first_bad = std::min<int64_t>(first_bad, row);
      std::memcpy(panel + 4 * row, &scale, sizeof scale);
      for (int k = 0; k < kPanelGroup; ++k)
        panel[FloatPanels::kHeadBytes + kPanelRows * k + row] = std::byte(block.q[k]);
    }
  return first_bad;
}

struct Packing {
  std::string_view name;
  int row_bytes, group;  // of a unit
  int64_t (*pack)(int64_t n_rows, int64_t n_in, const std::byte* rows, std::byte* panel);
};
template <class... F>
const Packing* find_packing(const WeightFormat& format, PanelFormatList<F...>) {
  static constexpr Packing kAll[] = {
      {F::kName, PanelUnit<F>::kBytes / kPanelRows, F::kGroup, pack_panel<F>}...,
      {FP8_G32::kName, FloatPanels::kUnitBytes / kPanelRows, FP8_G32::kGroup, pack_float_panel}};
  const auto found = std::ranges::find(kAll, format.name, &Packing::name);
  return found == std::end(kAll) ? nullptr : &*found;
}
const Packing* find_packing(const WeightFormat& format) { return find_packing(format, PanelFormats{}); }

}  // namespace

bool has_float_panels(const WeightFormat& format) { return format.name == FP8_G32::kName; }

bool has_panels(const WeightFormat& format) { return find_packing(format) != nullptr; }

int64_t panel_bytes(const WeightFormat& format, int64_t n_out, int64_t n_in) {
  const Packing* const packing = find_packing(format);
  RIDGE_CHECK(packing, "{} has no panel layout", format.name);
  return (n_out + kPanelRows - 1) / kPanelRows * kPanelRows * (n_in / packing->group) * packing->row_bytes;
}

int64_t pack_panels(CpuContext& context, const WeightFormat& format, int64_t n_out, int64_t n_in, const std::byte* rows,
                    std::byte* panels) {
  const Packing* const packing = find_packing(format);
  RIDGE_CHECK(packing, "{} has no panel layout", format.name);
  const int64_t panel_size = panel_bytes(format, kPanelRows, n_in);
  std::atomic<int64_t> first_bad{n_out};
  context.pool.for_each((n_out + kPanelRows - 1) / kPanelRows, [&](int64_t panel, int) {
    const int64_t first = panel * kPanelRows, n = std::min<int64_t>(kPanelRows, n_out - first);
    const int64_t bad = packing->pack(n, n_in, rows + first * format.row_bytes(n_in), panels + panel * panel_size);
    for (int64_t known = first_bad; bad < n && first + bad < known;)
      if (first_bad.compare_exchange_weak(known, first + bad)) break;
  });
  return first_bad < n_out ? first_bad.load() : -1;
}

ScratchBytes quantized_bytes(int planes, int64_t n_tokens, int64_t n_in) {
  const int64_t n = n_tokens * ((n_in + kPanelChunk - 1) / kPanelChunk);
  return {n * planes * kPanelChunk, n * 4 * (kPanelChunk / kPanelGroup), n * 4 * (kPanelChunk / 16)};
}

ScratchBytes float_tokens_bytes(int64_t n_tokens, int64_t n_in) {
  const int64_t n_chunks = (n_in + FloatPanels::kColumns - 1) / FloatPanels::kColumns;
  return {n_tokens > FloatPanels::kFew ? 4 * n_tokens * n_chunks * (FloatPanels::kColumns + FloatPanels::kSpread) : 0};
}

void quantize_group_ref(const float* x, int planes, int64_t plane_q, int8_t* q, float& scale, int32_t* sum) {
  float top = 0;
  bool finite = true;
  for (int i = 0; i < kPanelGroup; ++i) {
    top = std::max(top, std::abs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  scale = finite ? top / panel_limit(planes) : NAN;
  const float inverse = group_inverse(top, planes);
  sum[0] = sum[1] = 0;
  for (int i = 0; i < kPanelGroup; ++i) {
    const float value = finite ? std::nearbyint(x[i] * inverse) : 0;
    sum[i / 16] += int32_t(value);
    const float high = planes == 1 ? value : std::nearbyint(value / 128);
    q[i] = int8_t(high);
    if (planes == 2) q[plane_q + i] = int8_t(value - 128 * high);
  }
}

}  // namespace ridge
