// Which rows the attention kernels of a device serve, where tiles hold rows. Plain C++: device_attention.h shows it in
// every build.
#pragma once

#include <type_traits>

#include "format/kv_types.h"
#include "op/cache/tiles.h"

namespace ridge {

// rows_attn() serves heads of up to kMostRowsHeadDim values.
inline constexpr int kMostRowsF16Dim = 576;  ///< widest rows of rows_f16_attn(): latent rows of DeepSeek and GLM
inline constexpr int kMostLatentDim = 768;   ///< widest latent rows of rows_attn()

/// Whether f16 holds the values of a format.
template <class F>
constexpr bool kFitsF16 = !std::is_same_v<F, KvF32> && !std::is_same_v<F, KvBf16>;
/// Whether f16 holds the values of the format with this number.
inline bool fits_f16(int format) {
  return []<class... F>(KvTypes<F...>, int number) {
    constexpr bool kFits[] = {kFitsF16<F>...};
    return kFits[number];
  }(KvFormatTypes(), format);
}

/// Whether rows_f16_attn() serves a layer; of latent rows both sides are K's.
inline bool reads_rows_in_f16(const KvTiles& k, const KvTiles& v) {
  return k.head_dim % 16 == 0 && k.head_dim <= kMostRowsF16Dim && fits_f16(k.format) && fits_f16(k.recent) &&
         fits_f16(v.format) && fits_f16(v.recent);
}

}  // namespace ridge
