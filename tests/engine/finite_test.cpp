// Models with a weight that is not a number: every way to sample a token ends in an error that names the tensor.
#include "engine/finite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>

#include "cases/damaged_model.h"
#include "engine/decode/text.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"

namespace ridge {
namespace {

using testing::HasSubstr;

class Finite : public testing::Test {
 protected:
  /// What sampling says; "" where nothing went wrong.
  static std::string sample_text(const Model& model, const SamplerOptions& sampler, const std::string& cache,
                                 Speculation* speculation = nullptr, std::vector<int32_t> prompt = {1, 30, 31, 32}) {
    Session session(model, {.n_ctx = 256, .k = {.format = cache}, .v = {.format = cache}});
    session.speculate(speculation);
    session.prefill(prompt);
    try {
      session.generate(sampler, prompt, 100, [](int32_t) { return true; });
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_file);
      EXPECT_EQ(session.n_past(), 0) << "rows that are not finite are forgotten";
      return error.what();
    }
    return "";
  }
  TempDir directory_;
};

TEST_F(Finite, EveryMatrixIsNamedWhateverTheCacheAndTheSampler) {
  for (const char* tensor :
       {"blk.1.attn_q.weight", "blk.0.attn_k.weight", "blk.2.attn_v.weight", "blk.3.attn_output.weight",
        "blk.0.ffn_gate.weight", "blk.4.ffn_up.weight", "blk.1.ffn_down.weight", "output.weight"}) {
    for (const float value : {NAN, INFINITY}) {
      const Model model = Model::load(damaged_model(directory_, tensor, 64 * 3 + 5, value), {.n_threads = 2});
      for (const char* cache : {"f16", "f32", "rotor-3"})
        for (const float temperature : {0.0f, 0.8f}) {
          const std::string said = sample_text(model, {.temperature = temperature}, cache);
          EXPECT_THAT(said, HasSubstr(std::string(kNotFiniteText))) << tensor << ", " << cache;
          EXPECT_THAT(said, HasSubstr(tensor));
        }
    }
  }
}

TEST_F(Finite, AScaleOfAMatrixThatIsPackedIsFoundAtLoad) {
  for (const char* format : {"q8_0", "q4_0"})
    for (const uint16_t scale : {0x7E00, 0x7C00, 0xFC00}) {  // NaN, infinities
      const std::string path = changed_model(directory_, "blk.1.ffn_up.weight", format, [&](auto& bytes) {
        const size_t block = bytes.size() / (64 * 172 / 32);
        std::memcpy(bytes.data() + (2 * 5 + 1) * block, &scale, 2);  // two blocks a row
      });
      try {
        const Model model = Model::load(path);
        EXPECT_EQ(model.info().isa, "scalar") << "other kernels pack the matrix";
        EXPECT_THAT(sample_text(model, {.temperature = 0}, "f16"), HasSubstr("blk.1.ffn_up.weight"));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::bad_file);
        EXPECT_THAT(error.what(), HasSubstr("blk.1.ffn_up.weight: a scale of row 5 is not finite"));
      }
    }
}

TEST_F(Finite, CodesOfACacheHideNothing) {
  for (const char* tensor : {"blk.0.attn_k.weight", "blk.2.attn_v.weight"}) {
    const Model model = Model::load(damaged_model(directory_, tensor, 64 * 3 + 5));
    for (const char* cache : {"rotor-3:window=0:sinks=0", "rotor-3:none:window=0:sinks=0"}) {
      const KvChoice kv = parse_kv_choice(cache).or_throw();
      Session session(model, session_options(kv, 256, 16));
      const std::vector<int32_t> prompt(100, 30);
      session.prefill(prompt);
      EXPECT_THROW(session.generate({.temperature = 0}, prompt, 4, [](int32_t) { return true; }), NotFiniteError)
          << tensor << ", " << cache;
    }
  }
}

