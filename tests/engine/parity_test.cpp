// Tiny random models of many architectures against logits that other implementations computed (see the README of the
// reference data's models): Hugging Face directories and their GGUF twins, prompts and single tokens.
#include <gtest/gtest.h>

#include "cases/golden_logits.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "io/safetensors.h"
#include "model/convert.h"

namespace ridge {
namespace {

/// What the README allows where weights are decoded to float32 and everything is computed in float32.
constexpr double kBound = 1e-4;

struct Golden {
  std::string ids = "input_ids", logits = "logits", greedy = "greedy_ids";
};
struct Case {
  std::string name;
  Golden golden = {};                                ///< of the Hugging Face directory
  std::string gguf = "";                             ///< the twin's file; empty: there is none
  std::optional<Golden> gguf_golden = std::nullopt;  ///< where the GGUF file means something else
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name << " " << c.golden.logits; }

class Parity : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto data = reference_data();
    if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
    directory_ = *data / "parity/models" / GetParam().name;
    file_ = io::MappedFile::open(directory_ / "golden.safetensors").or_throw();
    tensors_ = io::parse_safetensors(file_.bytes(), "golden").or_throw();
  }
  template <class T>
  std::vector<T> tensor(const std::string& name) const {
    for (const io::Tensor& t : tensors_)
      if (t.name == name) {
        const auto* const first = reinterpret_cast<const T*>(t.data.data());
        return {first, first + t.data.size() / sizeof(T)};
      }
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  /// The largest difference from the golden logits, as one prompt or token by token.
  void expect_golden(const Model& model, const Golden& golden) const {
    const std::vector<int32_t> ids = tensor<int32_t>(golden.ids);
    const std::vector<float> expected = tensor<float>(golden.logits);
    const std::vector<int32_t> greedy = golden.greedy.empty() ? std::vector<int32_t>() : tensor<int32_t>(golden.greedy);
    const SessionOptions options{
        .n_ctx = int(ids.size() + greedy.size()), .n_ubatch = 20, .k = {.format = "f32"}, .v = {.format = "f32"}};
    for (const bool one_by_one : {false, true}) {
      Session session(model, options);
      std::vector<float> all;
      if (one_by_one)
        for (const int32_t id : ids) {
          const auto row = session.decode(id);
          all.insert(all.end(), row.begin(), row.end());
        }
      else
        session.prefill(ids, [&](int, int n, const float* rows) {
          all.insert(all.end(), rows, rows + int64_t(n) * model.info().vocab_size);
        });
      ASSERT_EQ(all.size(), expected.size());
      double worst = 0;
      for (size_t i = 0; i < all.size(); ++i) worst = std::max(worst, std::abs(double(all[i]) - expected[i]));
      EXPECT_LT(worst, kBound) << (one_by_one ? "token by token" : "as a prompt");
      EXPECT_GT(worst, 0) << "the golden itself";
      std::vector<int32_t> written;
      std::span<const float> row(all.data() + all.size() - size_t(model.info().vocab_size),
                                 size_t(model.info().vocab_size));
      while (written.size() < greedy.size()) {
        written.push_back(int32_t(std::ranges::max_element(row) - row.begin()));
        row = session.decode(written.back());
      }
      EXPECT_EQ(written, greedy);
    }
  }

  std::filesystem::path directory_;

 private:
  io::MappedFile file_;
  std::vector<io::Tensor> tensors_;
};

TEST_P(Parity, HfDirectory) { expect_golden(Model::load(directory_.native()), GetParam().golden); }

TEST_P(Parity, GgufTwin) {
  if (GetParam().gguf.empty()) GTEST_SKIP() << "there is no GGUF twin";
  expect_golden(Model::load((directory_ / GetParam().gguf).native()),
                GetParam().gguf_golden.value_or(GetParam().golden));
}

/// What `ridge quantize` writes of the directory means the same.
TEST_P(Parity, WrittenGguf) {
  const TempDir dir;
  const std::filesystem::path path = dir / "written.gguf";
  const auto written = convert_to_gguf(directory_.native(), path, *find_weight_format("f32").or_throw(), nullptr);
  if (GetParam().gguf.empty()) {
    ASSERT_FALSE(written) << "there is no GGUF form of it";
    return;
  }
  ASSERT_TRUE(written) << written.error().message;
  expect_golden(Model::load(path.native()), GetParam().golden);
}

const Golden kShort{.ids = "input_ids_short", .logits = "logits_short", .greedy = ""};
INSTANTIATE_TEST_SUITE_P(
    Models, Parity,
    testing::Values(Case{"mistral", {}, "model-bf16.gguf"}, Case{"llama3", {}, "model-bf16.gguf"},
                    Case{"mistral_swa", {}, "model-f32.gguf", Golden{.logits = "logits_no_window", .greedy = ""}},
                    Case{"granite", {}, "model-bf16.gguf"}, Case{"phi3", {}, "model-bf16.gguf"},
                    Case{"phi3_longrope", {}, "model-bf16.gguf"}, Case{"phi3_longrope", kShort, "model-bf16.gguf"},
                    Case{"olmo2", {}, "model-bf16.gguf"}, Case{"gemma3", {}, "model-bf16.gguf"},
                    Case{"qwen3_moe", {}, "model-bf16.gguf"}, Case{"qwen3_moe_dense"},
                    Case{"qwen2_moe", {}, "model-bf16.gguf"}, Case{"qwen3_5", {}, "model-f32.gguf"},
                    Case{"qwen3_5_moe", {}, "model-bf16.gguf"}, Case{"qwen3_5_mtp", {}, "model-bf16.gguf"},
                    Case{"qwen3_next", {}, "model-bf16.gguf"},
                    Case{"gpt_oss", {}, "model-bf16.gguf", Golden{.logits = "logits_truncate", .greedy = ""}},
                    Case{"gpt_oss_mxfp4", {}, "model-bf16.gguf"}, Case{"deepseek_v3", {}, "model-bf16.gguf"}),
    [](const auto& of) { return of.param.name + (of.param.golden.ids == "input_ids" ? "" : "_short"); });

}  // namespace
}  // namespace ridge
