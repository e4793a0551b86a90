// Row decoders shared by the ISAs: f16 and q8_0 in vectors; any other format through its reference.
#pragma once

#include "format/kv_f16.h"
#include "format/kv_q8_0.h"
#include "format/kv_rotor3.h"
#include "op/attn/kernels.h"

namespace ridge {
namespace {

void decode_rows_generic(const KvFormat& format, const std::byte* rows, int64_t row_bytes, int count, int head_dim,
                         float* out) {
  for (int i = 0; i < count; ++i) format.decode(rows + i * row_bytes, head_dim, out + int64_t(i) * head_dim);
}

void decode_rows_f16(const KvFormat&, const std::byte* rows, int64_t row_bytes, int count, int head_dim, float* out) {
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim)
    for (int d = 0; d < head_dim; d += Simd::kLanes) Simd::store(out + d, Simd::load_f16(rows + 2 * d));
}

void decode_rows_q8_0(const KvFormat&, const std::byte* rows, int64_t row_bytes, int count, int head_dim, float* out) {
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const std::byte* block = rows;
    for (int d = 0; d < head_dim; d += 32, block += sizeof(Q8_0::Block)) {
      uint16_t half;
      __builtin_memcpy(&half, block, 2);
      const Simd::F scale = Simd::set1(f16_to_f32(half));
      for (int j = 0; j < 32; j += Simd::kLanes)
        Simd::store(out + d + j, Simd::mul(Simd::load_i8(block + 2 + j), scale));
    }
  }
}

}  // namespace
}  // namespace ridge
