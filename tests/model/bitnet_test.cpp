// BitNet models: the quantisation rule on real master weights, what files are accepted, conversions that keep the
// codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/f16.h"
#include "cases/guarded.h"
#include "cases/paths.h"
#include "cases/reference_data.h"
#include "cases/sha256.h"
#include "cases/temp_dir.h"
#include "format/i2_s.h"
#include "model/arch/arch.h"
#include "model/convert.h"
#include "model/ternary.h"
#include "model/weights.h"
#include "op/gemv/ternary.h"
#include "op/kernels.h"

namespace ridge {
namespace {

using Json = nlohmann::json;

/// Codes of a matrix, one byte each, row-major.
std::vector<uint8_t> codes_of(const Linear& m) {
  std::vector<float> values(size_t(m.n_out * m.n_in));
  m.format->decode(m.rows, m.n_out * m.n_in, values.data());
  std::vector<uint8_t> codes;
  for (const float v : values) codes.push_back(uint8_t(int8_t(v)));
  return codes;
}

io::Tensor tensor_of(const WeightFormat& format, int64_t n_out, int64_t n_in, std::span<const std::byte> data) {
  return {"m", &format, {n_out, n_in}, data};
}

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string_view abc = "abc";
  EXPECT_EQ(sha256({reinterpret_cast<const uint8_t*>(abc.data()), 3}),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(BitnetSlow, MasterWeightsGiveTheGoldenCodesAndScales) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const LoadedModel model = load_model((*data / "models/ridge-bitnet").string()).or_throw();
  std::ifstream file(*data / "models/ridge-bitnet/golden.json");
  const Json golden = Json::parse(file)["ternary"];
  int n_checked = 0;
  for (int i = 0; i < model.config.n_layers; ++i) {
    const LayerWeights& layer = model.weights.layers[size_t(i)];
    const std::pair<const char*, const Linear*> matrices[] = {
        {"self_attn.q_proj", &layer.q}, {"self_attn.k_proj", &layer.k}, {"self_attn.v_proj", &layer.v},
        {"self_attn.o_proj", &layer.o}, {"mlp.gate_proj", &layer.gate}, {"mlp.up_proj", &layer.up},
        {"mlp.down_proj", &layer.down}};
    for (const auto& [name, m] : matrices) {
      const Json& expected = golden.at(fmt::format("model.layers.{}.{}.weight", i, name));
      EXPECT_EQ(m->format->name, "i2_s");
      EXPECT_TRUE(m->int8_activations);
      // The mean is a sum of 262144 and more terms: float32 in another order differs in its last places.
      EXPECT_NEAR(m->scale, expected["scale"].get<double>(), 4e-7 * m->scale) << i << name;
      EXPECT_EQ(sha256(codes_of(*m)), expected["sha256_int8_row_major"]) << i << name;
      ++n_checked;
    }
  }
  EXPECT_EQ(n_checked, 56);
  EXPECT_EQ(model.config.arch, "bitnet-b1.58");
  EXPECT_EQ(model.config.activation, Activation::relu2);
}

TEST(BitnetSlow, FirstLayerIntegersAreTheGoldenOnes) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const LoadedModel model = load_model((*data / "models/ridge-bitnet").string()).or_throw();
  const LayerWeights& layer = model.weights.layers[0];
  const Config& c = model.config;
  std::ifstream file(*data / "models/ridge-bitnet/golden.json");
  const Json golden = Json::parse(file)["first_layer_int8"];

  CpuContext context(1);
  std::vector<float> x(size_t(c.d_model)), normed(x.size());
  const Linear& e = model.weights.embedding;
  e.format->decode(e.rows + golden["token"].get<int>() * e.format->row_bytes(e.n_in), e.n_in, x.data());
  rms_norm(context, {x.data(), 1, c.d_model}, layer.attn_norm.data(), c.rms_eps, {normed.data(), 1, c.d_model});
  std::vector<int8_t> q(x.size());
  float scale;
  int32_t sum;
  quantize_token_ref(normed.data(), c.d_model, q.data(), scale, sum);
  EXPECT_EQ(std::vector<int>(q.begin(), q.end()), golden["codes"].get<std::vector<int>>());
  EXPECT_NEAR(scale * 127, golden["absmax"].get<double>(), 1e-6);

