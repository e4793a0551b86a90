// Whole models on the device against the CPU's reference kernels.
#include <gmock/gmock.h>

#include "base/metrics.h"
#include "engine/model_impl.h"
#include "gpu/device_data.h"
#include "gpu/launch_log.h"
#include "lab/quality/quality.h"

namespace ridge {
namespace {

class ModelCuda : public OnDevice {};

std::vector<int32_t> tokens_of(int n, int vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(vocab)));
  return tokens;
}

/// Logits of every position, the first part as a prompt in batches, the rest token by token.
std::vector<float> all_logits(const Model& model, const std::vector<int32_t>& tokens, const char* k, const char* v,
                              int n_ubatch = 37) {
  Session session(model, {.n_ctx = int(tokens.size()), .n_ubatch = n_ubatch, .k = {.format = k}, .v = {.format = v}});
  std::vector<float> all;
  const size_t prompt = tokens.size() * 3 / 4;
  const int64_t vocab = model.info().vocab_size;
  session.prefill(std::span(tokens).first(prompt),
                  [&](int, int n, const float* rows) { all.insert(all.end(), rows, rows + n * vocab); });
  for (size_t i = prompt; i < tokens.size(); ++i) {
    const auto row = session.decode(tokens[i]);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TEST_F(ModelCuda, LogitsAreTheReferencesWithEveryCacheFormat) {
  for (const char* spec : {"synth:tiny@weights=f32", "synth:tiny@weights=q8_0", "synth:tiny@weights=bf16"}) {
    const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"});
    const Model device = Model::load(spec, {.device = "cuda"});
    EXPECT_THAT(device.info().device, testing::StartsWith("cuda:0 "));
    const auto tokens = tokens_of(160, cpu.info().vocab_size, 1);
    std::vector<std::pair<std::string, std::string>> pairs = {{"f16", "rotor-3"}, {"rotor-3", "q8_0"}};
    for (const KvFormat& format : kv_formats()) pairs.emplace_back(format.name, format.name);
    for (const auto& [k, v] : pairs) {
      const auto expected = all_logits(cpu, tokens, k.c_str(), v.c_str());
      const auto got = all_logits(device, tokens, k.c_str(), v.c_str());
      // Float rounding on the way in moves a value across a rounding or coding boundary now and then: one step of one
      // element of one row. Exact formats see none of that.
      const double bound = k == "f32" && v == "f32" ? 1e-10 : k == "f16" && v == "f16" ? 1e-7 : 1e-4;
      EXPECT_LT(compare(got, expected).nmse, bound) << spec << " " << k << "/" << v;
    }
  }
}

/// head_dim 64 and every order of weights: decode is the recorded step over tiles, prefill the batch kernels.
TEST_F(ModelCuda, RecordedStepsAreTheReferences) {
  const std::pair<const char*, const char*> pairs[] = {
      {"f16", "f16"}, {"rotor-3", "rotor-3"}, {"q8_0", "q4_0"}, {"p8", "rotor-4"}, {"rotor-4", "bf16"}};
  for (const char* weights : {"f16", "bf16", "q8_0", "int4_g128", "q4_k", "q6_k", "f32"}) {
    const std::string spec = std::string("synth:tiny-64@weights=") + weights;
    const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"});
    const Model device = Model::load(spec, {.device = "cuda"});
    const auto tokens = tokens_of(150, cpu.info().vocab_size, 1);
    for (const auto& [k, v] : pairs) {
      if (std::string_view(weights) != "int4_g128" && std::string_view(weights) != "f16" && k != pairs[1].first)
        continue;
      const auto expected = all_logits(cpu, tokens, k, v);
      const auto got = all_logits(device, tokens, k, v);
      // Activations of int4_g128 have 15 bits, those of bf16 weights 16; a coded element moves by a step now and then.
      const double bound = std::string_view(k) == "f16" ? 1e-6 : 2e-4;
      EXPECT_LT(compare(got, expected).nmse, bound) << spec << " " << k << "/" << v;
    }
  }
}

/// Drawing runs ahead of the host; what it leaves in the cache is what was handed on.
TEST_F(ModelCuda, DrawsTheCpusTokensAndForgetsTheSurplus) {
  const char* spec = "synth:tiny-64@weights=f16";
  const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"}),
              device = Model::load(spec, {.device = "cuda"});
  const auto prompt = tokens_of(123, cpu.info().vocab_size, 1);
  SamplerOptions greedy, sampled;
  greedy.temperature = 0;
  sampled.seed = 7;
  for (const char* format : {"f16", "rotor-3"})
    for (const SamplerOptions& options : {greedy, sampled}) {
      // Codes that differ in an element now and then lead sampled text elsewhere.
      if (format == std::string_view("rotor-3") && options.temperature > 0) continue;
      std::vector<std::vector<int32_t>> drawn;
      std::vector<std::vector<float>> after;
      for (const Model* model : {&cpu, &device}) {
        // A tile leaves rotor-3's window at 128 tokens; the surplus of the first draw reaches beyond it.
        // Steps of more tokens would round activations once.
        Session session(*model, {.n_ctx = 160, .n_ubatch = 64, .k = {.format = format}, .v = {.format = format}});
        session.prefill(prompt);
        std::vector<int32_t>& tokens = drawn.emplace_back();
        const auto take = [&](size_t n) {
          return [&tokens, n](int32_t token) {
            tokens.push_back(token);
            return tokens.size() < n;
          };
        };
        EXPECT_EQ(session.draw(options, prompt, 1000, take(5)), 5);
        EXPECT_EQ(session.n_past(), 127);
        const auto logits = session.decode(tokens.back());
        after.emplace_back(logits.begin(), logits.end());
        EXPECT_EQ(session.draw(options, prompt, 10, take(1000)), 10);
        // Until the context is full: the last token has no place any more.
        session.decode(tokens.back());
        EXPECT_EQ(session.draw(options, prompt, 1000, take(1000)), 160 - 138 + 1);
        EXPECT_EQ(session.n_past(), 160);
      }
      EXPECT_EQ(drawn[0], drawn[1]) << format << ", temperature " << options.temperature;
      EXPECT_LT(compare(after[1], after[0]).nmse, 1e-4) << format;
    }
}

TEST_F(ModelCuda, RecordedStepsOfTernaryModelsAreTheReferences) {
  const Model cpu = Model::load("synth:tiny-bitnet", {.n_threads = 2, .isa = "scalar"});
  const Model device = Model::load("synth:tiny-bitnet", {.device = "cuda"});
  const auto tokens = tokens_of(60, cpu.info().vocab_size, 1);
  EXPECT_LT(compare(all_logits(device, tokens, "f16", "f16"), all_logits(cpu, tokens, "f16", "f16")).nmse, 1e-3);
}

/// More tokens at a time than a decode step has: products that round activations, and int4_g128 weights, to halves.
TEST_F(ModelCuda, PromptsAreTheReferences) {
  for (const char* spec : {"synth:tiny-64@weights=int4_g128", "synth:tiny-64@weights=f16", "synth:tiny-64@weights=q4_k",
                           "synth:tiny-64@weights=bf16", "synth:tiny-bitnet"}) {
    const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"});
    const Model device = Model::load(spec, {.device = "cuda"});
    const auto tokens = tokens_of(100, cpu.info().vocab_size, 1);
    const auto expected = all_logits(cpu, tokens, "f16", "f16"), got = all_logits(device, tokens, "f16", "f16", 75);
    // Each product adds a relative error of 2^-11 / sqrt(3) or, with rounded weights, 1.4 times as much. A value of a
    // ternary model that is near the border of two levels moves by a whole one.
    const double bound = device.info().arch.find("bitnet") == std::string::npos ? 5e-6 : 1e-3;
    EXPECT_LT(compare(got, expected).nmse, bound) << spec;
  }
}

TEST_F(ModelCuda, AShippedModelGivesTheReferencesLogits) {
  const std::string path = RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf";
  const Model cpu = Model::load(path, {.n_threads = 0, .isa = "scalar"}),
              device = Model::load(path, {.device = "cuda"});
  const auto tokens = tokens_of(12, cpu.info().vocab_size, 2);
  EXPECT_LT(compare(all_logits(device, tokens, "f32", "f32"), all_logits(cpu, tokens, "f32", "f32")).nmse, 1e-9);
}

TEST_F(ModelCuda, SequencesSideBySideGiveTheBitsOfOneAlone) {
  const Model model = Model::load("synth:tiny@weights=f32", {.device = "cuda"});
  constexpr int kSeq = 5, kTokens = 120;
  const SessionOptions options{.n_ctx = kTokens, .n_ubatch = 50, .k = {.format = "rotor-3"}, .v = {.format = "q8_0"}};
  const auto many = open_device_session(model, options, kSeq), one = open_device_session(model, options, 1);
  std::vector<std::vector<int32_t>> tokens;
  for (int s = 0; s < kSeq; ++s) tokens.push_back(tokens_of(kTokens, model.info().vocab_size, uint64_t(s)));
  const std::vector<int> steps = {50, 1, 1, 40, 27, 1};
  std::vector<std::vector<float>> together;  // [step]
  many->reset(kSeq);
  int past = 0;
  for (const int n : steps) {
    std::vector<int32_t> batch;
    for (const auto& t : tokens) batch.insert(batch.end(), t.begin() + past, t.begin() + past + n);
    many->forward(batch, LogitRows::all);
    const View2<float> logits = many->logits();
    together.emplace_back(logits.data, logits.data + logits.rows * logits.cols);
    past += n;
  }
  for (int s = 0; s < kSeq; ++s) {
    one->reset(1);
    past = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      one->forward(std::span(tokens[size_t(s)]).subspan(size_t(past), size_t(steps[i])), LogitRows::all);
      const View2<float> logits = one->logits();
      const int64_t n = logits.rows * logits.cols;
      EXPECT_EQ(std::vector(logits.data, logits.data + n),
                std::vector(together[i].begin() + s * n, together[i].begin() + (s + 1) * n))
          << "sequence " << s << ", step " << i;
      past += steps[i];
    }
  }
}

/// Steps recorded for some sequences, with or without logits, are good after steps of others have taken more memory.
TEST_F(ModelCuda, RecordedStepsOfAnyNumberOfSequencesTakeTurns) {
  constexpr int kMany = 6, kSteps = 3;
  for (const char* spec : {"synth:tiny-64@weights=f32", "synth:tiny-64@weights=int4_g128"}) {
    const Model model = Model::load(spec, {.device = "cuda"});
    const SessionOptions options{.n_ctx = 64, .k = {.format = "f16"}, .v = {.format = "f16"}};
    const auto tokens = tokens_of(kSteps * kMany, model.info().vocab_size, 1);
    const auto last_logits = [&](DeviceSession& session, int n_seq) {
      session.reset(n_seq);
      for (int i = 0; i < kSteps; ++i)
        session.forward(std::span(tokens).subspan(size_t(i * n_seq), size_t(n_seq)),
                        i + 1 < kSteps ? LogitRows::none : LogitRows::all);
      const View2<float> logits = session.logits();
      return std::vector(logits.data, logits.data + logits.rows * logits.cols);
    };
    const auto session = open_device_session(model, options, kMany);
    std::vector<float> first[2];
    for (int turn = 0; turn < 2; ++turn)
      for (const int n_seq : {1, kMany}) {
        const auto got = last_logits(*session, n_seq);
        if (turn == 0) first[n_seq > 1] = last_logits(*open_device_session(model, options, kMany), n_seq);
        EXPECT_EQ(got, first[n_seq > 1]) << spec << ", " << n_seq << " sequences, turn " << turn;
      }
  }
}

/// What a profile is made of: the first step is queued launch by launch, the second recorded, the third replayed.
TEST_F(ModelCuda, StepsLogTheSameLaunchesHoweverTheyRun) {
  const Model model = Model::load("synth:tiny-64@weights=int4_g128", {.device = "cuda"});
  Session session(model, {.n_ctx = 64, .k = {.format = "f16"}, .v = {.format = "q8_0"}});
  const auto launches = [&](int32_t token) {
    gpu::LaunchLog log;
    const gpu::LogLaunches on(&log);
    session.decode(token);
    std::vector<std::string> texts;
    for (const gpu::LoggedLaunch& launch : log.launches) {
      EXPECT_GE(launch.op, 0) << launch.kernel << " belongs to no op";
      if (launch.op < 0) continue;
      const gpu::LoggedOp& op = log.ops[size_t(launch.op)];
      texts.push_back(fmt::format("{} {} {} {}", op.layer, op.op, op.what, launch.kernel));
    }
    return texts;
  };
  const auto queued = launches(1);
  EXPECT_GT(queued.size(), size_t(5 * model.info().n_layers));
  EXPECT_EQ(std::count_if(queued.begin(), queued.end(), [](const auto& t) { return t.find(" embed ") != t.npos; }), 1)
      << "a profile cuts steps there";
  EXPECT_THAT(queued, testing::Contains(testing::HasSubstr("1 attention ")));
  EXPECT_EQ(launches(2), queued) << "recorded";
  EXPECT_EQ(launches(3), queued) << "replayed";
}

TEST_F(ModelCuda, EvaluationsAreTheCpus) {
  const std::string path = RIDGE_SOURCE_DIR "/models/stories260K.gguf";
  const Model cpu = Model::load(path, {.n_threads = 2, .isa = "scalar"}),
              device = Model::load(path, {.device = "cuda"});
  lab::Corpus corpus = lab::read_corpus(cpu, RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt");
  corpus.tokens.resize(1200);
  for (const lab::EvalPath eval_path : {lab::EvalPath::prefill, lab::EvalPath::decode})
    for (const bool against_base : {true, false}) {
      lab::EvalOptions options;
      options.n_ctx = 160;
      options.n_ubatch = 48;
      options.path = eval_path;
      options.against_base = against_base;
      options.candidates = parse_kv_list("f16,f32,rotor-3").or_throw();
      int chunks = 0;
      int64_t steps = 0, total = 0;
      const lab::EvalHooks hooks{.stop = {},
                                 .on_progress = [&](int64_t n, int64_t of) { steps += n, total = of; },
                                 .on_chunk = [&](const lab::EvalResult& so_far) { chunks = so_far.chunks_done; }};
      const lab::EvalResult expected = lab::evaluate(cpu, corpus, options, {});
      const lab::EvalResult got = lab::evaluate(device, corpus, options, hooks);
      ASSERT_EQ(got.chunks_done, expected.chunks_done);
      EXPECT_EQ(chunks, expected.chunks_done);
      EXPECT_EQ(steps, total);
      EXPECT_EQ(got.scored_bytes, expected.scored_bytes);
      for (size_t c = 0; c < got.candidates.size(); ++c) {
        const lab::CandidateResult &a = got.candidates[c], &b = expected.candidates[c];
        EXPECT_EQ(a.cache.k.bytes_per_token, b.cache.k.bytes_per_token);
        EXPECT_EQ(a.cache.k.fixed_bytes, b.cache.k.fixed_bytes);
        if (!against_base) {
          EXPECT_EQ(a.scores.ppl.count(), b.scores.ppl.count());
          EXPECT_NEAR(a.scores.ppl.ppl().value / b.scores.ppl.ppl().value, 1, 2e-4);
          continue;
        }
        const lab::PairMeans x = a.scores.pair.means(), y = b.scores.pair.means();
        EXPECT_EQ(x.count, y.count);
        EXPECT_NEAR(x.ppl.value / y.ppl.value, 1, 2e-4);
        EXPECT_NEAR(x.kld.value, y.kld.value, c == 0 ? 0 : c == 1 ? 1e-6 : 0.02 * y.kld.value);
        EXPECT_NEAR(x.same_top.value, y.same_top.value, 0.01);
      }
    }
}

TEST_F(ModelCuda, RefusesWhatItDoesNotDo) {
  const auto kind = [](const LoadOptions& options) {
    try {
      Model::load("synth:tiny", options);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::failure;
  };
  EXPECT_EQ(kind({.device = "cuda:77"}), ErrorKind::no_device);
  EXPECT_EQ(kind({.device = "cuda", .isa = "avx2"}), ErrorKind::usage);
  EXPECT_EQ(kind({.device = "cuda", .kernels = {"gemv=ref"}}), ErrorKind::usage);
}

}  // namespace
}  // namespace ridge
