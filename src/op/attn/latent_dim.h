#pragma once

namespace ridge {

/// Widest latent rows that a device serves (latent_attn in op/attn/attn_cuda.h).
inline constexpr int kMostLatentDim = 768;

}  // namespace ridge