  const std::pair<const char*, const Linear*> matrices[] = {{"q", &layer.q}, {"k", &layer.k}, {"v", &layer.v}};
  for (const auto& [name, m] : matrices) {
    // With all factors 1 a kernel's outputs are its integer sums: here the tokens are the codes themselves, and the one
    // 127 among them makes their own scale 1.
    Linear exact = *m;
    exact.scale = 1;
    AlignedBuffer panels(ternary_panel_bytes(m->n_out, m->n_in));
    pack_ternary_panels(context, m->n_out, m->n_in, m->rows, panels.data());
    exact.panels = panels.data();
    const std::vector<float> codes(q.begin(), q.end());
    ASSERT_EQ(std::abs(*std::max_element(codes.begin(), codes.end(),
                                         [](float a, float b) { return std::abs(a) < std::abs(b); })),
              127);
    for (const LinearVariant& variant : gemv_variants()) {
      if (variant.isa > context.isa || !variant.supports(exact).ok) continue;
      std::vector<float> y(size_t(m->n_out), NAN);
      variant.run(context, exact, {codes.data(), 1, m->n_in}, {y.data(), 1, m->n_out});
      EXPECT_EQ(std::vector<int>(y.begin(), y.end()), golden[name].get<std::vector<int>>()) << name << variant.name;
    }
  }
}

TEST(BitnetSlow, WrittenAsTernaryGgufTheCodesStayAndTheScalesRoundToFp16) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::string source_path = (*data / "models/ridge-bitnet").string();
  LoadedModel source = load_model(source_path).or_throw();
  std::vector<Linear> matrices;
  for_each_matrix(source.weights, [&](Linear& m, std::string_view) { matrices.push_back(m); });
  const TempDir directory;
  std::string path = source_path;
  for (const char* type : {"tq2_0", "tq1_0", "f16", "tq2_0"}) {  // each from the one before
    const std::string next = (directory.path() / fmt::format("{}-{}.gguf", directory.names().size(), type)).string();
    EXPECT_TRUE(convert_to_gguf(path, next, find_quantize_type(type).or_throw(), nullptr).or_throw().fallbacks.empty());
    LoadedModel model = load_model(next).or_throw();
    EXPECT_EQ(model.config.activation, Activation::relu2);
    size_t i = 0;
    for_each_matrix(model.weights, [&](Linear& m, std::string_view name) {
      const Linear& before = matrices[i++];
      if (name == "output") {
        if (std::string_view(type) == "tq2_0" && path == source_path) {
          EXPECT_EQ(m.format->name, "bf16");
          EXPECT_EQ(std::memcmp(m.rows, before.rows, size_t(m.bytes())), 0);
        }
        return;
      }
      EXPECT_EQ(m.format->name, "i2_s");
      EXPECT_EQ(m.scale, f16_to_f32(f32_to_f16(before.scale))) << name;
      EXPECT_EQ(std::memcmp(m.rows, before.rows, size_t(m.bytes())), 0) << name;
    });
    EXPECT_EQ(i, matrices.size());
    EXPECT_EQ(model.weights.ternary_source ? model.weights.ternary_source->name : "none",
              std::string_view(type) == "f16" ? "none" : type);
    path = next;
  }
  for (const char* type : {"q8_0", "q4_k_m", "i2_s"}) {
    const auto refused = [&]() -> Status {
      RIDGE_TRY(const QuantizeType found, find_quantize_type(type));
      RIDGE_TRY([[maybe_unused]] const Converted converted,
                convert_to_gguf(path, directory.path() / "no.gguf", found, nullptr));
      return Status();
    }();
    ASSERT_FALSE(refused) << type;
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
    EXPECT_THAT(refused.error().message, testing::HasSubstr("tq2_0"));
  }
}

