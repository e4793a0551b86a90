// int4_g128 checkpoints: every packed layout, written here nibble by nibble from its description, becomes the same
// blocks; what the format cannot hold is refused by name; and our own quantiser writes what the loader reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "cases/checkpoint.h"
#include "cases/paths.h"
#include "io/chat_templates.h"
#include "io/mapped_file.h"
#include "model/convert.h"

namespace ridge {
namespace {

using testing::HasSubstr;

/// Codes and scales of one matrix, element by element.
struct Int4Values {
  int64_t n_out, n_in;
  std::vector<uint32_t> codes;   // [n_out, n_in]
  std::vector<uint16_t> scales;  // [n_out, n_in / 128]

  Int4Values(int64_t out, int64_t in, uint64_t seed) : n_out(out), n_in(in) {
    Rng rng(seed);
    for (int64_t i = 0; i < out * in; ++i) codes.push_back(uint32_t(rng.next() % 16));
    for (int64_t i = 0; i < out * in / 128; ++i) scales.push_back(uint16_t(0x2000 + rng.next() % 0x400));
  }
  float value(int64_t out, int64_t in) const {
    return (float(codes[size_t(out * n_in + in)]) - 8) * f16_to_f32(scales[size_t((out * n_in + in) / 128)]);
  }
};

void put_nibble(std::vector<uint32_t>& words, int64_t word, int place, uint32_t code) {
  words[size_t(word)] |= code << (4 * place);
}

/// Adds a matrix to the checkpoint in a layout.
void add_packed(Checkpoint& c, io::Int4Layout layout, const std::string& name, const Int4Values& m) {
  const auto& i32 = io::packed_words();
  const int64_t n_out = m.n_out, n_in = m.n_in, n_groups = n_in / 128;
  std::vector<uint32_t> words(size_t(n_out * n_in / 8), 0);
  if (layout == io::Int4Layout::ridge) {
    for (int64_t o = 0; o < n_out; ++o)
      for (int64_t i = 0; i < n_in; ++i)
        put_nibble(words, o * n_in / 8 + i / 8, int(i % 8), m.codes[size_t(o * n_in + i)]);
    c.add(name + ".qweight", i32, {n_out, n_in / 8}, words);
    c.add(name + ".scales", kF16, {n_out, n_groups}, m.scales);
    return;
  }
  std::vector<uint16_t> scales(m.scales.size());
  for (int64_t o = 0; o < n_out; ++o)
    for (int64_t g = 0; g < n_groups; ++g) scales[size_t(g * n_out + o)] = m.scales[size_t(o * n_groups + g)];
  c.add(name + ".scales", kF16, {n_groups, n_out}, scales);
  if (layout == io::Int4Layout::awq) {
    const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    for (int64_t i = 0; i < n_in; ++i)
      for (int64_t o = 0; o < n_out; o += 8)
        for (int t = 0; t < 8; ++t)
          put_nibble(words, (i * n_out + o) / 8, t, m.codes[size_t((o + order[t]) * n_in + i)]);
    c.add(name + ".qweight", i32, {n_in, n_out / 8}, words);
  } else {
    for (int64_t i = 0; i < n_in; ++i)
      for (int64_t o = 0; o < n_out; ++o)
        put_nibble(words, i / 8 * n_out + o, int(i % 8), m.codes[size_t(o * n_in + i)]);
    c.add(name + ".qweight", i32, {n_in / 8, n_out}, words);
    std::vector<uint32_t> group_of;
    for (int64_t i = 0; i < n_in; ++i) group_of.push_back(uint32_t(i / 128));
    c.add(name + ".g_idx", i32, {n_in}, group_of);
  }
  const uint32_t zeros = layout == io::Int4Layout::gptq ? 0x77777777 : 0x88888888;
  c.add(name + ".qzeros", i32, {n_groups, n_out / 8}, std::vector<uint32_t>(size_t(n_groups * n_out / 8), zeros));
}

std::string config_of(io::Int4Layout layout) {
  switch (layout) {
    case io::Int4Layout::ridge: return std::string(io::kRidgeQuantizationConfig);
    case io::Int4Layout::gptq:
      return R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"sym":true,"damp_percent":0.01})";
    case io::Int4Layout::gptq_v2:
      return R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"checkpoint_format":"gptq_v2"})";
    case io::Int4Layout::awq:
      return R"({"quant_method":"awq","bits":4,"group_size":128,"zero_point":true,"version":"gemm"})";
    case io::Int4Layout::none: break;
  }
  return "";
}

