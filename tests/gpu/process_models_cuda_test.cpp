// Models on GPUs of several processes, which are threads here: with CUDA's driver between them, only where it is
// emulated. tests/cli/gpu_ranks_test.py has processes on GPUs.
#include <gmock/gmock.h>

#include "base/metrics.h"
#include "cases/led_texts.h"
#include "cases/temp_dir.h"
#include "engine/decode/decoder.h"
#include "engine/kv_state.h"
#include "gpu/device_data.h"
#include "gpu/model_data.h"
#include "gpu/nccl.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ProcessModelsCuda : public testing::Test {
 protected:
  void SetUp() override {
    const gpu::DeviceReport report = gpu::query_devices();
    if (report.devices.empty() || report.devices[0].name != "emulated") GTEST_SKIP() << "threads have one driver";
  }
};

/// One rank, or a process alone, with a sequence.
struct Holder {
  static constexpr int kContext = 120;

  Holder(const std::string& spec, const std::string& kv, Ranks* ranks)
      : engine(spec, {.device = "cuda", .n_threads = 1}, ranks) {
    SessionOptions options{.n_ctx = kContext, .n_ubatch = 23};
    options.k = options.v = parse_kv_side(kv).or_throw();
    layers = layer_configs(options, engine.plan());
    pool = engine.open_pool(layers, pool_pages(layers, kContext, 1, 32), 1, kContext);
    decoder.emplace(engine.backend(), *pool, engine.plan().n_ids);
    outputs = &decoder->outputs();
    seq = pool->open().or_throw();
  }
  std::vector<float> run(std::span<const int32_t> tokens) {
    const SeqTokens of_seq{seq, int(tokens.size())};
    pool->reserve(seq, of_seq.n_tokens).or_throw();
    engine.backend().run({.tokens = tokens, .seqs = {&of_seq, 1}, .logits = LogitRows::all}, *pool, *outputs);
    const View2<const float> rows = outputs->logits();
    return {rows.data, rows.data + rows.rows * rows.cols};
  }
  /// Logits of all positions, in prompts of 23 tokens and then token by token.
  std::vector<float> logits_of(std::span<const int32_t> tokens) {
    std::vector<float> all;
    const size_t prompt = tokens.size() * 3 / 4;
    for (size_t first = 0; first < tokens.size();) {
      const size_t n = first < prompt ? std::min<size_t>(23, prompt - first) : 1;
      const std::vector<float> rows = run(tokens.subspan(first, n));
      all.insert(all.end(), rows.begin(), rows.end());
      first += n;
    }
    return all;
  }
  std::vector<int32_t> sample_text(const SamplerOptions& options, int n) {
    std::vector<int32_t> tokens;
    Text text{.seq = seq, .sampler = options, .n_left = n};
    text.on_token = [&](int32_t token) { return tokens.push_back(token), true; };
    StepHooks hooks;
    const DecodeRow first{.text = &text};
    decoder->step({&first, 1}, 1, hooks);
    decoder->finish(text);
    return tokens;
  }

  Engine engine;
  std::vector<KvLayerConfig> layers;
  std::unique_ptr<SequencePool> pool;
  std::optional<Decoder> decoder;
  Outputs* outputs = nullptr;
  SeqId seq{};
};

/// Ranks add the same products in another order, so the bounds are those of one device (model_cuda_test.cpp).
struct Shared {
  const char *spec, *kv;
  double bound;
  int n = 40;
};
class ProcessModelsCudaShapes : public ProcessModelsCuda, public testing::WithParamInterface<Shared> {};

