// Declarations of the attention kernel bodies, for the table.
#pragma once

#include "op/attn/attn.h"

namespace ridge {

void attention_ref(CpuContext& context, const Attention& a);
void attention_avx2(CpuContext& context, const Attention& a);
void attention_avx512(CpuContext& context, const Attention& a);
void attention_int_avx512(CpuContext& context, const Attention& a);
void attention_neon(CpuContext& context, const Attention& a);

ScratchBytes attention_avx2_scratch(const Attention& a, int64_t n_times, int n_threads);
ScratchBytes attention_avx512_scratch(const Attention& a, int64_t n_times, int n_threads);
ScratchBytes attention_int_avx512_scratch(const Attention& a, int64_t n_times, int n_threads);
ScratchBytes attention_neon_scratch(const Attention& a, int64_t n_times, int n_threads);

/// f16, for code of other instruction sets, which may make no function that they share.
const KvFormat& sink_format();

/// Decodes `count` consecutive rows of one kv head into out [count, head_dim]. May read up to kKvPadBytes past the last
/// row.
using DecodeRows = void (*)(const KvFormat& format, const KvCoding& coding, const std::byte* rows, int64_t row_bytes,
                            int count, int head_dim, float* out);
/// The ISA's decoder of a format: its own where there is one, else the reference row by row. Equal bit for bit.
DecodeRows decode_rows_avx2(const KvFormat& format, int head_dim);
DecodeRows decode_rows_avx512(const KvFormat& format, int head_dim);
DecodeRows decode_rows_neon(const KvFormat& format, int head_dim);
/// Slack that every allocation of cache rows has behind it.
inline constexpr int64_t kKvPadBytes = 64;

}  // namespace ridge