Checkpoint packed_checkpoint(io::Int4Layout layout) {
  Checkpoint c;
  c.add_rest();
  c.quantization_config = config_of(layout);
  uint64_t seed = 0;
  for (const auto& [name, n_out, n_in] : c.matrices()) add_packed(c, layout, name, Int4Values(n_out, n_in, ++seed));
  return c;
}

class Int4Layouts : public testing::TestWithParam<io::Int4Layout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Int4Layouts,
                         testing::Values(io::Int4Layout::ridge, io::Int4Layout::gptq, io::Int4Layout::gptq_v2,
                                         io::Int4Layout::awq));

TEST_P(Int4Layouts, EveryWeightComesOutWhereTheLayoutPutsIt) {
  const TempDir directory;
  const LoadedModel model = load_model(packed_checkpoint(GetParam()).write(directory)).or_throw();
  const LayerWeights& layer = model.weights.layers[0];
  const Linear* const loaded[] = {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
  uint64_t seed = 0;
  for (const Linear* m : loaded) {
    const Int4Values expected(m->n_out, m->n_in, ++seed);
    ASSERT_EQ(m->format->name, "int4_g128");
    std::vector<float> row(size_t(m->n_in));
    for (int64_t o = 0; o < m->n_out; ++o) {
      m->format->decode(m->rows + o * m->format->row_bytes(m->n_in), m->n_in, row.data());
      for (int64_t i = 0; i < m->n_in; ++i) ASSERT_EQ(row[size_t(i)], expected.value(o, i)) << o << " " << i;
    }
  }
  EXPECT_EQ(model.weights.n_params, 16 * 128 + 3 * 128 + 4 * 128 * 128 + 3 * 256 * 128);
}

TEST(Int4Refusals, ConfigurationsThatDoNotMapAreRefusedByField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"quant_method":"gptq","bits":8,"group_size":128})", "quantization_config.bits is 8"},
      {R"({"quant_method":"gptq","bits":4,"group_size":48})", "quantization_config.group_size is 48"},
      {R"({"quant_method":"gptq","bits":4,"group_size":64})", "scales is [2, 128], expected [4, 128]"},
      {R"({"quant_method":"gptq","bits":4,"group_size":-2})", "quantization_config.group_size is -2"},
      {R"({"quant_method":"gptq","bits":4})", "quantization_config.group_size is missing"},
      {R"({"quant_method":"gptq","bits":"4","group_size":128})", "quantization_config.bits is \"4\""},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"marlin"})", "'marlin'"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"x":{}}})", "quantization_config.dynamic"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"})", "'gemv'"},
      {R"({"quant_method":"hqq"})", "'hqq' is not supported"},
      {R"({})", "quant_method"},
      {R"(7)", "quantization_config is not an object"}};
  for (const auto& [config, expected] : cases) {
    Checkpoint c = packed_checkpoint(io::Int4Layout::gptq);
    c.quantization_config = config;
    EXPECT_THAT(message_of(c), HasSubstr(expected)) << config;
  }
}

