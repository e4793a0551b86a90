#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "format/codes.h"
#include "format/int4_g128.h"
#include "format/list.h"
#include "format/q4_0.h"
#include "format/q5_0.h"
#include "io/packed_parts.h"

namespace ridge::io {
namespace {

constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // nibble of output o % 8
constexpr int kWorstZero = 15;

uint32_t word_at(const Tensor& tensor, int64_t i) {
  uint32_t word;
  std::memcpy(&word, tensor.data.data() + 4 * i, 4);
  return word;
}

/// Difference between a zero and its nibble in qzeros.
int zero_offset(Int4Layout layout) { return layout == Int4Layout::gptq ? 1 : 0; }

/// The sorted columns of a matrix and the group of each.
struct Columns {
  std::vector<int32_t> order;  // empty: as they are
  std::vector<int32_t> group;  // of every column, ascending
};

/// Groups of `g_idx`, or in their natural order.
Result<Columns> sort_columns(const Packing& packing, const Tensor* g_idx, int64_t n_in, int64_t n_groups) {
  const int64_t size = packing.group > 0 ? packing.group : n_in;
  Columns columns;
  for (int64_t i = 0; i < n_in; ++i) columns.group.push_back(int32_t(i / size));
  if (!g_idx) {
    if (!packing.ordered) return bad_file("g_idx is missing, though quantization_config.desc_act is true");
    return columns;
  }
  RIDGE_TRY_STATUS(check_part("g_idx", g_idx, packed_words(), {n_in}));
  std::vector<int32_t> of_input(size_t(n_in), 0);
  for (int64_t i = 0; i < n_in; ++i) {
    const uint32_t group = word_at(*g_idx, i);
    if (group >= uint64_t(n_groups))
      return bad_file("g_idx puts input {} into group {}, expected 0 to {}", i, int32_t(group), n_groups - 1);
    of_input[size_t(i)] = int32_t(group);
  }
  if (of_input == columns.group) return columns;
  columns.order.resize(size_t(n_in));
  std::iota(columns.order.begin(), columns.order.end(), 0);
  std::ranges::stable_sort(columns.order, {}, [&](int32_t i) { return of_input[size_t(i)]; });
  for (int64_t p = 0; p < n_in; ++p) columns.group[size_t(p)] = of_input[size_t(columns.order[size_t(p)])];
  return columns;
}

/// Blocks of a format share a scale: all their columns must be of one group.
Status check_blocks(const Columns& columns, const WeightFormat& format) {
  const auto n_in = ssize(columns.group);
  if (n_in % format.group != 0)
    return bad_file("qweight has rows of {} inputs, expected a multiple of {}", n_in, format.group);
  for (int64_t first = 0; first < n_in; first += format.group)
    if (const int32_t group = columns.group[size_t(first)]; columns.group[size_t(first + format.group - 1)] != group)
      return bad_file("g_idx gives group {} {} inputs, expected a multiple of {}", group,
                      std::ranges::count(columns.group, group), format.group);
  return {};
}

Status check_scales(const Tensor& scales) {
  for (size_t i = 0; i < scales.data.size() / 2; ++i) {
    uint16_t half;
    std::memcpy(&half, scales.data.data() + 2 * i, 2);
    if ((half & 0x7C00) == 0x7C00) return bad_file("scales has {} at place {}", f16_to_f32(half), i);
  }
  return {};
}

/// Readers disagree about a stored 15 of gptq, which is 16 or 0.
Status check_zeros(const Tensor& qzeros, Int4Layout layout) {
  if (zero_offset(layout) == 0) return {};
  for (int64_t i = 0; i < int64_t(qzeros.data.size() / 4); ++i)
    for (int t = 0; t < 8; ++t)
      if ((word_at(qzeros, i) >> (4 * t) & 0xF) == kWorstZero)
        return bad_file("qzeros holds 15 in word {}: some readers take it for a zero of 16, others for 0", i);
  return {};
}

/// One block of `codes`, integers that the scale multiplies.
void put_block(const WeightFormat& format, uint16_t scale, const int8_t* codes, std::byte* to) {
  const auto put = [&](auto& block) {
    block.scale = scale;
    std::memcpy(to, &block, sizeof block);
  };
  if (format.name == Q5_0::kName) {
    Q5_0::Block block = {};
    for (int i = 0; i < Q5_0::kGroup; ++i) put_five_bit_code(codes[i] + 16, i, block.q, block.high);
    put(block);
  } else if (format.name == Q4_0::kName) {
    Q4_0::Block block = {};
    for (int i = 0; i < 16; ++i) block.q[i] = uint8_t((codes[i] + 8) | (codes[i + 16] + 8) << 4);
    put(block);
  } else {
    Int4G128::Block block = {};
    for (int i = 0; i < 64; ++i) block.q[i] = uint8_t((codes[2 * i] + 8) | (codes[2 * i + 1] + 8) << 4);
    put(block);
  }
}

Result<UnpackedMatrix> unpack_ridge(const PackedMatrix& m, const WeightFormat& format) {
  if (m.codes->shape.size() != 2) return bad_file("qweight has {} dimensions, expected 2", m.codes->shape.size());
  UnpackedMatrix to{.format = &format, .n_out = m.codes->shape[0], .n_in = 8 * m.codes->shape[1]};
  RIDGE_TRY_STATUS(check_part("qweight", m.codes, packed_words(), {to.n_out, to.n_in / 8}));
  if (to.n_in % Int4G128::kGroup != 0)
    return bad_file("qweight has rows of {} inputs, expected a multiple of {}", to.n_in, Int4G128::kGroup);
  const int64_t n_blocks = to.n_out * to.n_in / Int4G128::kGroup;
  RIDGE_TRY_STATUS(check_part("scales", m.scales, *weight_format_of_gguf(1), {to.n_out, to.n_in / Int4G128::kGroup}));
  RIDGE_TRY_STATUS(check_scales(*m.scales));
  to.rows = AlignedBuffer(to.n_out * format.row_bytes(to.n_in));
  std::byte* block = to.rows.data();
  for (int64_t i = 0; i < n_blocks; ++i, block += sizeof(Int4G128::Block)) {
    std::memcpy(block, m.scales->data.data() + 2 * i, 2);
    std::memcpy(block + offsetof(Int4G128::Block, q), m.codes->data.data() + 64 * i, 64);
  }
  return to;
}

}  // namespace

const WeightFormat& int4_format(const Packing& packing, std::span<const PackedMatrix> matrices) {
  const auto format = [](const char* name) -> const WeightFormat& { return **find_weight_format(name); };
  if (packing.int4 == Int4Layout::ridge) return format(Int4G128::kName);
  const uint32_t symmetric = packing.int4 == Int4Layout::gptq ? 0x77777777u : 0x88888888u;
  for (const PackedMatrix& m : matrices)
    for (int64_t i = 0; m.qzeros && i < int64_t(m.qzeros->data.size() / 4); ++i)
      if (word_at(*m.qzeros, i) != symmetric) return format(Q5_0::kName);
  return format(packing.group > 0 && packing.group % Int4G128::kGroup == 0 ? Int4G128::kName : Q4_0::kName);
}

Result<UnpackedMatrix> unpack_int4(const Packing& packing, const PackedMatrix& m, const WeightFormat& format) {
  if (packing.int4 == Int4Layout::ridge) return unpack_ridge(m, format);
  const bool awq = packing.int4 == Int4Layout::awq;
  if (m.codes->shape.size() != 2) return bad_file("qweight has {} dimensions, expected 2", m.codes->shape.size());
  const int64_t n_out = m.codes->shape[1] * (awq ? 8 : 1), n_in = m.codes->shape[0] * (awq ? 1 : 8);
  const int64_t n_groups = packing.group > 0 ? (n_in + packing.group - 1) / packing.group : 1;
  RIDGE_TRY_STATUS(check_part("qweight", m.codes, packed_words(), m.codes->shape));
  if (n_out % 8 != 0) return bad_file("qweight has {} outputs, expected a multiple of 8", n_out);
  RIDGE_TRY_STATUS(check_part("scales", m.scales, *weight_format_of_gguf(1), {n_groups, n_out}));
  RIDGE_TRY_STATUS(check_part("qzeros", m.qzeros, packed_words(), {n_groups, n_out / 8}));
  RIDGE_TRY_STATUS(check_scales(*m.scales));
  RIDGE_TRY_STATUS(check_zeros(*m.qzeros, packing.int4));
  RIDGE_TRY(Columns columns, sort_columns(packing, awq ? nullptr : m.g_idx, n_in, n_groups));
  RIDGE_TRY_STATUS(check_blocks(columns, format));

  const auto place = [awq](int64_t out) { return 4 * (awq ? kAwqPlace[out % 8] : int(out % 8)); };
  const auto code_at = [&](int64_t in, int64_t out) {
    return awq ? int(word_at(*m.codes, in * (n_out / 8) + out / 8) >> place(out) & 0xF)
               : int(word_at(*m.codes, in / 8 * n_out + out) >> (4 * (in % 8)) & 0xF);
  };
  const int offset = zero_offset(packing.int4);
  UnpackedMatrix to{.format = &format, .n_out = n_out, .n_in = n_in};
  to.rows = AlignedBuffer(n_out * format.row_bytes(n_in));
  for (int64_t block = 0; block < n_in / format.group; ++block) {
    const int64_t first = block * format.group, group = columns.group[size_t(first)];
    for (int64_t out = 0; out < n_out; ++out) {
      const int zero = int(word_at(*m.qzeros, group * (n_out / 8) + out / 8) >> place(out) & 0xF) + offset;
      int8_t codes[Int4G128::kGroup];
      for (int i = 0; i < format.group; ++i) {
        const int64_t in = columns.order.empty() ? first + i : columns.order[size_t(first + i)];
        codes[i] = int8_t(code_at(in, out) - zero);
      }
      uint16_t scale;
      std::memcpy(&scale, m.scales->data.data() + 2 * (group * n_out + out), 2);
      put_block(format, scale, codes, to.rows.data() + out * format.row_bytes(n_in) + block * format.block_bytes);
    }
  }
  to.order = std::move(columns.order);
  return to;
}

void pack_ridge_qweight(const std::byte* blocks, int64_t n_blocks, std::byte* words) {
  for (int64_t i = 0; i < n_blocks; ++i)
    std::memcpy(words + 64 * i, blocks + i * int64_t(sizeof(Int4G128::Block)) + offsetof(Int4G128::Block, q), 64);
}

void pack_ridge_scales(const std::byte* blocks, int64_t n_blocks, std::byte* scales) {
  for (int64_t i = 0; i < n_blocks; ++i) std::memcpy(scales + 2 * i, blocks + i * int64_t(sizeof(Int4G128::Block)), 2);
}

}  // namespace ridge::io
