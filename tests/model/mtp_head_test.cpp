// MTP heads in a model's own file through `ridge quantize`: from a directory to GGUF, to GGUF again, and to int4_g128.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "base/rng.h"
#include "cases/paths.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "io/safetensors.h"
#include "model/convert.h"
#include "model/mtp.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

struct Added {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// A tensor of the last layer, for the head: with other values.
Added changed(const io::Tensor& of, std::string name) {
  Added to{std::move(name), of.shape, {}};
  int64_t n = 1;
  for (const int64_t size : of.shape) n *= size;
  to.values.resize(size_t(n));
  of.format->decode(of.data.data(), n, to.values.data());
  for (float& value : to.values) value *= 1.5f;
  return to;
}

/// The model of the directory `from`, with a head whose layers are like its last one. `apart`: a tensor an expert.
void write_with_head(const fs::path& from, const fs::path& to, bool apart, int n_layers = 1) {
  const LoadedModel model = load_model(from.native()).or_throw();
  const Config& c = model.config;
  const std::vector<io::Tensor>& tensors = std::get<io::HfDirectory>(model.weights.source).tensors;
  const bool behind = c.kv_rank > 0;
  const std::string last = fmt::format("layers.{}.", c.n_layers - 1);
  const auto layer_of_head = [&](int i) {
    return behind ? fmt::format("model.layers.{}.", c.n_layers + i) : fmt::format("mtp.layers.{}.", i);
  };
  const std::string of_head = layer_of_head(0);
  std::vector<Added> added;
  for (const io::Tensor& tensor : tensors) {
    const size_t at = tensor.name.find(last);
    if (at == std::string::npos) continue;
    const std::string name = tensor.name.substr(at + last.size());
    Added one = changed(tensor, of_head + name);
    for (int i = 1; i < n_layers; ++i) added.push_back(changed(tensor, layer_of_head(i) + name));
    constexpr std::string_view kGateUp = "experts.gate_up_proj", kDown = "experts.down_proj";
    if (!apart || !(one.name.ends_with(kGateUp) || one.name.ends_with(kDown)) || one.shape.size() != 3) {
      added.push_back(std::move(one));
      continue;
    }
    const bool is_down = one.name.ends_with(kDown);
    const std::string base = one.name.substr(0, one.name.rfind('.'));
    const int64_t n_in = one.shape[2], n_out = is_down ? one.shape[1] : one.shape[1] / 2;
    auto first = one.values.begin();
    for (int64_t e = 0; e < one.shape[0]; ++e)
      for (const char* part : is_down ? std::vector{"down"} : std::vector{"gate", "up"}) {
        added.push_back(
            {fmt::format("{}.{}.{}_proj.weight", base, e, part), {n_out, n_in}, {first, first + n_out * n_in}});
        first += n_out * n_in;
      }
  }
  ASSERT_FALSE(added.empty());
  Rng rng(3);
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    Added& one = added.emplace_back(Added{std::move(name), std::move(shape), {}});
    for (int64_t n = one.shape[0] * (one.shape.size() > 1 ? one.shape[1] : 1); n > 0; --n)
      one.values.push_back(0.1f * float(rng.normal()));
  };
  const int64_t d = c.d_model;
  if (behind) {
    add(of_head + "eh_proj.weight", {d, 2 * d});
    for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) add(of_head + norm + ".weight", {d});
    for (const char* end : {"embed_tokens", "shared_head.head"}) add(of_head + end + ".weight", {c.vocab_size, d});
  } else {
    add("mtp.fc.weight", {d, 2 * d});
    for (const char* norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
      add(fmt::format("mtp.{}.weight", norm), {d});
  }

  fs::create_directory(to);
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"})
    if (fs::exists(from / file)) fs::copy_file(from / file, to / file);
  std::vector<io::SafetensorsSpec> specs;
  for (const io::Tensor& tensor : tensors) specs.push_back({tensor.name, tensor.format, tensor.shape});
  for (const Added& one : added) specs.push_back({one.name, *find_weight_format("f32"), one.shape});
  io::write_safetensors(to / "model.safetensors", specs, [&](size_t i, const io::SafetensorsSink& sink) {
    return i < tensors.size() ? sink(tensors[i].data)
                              : sink(std::as_bytes(std::span(added[i - tensors.size()].values)));
  }).or_throw();
}

std::vector<float> decoded(const Linear& m) {
  std::vector<float> values(size_t(m.n_out * m.n_in));
  for (int64_t r = 0; r < m.n_out; ++r)
    m.format->decode(m.rows + r * m.format->row_bytes(m.n_in), m.n_in, values.data() + r * m.n_in);
  return values;
}

