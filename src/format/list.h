// The shelf. A new weight or KV format is one header beside this file and one row: weight formats in weight_types.h, KV
// formats in kv_types.h.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "format/kv_format.h"
#include "format/weight_format.h"

namespace ridge {

/// Every weight format, in the order tables show them.
std::span<const WeightFormat> weight_formats();
/// Every KV cache format, in the order tables show them.
std::span<const KvFormat> kv_formats();

/// Lookup by name; the failure lists the names there are.
Result<const WeightFormat*> find_weight_format(std::string_view name);
Result<const KvFormat*> find_kv_format(std::string_view name);
/// Names of scale rules: none, absmax, norm, lsq, unbiased.
std::string_view scale_name(KvScale scale);
/// The rule of this name, which must be one that `format` offers.
Result<KvScale> find_scale(const KvFormat& format, std::string_view name);
/// Rounding rules: nearest, weighted.
std::string_view rounding_name(KvRounding rounding);
Result<KvRounding> find_rounding(std::string_view name);
/// Lookup by GGUF type id or safetensors dtype; nullptr when no format on the shelf has it.
const WeightFormat* weight_format_of_gguf(uint32_t type);
const WeightFormat* weight_format_of_dtype(std::string_view dtype);

/// Encodes rows of n_in floats. Refuses formats without an encoder, NaN, infinity, values too large for the format and
/// lengths the group does not divide, naming the first place.
Status encode_rows(const WeightFormat& format, std::span<const float> values, int64_t n_in, std::span<std::byte> out);
/// Blocks of `n` elements (a multiple of group): normal noise of deviation `size`, encoded, or random codes of about
/// that size where the format has no encoder or its matrices a scale of their own.
std::vector<std::byte> random_blocks(const WeightFormat& format, Rng& rng, double size, int64_t n);

}  // namespace ridge