TEST_P(ProcessModelsCudaShapes, LogitsAreOneDevices) {
  const Shared& of = GetParam();
  std::vector<float> expected, of_rank[2];
  std::vector<int32_t> tokens;
  {
    Holder one(of.spec, of.kv, nullptr);
    tokens = tokens_of(of.n, one.engine.plan().vocab_size, 1);
    expected = one.logits_of(tokens);
  }
  on_ranks(2, [&](Ranks& ranks) {
    Holder holder(of.spec, of.kv, &ranks);
    EXPECT_EQ(holder.engine.info().n_ranks, 2);
    EXPECT_EQ(holder.engine.info().device, fmt::format("cuda:{} emulated", ranks.rank()));
    of_rank[ranks.rank()] = holder.logits_of(tokens);
  });
  EXPECT_EQ(of_rank[0], of_rank[1]);
  EXPECT_LT(compare(of_rank[0], expected).nmse, of.bound);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ProcessModelsCudaShapes,
                         testing::Values(Shared{"synth:tiny@weights=f32", "f32", 1e-10},
                                         Shared{"synth:tiny-64@weights=int4_g128", "q8_0", 2e-4},
                                         Shared{"synth:tiny-experts@weights=f32", "f32", 1e-9},
                                         Shared{"synth:tiny-delta@weights=f32", "f32", 1e-9},
                                         Shared{"synth:tiny-bitnet", "f16", 1e-3}));

/// Steps that feed themselves: every rank samples the tokens of one device, also where the first one leads.
TEST_F(ProcessModelsCuda, SampleOneDevicesTokens) {
  const char* spec = "synth:tiny@weights=f32";
  SamplerOptions greedy, sampled;
  greedy.temperature = 0;
  sampled.seed = 7;
  const auto texts_of = [&](Ranks* ranks) {
    Holder holder(spec, "f32", ranks);
    std::vector<std::vector<int32_t>> texts;
    for (const SamplerOptions& options : {greedy, sampled}) {
      const std::vector<float> all = holder.run(tokens_of(21, holder.engine.plan().vocab_size, 1));
      EXPECT_FALSE(all.empty());
      const int32_t last = 5;
      const SeqTokens of_seq{holder.seq, 1};
      holder.pool->reserve(holder.seq, 1).or_throw();
      holder.engine.backend().run({.tokens = {&last, 1}, .seqs = {&of_seq, 1}, .logits = LogitRows::last}, *holder.pool,
                                  *holder.outputs);
      texts.push_back(holder.sample_text(options, 12));
      holder.pool->reset(holder.seq);
    }
    return texts;
  };
  const auto expected = texts_of(nullptr);
  on_ranks(2, [&](Ranks& ranks) { EXPECT_EQ(texts_of(&ranks), expected) << ranks.rank(); });
  on_led_ranks(2, [&](Ranks& ranks) { EXPECT_EQ(texts_of(&ranks), expected); });
}

/// A state of two ranks goes on with one device, and one's with two, byte for byte.
TEST_F(ProcessModelsCuda, StatesMoveBetweenNumbersOfRanks) {
  const std::string spec = "synth:tiny-64@layers=1@weights=f32";
  for (const char* kv : {"f16", "rotor-3:rounding=nearest"}) {
    const TempDir dir;
    const auto path = [&](int i) { return (dir / fmt::format("{}.kv", i)).native(); };
    std::vector<float> logits[3];
    const auto go_on = [&](Ranks* ranks, int from) {
      Holder holder(spec, kv, ranks);
      const uint64_t hash = holder.engine.hash(Holder::kContext);
      if (from < 0) {
        holder.run(tokens_of(70, 512, 3));
      } else {
        const io::MappedFile file = io::MappedFile::open(path(from)).or_throw();
        const SequenceImage image =
            read_kv_state(*holder.pool, Holder::kContext, hash, file.bytes(), path(from)).or_throw();
        holder.pool->close(holder.seq);
        holder.seq = holder.pool->load(image).or_throw();
      }
      save_kv_state(holder.pool->memory().layouts(), holder.pool->save(holder.seq), hash, path(from + 1)).or_throw();
      logits[from + 1] = holder.run(tokens_of(3, 512, 4));
    };
    on_led_ranks(2, [&](Ranks& ranks) { go_on(&ranks, -1); });
    go_on(nullptr, 0);
    on_led_ranks(2, [&](Ranks& ranks) { go_on(&ranks, 1); });
    const auto bytes = [&](int i) {
      const io::MappedFile file = io::MappedFile::open(path(i)).or_throw();
      return std::vector<std::byte>(file.bytes().begin(), file.bytes().end());
    };
    EXPECT_EQ(bytes(1), bytes(0)) << kv;
    EXPECT_EQ(bytes(2), bytes(0)) << kv;
    EXPECT_EQ(logits[2], logits[0]) << kv;
    EXPECT_LT(compare(logits[1], logits[0]).nmse, 2e-4) << kv;
  }
}

