// The attention table, worst to best.
#include "op/attn/kernels.h"
#include "op/cache/levels.h"
#include "op/trace.h"

namespace ridge {
namespace {

const KvFormat& format_of(int number) { return kv_formats()[size_t(number)]; }

Support any(const Attention&) { return {}; }
#if defined(__x86_64__)
/// The rest of the formats takes floats there too; a problem without integers belongs to the kernel of floats.
Support any_integers(const Attention& a) {
  for (const KvTiles* t : {&a.k, &a.v}) {
    if (int_rounding(format_of(t->format), t->head_dim)) return {};
    if (t->ring_tiles > 0 && int_rounding(format_of(t->recent), t->head_dim)) return {};
  }
  return {false, fmt::format("no rows of integers, or head_dim {} is not 64, 128 or 256", a.k.head_dim)};
}
#endif

}  // namespace

const KvFormat& sink_format() {
  static const KvFormat& f16 = *find_kv_format("f16").or_throw();
  return f16;
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

std::span<const AttentionVariant> attention_variants() {
  static constexpr AttentionVariant kVariants[] = {
    {"ref", Isa::scalar, any, attention_ref},
#if defined(__x86_64__)
    {"float-avx2", Isa::avx2, any, attention_avx2, attention_avx2_scratch},
    {"float-avx512", Isa::avx512, any, attention_avx512, attention_avx512_scratch},
    {"int-avx512", Isa::avx512, any_integers, attention_int_avx512, attention_int_avx512_scratch, true},
#elif defined(__aarch64__)
    {"float-neon", Isa::neon, any, attention_neon, attention_neon_scratch},
#endif
  };
  return kVariants;
}

Work attention_work(const Attention& a) {
  Work work;
  for (const KvSpan& span : a.spans) {
    const int64_t rows = span.n_rows, values = rows * a.n_heads * a.k.head_dim;
    int64_t pairs = 0;  // query, key it may see
    for (int n = span.n_past + 1; n <= span.n_keys(); ++n) pairs += n - a.first_key(n);
    const auto read = [&](const KvTiles& t) { return kv_read_bytes(t, span.n_keys(), span.n_rows); };
    work += {4 * values + read(a.k) + (a.v.side == KvSide::k ? 0 : read(a.v)), 4 * values,
             4 * a.n_heads * int64_t(a.k.head_dim) * pairs};
  }
  return work;
}

void attention(CpuContext& context, const Attention& a) {
  RIDGE_CHECK(!a.spans.empty() && a.k.n_kv_heads > 0 && a.n_heads % a.k.n_kv_heads == 0,
              "{} spans, {} heads, {} kv heads", a.spans.size(), a.n_heads, a.k.n_kv_heads);
  const AttentionVariant& variant = select_variant(context, "attention", attention_variants(), a);
  const TracedOp traced(context, "attention", variant.name, attention_work(a),
                        [&] { return fmt::format("{}/{}/{}", a.n_heads, a.k.n_kv_heads, a.k.head_dim); });
  variant.run(context, a);
}

AttentionProblem::AttentionProblem(const KvLayerConfig& layer, int n_heads, int n_keys, int n_queries)
    : span_{.n_rows = n_queries, .n_past = n_keys - n_queries},
      a_{.n_heads = n_heads,
         .scale = 1,
         .k = KvLayout(layer, KvSide::k, false).tiles,
         .v = KvLayout(layer, layer.v_is_k ? KvSide::k : KvSide::v, false).tiles} {
  a_.spans = {&span_, 1};
}

}  // namespace ridge