TEST(Int4Refusals, TensorsThatDoNotMapAreRefusedByName) {
  const std::string q = "model.layers.0.self_attn.q_proj";
  const auto changed = [&](io::Int4Layout layout, const std::function<void(Checkpoint&)>& change) {
    Checkpoint c = packed_checkpoint(layout);
    change(c);
    return message_of(c);
  };
  const auto set_word = [](Checkpoint& c, const std::string& name, size_t i, uint32_t word) {
    std::memcpy(c.tensors.at(name).second.data() + 4 * i, &word, 4);
  };
  using enum io::Int4Layout;
  for (const io::Int4Layout layout : {gptq, gptq_v2, awq}) {
    const std::string fifteen = changed(layout, [&](Checkpoint& c) { set_word(c, q + ".qzeros", 3, 0xF8777777); });
    if (layout == gptq) EXPECT_THAT(fifteen, HasSubstr(q + ".qzeros holds 15 in word 3"));
    else EXPECT_EQ(fifteen, "");
    EXPECT_THAT(changed(layout, [&](Checkpoint& c) { c.tensors.erase(q + ".qzeros"); }),
                HasSubstr("qzeros is missing"));
  }
  EXPECT_THAT(changed(gptq, [&](Checkpoint& c) { set_word(c, q + ".g_idx", 5, 1); }),
              HasSubstr("g_idx puts input 5 into group 1, expected 0 to 0"));
  EXPECT_THAT(changed(gptq, [&](Checkpoint& c) { set_word(c, q + ".g_idx", 5, 0xFFFFFFFF); }),
              HasSubstr("g_idx puts input 5 into group -1, expected 0 to 0"));
  EXPECT_THAT(changed(gptq,
                      [&](Checkpoint& c) {
                        c.tensors.erase(q + ".g_idx");
                        c.quantization_config = R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":true})";
                      }),
              HasSubstr("g_idx is missing, though quantization_config.desc_act is true"));
  EXPECT_EQ(changed(gptq, [&](Checkpoint& c) { c.tensors.erase(q + ".g_idx"); }), "");
  for (const io::Int4Layout layout : {ridge, gptq, awq}) {
    EXPECT_THAT(changed(layout, [&](Checkpoint& c) { c.tensors.erase(q + ".scales"); }),
                HasSubstr("scales is missing"));
    EXPECT_THAT(changed(layout, [&](Checkpoint& c) { c.tensors.erase(q + ".qweight"); }),
                HasSubstr(q + ".weight is missing"));
    EXPECT_THAT(changed(layout,
                        [&](Checkpoint& c) {
                          c.add(q + ".qweight", io::packed_words(), {16, 64}, std::vector<uint32_t>(1024));
                        }),
                HasSubstr(q + ".scales is ["));
    EXPECT_THAT(changed(layout,
                        [&](Checkpoint& c) {
                          c.add_f16(q + ".qweight", {128, 16}, 1);
                        }),
                HasSubstr("qweight is f16, expected i32"));
    EXPECT_THAT(changed(layout,
                        [&](Checkpoint& c) {
                          auto& tensor = c.tensors.at(q + ".scales");
                          tensor.first.format = weight_format_of_dtype("BF16");
                        }),
                HasSubstr("scales is bf16, expected f16"));
    for (const uint16_t bad : {0x7C00, 0xFC00, 0x7E00})
      EXPECT_THAT(
          changed(layout,
                  [&](Checkpoint& c) { std::memcpy(c.tensors.at(q + ".scales").second.data() + 6, &bad, sizeof bad); }),
          HasSubstr(q + ".scales has "));
  }
  // Another layout's tensors under this layout's name.
  Checkpoint c = packed_checkpoint(gptq);
  c.quantization_config = config_of(ridge);
  EXPECT_THAT(message_of(c), HasSubstr("scales is ["));
}

TEST(Int4Refusals, IntegersAreNoWeights) {
  Checkpoint c = packed_checkpoint(io::Int4Layout::ridge);
  c.add("model.norm.weight", io::packed_words(), {128}, std::vector<uint32_t>(128));
  EXPECT_THAT(message_of(c), HasSubstr("model.norm.weight is i32, expected a weight format"));
}

Checkpoint plain_checkpoint() {
  Checkpoint c(192);  // rows of down_proj do not divide into groups of 128
  c.add_rest();
  uint64_t seed = 0;
  for (const auto& [name, n_out, n_in] : c.matrices()) c.add_f16(name + ".weight", {n_out, n_in}, ++seed);
  return c;
}