TEST(QuantizeTernary, FollowsTheRule) {
  // |W| adds to 96 over 128: scale 0.75. Boundaries are at 0.375; 0.375 / 0.75 = 0.5 is a tie and goes to 0.
  std::vector<float> w(128, 0.75f);
  w[0] = 0.375f, w[1] = 1.125f, w[2] = -0.376f, w[3] = -1.124f, w[4] = 0.374f, w[5] = 1.126f;
  w[6] = 0, w[7] = -1.5f;
  const TernaryMatrix m =
      quantize_ternary(tensor_of(*find_weight_format("f32").or_throw(), 1, 128, std::as_bytes(std::span(w))))
          .or_throw();
  EXPECT_EQ(m.scale, 0.75f);
  float codes[128];
  weight_format_of_gguf(36)->decode(m.rows.data(), 128, codes);
  EXPECT_THAT(std::vector<float>(codes, codes + 9), testing::ElementsAre(0, 1, -1, -1, 0, 1, 0, -1, 1));
}

TEST(QuantizeTernary, ZerosHaveTheLeastScaleAndBadValuesAreRefused) {
  const WeightFormat& f32 = *find_weight_format("f32").or_throw();
  std::vector<float> w(256, 0.0f);
  EXPECT_EQ(quantize_ternary(tensor_of(f32, 2, 128, std::as_bytes(std::span(w)))).or_throw().scale, 1e-5f);
  w[200] = NAN;
  const auto bad = quantize_ternary(tensor_of(f32, 2, 128, std::as_bytes(std::span(w))));
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message, testing::HasSubstr("row 1"));
  w[200] = 0;
  const auto narrow = quantize_ternary(tensor_of(f32, 4, 64, std::as_bytes(std::span(w))));
  ASSERT_FALSE(narrow);
  EXPECT_THAT(narrow.error().message, testing::HasSubstr("multiple of 128"));
}

TEST(RepackTernary, KeepsCodesAndScaleAndRefusesEverythingElse) {
  const WeightFormat& f32 = *find_weight_format("f32").or_throw();
  std::vector<float> w(256);
  for (size_t i = 0; i < w.size(); ++i) w[i] = float(int(i * 7 % 3) - 1) * 0.3f;
  const TernaryMatrix m = repack_ternary(tensor_of(f32, 2, 128, std::as_bytes(std::span(w)))).or_throw();
  EXPECT_EQ(m.scale, 0.3f);
  std::vector<float> codes(256);
  weight_format_of_gguf(36)->decode(m.rows.data(), 256, codes.data());
  for (size_t i = 0; i < w.size(); ++i) ASSERT_EQ(codes[i] * 0.3f, w[i]);
  for (const float bad : {0.31f, -0.15f, 0.6f, 1e30f, NAN, INFINITY}) {
    std::vector<float> other = w;
    other[130] = bad;
    const auto refused = repack_ternary(tensor_of(f32, 2, 128, std::as_bytes(std::span(other))));
    ASSERT_FALSE(refused) << bad;
    EXPECT_THAT(refused.error().message, testing::HasSubstr("row 1 column 2")) << bad;
  }
  std::fill(w.begin(), w.end(), 0.0f);
  EXPECT_EQ(repack_ternary(tensor_of(f32, 2, 128, std::as_bytes(std::span(w)))).or_throw().scale, 0);
}

/// A BitNet model of one layer in memory, written as GGUF with matrices in any format.
struct TinyBitnet {
  static constexpr int kDim = 256, kFf = 512, kVocab = 512;
  std::map<std::string, io::GgufValue, std::less<>> metadata;
  std::vector<io::GgufTensorSpec> specs;
  std::vector<std::vector<std::byte>> payloads;

