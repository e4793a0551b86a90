// Small trained ternary models by others (bitllama2.c), whose files Ridge does not load, through the CPU's forward
// pass.
//
// They are Llamas without learnt norms: in front of every projection x / (|x| sqrt(n)), which is RMSNorm with weight
// 1/n and no epsilon, then int8 activations and ternary codes with one scale per matrix. So the sub-norms of BitNet
// with SiLU describe them, but for the epsilon of the last norm (1e-5), far below what these logits resolve.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/metrics.h"
#include "cases/reference_data.h"
#include "engine/backend.h"
#include "io/mapped_file.h"
#include "op/gemv/ternary.h"

namespace ridge {
namespace {

/// Reads the file front to back (layout: SOURCE.md of the reference models).
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  const std::byte* take(size_t n) {
    const std::byte* at = bytes_.subspan(at_, n).data();
    at_ += n;
    return at;
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

struct BitLlama {
  Config config;
  Weights weights;

  explicit BitLlama(const io::MappedFile& file) {
    Reader in(file.bytes());
    EXPECT_EQ(in.number<uint32_t>(), 0x616b3432u);
    EXPECT_EQ(in.number<int32_t>(), 1);
    Config& c = config;
    c.d_model = in.number<int32_t>();
    c.d_ff = in.number<int32_t>();
    c.n_layers = in.number<int32_t>();
    c.n_heads = in.number<int32_t>();
    c.n_kv_heads = in.number<int32_t>();
    c.vocab_size = in.number<int32_t>();
    c.n_ctx_train = in.number<int32_t>();
    in.take(256 - 9 * 4);
    c.head_dim = c.rope_dim = c.d_model / c.n_heads;
    c.rope_pairs = RopePairs::interleaved;
    c.rms_eps = 1e-30f;
    c.sub_norm = c.ternary = c.tied_output = true;

    const std::byte* norm = in.take(size_t(c.d_model) * 4);
    weights.output_norm.resize(size_t(c.d_model));
    std::memcpy(weights.output_norm.data(), norm, size_t(c.d_model) * 4);
    weights.embedding = {.format = *find_weight_format("f32"),
                         .n_out = c.vocab_size,
                         .n_in = c.d_model,
                         .rows = in.take(size_t(c.vocab_size * c.d_model) * 4)};
    weights.output = weights.embedding;
    weights.layers.resize(size_t(c.n_layers));
    for (LayerWeights& layer : weights.layers) {
      layer.attn_norm = layer.attn_sub_norm = layer.ffn_norm =
          std::vector<float>(size_t(c.d_model), 1.0f / float(c.d_model));
      layer.ffn_sub_norm = std::vector<float>(size_t(c.d_ff), 1.0f / float(c.d_ff));
    }
    const auto matrices = [&](Linear LayerWeights::*m, int64_t n_out, int64_t n_in) {
      for (LayerWeights& layer : weights.layers) layer.*m = matrix(in, n_out, n_in);
    };
    matrices(&LayerWeights::q, c.q_dim(0), c.d_model);
    matrices(&LayerWeights::k, c.kv_dim(0), c.d_model);
    matrices(&LayerWeights::v, c.kv_dim(0), c.d_model);
    matrices(&LayerWeights::o, c.d_model, c.q_dim(0));
    matrices(&LayerWeights::gate, c.d_ff, c.d_model);
    matrices(&LayerWeights::down, c.d_model, c.d_ff);
    matrices(&LayerWeights::up, c.d_ff, c.d_model);
    EXPECT_TRUE(in.at_end());
  }

  Linear matrix(Reader& in, int64_t n_out, int64_t n_in) {
    const WeightFormat& i2_s = *weight_format_of_gguf(36);
    const float scale = in.number<float>();
    const std::byte* packed = in.take(size_t(n_out * n_in / 4));
    std::vector<float> codes;
    for (int64_t i = 0; i < n_out * n_in; ++i) {
      const int code = std::to_integer<int>(packed[i / 4]) >> (6 - i % 4 * 2) & 3;
      EXPECT_NE(code, 2) << "01 is +1, 11 is -1";
      codes.push_back(code == 3 ? -1.0f : float(code));
    }
    AlignedBuffer& rows = weights.buffers.emplace_back(n_out * i2_s.row_bytes(n_in));
    i2_s.encode(codes.data(), n_out * n_in, rows.data());
    return {
        .format = &i2_s, .n_out = n_out, .n_in = n_in, .rows = rows.data(), .scale = scale, .int8_activations = true};
  }
};

void expect_first_story(const char* name, Isa isa) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  std::ifstream text(*data / "models/golden.json");
  const nlohmann::json story = nlohmann::json::parse(text)["models"][name]["first_story"];
  const auto file = io::MappedFile::open((*data / fmt::format("models/bitllama2/{}.bin", name)).string()).or_throw();
  BitLlama model(file);
  const Config& c = model.config;

  CpuContext context(2, isa);
  pack_weights(context, model.weights);
  const ModelPlan plan = make_plan(c);
  const std::unique_ptr<Backend> backend = make_cpu_backend(context, plan, model.weights);
  const KvSideConfig f32{.format = *find_kv_format("f32"), .policy = {}};
  const std::vector<KvLayerConfig> layers(size_t(c.n_layers), {f32, f32, c.n_kv_heads, c.head_dim});
  const auto ids = story["ids"].get<std::vector<int32_t>>();
  const auto nll = story["nll"].get<std::vector<double>>();
  const int n_pages = int(ids.size()) / kPagePositions + 1;
  SequencePool pool(backend->open_memory(layers, {}, n_pages, 1), nullptr);
  const SeqTokens all{pool.open().or_throw(), int(ids.size())};
  pool.reserve(all.seq, all.n_tokens).or_throw();
  const std::unique_ptr<Outputs> outputs = backend->make_outputs();
  backend->run({.tokens = ids, .seqs = {&all, 1}, .logits = LogitRows::all}, pool, *outputs);
  const View2<const float> logits = outputs->logits();
  double mean = 0, golden = 0, worst = 0;
  for (size_t t = 0; t < nll.size(); ++t) {
    mean += (log_sum_exp(logits.row(int64_t(t))) - logits(int64_t(t), ids[t + 1])) / double(nll.size());
    golden += nll[t] / double(nll.size());
    for (size_t j = 0; j < 5; ++j)
      worst = std::max(worst, std::abs(story["top5_logits"][t][j].get<double>() -
                                       double(logits(int64_t(t), story["top5"][t][j].get<int>()))));
  }
  // As with ridge-bitnet: a last-bit difference flips an int8 code and the flip spreads.
  EXPECT_NEAR(mean, golden, 0.01);
  EXPECT_LT(worst, 0.3);
}

TEST(BitLlamaGolden, OneMillionParametersTellTheFirstStory) {
  expect_first_story("bit_model_1M", isas().back());
  expect_first_story("bit_model_1M", Isa::scalar);
}
TEST(BitLlamaGolden, ThreeMillionParametersTellTheFirstStory) { expect_first_story("bit_model_3M", isas().back()); }

}  // namespace
}  // namespace ridge
