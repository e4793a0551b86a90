// Row decoders shared by the ISAs: the 16-bit and 8-bit formats in vectors; what an ISA has no decoder for goes through
// its reference.
#pragma once

#include "format/kv_bf16.h"
#include "format/kv_f16.h"
#include "format/kv_i8r.h"
#include "format/kv_p8.h"
#include "format/kv_q4_0.h"
#include "format/kv_q8_0.h"
#include "format/kv_rotor3.h"
#include "format/kv_rotor3s.h"
#include "format/kv_rotor3u.h"
#include "format/kv_rotor4.h"
#include "op/attn/kernels.h"

namespace ridge {
namespace {

void decode_rows_generic(const KvFormat& format, const KvCoding& coding, const std::byte* rows, int64_t row_bytes,
                         int count, int head_dim, float* out) {
  for (int i = 0; i < count; ++i) format.decode(rows + i * row_bytes, head_dim, coding, out + int64_t(i) * head_dim);
}

void decode_rows_f16(const KvFormat&, const KvCoding&, const std::byte* rows, int64_t row_bytes, int count,
                     int head_dim, float* out) {
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim)
    for (int d = 0; d < head_dim; d += Simd::kLanes) Simd::store(out + d, Simd::load_f16(rows + 2 * d));
}

void decode_rows_bf16(const KvFormat&, const KvCoding&, const std::byte* rows, int64_t row_bytes, int count,
                      int head_dim, float* out) {
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim)
    for (int d = 0; d < head_dim; d += Simd::kLanes) Simd::store(out + d, Simd::load_bf16(rows + 2 * d));
}

inline float scale_at(const std::byte* at) {
  uint16_t half;
  __builtin_memcpy(&half, at, 2);
  return f16_to_f32(half);
}

/// n signed bytes times one scale; n a multiple of the lanes.
inline void scale_bytes(const std::byte* codes, int n, float scale, float* out) {
  const Simd::F factor = Simd::set1(scale);
  for (int j = 0; j < n; j += Simd::kLanes) Simd::store(out + j, Simd::mul(Simd::load_i8(codes + j), factor));
}

void decode_rows_q8_0(const KvFormat&, const KvCoding&, const std::byte* rows, int64_t row_bytes, int count,
                      int head_dim, float* out) {
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const std::byte* block = rows;
    for (int d = 0; d < head_dim; d += 32, block += sizeof(Q8_0::Block))
      scale_bytes(block + 2, 32, scale_at(block), out + d);
  }
}

void decode_rows_p8(const KvFormat&, const KvCoding&, const std::byte* rows, int64_t row_bytes, int count, int head_dim,
                    float* out) {
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim)
    for (int d = 0; d < head_dim; d += 32) scale_bytes(rows + d, 32, scale_at(rows + head_dim + d / 16), out + d);
}

void decode_rows_i8r(const KvFormat&, const KvCoding&, const std::byte* rows, int64_t row_bytes, int count,
                     int head_dim, float* out) {
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim)
    scale_bytes(rows, head_dim, scale_at(rows + head_dim), out);
}

/// The decoders above, by format; nullptr when there is none for this format and head size.
inline DecodeRows common_decoder(const KvFormat& format, int head_dim) {
  const bool whole = head_dim % Simd::kLanes == 0;
  if (format.name == KvF16::kName && whole) return decode_rows_f16;
  if (format.name == KvBf16::kName && whole) return decode_rows_bf16;
  if (format.name == KvQ8_0::kName) return decode_rows_q8_0;
  if (format.name == KvP8::kName) return decode_rows_p8;
  if (format.name == KvI8r::kName && whole) return decode_rows_i8r;
  return nullptr;
}

}  // namespace
}  // namespace ridge