  explicit TinyBitnet(std::string_view format, std::string_view arch = "bitnet-b1.58") {
    // The tokenizer of the tiny shipped model.
    const io::GgufFile tiny = io::open_gguf(RIDGE_SOURCE_DIR "/models/stories260K.gguf").or_throw();
    for (const auto& [key, value] : tiny.gguf.metadata)
      if (key.starts_with("tokenizer.")) metadata[key] = value;
    const Config c{.arch = std::string(arch),
                   .name = "tiny",
                   .n_layers = 1,
                   .n_heads = 2,
                   .n_kv_heads = 1,
                   .head_dim = 128,
                   .d_model = kDim,
                   .d_ff = kFf,
                   .vocab_size = kVocab,
                   .n_ctx_train = 64,
                   .rope_dim = 128};
    metadata.merge(config_metadata(c));
    add("token_embd.weight", "f16", {kVocab, kDim});
    add("output_norm.weight", "f32", {kDim});
    for (const char* name : {"attn_norm", "attn_sub_norm", "ffn_norm"}) add(layer(name), "f32", {kDim});
    add(layer("ffn_sub_norm"), "f32", {kFf});
    add(layer("attn_q"), format, {kDim, kDim});
    add(layer("attn_k"), format, {128, kDim});
    add(layer("attn_v"), format, {128, kDim});
    add(layer("attn_output"), format, {kDim, kDim});
    add(layer("ffn_gate"), format, {kFf, kDim});
    add(layer("ffn_up"), format, {kFf, kDim});
    add(layer("ffn_down"), format, {kDim, kFf});
  }
  static std::string layer(std::string_view name) { return fmt::format("blk.0.{}.weight", name); }
  void add(const std::string& name, std::string_view format_name, std::vector<int64_t> shape) {
    const WeightFormat& format = *find_weight_format(format_name).or_throw();
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    Rng rng(specs.size());
    std::vector<float> values;
    const float unit = format.tail_bytes > 0 ? 1.0f : 0.25f;  // blocks of i2_s are in units of the scale
    for (int64_t i = 0; i < n; ++i)
      values.push_back(shape.size() == 1             ? 1.0f
                       : name == "token_embd.weight" ? float(rng.normal())
                                                     : unit * float(int(rng.next() % 3) - 1));
    std::vector<std::byte> payload(size_t(format.row_bytes(n) + format.tail_bytes));
    format.encode(values.data(), n, payload.data());
    const float scale = 0.25f;
    if (format.tail_bytes > 0) std::memcpy(payload.data() + format.row_bytes(n), &scale, 4);
    specs.push_back({name, &format, std::move(shape)});
    payloads.push_back(std::move(payload));
  }
  std::vector<std::byte>& payload(const std::string& name) {
    for (size_t i = 0; i < specs.size(); ++i)
      if (specs[i].name == name) return payloads[i];
    throw std::runtime_error(name);
  }
  Result<LoadedModel> load() const {
    const TempDir directory;
    const std::filesystem::path path = directory.path() / "m.gguf";
    write_gguf(path, metadata, specs, [&](size_t i, std::vector<std::byte>& out) -> Status {
      out = payloads[i];
      return {};
    }).or_throw();
    return load_model(path.string());
  }
  std::string message() const {
    const auto model = load();
    return model ? "" : model.error().message;
  }
};

TEST(BitnetGguf, EveryTernaryFormatGivesTheSameMatrices) {
  const LoadedModel expected = TinyBitnet("i2_s").load().or_throw();
  EXPECT_EQ(expected.weights.ternary_source, nullptr);
  const LayerWeights& a = expected.weights.layers[0];
  EXPECT_EQ(a.attn_sub_norm.size(), 256u);
  EXPECT_EQ(a.ffn_sub_norm.size(), 512u);
  for (const char* format : {"tq1_0", "tq2_0", "f16", "f32", "bf16"}) {
    const LoadedModel model = TinyBitnet(format).load().or_throw();
    const LayerWeights& b = model.weights.layers[0];
    for (const auto& [x, y] : {std::pair(&a.q, &b.q), {&a.k, &b.k}, {&a.o, &b.o}, {&a.up, &b.up}, {&a.down, &b.down}}) {
      EXPECT_EQ(y->scale, 0.25f) << format;
      EXPECT_TRUE(y->int8_activations && x->int8_activations);
      EXPECT_EQ(std::memcmp(x->rows, y->rows, size_t(x->bytes())), 0) << format;
    }
  }
}

