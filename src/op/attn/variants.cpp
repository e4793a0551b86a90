// The attention tables, worst to best.
#include "op/attn/kernels.h"
#include "op/attn/levels.h"
#include "op/trace.h"

namespace ridge {
namespace {

Support any_decode(const AttnDecode&) { return {}; }
/// The rest of the formats takes floats there too; a problem without integers belongs to the kernel of floats.
Support any_integers(const AttnDecode& a) {
  for (const KvSide* side : {&a.k, &a.v})
    for (int s = 0; s < side->n_segments; ++s)
      if (int_rounding(*side->segments[size_t(s)].format, a.head_dim)) return {};
  return {false, fmt::format("no rows of integers, or head_dim {} is not 64, 128 or 256", a.head_dim)};
}
Support any_prefill(const AttnPrefill&) { return {}; }

/// The vector kernels take a tile of 32 positions as coded or exact as a whole.
Support whole_tiles(const AttnPrefill& a) {
  for (const PrefillSide* side : {&a.k, &a.v}) {
    const KvRetention& r = side->retention;
    const bool all_coded = r.window == 0 && r.tile == 1;
    if (!all_coded && r.tile % 32 != 0)
      return {false, fmt::format("codes {} positions at a time, not a multiple of 32", r.tile)};
  }
  return {};
}

}  // namespace

KvSide kv_side_without_rows(const KvFormat& format, int head_dim, int n_keys) {
  KvSide side;
  side.segments[0].format = &format;
  side.segments[0].row_bytes = format.row_bytes(head_dim);
  side.segments[0].count = n_keys;
  side.n_segments = 1;
  return side;
}

std::optional<IntRounding> int_rounding(const KvFormat& format, int head_dim) {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) return {};
  for (const std::string_view name : {"q8_0", "p8", "i8r"})
    if (format.name == name) return IntRounding{127 * 128, 255 * 256, 0};
  for (const std::string_view name : {"rotor-3", "rotor-3s"})
    if (format.name == name) return IntRounding{127, 255, IntLevels<3>::kError};
  if (format.name == "rotor-4") return IntRounding{127, 255, IntLevels<4>::kError};
  if (format.name == "q4_0") return IntRounding{127, 255, 0};
  return {};
}

std::span<const AttnDecodeVariant> attn_decode_variants() {
  static constexpr AttnDecodeVariant kVariants[] = {
      {"ref", Isa::scalar, any_decode, attn_decode_ref},
      {"split-avx2", Isa::avx2, any_decode, attn_decode_avx2},
      {"split-avx512", Isa::avx512, any_decode, attn_decode_avx512},
      {"int-avx512", Isa::avx512, any_integers, attn_decode_int_avx512, true},
  };
  return kVariants;
}

std::span<const AttnPrefillVariant> attn_prefill_variants() {
  static constexpr AttnPrefillVariant kVariants[] = {
      {"ref", Isa::scalar, any_prefill, attn_prefill_ref},
      {"online-avx2", Isa::avx2, whole_tiles, attn_prefill_avx2},
      {"online-avx512", Isa::avx512, whole_tiles, attn_prefill_avx512},
  };
  return kVariants;
}

Work attn_decode_work(const AttnDecode& a) {
  Work work{.read_bytes = 4 * int64_t(a.n_heads) * a.head_dim,
            .write_bytes = 4 * int64_t(a.n_heads) * a.head_dim,
            .flops = 4 * int64_t(a.n_heads) * a.head_dim * a.n_keys};
  for (const KvSide* side : {&a.k, &a.v})
    for (int s = 0; s < side->n_segments; ++s)
      work.read_bytes += int64_t(side->segments[size_t(s)].count) * side->segments[size_t(s)].row_bytes * a.n_kv_heads;
  return work;
}

Work attn_prefill_work(const AttnPrefill& a) {
  const int64_t dim = a.head_dim, before = a.n_keys - a.n_tokens, tokens = a.n_tokens;
  const int64_t pairs = tokens * before + tokens * (tokens + 1) / 2;  // query, key it may see
  Work work{.read_bytes = 4 * tokens * a.n_heads * dim,
            .write_bytes = 4 * tokens * a.n_heads * dim,
            .flops = 4 * a.n_heads * dim * pairs};
  for (const PrefillSide* side : {&a.k, &a.v}) {
    const int64_t coded = std::min(before, int64_t(std::max(0, side->exact_first)));
    work.read_bytes += a.n_kv_heads * (coded * side->row_bytes + (a.n_keys - coded) * 4 * dim);
  }
  return work;
}

void attn_decode(CpuContext& context, const AttnDecode& a) {
  RIDGE_CHECK(a.n_keys > 0 && a.n_kv_heads > 0 && a.n_heads % a.n_kv_heads == 0, "{} keys, {} heads, {} kv heads",
              a.n_keys, a.n_heads, a.n_kv_heads);
  const AttnDecodeVariant& variant = select_variant(context, "attn_decode", attn_decode_variants(), a);
  const TracedOp traced(context, "attention", variant.name, attn_decode_work(a),
                        [&] { return fmt::format("{}/{}/{}", a.n_heads, a.n_kv_heads, a.head_dim); });
  variant.run(context, a);
}

void attn_prefill(CpuContext& context, const AttnPrefill& a) {
  RIDGE_CHECK(a.n_tokens > 0 && a.n_keys >= a.n_tokens && a.n_kv_heads > 0 && a.n_heads % a.n_kv_heads == 0,
              "{} tokens, {} keys, {} heads, {} kv heads", a.n_tokens, a.n_keys, a.n_heads, a.n_kv_heads);
  const AttnPrefillVariant& variant = select_variant(context, "attn_prefill", attn_prefill_variants(), a);
  const TracedOp traced(context, "attention", variant.name, attn_prefill_work(a), [&] {
    return fmt::format("{}/{}/{}, {} tokens", a.n_heads, a.n_kv_heads, a.head_dim, a.n_tokens);
  });
  variant.run(context, a);
}

}  // namespace ridge
