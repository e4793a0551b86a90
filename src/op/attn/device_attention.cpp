#include "op/attn/device_attention.h"

namespace ridge {
namespace {

Support rows_support(const DeviceAttentionProblem& p) {
  if (const int most = p.layer.v_is_k ? kMostLatentDim : kMostRowsHeadDim; p.layer.head_dim > most)
    return {false, fmt::format("rows of {} values are wider than {}", p.layer.head_dim, most)};
  return {};
}

Support rows_f16_support(const DeviceAttentionProblem& p) {
  if (p.layer.head_dim > kMostRowsF16Dim)
    return {false, fmt::format("head_dim {} is larger than {}", p.layer.head_dim, kMostRowsF16Dim)};
  if (p.layer.head_dim % 16 != 0) return {false, fmt::format("head_dim {} is no multiple of 16", p.layer.head_dim)};
  const KvLayouts layouts(p.layer, false);
  for (const KvTiles* const tiles : {&layouts.k.tiles, &layouts.v.tiles})
    for (const int format : {tiles->format, tiles->recent})
      if (!fits_f16(format))
        return {false, fmt::format("f16 does not hold all values of {}", kv_formats()[size_t(format)].name)};
  return {};
}

Support prefill_support(const DeviceAttentionProblem& p) {
  if (p.n_new <= kShortTokens) return {false, fmt::format("up to {} new tokens read packed tiles", kShortTokens)};
  return device_tiles(p.layer);
}

Support tiles_support(const DeviceAttentionProblem& p) {
  if (p.n_new > kShortTokens) return {false, fmt::format("more than {} new tokens", kShortTokens)};
  return device_tiles(p.layer);
}

}  // namespace

std::span<const DeviceAttentionVariant> device_attention_variants() {
  static constexpr DeviceAttentionVariant kVariants[] = {
      {"rows", rows_support},
      {"rows-f16", rows_f16_support},
      {"prefill", prefill_support},
      {"tiles", tiles_support},
  };
  return kVariants;
}

const DeviceAttentionVariant& choose_device_attention(const DeviceAttentionProblem& p) {
  return select_row(ForcedKernels(), "attention", device_attention_variants(),
                    [&](const DeviceAttentionVariant& row) { return row.supports(p); });
}

}  // namespace ridge