TEST(BitnetGguf, AllThreeNamesLoadAndTheActivationIsTheFilesWord) {
  for (const char* arch : {"bitnet-b1.58", "bitnet-25", "bitnet"}) {
    TinyBitnet tiny("tq2_0", arch);
    const Config c = tiny.load().or_throw().config;
    EXPECT_EQ(c.arch, arch);
    EXPECT_TRUE(c.sub_norm && c.ternary);
    // llama.cpp takes SiLU for "bitnet" where the file says nothing, bitnet.cpp the squared ReLU for its two names.
    EXPECT_EQ(c.activation, std::string_view(arch) == "bitnet" ? Activation::silu : Activation::relu2);
    tiny.metadata[fmt::format("{}.hidden_activation", arch)] = std::string("relu2");
    EXPECT_EQ(tiny.load().or_throw().config.activation, Activation::relu2);
    tiny.metadata[fmt::format("{}.hidden_activation", arch)] = std::string("gelu");
    EXPECT_THAT(tiny.message(), testing::HasSubstr("hidden_activation 'gelu' is not supported"));
  }
}

TEST(BitnetGguf, ScaleTensorsMultiply) {
  TinyBitnet tiny("tq2_0");
  tiny.add("blk.0.ffn_up.scale", "f32", {1});
  const float scale = 3;
  std::memcpy(tiny.payload("blk.0.ffn_up.scale").data(), &scale, 4);
  const LoadedModel model = tiny.load().or_throw();
  EXPECT_EQ(model.weights.layers[0].up.scale, 0.75f);
  EXPECT_EQ(model.weights.layers[0].gate.scale, 0.25f);
}

TEST(BitnetGguf, BadCodesAndScalesAreRefusedWithTheTensor) {
  const std::string name = "blk.0.ffn_up.weight";
  for (const char* format : {"tq2_0", "i2_s"}) {
    TinyBitnet tiny(format);
    tiny.payload(name)[0] |= std::byte(3);
    EXPECT_THAT(tiny.message(), testing::AllOf(testing::HasSubstr(name), testing::HasSubstr("code is 3"))) << format;
  }
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    TinyBitnet tiny("i2_s");
    std::vector<std::byte>& payload = tiny.payload(name);
    std::memcpy(payload.data() + payload.size() - 32, &bad, 4);
    EXPECT_THAT(tiny.message(), testing::AllOf(testing::HasSubstr(name), testing::HasSubstr("scale"))) << bad;
  }
  for (const char* format : {"tq1_0", "tq2_0"}) {
    TinyBitnet tiny(format);
    std::vector<std::byte>& payload = tiny.payload(name);
    payload[payload.size() - 1] = std::byte(0x7C);
    EXPECT_THAT(tiny.message(), testing::AllOf(testing::HasSubstr(name), testing::HasSubstr("not a finite"))) << format;
    payload[payload.size() - 1] = std::byte(0x38);  // 0.5 beside 0.25 elsewhere
    EXPECT_THAT(tiny.message(), testing::AllOf(testing::HasSubstr(name), testing::HasSubstr("is not ternary")))
        << format;
  }
  TinyBitnet shorter("i2_s");
  shorter.specs.pop_back();
  shorter.payloads.pop_back();
  EXPECT_THAT(shorter.message(), testing::HasSubstr("blk.0.ffn_down.weight is missing"));
}

}  // namespace
}  // namespace ridge
