// The kernels of attention on a GPU, as a table. What the rows say of themselves needs neither a device nor CUDA, so
// `ridge explain` and `ridge info` show them in every build.
#pragma once

#include <span>
#include <string_view>

#include "op/attn/row_limits.h"
#include "op/cache/layout.h"

namespace ridge {

/// A sequence that brings more new tokens to a step than this is a prompt: its queries share the tiles that they read.
inline constexpr int kShortTokens = 16;

/// One layer's attention for sequences that bring n_new tokens each.
struct DeviceAttentionProblem {
  KvLayerConfig layer;
  int n_new = 1;
};

struct DeviceAttentionVariant {
  std::string_view name;
  Support (*supports)(const DeviceAttentionProblem& p);
};
/// Worst to best; op/attn/attn_cuda.h has the kernels.
std::span<const DeviceAttentionVariant> device_attention_variants();

/// The best row that supports the problem; there always is one up to head_dim 512, or of latent rows up to
/// kMostLatentDim.
const DeviceAttentionVariant& choose_device_attention(const DeviceAttentionProblem& p);

}  // namespace ridge
