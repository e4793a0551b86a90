// /v1/embeddings: pooled hidden states of the model, whatever else the server does.
#include <cmath>
#include <cstring>
#include <future>

#include "api_fixture.h"

namespace ridge::serve {
namespace {

constexpr const char* kText = "Once upon a time there was a dog";

class EmbeddingsTest : public ApiTest {
 protected:
  /// By a session of its own.
  static std::vector<float> expected(const std::string& text, bool mean) {
    Session session(model(), session_options(parse_kv_choice("rotor-3").or_throw(), 512, 0));
    std::vector<double> sum;
    session.embed(model().tokenize(text), [&](int, int n, const float* hidden) {
      const auto d_model = size_t(model().engine().plan().d_model);
      sum.resize(d_model);
      for (size_t i = 0; i < size_t(n) * d_model; ++i) sum[i % d_model] = hidden[i] + (mean ? sum[i % d_model] : 0);
    });
    double square = 0;
    for (const double value : sum) square += value * value;
    std::vector<float> made;
    for (const double value : sum) made.push_back(float(value / std::sqrt(square)));
    return made;
  }
  Json embedded(Json more) {
    Json body = {{"model", "m"}, {"input", kText}};
    body.update(more);
    return ok("/v1/embeddings", body);
  }
  static void expect_near(const Json& values, const std::vector<float>& wanted) {
    ASSERT_EQ(values.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(values[i].get<float>(), wanted[i], 1e-5) << i;
  }
};

TEST_F(EmbeddingsTest, AreHiddenStatesPooled) {
  open();
  const Json mean = embedded({{"pooling", "mean"}});
  EXPECT_EQ(mean["object"], "list");
  EXPECT_EQ(mean["data"][0]["object"], "embedding");
  EXPECT_EQ(mean["data"][0]["index"], 0);
  const auto n_tokens = ssize(model().tokenize(kText));
  EXPECT_EQ(mean["usage"], Json({{"prompt_tokens", n_tokens}, {"total_tokens", n_tokens}}));
  expect_near(mean["data"][0]["embedding"], expected(kText, true));
  EXPECT_EQ(embedded(Json::object())["data"], mean["data"]) << "the mean when nothing is said, cached or not";
  expect_near(embedded({{"pooling", "last"}})["data"][0]["embedding"], expected(kText, false));
}

TEST_F(EmbeddingsTest, FormsOfInputsAndOutputs) {
  open();
  const Json one = embedded(Json::object())["data"][0]["embedding"];
  const Json ids = ok("/tokenize", {{"content", kText}, {"add_special", true}})["tokens"];
  EXPECT_EQ(embedded({{"input", ids}})["data"][0]["embedding"], one);
  const Json several = embedded({{"input", {"The cat", kText, ids}}})["data"];
  ASSERT_EQ(several.size(), 3u);
  EXPECT_NE(several[0]["embedding"], one);
  EXPECT_EQ(several[1]["embedding"], one);
  EXPECT_EQ(several[2]["embedding"], one);
  EXPECT_EQ(several[2]["index"], 2);
  const Json cut = embedded({{"dimensions", 8}})["data"][0]["embedding"];
  double square = 0, cosine = 0;
  for (size_t i = 0; i < 8; ++i)
    square += std::pow(cut[i].get<double>(), 2), cosine += one[i].get<double>() * cut[i].get<double>();
  EXPECT_EQ(cut.size(), 8u);
  EXPECT_NEAR(square, 1, 1e-5);
  EXPECT_GT(cosine, 0);
  const std::string text = embedded({{"encoding_format", "base64"}})["data"][0]["embedding"];
  EXPECT_EQ(text.size(), (one.size() * sizeof(float) + 2) / 3 * 4);
}

TEST_F(EmbeddingsTest, BesideOtherRequestsTheyAreTheSame) {
  open();
  const Json alone = embedded(Json::object())["data"];
  std::vector<std::future<Json>> others;
  for (uint64_t seed = 0; seed < 4; ++seed)
    others.push_back(std::async(std::launch::async, [&, seed] { return ok("/v1/completions", story(60, seed)); }));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(embedded(Json::object())["data"], alone);
  for (auto& other : others) other.get();
  EXPECT_TRUE(wait_idle());
}

TEST_F(EmbeddingsTest, FaultsAreNamed) {
  open();
  const auto fault = [&](const Json& more) {
    Json body = {{"input", kText}};
    body.update(more);
    return refused("/v1/embeddings", body.dump(), 400)["param"];
  };
  EXPECT_EQ(fault({{"input", nullptr}}), "input");
  EXPECT_EQ(fault({{"input", Json::array()}}), "input");
  EXPECT_EQ(fault({{"input", {{"x", 1}}}}), "input");
  EXPECT_EQ(fault({{"input", {1, 99999999}}}), "input");
  EXPECT_EQ(fault({{"encoding_format", "hex"}}), "encoding_format");
  EXPECT_EQ(fault({{"pooling", "cls"}}), "pooling");
  EXPECT_EQ(fault({{"dimensions", 0}}), "dimensions");
  EXPECT_EQ(fault({{"dimensions", 1 << 20}}), "dimensions");
  EXPECT_EQ(fault({{"kv_quant", "q99"}}), "kv_quant");
  std::string words;
  for (int i = 0; i < 600; ++i) words += "dog ";
  EXPECT_EQ(refused("/v1/embeddings", Json({{"input", words}}).dump(), 400)["code"], "context_length_exceeded");
}

}  // namespace
}  // namespace ridge::serve
