// MTP heads in a model's own file through `ridge quantize`: from a directory to GGUF, to GGUF again, and to int4_g128.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "cases/own_mtp_head.h"
#include "cases/paths.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "model/convert.h"
#include "model/mtp.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

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
  const bool has_ends = arch_of(original.model.config).grouped_experts;
  for (const Linear& end : {original.head->weights.embedding, original.head->weights.output})
    EXPECT_EQ(end.format != nullptr, has_ends);

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
    EXPECT_EQ(kept.head->weights.embedding.format != nullptr, has_ends) << name;
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
    const MtpHead run = load_mtp_head(context, kept.model.config, kept.model.weights, "").or_throw();
    EXPECT_TRUE(run.after_norm) << name;
    EXPECT_EQ(run.own_output, has_ends) << name;
    EXPECT_EQ(run.own_embedding, has_ends) << name;
    EXPECT_EQ(run.weights.output.rows == kept.model.weights.output.rows, !has_ends) << name;
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