TEST_F(Finite, StepsBehindTheOneThatLostARowSaySo) {
  const Model model = Model::load(damaged_model(directory_, "token_embd.weight", 64 * 30 + 1), {.n_threads = 1});
  std::vector<int32_t> prompt(40, 31);
  prompt[3] = 30;  // in the first of three steps; the others have no row that is not finite
  for (const char* cache : {"f16", "f32", "bf16", "i8r", "rotor-4", "rotor-3", "rotor-3s"}) {
    Session session(model, session_options(parse_kv_choice(cache).or_throw(), 256, 16));
    session.prefill(prompt);
    Session copy(model, session_options(parse_kv_choice(cache).or_throw(), 256, 16));
    copy.copy_from(session);
    for (Session* one : {&session, &copy}) {
      EXPECT_THROW(one->save((directory_ / "state").native()), Error) << cache;
      one->prefill(std::vector<int32_t>{31});
      EXPECT_THROW(one->generate({.temperature = 0}, prompt, 4, [](int32_t) { return true; }), NotFiniteError) << cache;
    }
  }
  // Back in front of the row nothing is lost.
  Session session(model, session_options(parse_kv_choice("f16").or_throw(), 256, 16));
  session.prefill(prompt);
  session.truncate(3);
  const std::vector<int32_t> rest(20, 31);
  session.prefill(rest);
  EXPECT_EQ(session.generate({.temperature = 0}, prompt, 4, [](int32_t) { return true; }), 4);
}

TEST_F(Finite, SpeculationSaysSoToo) {
  const Model model = Model::load(damaged_model(directory_, "blk.1.ffn_down.weight", 7), {.n_threads = 1});
  for (const bool rejects : {false, true}) {
    Speculation speculation(make_lookup_proposer(), 4);
    if (rejects) speculation.reject();
    const std::vector<int32_t> repeats{1, 30, 31, 32, 30, 31, 32, 30, 31, 32};
    EXPECT_THAT(sample_text(model, {.temperature = rejects ? 1.0f : 0.0f}, "f16", &speculation, repeats),
                HasSubstr("blk.1.ffn_down.weight has nan in row 0"));
  }
}

TEST_F(Finite, ARequestWithoutTheDamagedRowIsAnsweredAsBefore) {
  const Model whole = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf"),
              damaged = Model::load(damaged_model(directory_, "token_embd.weight", 64 * 30 + 1));
  const auto text = [](const Model& model) {
    Session session(model, {.n_ctx = 64});
    const std::vector<int32_t> prompt{1, 40, 41};
    session.prefill(prompt);
    std::vector<int32_t> tokens;
    session.generate({.temperature = 0}, prompt, 12, [&](int32_t token) {
      tokens.push_back(token);
      return true;
    });
    return tokens;
  };
  EXPECT_EQ(text(damaged), text(whole));
  EXPECT_THAT(sample_text(damaged, {.temperature = 0}, "f16"), HasSubstr("token_embd.weight has nan in row 30"));
}

TEST_F(Finite, OnRequestTheFirstBlockIsNamed) {
  const std::pair<const char*, const char*> cases[] = {{"token_embd.weight", "the embedding's rows"},
                                                       {"blk.2.attn_v.weight", "the attention of layer 2"},
                                                       {"blk.0.attn_output.weight", "the attention of layer 0"},
                                                       {"blk.3.ffn_up.weight", "the feed-forward of layer 3"},
                                                       {"blk.4.ffn_down.weight", "the feed-forward of layer 4"}};
  for (const auto& [tensor, where] : cases) {
    const Model model = Model::load(damaged_model(directory_, tensor, 64 * 30 + 2));
    watch_finite(model.engine());
    Session session(model, {.n_ctx = 64});
    const std::vector<int32_t> prompt{1, 30};
    try {
      session.prefill(prompt);
      FAIL() << tensor;
    } catch (const NotFiniteError& error) {
      EXPECT_THAT(error.what(), HasSubstr(where));
      EXPECT_THAT(error.what(), HasSubstr(tensor));
    }
  }
}

TEST_F(Finite, ActivationsThatOverflowAreNoFaultOfAWeight) {
  const Model model = Model::load(changed_model(directory_, "blk.0.ffn_down.weight", "f32", [](auto& bytes) {
    const float large = 3e38f;
    for (size_t at = 0; at < bytes.size(); at += 4) std::memcpy(bytes.data() + at, &large, 4);
  }));
  const std::string said = sample_text(model, {.temperature = 0}, "f16");
  EXPECT_THAT(said, HasSubstr("all weights are finite, so activations overflow"));
  EXPECT_THAT(said, HasSubstr("--check-finite"));
}

}  // namespace
}  // namespace ridge