TEST(Int4Convert, WhatIsWrittenLoadsAndIsTheReferenceEncoding) {
  const TempDir source, target;
  const std::string in = plain_checkpoint().write(source), out = (target / "packed").native();
  std::filesystem::create_directory(source / "additional_chat_templates");
  source.write("chat_template.jinja", "a");
  source.write("additional_chat_templates/tool_use.jinja", "b");
  int reported = 0;
  const auto converted = convert_to_int4(
      in, out,
      [&](int done, int total, std::string_view) {
        EXPECT_EQ(done, ++reported);
        EXPECT_EQ(total, 2 * 7 + 4);  // six projections and the embedding in two parts; down_proj and three norms
      },
      1);
  ASSERT_TRUE(converted) << converted.error().message;
  EXPECT_EQ(reported, 18);
  const TempDir other;
  convert_to_int4(in, other / "packed", nullptr, 3).or_throw();
  const auto weights = [](const std::filesystem::path& folder) {
    return io::read_text_file(folder / "model.safetensors", 1 << 24).or_throw();
  };
  EXPECT_TRUE(weights(other / "packed") == weights(target / "packed"));
  const std::vector<Fallback>& fallbacks = converted->fallbacks;
  ASSERT_EQ(fallbacks.size(), 1u);
  EXPECT_EQ(fallbacks[0].tensor, "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(fallbacks[0].got->name, "f16");
  EXPECT_LT(converted->n_bytes, converted->n_weights) << "less than 8 bits a weight";

  LoadedModel before = load_model(in).or_throw(), after = load_model(out).or_throw();
  EXPECT_EQ(after.weights.n_params, before.weights.n_params);
  EXPECT_EQ(after.weights.layers[0].down.format->name, "f16");
  std::vector<Linear> expected;
  for_each_matrix(before.weights, [&](Linear& m, std::string_view) { expected.push_back(m); });
  size_t next = 0;
  for_each_matrix(after.weights, [&](Linear& m, std::string_view name) {
    const Linear& source_matrix = expected[next++];
    if (name == "down") return;
    ASSERT_EQ(m.format->name, "int4_g128") << name;
    std::vector<float> row(size_t(m.n_in));
    std::vector<std::byte> blocks(size_t(m.format->row_bytes(m.n_in)));
    for (int64_t r = 0; r < m.n_out; ++r) {
      source_matrix.format->decode(source_matrix.rows + r * source_matrix.format->row_bytes(m.n_in), m.n_in,
                                   row.data());
      ASSERT_TRUE(encode_rows(*m.format, row, m.n_in, blocks));
      ASSERT_EQ(std::memcmp(blocks.data(), m.rows + r * int64_t(blocks.size()), blocks.size()), 0) << name << " " << r;
    }
  });
  const io::ChatTemplates templates = io::chat_templates_of_directory(out);
  ASSERT_EQ(templates.named.size(), 2u);
  EXPECT_EQ(templates.find("default")->source, "a");
  EXPECT_EQ(templates.find("tool_use")->source, "b");
  // Packed weights are not taken for originals.
  EXPECT_THAT(convert_to_int4(out, target / "again", nullptr).error().message,
              HasSubstr("quantization_config already"));
  EXPECT_THAT(target.names(), testing::ElementsAre("packed"));
}

TEST(Int4Convert, WhatEndsATurnStaysFromContainerToContainer) {
  const TempDir source, target;
  const std::string in = plain_checkpoint().write(source), gguf = (target / "a.gguf").native();
  std::string added;
  for (int id = 2; id < 8; ++id)
    added +=
        fmt::format(R"({}{{"id": {}, "content": "<|piece {}|>", "special": true}})", added.empty() ? "" : ",", id, id);
  source.write("tokenizer.json", R"({"model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1},
    "merges": []}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "added_tokens": [)" +
                                     added + "]}");
  source.write("special_tokens_map.json", R"({"eos_token": {"content": "<|piece 2|>"}})");
  source.write("generation_config.json", R"({"eos_token_id": [3, 4, 5, 6]})");
  convert_to_gguf(in, gguf, kF16, nullptr).or_throw();
  convert_to_gguf(gguf, target / "b.gguf", kF16, nullptr).or_throw();
  convert_to_int4(in, target / "int4", nullptr).or_throw();
  for (const std::string& path : {in, gguf, (target / "b.gguf").native(), (target / "int4").native()}) {
    const LoadedModel model = load_model(path).or_throw();
    EXPECT_EQ(model.tokenizer->spec().eos, 2) << path;
    EXPECT_EQ(model.tokenizer->spec().ends, (std::vector<int32_t>{3, 4, 5, 6})) << path;
    for (int32_t id = 0; id < 8; ++id) EXPECT_EQ(model.tokenizer->is_end(id), id >= 2 && id <= 6) << path << " " << id;
  }
}

TEST(Int4Convert, FailuresLeaveNothingBehind) {
  const TempDir source, target;
  Checkpoint c = plain_checkpoint();
  c.add("model.layers.0.mlp.up_proj.weight", kF16, {192, 128}, std::vector<uint16_t>(192 * 128, 0x7C00));
  const auto infinite = convert_to_int4(c.write(source), target / "packed", nullptr);
  ASSERT_FALSE(infinite);
  EXPECT_THAT(infinite.error().message, HasSubstr("up_proj.weight row 0"));
  EXPECT_TRUE(target.names().empty());

  const auto gguf = convert_to_int4(RIDGE_SOURCE_DIR "/models/stories260K.gguf", target / "packed", nullptr);
  EXPECT_EQ(gguf.error().kind, ErrorKind::usage);
  EXPECT_THAT(gguf.error().message, HasSubstr("Hugging Face directory"));

  target.write("packed", "here already");
  const TempDir good;
  const auto exists = convert_to_int4(plain_checkpoint().write(good), target / "packed", nullptr);
  EXPECT_EQ(exists.error().kind, ErrorKind::usage);
  EXPECT_THAT(target.names(), testing::ElementsAre("packed"));
}

TEST(Int4Convert, AGgufFileCannotHoldTheFormat) {
  const TempDir target;
  const WeightFormat& int4 = **find_weight_format("int4_g128");
  EXPECT_FALSE(convert_to_gguf(RIDGE_SOURCE_DIR "/models/stories260K.gguf", target / "m.gguf", int4, nullptr));
  const Status written = io::write_gguf(target / "m.gguf", {}, {{"t", &int4, {1, 128}}}, nullptr);
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message, HasSubstr("GGUF does not know"));
  EXPECT_TRUE(target.names().empty());
}

}  // namespace
}  // namespace ridge
