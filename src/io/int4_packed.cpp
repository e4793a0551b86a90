#include "io/int4_packed.h"

#include <cstddef>
#include <cstring>

#include "format/int4_g128.h"
#include "format/plain.h"
#include "io/json.h"
#include "io/text.h"

namespace ridge::io {
namespace {

using Block = Int4G128::Block;
constexpr int kGroup = Int4G128::kGroup;
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // nibble of output o % 8: the inverse of the order above

uint32_t word_at(const Tensor& tensor, int64_t i) {
  uint32_t word;
  std::memcpy(&word, tensor.data.data() + 4 * i, 4);
  return word;
}

Status check_tensor(std::string_view what, const Tensor* tensor, std::string_view dtype, std::vector<int64_t> shape) {
  if (!tensor) return bad_file("{} is missing", what);
  if (tensor->format->name != dtype) return bad_file("{} is {}, expected {}", what, tensor->format->name, dtype);
  if (tensor->shape != shape)
    return bad_file("{} is [{}], expected [{}]", what, fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
  return {};
}

/// Every nibble must be `stored`, which means a zero of 8.
Status check_zeros(const Tensor& qzeros, int stored, int offset) {
  for (int64_t i = 0; i < int64_t(qzeros.data.size() / 4); ++i)
    for (int t = 0; t < 8; ++t)
      if (const int zero = int(word_at(qzeros, i) >> (4 * t) & 0xF); zero != stored)
        return bad_file(
            "qzeros has a zero of {} (int4_g128 holds symmetric weights only, zero 8; use the original "
            "weights)",
            zero + offset);
  return {};
}

Status check_order(const Tensor& g_idx) {
  for (int64_t i = 0; i < int64_t(g_idx.data.size() / 4); ++i)
    if (word_at(g_idx, i) != uint32_t(i / kGroup))
      return bad_file("g_idx puts input {} into group {}, expected {} (act-order checkpoints are not supported)", i,
                      word_at(g_idx, i), i / kGroup);
  return {};
}

/// A number of quantization_config that must have one value.
Status check_number(const Json& config, const char* key, int expected, std::string_view where) {
  const auto found = config.find(key);
  if (found != config.end() && found->is_number_integer() && *found == expected) return {};
  return bad_file("{}: quantization_config.{} is {}, expected {} (only 4-bit weights in groups of 128 are supported)",
                  where, key, found == config.end() ? "missing" : found->dump(), expected);
}

bool is_true(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() && found->get<bool>();
}

std::string text_of(const Json& config, const char* key, const char* fallback) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() ? found->get<std::string>() : fallback;
}

}  // namespace

Result<Int4Layout> int4_layout(std::string_view config_json, std::string_view where) {
  RIDGE_TRY(const Json json, parse_json(config_json, where));
  const auto found = json.is_object() ? json.find("quantization_config") : json.end();
  if (found == json.end() || found->is_null()) return Int4Layout::none;
  if (!found->is_object()) return bad_file("{}: quantization_config is not an object", where);
  const Json& config = *found;
  const std::string method = text_of(config, "quant_method", "");
  if (method == "bitnet" || method == "mxfp4") return Int4Layout::none;
  if (method != "ridge-int4" && method != "gptq" && method != "awq")
    return bad_file(
        "{}: quantization_config.quant_method {} is not supported (there are: gptq, awq, mxfp4, ridge-int4)", where,
        in_quotes(method));
  RIDGE_TRY_STATUS(check_number(config, "bits", 4, where));
  RIDGE_TRY_STATUS(check_number(config, "group_size", kGroup, where));
  if (method == "ridge-int4") return Int4Layout::ridge;
  if (method == "awq") {
    const std::string version = text_of(config, "version", "gemm");
    if (version == "gemm" || version == "GEMM") return Int4Layout::awq;
    return bad_file("{}: quantization_config.version {} is not supported (there is: gemm)", where, in_quotes(version));
  }
  if (is_true(config, "desc_act"))
    return bad_file("{}: quantization_config.desc_act is true (act-order checkpoints are not supported)", where);
  if (const auto dynamic = config.find("dynamic"); dynamic != config.end() && !dynamic->empty())
    return bad_file("{}: quantization_config.dynamic gives modules settings of their own (not supported)", where);
  const std::string version = text_of(config, "checkpoint_format", "gptq");
  if (version == "gptq") return Int4Layout::gptq;
  if (version == "gptq_v2") return Int4Layout::gptq_v2;
  return bad_file("{}: quantization_config.checkpoint_format {} is not supported (there are: gptq, gptq_v2)", where,
                  in_quotes(version));
}

Status check_int4(Int4Layout layout, const Int4Matrix& m, int64_t n_out, int64_t n_in) {
  RIDGE_CHECK(layout != Int4Layout::none, "no layout");
  if (n_in % kGroup != 0) return bad_file("qweight has rows of {}, expected a multiple of {}", n_in, kGroup);
  const int64_t n_groups = n_in / kGroup;
  if (layout == Int4Layout::ridge) {
    RIDGE_TRY_STATUS(check_tensor("qweight", m.qweight, "i32", {n_out, n_in / 8}));
    return check_tensor("scales", m.scales, F16::kName, {n_out, n_groups});
  }
  if (n_out % 8 != 0) return bad_file("qweight has {} outputs, expected a multiple of 8", n_out);
  const bool awq = layout == Int4Layout::awq;
  const std::vector<int64_t> shape = awq ? std::vector{n_in, n_out / 8} : std::vector{n_in / 8, n_out};
  RIDGE_TRY_STATUS(check_tensor("qweight", m.qweight, "i32", shape));
  RIDGE_TRY_STATUS(check_tensor("scales", m.scales, F16::kName, {n_groups, n_out}));
  RIDGE_TRY_STATUS(check_tensor("qzeros", m.qzeros, "i32", {n_groups, n_out / 8}));
  const int offset = layout == Int4Layout::gptq ? 1 : 0;
  RIDGE_TRY_STATUS(check_zeros(*m.qzeros, 8 - offset, offset));
  if (awq || !m.g_idx) return {};
  RIDGE_TRY_STATUS(check_tensor("g_idx", m.g_idx, "i32", {n_in}));
  return check_order(*m.g_idx);
}

void unpack_int4(Int4Layout layout, const Int4Matrix& m, int64_t n_out, int64_t n_in, std::byte* blocks) {
  const int64_t n_groups = n_in / kGroup;
  const std::byte *words = m.qweight->data.data(), *scales = m.scales->data.data();
  const auto block_at = [&](int64_t out, int64_t group) {
    return blocks + (out * n_groups + group) * int(sizeof(Block));
  };
  if (layout == Int4Layout::ridge) {
    for (int64_t i = 0; i < n_out * n_groups; ++i) {
      std::memcpy(blocks + i * int64_t(sizeof(Block)), scales + 2 * i, 2);
      std::memcpy(blocks + i * int64_t(sizeof(Block)) + offsetof(Block, q), words + 64 * i, 64);
    }
    return;
  }
  for (int64_t group = 0; group < n_groups; ++group)
    for (int64_t out = 0; out < n_out; ++out) std::memcpy(block_at(out, group), scales + 2 * (group * n_out + out), 2);
  if (layout == Int4Layout::awq) {
    for (int64_t in = 0; in < n_in; ++in)
      for (int64_t out = 0; out < n_out; ++out) {
        const int t = kAwqPlace[out % 8];
        const uint32_t code = word_at(*m.qweight, in * (n_out / 8) + out / 8) >> (4 * t) & 0xF;
        std::byte& byte = block_at(out, in / kGroup)[int64_t(offsetof(Block, q)) + in % kGroup / 2];
        byte = in % 2 == 0 ? std::byte(code) : byte | std::byte(code << 4);
      }
    return;
  }
  // A word of GPTQ is four bytes of a block, unchanged.
  for (int64_t word = 0; word < n_in / 8; ++word)
    for (int64_t out = 0; out < n_out; ++out)
      std::memcpy(block_at(out, word / 16) + offsetof(Block, q) + 4 * (word % 16), words + 4 * (word * n_out + out), 4);
}

void pack_ridge_qweight(const std::byte* blocks, int64_t n_blocks, std::byte* words) {
  for (int64_t i = 0; i < n_blocks; ++i)
    std::memcpy(words + 64 * i, blocks + i * int64_t(sizeof(Block)) + offsetof(Block, q), 64);
}

void pack_ridge_scales(const std::byte* blocks, int64_t n_blocks, std::byte* scales) {
  for (int64_t i = 0; i < n_blocks; ++i) std::memcpy(scales + 2 * i, blocks + i * int64_t(sizeof(Block)), 2);
}

}  // namespace ridge::io