/// All that a head holds, in order.
std::vector<std::vector<float>> contents(const MtpHead& head) {
  const LayerWeights& layer = head.weights.layers.at(0);
  std::vector<std::vector<float>> all = {head.weights.join_embedding_norm,
                                         head.weights.join_hidden_norm,
                                         head.weights.output_norm,
                                         decoded(head.weights.join),
                                         layer.attn_norm,
                                         layer.ffn_norm,
                                         layer.q_norm,
                                         layer.k_norm,
                                         layer.q_a_norm,
                                         layer.kv_a_norm,
                                         layer.choice_bias,
                                         layer.shared_gate};
  for_each_matrix(head.weights, [&](const Linear& m, std::string_view) {
    if (m.format) all.push_back(decoded(m));
  });
  return all;
}

struct Read {
  LoadedModel model;
  std::optional<MtpHead> head;
};
Read read(const fs::path& path) {
  Read read{load_model(path.native()).or_throw(), {}};
  read.head = read_own_mtp_head(read.model.config, read.model.weights).or_throw();
  return read;
}

void check(const fs::path& from, bool apart) {
  SCOPED_TRACE(from.native());
  const TempDir dir;
  EXPECT_FALSE(read(from).head) << "without a head";
  write_with_head(from, dir / "with", apart);
  if (testing::Test::HasFatalFailure()) return;
  const Read original = read(dir / "with");
  ASSERT_TRUE(original.head);
  const auto expected = contents(*original.head);
  EXPECT_THAT(expected, testing::SizeIs(testing::Gt(20u)));
  EXPECT_EQ(original.head->own_ends, original.model.config.kv_rank > 0);

  convert_to_int4((dir / "with").native(), dir / "int4", nullptr).or_throw();
  std::vector<const char*> names = {"int4"};
  if (fs::exists(from / "tokenizer.json")) {
    const WeightFormat& f32 = **find_weight_format("f32");
    convert_to_gguf((dir / "with").native(), dir / "a.gguf", f32, nullptr).or_throw();
    convert_to_gguf((dir / "a.gguf").native(), dir / "b.gguf", f32, nullptr).or_throw();
    names.insert(names.end(), {"a.gguf", "b.gguf"});
  }
  for (const char* name : names) {
    const Read kept = read(dir / name);
    EXPECT_EQ(kept.model.config.n_layers, original.model.config.n_layers) << name;
    ASSERT_TRUE(kept.head) << name;
    EXPECT_EQ(kept.head->own_ends, original.head->own_ends) << name;
    const auto got = contents(*kept.head);
    ASSERT_EQ(got.size(), expected.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) {
      const bool same = got[i] == expected[i];
      // Rows of 128 are rounded to steps of a seventh of their largest, which is some 3 deviations: an error of 0.12 of
      // one.
      const bool rounded = names[0] == name && got[i].size() % 128 == 0 && compare(got[i], expected[i]).nmse < 0.04;
      EXPECT_TRUE(same || rounded) << name << ", part " << i;
    }
    CpuContext context(1, Isa::scalar);
    const auto run = load_mtp_head(context, kept.model.config, kept.model.weights, "");
    ASSERT_FALSE(run) << name;
    EXPECT_THAT(run.error().message, testing::HasSubstr("run for qwen35 and plain layers only")) << name;
  }
}

/// Without a tokenizer, which GGUF files need.
const fs::path kSmall = fs::path(RIDGE_SOURCE_DIR) / "tests/golden/deepseek-v2";

TEST(OwnMtpHead, OfDeepSeekIsKept) { check(kSmall, false); }

TEST(OwnMtpHead, OfModelsWithExpertsIsKept) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  check(*data / "parity/models/qwen3_next", false);
  check(*data / "parity/models/qwen3_5_moe", false);
  check(*data / "parity/models/qwen3_5_moe", true);
  check(*data / "parity/models/deepseek_v3", false);
}

TEST(OwnMtpHead, OfSeveralLayersIsRefused) {
  const TempDir dir;
  write_with_head(kSmall, dir / "two", false, 2);
  const LoadedModel two = load_model((dir / "two").native()).or_throw();
  const auto head = read_own_mtp_head(two.config, two.weights);
  ASSERT_FALSE(head);
  EXPECT_THAT(head.error().message, testing::HasSubstr("several layers"));
}

}  // namespace
}  // namespace ridge
