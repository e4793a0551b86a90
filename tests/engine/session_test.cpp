// Sessions on the tiny shipped model: prefill equals decode, limits, errors, kernels, generation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/metrics.h"
#include "cases/paths.h"
#include "engine/engine.h"
#include "format/list.h"
#include "op/cpu.h"
#include "op/linear.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

const char* const kStoriesModel = RIDGE_SOURCE_DIR "/models/stories260K.gguf";

const Model& tiny() {
  static const Model model = Model::load(kStoriesModel);
  return model;
}
const Model& reference() {
  static const Model model = Model::load(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf");
  return model;
}

std::string error_of(const auto& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::vector<int32_t> some_tokens(int n, int vocab) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(int32_t((i * 7919 + 13) % vocab));
  return tokens;
}

/// Last logits after n tokens prefilled `step` at a time (step 1: decode).
std::vector<float> last_logits(const Model& model, const SessionOptions& base, const std::vector<int32_t>& tokens,
                               int step) {
  SessionOptions options = base;
  options.n_ubatch = std::max(step, 1);
  Session session(model, options);
  std::span<const float> logits;
  if (step == 1)
    for (const int32_t t : tokens) logits = session.decode(t);
  else logits = session.prefill(tokens);
  EXPECT_EQ(session.n_past(), int(tokens.size()));
  return {logits.begin(), logits.end()};
}

// Whole models: invariance_test.cpp.
TEST(Session, PrefillEqualsDecodeForEveryCacheFormat) {
  const std::vector<int32_t> tokens = some_tokens(120, tiny().info().vocab_size);
  for (const KvFormat& format : kv_formats()) {
    const std::string name(format.name);
    if (tiny().info().head_dim % format.group != 0) continue;
    const SessionOptions options{.n_ctx = 128, .k = {.format = name}, .v = {.format = name}};
    const std::vector<float> decoded = last_logits(tiny(), options, tokens, 1);
    for (const int step : {2, 17, 64, 120})
      EXPECT_EQ(last_logits(tiny(), options, tokens, step), decoded) << name << ", " << step << " tokens a step";
  }
}

TEST(Session, KernelsOfEveryIsaAgree) {
  const std::vector<int32_t> tokens = some_tokens(100, tiny().info().vocab_size);
  const SessionOptions options{.n_ctx = 128, .k = {.format = "rotor-3"}, .v = {.format = "q8_0"}};
  SessionOptions usable = options;
  usable.v.format = "f16";  // q8_0 needs a head_dim of 32, this model has 8
  const std::vector<float> expected = last_logits(Model::load(kStoriesModel, {.isa = "scalar"}), usable, tokens, 100);
  for (const Isa each : isas().subspan(1)) {
    const std::string isa(isa_name(each));
    const Model model = Model::load(kStoriesModel, {.isa = isa});
    EXPECT_LT(compare(last_logits(model, usable, tokens, 100), expected).nmse, 1e-4) << isa;
    EXPECT_LT(compare(last_logits(model, usable, tokens, 1), expected).nmse, 1e-4) << isa;
  }
}

TEST(Session, ThreadsDoNotChangeTheResult) {
  const std::vector<int32_t> tokens = some_tokens(60, tiny().info().vocab_size);
  const std::vector<float> one = last_logits(Model::load(kStoriesModel, {.n_threads = 1}), {.n_ctx = 64}, tokens, 1);
  for (const int n : {2, 3, 5}) {
    EXPECT_EQ(last_logits(Model::load(kStoriesModel, {.n_threads = n}), {.n_ctx = 64}, tokens, 1), one)
        << n << " threads";
  }
}

TEST(Session, RefusesWhatDoesNotFitAndStaysUsable) {
  Session session(tiny(), {.n_ctx = 10});
  const std::vector<int32_t> tokens = some_tokens(11, 512);
  EXPECT_TRUE(contains(error_of([&] { session.prefill(tokens); }, ErrorKind::usage), "context full: 11 tokens"));
  EXPECT_EQ(session.n_past(), 0) << "nothing was half done";
  session.prefill(std::span(tokens).first(10));
  EXPECT_TRUE(contains(error_of([&] { session.decode(1); }, ErrorKind::usage), "context full"));
  EXPECT_TRUE(contains(error_of([&] { session.prefill(std::span<const int32_t>{}); }, ErrorKind::usage), "empty"));
  session.reset();
  EXPECT_TRUE(contains(error_of([&] { session.decode(512); }, ErrorKind::usage), "outside the vocabulary"));
  EXPECT_TRUE(contains(error_of([&] { session.decode(-1); }, ErrorKind::usage), "outside the vocabulary"));
  session.decode(1);
  EXPECT_EQ(session.n_past(), 1);
}

TEST(Session, BadOptionsNameTheChoice) {
  const auto open = [](SessionOptions options) { return [options] { Session(tiny(), options); }; };
  EXPECT_TRUE(contains(error_of(open({.k = {.format = "q3_9"}}), ErrorKind::usage), "there are: f32, f16"));
  EXPECT_TRUE(contains(error_of(open({.k = {.format = "q8_0"}}), ErrorKind::usage), "multiple of 32"));
  EXPECT_TRUE(contains(error_of(open({.k = {.rotation = "spiral"}}), ErrorKind::usage), "none, planar, hadamard"));
  EXPECT_TRUE(contains(error_of(open({.n_ctx = -5}), ErrorKind::usage), "n_ctx -5 is out of range"));
  EXPECT_TRUE(contains(error_of(open({.n_ubatch = -1}), ErrorKind::usage), "n_ubatch -1 is out of range"));
}

TEST(Session, BadLoadOptionsNameTheChoice) {
  const auto load = [](LoadOptions options) { return [options] { Model::load(kStoriesModel, options); }; };
  EXPECT_TRUE(contains(error_of(load({.isa = "sse9"}), ErrorKind::usage), isa_names()));
  EXPECT_TRUE(contains(error_of(load({.kernels = {"gemv=warp"}}), ErrorKind::usage), "no kernel 'warp'"));
  EXPECT_TRUE(contains(error_of(load({.kernels = {"gemw=ref"}}), ErrorKind::usage), "unknown op 'gemw'"));
  for (const int n : {-1, 1025, 4096, 100000})
    EXPECT_TRUE(contains(error_of(load({.n_threads = n}), ErrorKind::usage),
                         "n_threads " + std::to_string(n) + " is out of range (1 to 1024"));
  EXPECT_TRUE(contains(error_of([] { Model::load("synth:gpt-9"); }, ErrorKind::usage), "unknown shape"));
  EXPECT_TRUE(
      contains(error_of([] { Model::load("synth:tiny@colour=red"); }, ErrorKind::usage), "unknown synth: option"));
  EXPECT_TRUE(contains(error_of([] { Model::load("no/such/file.gguf"); }, ErrorKind::bad_file), "no/such/file.gguf"));
}

TEST(Session, ForcedKernelIsUsedOrRefused) {
  const Model model = Model::load(kStoriesModel, {.kernels = {"gemv=ref", "attention=ref"}});
  Session session(model, {.n_ctx = 16});
  const std::vector<std::string> kernels = session.kernels();
  EXPECT_NE(std::find(kernels.begin(), kernels.end(), "gemv=ref"), kernels.end());
  session.decode(1);
  // An f32 model has no panels: forcing their kernel must say so, not fall back.
  const Model forced =
      Model::load(kStoriesModel, {.kernels = {fmt::format("gemv=panel-2planes-{}", isa_name(isas().back()))}});
  Session refused(forced, {.n_ctx = 16});
  EXPECT_TRUE(contains(error_of([&] { refused.decode(1); }, ErrorKind::usage), "f32 has no panel layout"));
}

TEST(Session, ReportEqualsTheFormula) {
  Session session(reference(), {.n_ctx = 1000, .k = {.format = "q8_0"}, .v = {.format = "rotor-3"}});
  const ModelInfo& m = reference().info();
  const KvReport report = session.kv_report();
  EXPECT_EQ(report.k.bytes_per_token, int64_t(m.n_layers) * m.n_kv_heads * m.head_dim * 34 / 32);
  EXPECT_EQ(report.v.bytes_per_token, int64_t(m.n_layers) * m.n_kv_heads * (m.head_dim * 3 / 8 + 2));
  EXPECT_DOUBLE_EQ(report.k.bits_per_value, 8.5);
  EXPECT_DOUBLE_EQ(report.v.bits_per_value, 3.125);
  EXPECT_EQ(report.k.rotation, "none");
  EXPECT_EQ(report.v.rotation, "hadamard");
  EXPECT_EQ(report.v.window, 96);
  EXPECT_EQ(report.v.recent, "i8r");
  EXPECT_EQ(report.v.rounding, "weighted");
  EXPECT_EQ(report.v.scale, "unbiased");
  EXPECT_FALSE(report.v.centre) << "only keys are centred";
  EXPECT_EQ(report.v.sinks, 4);
  // One decode step reads every matrix once and every cached row once.
  session.prefill(some_tokens(500, m.vocab_size));
  EXPECT_GT(session.decode_read_bytes(), m.decode_weight_bytes + 400 * report.bytes_per_token());
}

std::vector<float> decode_next(Session& session, int32_t token) {
  const auto logits = session.decode(token);
  return {logits.begin(), logits.end()};
}

TEST(Session, SavedRestoredCopiedAndTruncatedCachesGoOnBitForBit) {
  const std::string path = testing::TempDir() + "ridge_session_state.kv";
  const std::vector<int32_t> tokens = some_tokens(100, 512);
  for (const KvFormat& format : kv_formats()) {
    if (tiny().info().head_dim % format.group != 0) continue;
    const std::string name(format.name);
    const SessionOptions options{.n_ctx = 128, .k = {.format = name}, .v = {.format = name}};
    Session session(tiny(), options), restored(tiny(), options), copied(tiny(), options);
    session.prefill(tokens);
    session.save(path);
    restored.prefill(some_tokens(70, 300));
    restored.restore(path);
    copied.copy_from(session);
    EXPECT_EQ(restored.n_past(), 100);
    const std::vector<float> expected = decode_next(session, 7), later = decode_next(session, 9);
    EXPECT_EQ(decode_next(restored, 7), expected) << name;
    EXPECT_EQ(decode_next(restored, 9), later) << name;
    EXPECT_EQ(decode_next(copied, 7), expected) << name;
    session.truncate(100);
    EXPECT_EQ(decode_next(session, 7), expected) << name;
  }
  std::filesystem::remove(path);
}

TEST(Session, AStateOfAnotherModelOrCacheIsRefusedByNameAndChangesNothing) {
  const std::string path = testing::TempDir() + "ridge_session_refused.kv";
  Session session(tiny(), {.n_ctx = 64});
  session.prefill(some_tokens(50, 512));
  session.save(path);
  const Model other = Model::load("synth:tiny@weights=f16");
  Session elsewhere(other, {.n_ctx = 64}), smaller(tiny(), {.n_ctx = 40}),
      coded(tiny(), {.n_ctx = 64, .k = {.format = "i8r"}});
  smaller.prefill(some_tokens(3, 512));
  error_of([&] { elsewhere.restore(path); }, ErrorKind::bad_file);
  EXPECT_TRUE(contains(error_of([&] { smaller.restore(path); }, ErrorKind::bad_file), "n_past is 50"));
  EXPECT_EQ(smaller.n_past(), 3);
  EXPECT_TRUE(contains(error_of([&] { coded.restore(path); }, ErrorKind::bad_file), "K of layer 0: format f16"));
  EXPECT_TRUE(contains(error_of([&] { session.save("/nonexistent/state.kv"); }, ErrorKind::failure), "/nonexistent"));
  EXPECT_TRUE(contains(error_of([&] { coded.copy_from(session); }, ErrorKind::usage), "format f16, not i8r"));
  EXPECT_TRUE(contains(error_of([&] { elsewhere.copy_from(session); }, ErrorKind::usage), "one model"));
  EXPECT_TRUE(contains(error_of([&] { session.truncate(51); }, ErrorKind::usage), "holds 50"));
  EXPECT_TRUE(contains(error_of([&] { session.shift(40, 11); }, ErrorKind::usage), "holds 50"));
  std::filesystem::remove(path);
}

TEST(Session, ShiftEqualsHavingReadTheTokensAtTheirNewPlaces) {
  // With one layer, rows depend on their own token and position only, so the cache of the shortened text is known.
  const Model model = Model::load("synth:tiny@layers=1@weights=f32");
  const std::vector<int32_t> tokens = some_tokens(120, 512);
  std::vector<int32_t> kept(tokens.begin(), tokens.begin() + 5);
  kept.insert(kept.end(), tokens.begin() + 45, tokens.end());
  for (const auto& [name, bound] : {std::pair{"f32", 1e-9}, {"f16", 1e-5}, {"bf16", 1e-3}}) {
    const SessionOptions options{.n_ctx = 128, .k = {.format = name}, .v = {.format = name}};
    Session shifted(model, options), fresh(model, options);
    shifted.prefill(tokens);
    shifted.shift(5, 40);
    EXPECT_EQ(shifted.n_past(), 80);
    fresh.prefill(kept);
    EXPECT_LT(compare(decode_next(shifted, 7), decode_next(fresh, 7)).nmse, bound) << name;
  }
}

TEST(Session, LayersMayHaveCachesOfTheirOwn) {
  const KvLayerOptions own{.first = 1, .last = 2, .k = {.format = "i8r"}, .v = {.format = "f16"}};
  Session session(tiny(), {.n_ctx = 128, .k = {.format = "rotor-3"}, .v = {.format = "rotor-3"}, .kv_layers = {own}});
  const KvReport report = session.kv_report();
  ASSERT_EQ(report.layers.size(), 3u);
  EXPECT_TRUE(report.layers_differ());
  EXPECT_EQ(report.layers[1].first, 1);
  EXPECT_EQ(report.layers[1].last, 2);
  EXPECT_EQ(report.layers[1].k.format, "i8r");
  EXPECT_EQ(report.layers[2].k.format, "rotor-3");
  EXPECT_EQ(report.k.format, "rotor-3") << "most layers have it";
  int64_t bytes = 0;
  for (const KvLayersReport& group : report.layers) bytes += group.k.bytes_per_token + group.v.bytes_per_token;
  EXPECT_EQ(report.bytes_per_token(), bytes);
  EXPECT_EQ(report.k.bytes_per_token, 4 * (2 * (8 + 2) + 3 * (3 + 2)));
  for (const float x : session.prefill(some_tokens(100, 512))) ASSERT_TRUE(std::isfinite(x));
  // All layers given one by one are the plain cache.
  const SessionOptions plain{.n_ctx = 128, .k = {.format = "rotor-4"}, .v = {.format = "i8r"}};
  SessionOptions layered{.n_ctx = 128};
  for (int layer = 0; layer < tiny().info().n_layers; ++layer)
    layered.kv_layers.push_back({layer, layer, plain.k, plain.v});
  const std::vector<int32_t> tokens = some_tokens(100, 512);
  EXPECT_EQ(last_logits(tiny(), plain, tokens, 50), last_logits(tiny(), layered, tokens, 50));
  EXPECT_EQ(Session(tiny(), layered).kv_report().layers.size(), 1u);
}

TEST(Session, ImpossibleLayersAreRefused) {
  const auto open = [](std::vector<KvLayerOptions> layers) {
    return [layers] { Session(tiny(), {.n_ctx = 16, .kv_layers = layers}); };
  };
  EXPECT_TRUE(contains(error_of(open({{.first = 3, .last = 5}}), ErrorKind::usage), "layers 0 to 4"));
  EXPECT_TRUE(contains(error_of(open({{.first = -1, .last = 0}}), ErrorKind::usage), "layers 0 to 4"));
  EXPECT_TRUE(contains(error_of(open({{.first = 2, .last = 1}}), ErrorKind::usage), "layers 0 to 4"));
  EXPECT_TRUE(
      contains(error_of(open({{.first = 0, .last = 2}, {.first = 2, .last = 3}}), ErrorKind::usage), "layer 2"));
}

TEST(Session, RandomDepthIsValidAndRepeatable) {
  Session a(tiny(), {.n_ctx = 128, .k = {.format = "rotor-3"}, .v = {.format = "rotor-3"}});
  a.fill(100, 7);
  EXPECT_EQ(a.n_past(), 100);
  const auto logits = a.decode(1);
  const std::vector<float> first(logits.begin(), logits.end());
  for (const float x : first) ASSERT_TRUE(std::isfinite(x));
  a.fill(100, 7);
  const auto again = a.decode(1);
  EXPECT_EQ(first, std::vector<float>(again.begin(), again.end()));
  EXPECT_TRUE(contains(error_of([&] { a.fill(129, 7); }, ErrorKind::usage), "depth 129"));
}

TEST(Session, SyntheticModelsRunInEveryWeightFormat) {
  for (const WeightFormat& format : weight_formats()) {
    const Model model = Model::load("synth:tiny@layers=1@weights=" + std::string(format.name));
    Session session(model, {.n_ctx = 32});
    for (const float x : session.prefill(some_tokens(20, 512))) ASSERT_TRUE(std::isfinite(x)) << format.name;
    EXPECT_EQ(model.info().weight_format, 64 % format.group == 0 ? format.name : "f16");  // d_model is 64
    error_of([&] { model.tokenize("text"); }, ErrorKind::usage);
  }
}

TEST(Session, SyntheticBitnetRunsInIntegersAndInFloat) {
  const Model model = Model::load("synth:tiny-bitnet"),
              in_float = Model::load("synth:tiny-bitnet", {.float_activations = true});
  EXPECT_EQ(model.info().weight_format, "i2_s");
  EXPECT_EQ(model.info().arch, "bitnet-b1.58");
  const SessionOptions options{.n_ctx = 32, .k = {.format = "f32"}, .v = {.format = "f32"}};
  Session a(model, options), b(in_float, options);
  const auto x = a.prefill(some_tokens(9, 512)), y = b.prefill(some_tokens(9, 512));
  EXPECT_LT(compare(x, y).nmse, 0.01);
  EXPECT_GT(compare(x, y).nmse, 0) << "the activations were not rounded";
}

TEST(Session, HiddenStatesAreWhatTheOutputMatrixReads) {
  const ModelInfo& info = tiny().info();
  const std::vector<int32_t> tokens = some_tokens(50, info.vocab_size);
  std::vector<float> logits, hidden;
  Session plain(tiny(), {.n_ctx = 64}), session(tiny(), {.n_ctx = 64, .n_ubatch = 17});
  plain.prefill(tokens, [&](int, int n, const float* rows) {
    logits.insert(logits.end(), rows, rows + int64_t(n) * info.vocab_size);
  });
  session.embed(tokens, [&](int first, int n, const float* rows) {
    EXPECT_EQ(first * info.d_model, int(hidden.size()));
    hidden.insert(hidden.end(), rows, rows + int64_t(n) * info.d_model);
  });
  ASSERT_EQ(hidden.size(), tokens.size() * size_t(info.d_model));
  std::vector<float> products(logits.size());
  Engine& engine = tiny().engine();
  linear(engine.context(), engine.weights().output, {hidden.data(), ssize(tokens), info.d_model},
         {products.data(), ssize(tokens), info.vocab_size});
  EXPECT_EQ(products, logits);
  EXPECT_TRUE(std::ranges::equal(plain.decode(1), session.decode(1))) << "the cache differs";
}

GenerateResult greedy(const std::string& prompt, GenerateOptions options, int n_ctx = 128,
                      std::string* streamed = nullptr) {
  Session session(tiny(), {.n_ctx = n_ctx});
  options.sampler.temperature = 0;
  return generate(session, tiny(), tiny().tokenize(prompt), options, [&](std::string_view text) {
    if (streamed) *streamed += text;
    return true;
  });
}

TEST(Generate, WritesAStory) {
  std::string streamed;
  const GenerateResult result = greedy("Once upon a time", {.max_tokens = 40}, 128, &streamed);
  EXPECT_EQ(result.tokens.size(), 40u);
  EXPECT_EQ(result.reason, StopReason::max_tokens);
  EXPECT_EQ(result.text, streamed);
  EXPECT_TRUE(contains(streamed, "there was a little")) << streamed;
  EXPECT_EQ(result.n_decoded, 39) << "the last token needs no further step";
}

TEST(Generate, StopsBeforeAStopStringHoweverTokensCutIt) {
  const std::string full = greedy("Once upon a time", {.max_tokens = 40}).text;
  for (size_t at = 3; at + 6 < full.size(); at += 5) {
    const std::string stop = full.substr(at, 4);
    const GenerateResult result = greedy("Once upon a time", {.max_tokens = 40, .stop = {"never this", stop}});
    EXPECT_EQ(result.reason, StopReason::stop_string);
    EXPECT_EQ(result.stop, stop);
    EXPECT_EQ(result.text, full.substr(0, full.find(stop)));
  }
}

TEST(Generate, HeldBackTextComesOutAtTheEnd) {
  const std::string full = greedy("Once upon a time", {.max_tokens = 20}).text;
  // A stop string that begins like the end of the text but goes on: nothing may be lost.
  EXPECT_EQ(greedy("Once upon a time", {.max_tokens = 20, .stop = {full.substr(full.size() - 3) + "xyz"}}).text, full);
}

TEST(Generate, SaysWhenTheContextIsFull) {
  const GenerateResult result = greedy("Once upon a time", {}, 20);
  EXPECT_EQ(result.reason, StopReason::context_full);
  EXPECT_EQ(result.n_prompt + result.n_decoded, 20);
}

TEST(Generate, StopsWhenTheCallerSaysSo) {
  Session session(tiny(), {.n_ctx = 128});
  int calls = 0;
  const GenerateResult result = generate(session, tiny(), tiny().tokenize("Once"), {.sampler = {.temperature = 0}},
                                         [&](std::string_view) { return ++calls < 3; });
  EXPECT_EQ(result.reason, StopReason::interrupted);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace ridge