/// What the leading rank's device and the others' hold is what ranks hold that all get the calls.
TEST_F(ProcessModelsCuda, LedRanksDoWhatRanksDoThatAllGetTheCalls) {
  for (const LedCase& of : {LedCase{"exact", "tiny@layers=1@weights=f32", "f16", 2, "cuda"},
                            LedCase{"weighted", "tiny-64@layers=1@weights=f32", "rotor-3", 2, "cuda"}})
    expect_led_like_alike(of, 40);
}

std::string message_of(const std::function<void()>& body, ErrorKind kind) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(ProcessModelsCuda, WhatRanksDoNotHaveIsSaidOnAllOfThem) {
  const auto load = [](Ranks& ranks, const std::string& device) {
    return [&ranks, device] { const Engine engine("synth:tiny", {.device = device, .n_threads = 1}, &ranks); };
  };
  on_ranks(2, [&](Ranks& ranks) {
    EXPECT_THAT(message_of(load(ranks, "cuda:0,1"), ErrorKind::usage), HasSubstr("every process has one GPU"));
    EXPECT_THAT(message_of(load(ranks, "cuda:1"), ErrorKind::usage),
                HasSubstr("rank 0 and rank 1 have one GPU, cuda:1 (use --device cuda"));
    EXPECT_THAT(message_of(load(ranks, "cuda:8"), ErrorKind::no_device),
                HasSubstr("rank 0: device cuda:8 is not available: there are 8"));
    ranks.set_stages(2);
    EXPECT_THAT(message_of(load(ranks, "cuda"), ErrorKind::usage), HasSubstr("--pp: layers are not split over GPUs"));
  });
  on_ranks(9, [&](Ranks& ranks) {
    EXPECT_THAT(message_of(load(ranks, "cuda"), ErrorKind::no_device),
                HasSubstr("rank 8 has no GPU: its machine has 9 ranks and 8 GPUs"));
  });
  // Ranks whose numbers differ, as a command line over ranks leaves them.
  on_ranks(2, [&](Ranks& ranks) {
    const Engine engine("synth:tiny@layers=1", {.device = ranks.is_first() ? "cuda:5" : "cuda:3", .n_threads = 1},
                        &ranks);
    EXPECT_EQ(engine.device(), ranks.is_first() ? 5 : 3);
  });
}

/// A rank that leaves in the middle: the other one's step ends with its name, whether its process is known to be gone
/// or not.
TEST_F(ProcessModelsCuda, ARankThatStopsIsNamed) {
  for (const bool is_gone : {false, true}) {
    ThreadMail mail(2);
    const double timeout_s = is_gone ? 600 : 3;
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        Ranks ranks(std::make_unique<ThreadTransport>(mail, r), timeout_s);
        ranks.be_led();  // ends without the other one
        const auto run = [&] {
          if (!ranks.is_first()) return follow(ranks);
          Holder holder("synth:tiny@layers=1@weights=f32", "f16", &ranks);
          holder.run(tokens_of(5, 512, 1));
          // Rank 1 ends here, and rank 0 does not tell it of a step: its own waits for rank 1.
          lead_end(ranks);
          if (is_gone) mail.end(1);
          holder.run(tokens_of(5, 512, 1));
        };
        if (!ranks.is_first()) return run();
        EXPECT_THAT(message_of(run, ErrorKind::failure),
                    HasSubstr(is_gone ? "rank 1 has ended" : "rank 0: no answer from rank 1 within 3 s"));
        EXPECT_TRUE(ranks.failed());
      });
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace ridge
