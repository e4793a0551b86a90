// Packed matrices of checkpoints: each layout, written here element by element from its description, gives the values
// that the description says; what is missing or means nothing is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "cases/checkpoint.h"
#include "format/e4m3.h"
#include "model/convert.h"
#include "op/cpu.h"

namespace ridge {
namespace {

using testing::HasSubstr;

/// A matrix of a checkpoint and its values [n_out, n_in].
struct Expected {
  int64_t n_out, n_in;
  std::vector<float> values;
};

/// Fills in the seven projections with pack(checkpoint, name, n_out, n_in, seed) and holds those that are loaded to the
/// values that it returns; every one must be in `format`.
template <class Pack>
void expect_values(Checkpoint& c, std::string_view format, const Pack& pack) {
  c.add_rest();
  std::vector<Expected> expected;
  for (const auto& [name, n_out, n_in] : c.matrices())
    expected.push_back({n_out, n_in, pack(c, name, n_out, n_in, expected.size() + 1)});
  const TempDir directory;
  const LoadedModel model = load_model(c.write(directory)).or_throw();
  EXPECT_THAT(model.packing, HasSubstr(std::string(format)));
  const LayerWeights& layer = model.weights.layers[0];
  const Linear* const loaded[] = {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
  for (size_t i = 0; i < expected.size(); ++i) {
    const Linear& m = *loaded[i];
    ASSERT_EQ(m.format->name, format);
    std::vector<float> row(size_t(m.n_in));
    for (int64_t o = 0; o < m.n_out; ++o) {
      m.format->decode(m.rows + o * m.format->row_bytes(m.n_in), m.n_in, row.data());
      for (int64_t p = 0; p < m.n_in; ++p) {
        const int64_t column = m.order ? m.order[p] : p;
        ASSERT_EQ(row[size_t(p)] * m.scale, expected[i].values[size_t(o * m.n_in + column)])
            << i << " " << o << " " << p;
      }
    }
  }
}

// Int4 with zeros.

struct Int4Case {
  io::Int4Layout layout;
  int64_t group;
  bool symmetric = false, sorted = false;
  std::string_view format;
};

std::string config_of(const Int4Case& c) {
  const char* const method = c.layout == io::Int4Layout::awq ? "awq" : "gptq";
  std::string config = fmt::format(R"({{"quant_method":"{}","bits":4,"group_size":{})", method, c.group);
  if (c.layout == io::Int4Layout::gptq_v2) config += R"(,"checkpoint_format":"gptq_v2")";
  if (c.sorted) config += R"(,"desc_act":true)";
  return config + "}";
}

std::vector<float> pack_int4(const Int4Case& of, Checkpoint& c, const std::string& name, int64_t n_out, int64_t n_in,
                             uint64_t seed) {
  Rng rng(seed);
  const bool awq = of.layout == io::Int4Layout::awq;
  const int64_t group = of.group > 0 ? of.group : n_in, n_groups = (n_in + group - 1) / group;
  const int awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  const auto place = [&](int64_t o) { return 4 * (awq ? awq_place[o % 8] : int(o % 8)); };
  std::vector<uint32_t> words(size_t(n_out * n_in / 8)), zero_words(size_t(n_groups * n_out / 8)), g_idx;
  std::vector<uint16_t> scales;
  std::vector<int> zeros;
  for (int64_t i = 0; i < n_groups * n_out; ++i) {
    scales.push_back(uint16_t(0x2000 + rng.next() % 0x400));
    const int zero = of.symmetric ? 8 : 1 + int(rng.next() % 15);
    zeros.push_back(zero);
    const int64_t o = i % n_out;
    zero_words[size_t(i / n_out * (n_out / 8) + o / 8)] |= uint32_t(zero - (of.layout == io::Int4Layout::gptq))
                                                           << place(o);
  }
  for (int64_t i = 0; i < n_in; ++i) g_idx.push_back(uint32_t(i / group));
  if (of.sorted)
    for (size_t i = g_idx.size() - 1; i > 0; --i) std::swap(g_idx[i], g_idx[rng.next() % (i + 1)]);
  std::vector<float> values;
  for (int64_t o = 0; o < n_out; ++o)
    for (int64_t i = 0; i < n_in; ++i) {
      const auto code = uint32_t(rng.next() % 16);
      if (awq) words[size_t(i * (n_out / 8) + o / 8)] |= code << place(o);
      else words[size_t(i / 8 * n_out + o)] |= code << (4 * (i % 8));
      const auto at = size_t(int64_t(g_idx[size_t(i)]) * n_out + o);
      values.push_back(float(int(code) - zeros[at]) * f16_to_f32(scales[at]));
    }
  c.add(name + ".qweight", io::packed_words(), awq ? std::vector{n_in, n_out / 8} : std::vector{n_in / 8, n_out},
        words);
  c.add(name + ".qzeros", io::packed_words(), {n_groups, n_out / 8}, zero_words);
  c.add(name + ".scales", kF16, {n_groups, n_out}, scales);
  if (!awq) c.add(name + ".g_idx", io::packed_words(), {n_in}, g_idx);
  return values;
}

class Int4Zeros : public testing::TestWithParam<Int4Case> {};
using enum io::Int4Layout;
INSTANTIATE_TEST_SUITE_P(
    Layouts, Int4Zeros,
    testing::Values(Int4Case{.layout = awq, .group = 128, .format = "q5_0"},
                    Int4Case{.layout = awq, .group = 32, .format = "q5_0"},
                    Int4Case{.layout = awq, .group = 64, .symmetric = true, .format = "q4_0"},
                    Int4Case{.layout = awq, .group = -1, .format = "q5_0"},
                    Int4Case{.layout = gptq, .group = 64, .format = "q5_0"},
                    Int4Case{.layout = gptq, .group = 32, .sorted = true, .format = "q5_0"},
                    Int4Case{.layout = gptq_v2, .group = 128, .sorted = true, .format = "q5_0"},
                    Int4Case{.layout = gptq, .group = 128, .symmetric = true, .sorted = true, .format = "int4_g128"},
                    Int4Case{.layout = gptq_v2, .group = 32, .symmetric = true, .format = "q4_0"}));

TEST_P(Int4Zeros, EveryWeightIsTheDescriptions) {
  Checkpoint c;
  c.quantization_config = config_of(GetParam());
  expect_values(c, GetParam().format, [&](auto&&... parts) { return pack_int4(GetParam(), parts...); });
}

TEST(Int4Order, GroupsThatBlocksCannotShareAreRefused) {
  Checkpoint c;
  c.add_rest();
  const Int4Case of{.layout = gptq, .group = 64, .format = "q5_0"};
  c.quantization_config = config_of(of);
  uint64_t seed = 0;
  for (const auto& [name, n_out, n_in] : c.matrices()) pack_int4(of, c, name, n_out, n_in, ++seed);
  const uint32_t second = 1;  // 63 inputs of group 0, 65 of group 1
  std::memcpy(c.tensors.at("model.layers.0.mlp.up_proj.g_idx").second.data(), &second, sizeof second);
  EXPECT_THAT(message_of(c), HasSubstr("mlp.up_proj.g_idx gives group 0 63 inputs, expected a multiple of 32"));
}

// FP8.

struct Fp8Case {
  std::string config, suffix = "_inv";
  int64_t rows = 0, columns = 0;  ///< of a block; rows 1: a scale of a row; 0: of the matrix
  int64_t d_ff = 256;
  std::string_view format = "fp8_g32";
  const char* dtype = "F32";
  bool scalar = false;
};
constexpr const char* kBlocks = R"({"quant_method":"fp8","weight_block_size":[128,128]})";
constexpr const char* kNoBlocks = R"({"quant_method":"fp8","activation_scheme":"static"})";

std::vector<float> pack_fp8(const Fp8Case& of, Checkpoint& c, const std::string& name, int64_t n_out, int64_t n_in,
                            uint64_t seed) {
  Rng rng(seed);
  const int64_t rows = of.rows > 0 ? of.rows : n_out, columns = of.columns > 0 ? of.columns : n_in;
  const int64_t down = (n_out + rows - 1) / rows, across = (n_in + columns - 1) / columns;
  std::vector<float> scales, values;
  for (int64_t i = 0; i < down * across; ++i) scales.push_back(float(0.001 * (1 + double(rng.next() % 1024) / 1024)));
  std::vector<uint16_t> halves;
  for (float& scale : scales) {
    halves.push_back(f32_to_bf16(scale));
    if (of.dtype == std::string("BF16")) scale = bf16_to_f32(halves.back());
  }
  std::vector<uint8_t> codes;
  for (int64_t o = 0; o < n_out; ++o)
    for (int64_t i = 0; i < n_in; ++i) {
      auto code = uint8_t(rng.next());
      if (e4m3_is_nan(code)) code ^= 1;
      codes.push_back(code);
      const int exponent = code >> 3 & 15, fraction = code & 7;
      const float magnitude =
          exponent > 0 ? std::ldexp(float(8 + fraction), exponent - 10) : std::ldexp(float(fraction), -9);
      values.push_back((code & 0x80 ? -magnitude : magnitude) * scales[size_t(o / rows * across + i / columns)]);
    }
  c.add(name + ".weight", io::packed_e4m3(), {n_out, n_in}, codes);
  const std::vector<int64_t> shape = of.scalar ? std::vector<int64_t>{1} : std::vector{down, across};
  if (of.dtype == std::string("BF16"))
    c.add(name + ".weight_scale" + of.suffix, *weight_format_of_dtype("BF16"), shape, halves);
  else c.add(name + ".weight_scale" + of.suffix, *weight_format_of_dtype("F32"), shape, scales);
  c.add(name + ".input_scale", *weight_format_of_dtype("F32"), {1}, std::vector<float>{0.5f});
  return values;
}

class Fp8 : public testing::TestWithParam<Fp8Case> {};
INSTANTIATE_TEST_SUITE_P(Blocks, Fp8,
                         testing::Values(Fp8Case{.config = kBlocks, .rows = 128, .columns = 128},
                                         Fp8Case{.config = kBlocks, .rows = 128, .columns = 128, .d_ff = 224},
                                         Fp8Case{.config = kBlocks, .rows = 128, .columns = 128, .dtype = "BF16"},
                                         Fp8Case{.config = R"({"quant_method":"fp8","weight_block_size":[64,32]})",
                                                 .rows = 64,
                                                 .columns = 32},
                                         Fp8Case{.config = R"({"quant_method":"fp8","weight_block_size":[64,48]})",
                                                 .rows = 64,
                                                 .columns = 48,
                                                 .format = "f32"},
                                         Fp8Case{.config = kNoBlocks, .suffix = "", .rows = 1},
                                         Fp8Case{.config = kNoBlocks, .scalar = true}));

TEST_P(Fp8, EveryWeightIsTheDescriptions) {
  Checkpoint c(int(GetParam().d_ff));
  c.quantization_config = GetParam().config;
  expect_values(c, GetParam().format, [&](auto&&... parts) { return pack_fp8(GetParam(), parts...); });
}

Checkpoint fp8_checkpoint() {
  Checkpoint c;
  c.add_rest();
  c.quantization_config = kBlocks;
  const Fp8Case of{.config = kBlocks, .rows = 128, .columns = 128};
  uint64_t seed = 0;
  for (const auto& [name, n_out, n_in] : c.matrices()) pack_fp8(of, c, name, n_out, n_in, ++seed);
  return c;
}

TEST(Fp8Refusals, WhatIsMissingOrMeansNothingIsRefusedByName) {
  const std::string q = "model.layers.0.self_attn.q_proj";
  const auto changed = [&](const std::function<void(Checkpoint&)>& change) {
    Checkpoint c = fp8_checkpoint();
    change(c);
    return message_of(c);
  };
  const WeightFormat& f32 = *weight_format_of_dtype("F32");
  EXPECT_EQ(changed([](Checkpoint&) {}), "");
  EXPECT_THAT(changed([&](Checkpoint& c) { c.tensors.erase(q + ".weight_scale_inv"); }),
              HasSubstr(q + ".weight_scale_inv is missing"));
  EXPECT_THAT(changed([&](Checkpoint& c) { c.tensors.erase(q + ".weight"); }), HasSubstr(q + ".weight is missing"));
  EXPECT_THAT(changed([&](Checkpoint& c) {
                c.add(q + ".weight_scale_inv", f32, {1, 2}, std::vector<float>(2));
              }),
              HasSubstr("weight_scale_inv is [1, 2], expected [1, 1]"));
  EXPECT_THAT(changed([&](Checkpoint& c) {
                c.add(q + ".weight_scale_inv", f32, {128, 1}, std::vector<float>(128));
              }),
              HasSubstr("weight_scale_inv is [128, 1], expected [1, 1]"));
  for (const float bad : {NAN, INFINITY, -INFINITY})
    EXPECT_THAT(changed([&](Checkpoint& c) {
                  c.add(q + ".weight_scale_inv", f32, {1, 1}, std::vector{bad});
                }),
                HasSubstr(q + ".weight_scale_inv has "));
  EXPECT_THAT(changed([&](Checkpoint& c) {
                c.add(q + ".weight_scale_inv", io::packed_words(), {1, 1}, std::vector<uint32_t>(1));
              }),
              HasSubstr("weight_scale_inv is i32, expected a float format"));
  for (const uint8_t bad : {0x7F, 0xFF})
    EXPECT_THAT(changed([&](Checkpoint& c) { c.tensors.at(q + ".weight").second[130] = std::byte(bad); }),
                HasSubstr(q + ".weight holds a NaN in row 1 column 2"));
  EXPECT_THAT(changed([&](Checkpoint& c) {
                c.add(q + ".weight", io::packed_e4m3(), {64, 128}, std::vector<uint8_t>(64 * 128));
              }),
              HasSubstr(q + ".weight is [64, 128], expected [128, 128]"));
  EXPECT_THAT(
      changed([&](Checkpoint& c) { c.add("model.norm.weight", io::packed_e4m3(), {128}, std::vector<uint8_t>(128)); }),
      HasSubstr("model.norm.weight has 1 dimensions, expected 2"));
  EXPECT_THAT(changed([&](Checkpoint& c) { c.add("stray.weight_scale_inv", f32, {1}, std::vector<float>(1)); }),
              HasSubstr("stray.weight_scale_inv"));
  const std::pair<const char*, const char*> configs[] = {
      {R"({"quant_method":"fp8","weight_block_size":[128]})", "weight_block_size is [128]"},
      {R"({"quant_method":"fp8","weight_block_size":[0,128]})", "weight_block_size is [0,128]"},
      {R"({"quant_method":"fp8","weight_block_size":[128,"a"]})", "weight_block_size is [128,\"a\"]"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "quantization_config.fmt is 'e5m2'"}};
  for (const auto& [config, expected] : configs)
    EXPECT_THAT(changed([&](Checkpoint& c) { c.quantization_config = config; }), HasSubstr(expected)) << config;
}

/// An excluded module is a plain tensor, whatever the configuration calls it.
TEST(Fp8Mixed, ExcludedModulesStayAsTheyAre) {
  Checkpoint c = fp8_checkpoint();
  const std::string up = "model.layers.0.mlp.up_proj";
  for (const char* part : {".weight", ".weight_scale_inv", ".input_scale"}) c.tensors.erase(up + part);
  c.add_f16(up + ".weight", {256, 128}, 9);
  c.quantization_config =
      R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":[")" + up + "\"]}";
  const TempDir directory;
  const LoadedModel model = load_model(c.write(directory)).or_throw();
  EXPECT_EQ(model.weights.layers[0].up.format->name, "f16");
  EXPECT_EQ(model.weights.layers[0].gate.format->name, "fp8_g32");
  EXPECT_THAT(model.packing, HasSubstr("fp8: 6 matrices of 8.0"));
}

// NVFP4.

struct Nvfp4Case {
  bool divides;
  std::string config;
};
constexpr const char* kModelOpt = R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head*"]})";
constexpr const char* kCompressed =
    R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","ignore":["re:.*lm_head"],"config_groups":)"
    R"({"group_0":{"weights":{"num_bits":4,"type":"float","group_size":16}}}})";

std::vector<float> pack_nvfp4(bool divides, Checkpoint& c, const std::string& name, int64_t n_out, int64_t n_in,
                              uint64_t seed) {
  constexpr float kLevels[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  Rng rng(seed);
  std::vector<uint8_t> codes(size_t(n_out * n_in / 2)), scales;
  for (int64_t i = 0; i < n_out * n_in / 16; ++i) scales.push_back(uint8_t(0x20 + rng.next() % 0x40));
  const float global = divides ? 512.0f * float(seed) : 0.003f * float(seed), factor = divides ? 1 / global : global;
  std::vector<float> values;
  for (int64_t i = 0; i < n_out * n_in; ++i) {
    const auto code = int(rng.next() % 16);
    codes[size_t(i / 2)] |= uint8_t(code << (i % 2 * 4));
    const float level = code & 8 ? -kLevels[code & 7] : kLevels[code & 7];
    values.push_back(level * e4m3_value(scales[size_t(i / 16)]) * factor);
  }
  const WeightFormat& f32 = *weight_format_of_dtype("F32");
  c.add(name + (divides ? ".weight_packed" : ".weight"), io::packed_bytes(), {n_out, n_in / 2}, codes);
  c.add(name + ".weight_scale", io::packed_e4m3(), {n_out, n_in / 16}, scales);
  c.add(name + (divides ? ".weight_global_scale" : ".weight_scale_2"), f32, {1}, std::vector{global});
  c.add(name + (divides ? ".input_global_scale" : ".input_scale"), f32, {1}, std::vector{0.5f});
  return values;
}

Checkpoint nvfp4_checkpoint(bool divides) {
  Checkpoint c;
  c.add_rest();
  c.quantization_config = divides ? kCompressed : kModelOpt;
  uint64_t seed = 0;
  for (const auto& [name, n_out, n_in] : c.matrices()) pack_nvfp4(divides, c, name, n_out, n_in, ++seed);
  return c;
}

TEST(Nvfp4, EveryWeightIsTheDescriptions) {
  for (const bool divides : {false, true}) {
    Checkpoint c;
    c.quantization_config = divides ? kCompressed : kModelOpt;
    expect_values(c, "nvfp4", [&](auto&&... parts) { return pack_nvfp4(divides, parts...); });
  }
}

/// Older checkpoints of ModelOpt say nothing in config.json.
TEST(Nvfp4, AFileBesideTheConfigurationCountsWithoutOne) {
  Checkpoint c = nvfp4_checkpoint(false);
  c.quantization_config = "";
  const TempDir directory;
  c.write(directory);
  EXPECT_THAT(message_of(c), HasSubstr("q_proj.weight is [128, 64], expected [128, 128]"));
  directory.write("hf_quant_config.json", R"({"quantization":{"quant_algo":"NVFP4","exclude_modules":["lm_head"]}})");
  EXPECT_EQ(load_model(directory.path().native()).or_throw().weights.layers[0].q.format->name, "nvfp4");
  directory.write("hf_quant_config.json", R"({"quantization":{"quant_algo":"W4A8_AWQ"}})");
  EXPECT_THAT(load_model(directory.path().native()).error().message, HasSubstr("quant_algo is 'W4A8_AWQ'"));
}

TEST(Nvfp4Refusals, WhatIsMissingOrMeansNothingIsRefusedByName) {
  const std::string q = "model.layers.0.self_attn.q_proj";
  const WeightFormat& f32 = *weight_format_of_dtype("F32");
  for (const bool divides : {false, true}) {
    const std::string global = divides ? "weight_global_scale" : "weight_scale_2";
    const auto changed = [&](const std::function<void(Checkpoint&)>& change) {
      Checkpoint c = nvfp4_checkpoint(divides);
      change(c);
      return message_of(c);
    };
    EXPECT_EQ(changed([](Checkpoint&) {}), "");
    EXPECT_THAT(changed([&](Checkpoint& c) { c.tensors.erase(q + ".weight_scale"); }),
                HasSubstr(q + ".weight_scale is missing"));
    EXPECT_THAT(changed([&](Checkpoint& c) { c.tensors.erase(q + "." + global); }),
                HasSubstr(q + "." + global + " is missing"));
    EXPECT_THAT(changed([&](Checkpoint& c) {
                  c.add(q + ".weight_scale", io::packed_e4m3(), {128, 4}, std::vector<uint8_t>(512));
                }),
                HasSubstr("weight_scale is [128, 4], expected [128, 8]"));
    EXPECT_THAT(changed([&](Checkpoint& c) {
                  c.add_f16(q + ".weight_scale", {128, 8}, 1);
                }),
                HasSubstr("weight_scale is f16, expected f8_e4m3"));
    for (const float bad : {NAN, INFINITY, 0.0f, -1.0f})
      EXPECT_THAT(changed([&](Checkpoint& c) { c.add(q + "." + global, f32, {1}, std::vector{bad}); }),
                  HasSubstr(q + "." + global + " has "));
    EXPECT_THAT(changed([&](Checkpoint& c) {
                  c.add(q + "." + global, f32, {2}, std::vector<float>{1, 1});
                }),
                HasSubstr("has 2 values"));
    for (const uint8_t bad : {0x7F, 0xFF})
      EXPECT_THAT(changed([&](Checkpoint& c) { c.tensors.at(q + ".weight_scale").second[17] = std::byte(bad); }),
                  HasSubstr(q + ".weight_scale holds a NaN in row 2"));
  }
  const std::pair<std::string, const char*> configs[] = {
      {R"({"quant_method":"modelopt","quant_algo":"W4A8_AWQ"})", "quant_algo is 'W4A8_AWQ'"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"num_bits":8,"type":"int"}}}})",
       "config_groups.a.weights is 8 bits of type 'int'"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"num_bits":4,"type":"float",)"
       R"("group_size":32}}}})",
       "config_groups.a.weights.group_size is 32"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"a":{}}})", "config_groups.a.weights is missing"},
      {R"({"quant_method":"compressed-tensors","config_groups":7})", "config_groups is 7"},
      {R"({"quant_method":"compressed-tensors","transform_config":{"config_groups":{"u":1}}})", "transform_config is"},
      {R"({"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"}})",
       "sparsity_config is"}};
  for (const auto& [config, expected] : configs) {
    Checkpoint c = nvfp4_checkpoint(true);
    c.quantization_config = config;
    EXPECT_THAT(message_of(c), HasSubstr(expected)) << config;
  }
}

}  // namespace
}  // namespace ridge
