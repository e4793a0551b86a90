// Tokens sampled on the device: the very ones of the CPU's Sampler, and both follow the distribution they should.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gpu/device_data.h"
#include "gpu/graph.h"
#include "op/sample/rule.h"
#include "op/sample/sample_cuda.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

constexpr int32_t kGuard = -77;
const SamplerOptions kPlain{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};

SamplerOptions options(float temperature, int top_k, float top_p, float min_p, uint64_t seed = 1) {
  return {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = seed};
}

class SampleCuda : public OnDevice {
 protected:
  /// `n` tokens from the same logits [vocab], replaying a graph; what lies behind the tokens must stay.
  std::vector<int32_t> sample(const SamplerOptions& o, const std::vector<float>& logits, int n) {
    DeviceSampler sampler(1, int(logits.size()));
    sampler.set(stream(), 0, o);
    const gpu::Buffer row = up(logits), token = up(std::vector<int32_t>{kGuard, kGuard, kGuard});
    const gpu::Graph graph(stream(), [&] { sampler.sample(stream(), row.as<float>(), token.as<int32_t>() + 1); });
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) {
      graph.launch(stream());
      const auto around = down(token.as<int32_t>(), 3);
      EXPECT_TRUE(around[0] == kGuard && around[2] == kGuard);
      tokens.push_back(around[1]);
    }
    return tokens;
  }

  /// As sample(), against the CPU; a token of logits that are not finite is marked, and the best one's.
  void expect_same(const SamplerOptions& o, const std::vector<float>& logits, int n) {
    Sampler sampler(o, int(logits.size()));
    const auto key = [&](size_t i) { return sample_key(logits[i], uint32_t(i)); };
    uint64_t best = 0;
    for (size_t i = 0; i < logits.size(); ++i) best = std::max(best, key(i));
    const bool ok = std::isfinite(key_logit(best));
    std::vector<int32_t> expected;
    for (int i = 0; i < n; ++i)
      expected.push_back(ok ? sampler.sample(logits) : int32_t(key_id(best)) | kNotFiniteToken);
    if (!ok) EXPECT_THROW(sampler.sample(logits), Error);
    EXPECT_EQ(sample(o, logits, n), expected) << "vocabulary " << logits.size() << ", temperature " << o.temperature
                                              << " top_k " << o.top_k << " top_p " << o.top_p << " min_p " << o.min_p;
  }
};

/// Chances of all tokens from the definitions in double arithmetic.
std::vector<double> chances(const SamplerOptions& o, const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (o.top_k > 0) order.resize(std::min(order.size(), size_t(o.top_k)));
  const double best = logits[order[0]];
  double sum = 0, kept = 0;
  for (const size_t i : order) sum += std::exp(logits[i] - best);
  size_t n = 0;
  while (n < order.size() && (n == 0 || o.top_p == 1 || kept < double(o.top_p) * sum))
    kept += std::exp(logits[order[n++]] - best);
  order.resize(n);
  std::vector<double> chance(logits.size(), 0.0);
  for (const size_t i : order)
    if (std::exp(logits[i] - best) >= double(o.min_p)) chance[i] = std::exp((logits[i] - best) / double(o.temperature));
  const double total = std::accumulate(chance.begin(), chance.end(), 0.0);
  for (double& c : chance) c /= total;
  return chance;
}

/// Pearson's statistic against its quantile at 5 standard deviations (3e-7; Wilson and Hilferty's approximation).
/// Tokens expected less than 5 times count as one.
void expect_distribution(const std::vector<int32_t>& tokens, const std::vector<double>& chance) {
  std::vector<double> counts(chance.size(), 0.0);
  for (const int32_t token : tokens) ++counts[size_t(token)];
  double statistic = 0, rare = 0, rare_expected = 0;
  int freedom = -1;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++freedom;
  };
  for (size_t i = 0; i < chance.size(); ++i) {
    const double expected = chance[i] * double(tokens.size());
    if (expected == 0) EXPECT_EQ(counts[i], 0) << "token " << i << " was to be cut";
    else if (expected >= 5) add(counts[i], expected);
    else rare += counts[i], rare_expected += expected;
  }
  if (rare_expected >= 5) add(rare, rare_expected);
  ASSERT_GT(freedom, 0);
  const double part = 2.0 / (9.0 * freedom);
  EXPECT_LT(statistic, freedom * std::pow(1 - part + 5 * std::sqrt(part), 3));
}

std::vector<SamplerOptions> all_options(uint64_t seed) {
  return {options(0, 0, 1, 0, seed),         options(1, 0, 1, 0, seed),
          options(2.5f, 0, 1, 0, seed),      options(0.8f, 40, 0.95f, 0.05f, seed),
          options(1, 1, 1, 0, seed),         options(1, 5, 1, 0, seed),
          options(1.5f, 0, 0.9f, 0, seed),   options(1, 0, 1, 0.1f, seed),
          options(3, 0, 0.5f, 0.001f, seed), options(1, 100000, 0.99f, 0, seed),
          options(1e4f, 20, 1, 0, seed),     options(1, 0, 0, 0, seed),
          options(0.7f, 20, 0.8f, 0, seed),  options(1e-3f, 0, 0.999f, 0, seed)};
}

TEST_F(SampleCuda, SamplesTheTokensOfTheCpu) {
  for (const int vocab : {1, 2, 31, 1000, 2048, 2049, 9001})
    for (const SamplerOptions& o : all_options(uint64_t(vocab)))
      expect_same(o, normal_floats(uint64_t(vocab) + 5, vocab, 3), vocab > 2000 ? 3 : 6);
}

TEST_F(SampleCuda, SamplesTheTokensOfTheCpuFromALargeVocabulary) {
  const auto logits = normal_floats(3, 151936, 2.5);
  expect_same(options(0, 0, 1, 0), logits, 1);
  expect_same(options(0.8f, 40, 0.95f, 0.05f), logits, 2);
  expect_same(options(1, 0, 1, 0), logits, 2);
  expect_same(options(1, 0, 0.3f, 0), logits, 1);
  expect_same(options(1, 0, 0.95f, 0.02f), logits, 1);
}

TEST_F(SampleCuda, TiesGoToTheSmallerId) {
  for (const int vocab : {31, 1000, 5000}) {
    auto logits = normal_floats(9, vocab, 1);
    for (float& x : logits) x = std::round(x);  // some values in all
    logits[size_t(vocab) / 2] = -0.0f;
    for (const SamplerOptions& o : all_options(4)) expect_same(o, logits, 4);
    expect_same(options(1, vocab / 2, 0.7f, 0), logits, 4);
  }
}

TEST_F(SampleCuda, MoreCandidatesThanCanBeSorted) {
  const std::vector<float> equal(12000, 1.5f);
  const auto flat = normal_floats(6, 12000, 0.5);
  for (const auto& logits : {equal, flat}) {
    expect_same(options(1, 0, 0.9f, 0), logits, 2);
    expect_same(options(1, 9000, 1, 0), logits, 2);
    expect_same(options(2, 9000, 0.8f, 0.01f), logits, 2);
    expect_same(options(1, 0, 1, 0.001f), logits, 2);
    expect_same(options(1, 0, 0.999f, 0.01f), logits, 2);
  }
}

TEST_F(SampleCuda, FarApartLogits) {
  // Candidates of top_k that lie beyond the histogram's last bin, and weights that vanish.
  std::vector<float> logits(3000, -5e5f);
  logits[77] = 12;
  logits[2500] = -3e4f;
  for (const SamplerOptions& o : all_options(8)) expect_same(o, logits, 3);
}

TEST_F(SampleCuda, NanAndInfinityAreMarked) {
  const float nan = NAN, inf = INFINITY;
  for (const SamplerOptions& o : all_options(2)) {
    for (const auto& logits : {std::vector<float>{nan, nan, nan},
                               {-inf, -inf},
                               {nan, 1, 2, nan, 2},
                               {1, inf, 2, inf},
                               {-inf, nan, -3, -2.5f},
                               {nan, inf},
                               {3e38f, -3e38f, 3e38f, -inf}})
      expect_same(o, logits, 4);
    auto many = normal_floats(12, 2500, 2);
    for (size_t i = 0; i < many.size(); i += 7) many[i] = i % 2 ? nan : -inf;
    expect_same(o, many, 3);
  }
  EXPECT_EQ(sample(kPlain, {nan, nan, nan}, 1)[0], 0 | kNotFiniteToken);
  EXPECT_EQ(sample(kPlain, {1, inf, 2, inf}, 1)[0], 1 | kNotFiniteToken);
  EXPECT_EQ(sample(kPlain, {1, inf, 2, nan}, 1)[0], 1 | kNotFiniteToken);
  EXPECT_EQ(sample(options(0, 0, 1, 0), {-inf, 2, -inf}, 1)[0], 1) << "a token of -infinity never comes";
}

TEST_F(SampleCuda, TokensFollowTheirProbabilities) {
  const std::vector<float> logits = {1, 3, 2, 3, -1, 0.5f, 2.2f, 1.7f, 0, 2.9f};
  for (const SamplerOptions& o : {options(2, 0, 1, 0), options(1, 4, 1, 0), options(1.3f, 0, 0.9f, 0),
                                  options(1, 0, 1, 0.2f), options(1.7f, 8, 0.95f, 0.05f)})
    expect_distribution(sample(o, logits, 400), chances(o, logits));
}

TEST_F(SampleCuda, TheCpuSamplesByTheSameProbabilities) {
  const std::vector<float> logits = {1, 3, 2, 3, -1, 0.5f, 2.2f, 1.7f, 0, 2.9f};
  for (const SamplerOptions& o : {options(1, 0, 1, 0), options(0.5f, 0, 1, 0), options(2, 0, 1, 0), options(1, 4, 1, 0),
                                  options(1.3f, 0, 0.9f, 0), options(1, 0, 1, 0.2f), options(1.7f, 8, 0.95f, 0.05f)}) {
    Sampler sampler(o, int(logits.size()));
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50000; ++i) tokens.push_back(sampler.sample(logits));
    expect_distribution(tokens, chances(o, logits));
  }
}

TEST_F(SampleCuda, ReplaysUseFreshNumbersAndSetStartsAgain) {
  const std::vector<float> logits(1000, 0.0f);
  const auto tokens = sample(kPlain, logits, 20), again = sample(kPlain, logits, 20);
  EXPECT_EQ(tokens, again);
  auto sorted = tokens;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_GT(std::unique(sorted.begin(), sorted.end()) - sorted.begin(), 15);
}

TEST_F(SampleCuda, SequencesHaveSettingsOfTheirOwn) {
  constexpr int kVocab = 3001;
  const std::vector<SamplerOptions> each = {options(0, 0, 1, 0), options(1, 0, 1, 0, 7),
                                            options(0.8f, 40, 0.95f, 0.05f, 7), options(1, 0, 0.9f, 0, 9),
                                            options(1, 0, 1, 0, 8)};
  const auto n = int(each.size());
  const auto logits = normal_floats(21, int64_t(n) * kVocab, 2);
  DeviceSampler device(n, kVocab);
  std::vector<Sampler> host;
  for (int s = 0; s < n; ++s) {
    device.set(stream(), s, each[size_t(s)]);
    host.emplace_back(each[size_t(s)], kVocab);
  }
  EXPECT_EQ(device.needs(), (DeviceSampler::Needs{SampleKind::filtered, false}));
  const gpu::Buffer rows = up(logits), tokens = up(std::vector<int32_t>(size_t(n) + 1, kGuard));
  for (int step = 0; step < 3; ++step) {
    device.sample(stream(), rows.as<float>(), tokens.as<int32_t>());
    std::vector<int32_t> expected;
    for (int s = 0; s < n; ++s)
      expected.push_back(host[size_t(s)].sample(std::span(logits).subspan(size_t(s) * kVocab, kVocab)));
    expected.push_back(kGuard);
    EXPECT_EQ(down(tokens.as<int32_t>(), n + 1), expected);
  }
  EXPECT_EQ(down(rows.as<float>(), int64_t(logits.size())), logits) << "logits are read only without a penalty";
}

TEST_F(SampleCuda, NeedsFollowTheSettings) {
  DeviceSampler sampler(2, 10);
  EXPECT_EQ(sampler.needs(), DeviceSampler::Needs());
  sampler.set(stream(), 1, kPlain);
  EXPECT_EQ(sampler.needs(), (DeviceSampler::Needs{SampleKind::plain, false}));
  sampler.set(stream(), 0, {.temperature = 0, .repeat_penalty = 1.1f});
  EXPECT_EQ(sampler.needs(), (DeviceSampler::Needs{SampleKind::plain, true}));
  sampler.set(stream(), 0, {.temperature = 0});
  sampler.set(stream(), 1, {.temperature = 0});
  EXPECT_EQ(sampler.needs(), DeviceSampler::Needs());
}

TEST_F(SampleCuda, ASamplerSetAgainGoesOnWithTheNextToken) {
  SamplerOptions o = options(1, 20, 1, 0, 5);
  const auto logits = normal_floats(32, 500, 2);
  const std::vector<int32_t> whole = sample(o, logits, 24);
  for (const int first : {1, 7, 23}) {
    o.n_sampled = uint64_t(first);
    EXPECT_EQ(sample(o, logits, 24 - first), std::vector<int32_t>(whole.begin() + first, whole.end())) << first;
  }
}

/// Rows of steps with proposals, some of them right: the tokens that one sampler samples from the rows one by one.
TEST_F(SampleCuda, RowsOfProposalsAreSampledAsOneText) {
  constexpr int kVocab = 200, kRows = 6, kSteps = 12;
  const VerifiedRows all{1, {0, kRows}};
  const SamplerOptions greedy{.temperature = 0, .repeat_penalty = 1.4f, .repeat_last_n = 4};
  SamplerOptions penal = options(0.9f, 20, 0.9f, 0.02f, 8);
  penal.repeat_penalty = 1.3f;
  penal.repeat_last_n = 7;
  for (const SamplerOptions& o : {kPlain, greedy, penal}) {
    Rng rng(3);
    std::vector<float> rows;  // of position i: what a model would say there, whatever the text
    for (int i = 0; i < (kSteps * kRows + kRows) * kVocab; ++i) rows.push_back(2 * float(rng.normal()));
    const std::vector<int32_t> recent{5, 9, 11, 5, 2};
    Sampler one(o, kVocab);
    one.accept(recent);
    std::vector<int32_t> expected;
    for (int i = 0; i < kSteps * kRows; ++i)
      expected.push_back(one.sample(std::span(rows).subspan(size_t(i * kVocab), kVocab)));

    DeviceSampler sampler(kRows, kVocab, 0, 1);
    sampler.set(stream(), kRows, o, recent);
    gpu::TokenRing ring(kMostVerifiedRows + 1, kSteps);
    ring.reset(stream());
    const gpu::Buffer text = up(std::vector<DeviceText>(1)), sampled = up(std::vector<int32_t>(kRows));
    gpu::Buffer logits;
    std::vector<int32_t> tokens;
    for (int step = 0; step < kSteps; ++step) {
      // The first step % 7 proposals are right, none of the others.
      auto state = down(text.as<DeviceText>(), 1);
      const int n_past = state[0].n_past;
      EXPECT_EQ(n_past, ssize(tokens));
      for (int i = 1; i < kRows; ++i) {
        const int32_t right = expected[size_t(n_past + i - 1)];
        state[0].next[i] = i <= step % 7 ? right : (right + 1) % kVocab;
      }
      gpu::upload(stream(), text.as<void>(), state.data(), sizeof(DeviceText));
      logits = up(std::vector<float>(rows.begin() + n_past * kVocab, rows.begin() + (n_past + kRows) * kVocab));
      sampler.spread(stream(), all, text.as<DeviceText>());
      sampler.sample(stream(), kRows, logits.as<float>(), sampled.as<int32_t>());
      sampler.verify(stream(), all, sampled.as<int32_t>(), text.as<DeviceText>(), ring.view());
      stream().synchronize();
      std::vector<int32_t> numbers(kMostVerifiedRows + 1);
      ASSERT_TRUE(ring.read(step, numbers));
      EXPECT_EQ(numbers[0], 1 + std::min(step % 7, kRows - 1));
      tokens.insert(tokens.end(), numbers.begin() + 1, numbers.begin() + 1 + numbers[0]);
      state = down(text.as<DeviceText>(), 1);
      EXPECT_EQ(state[0].n_before, n_past);
      EXPECT_EQ(state[0].n_sampled, numbers[0]);
      EXPECT_EQ(state[0].next[0], tokens.back());
    }
    expected.resize(tokens.size());
    EXPECT_EQ(tokens, expected) << "temperature " << o.temperature;
  }
}

/// Texts of other settings, with other numbers of rows: each goes on as it would alone.
TEST_F(SampleCuda, RowsOfSeveralTextsAreSampledAsEachAlone) {
  constexpr int kVocab = 200, kSteps = 5;
  const VerifiedRows all{3, {0, 4, 5, 11}};
  SamplerOptions penal = options(0.9f, 20, 0.9f, 0.02f, 8);
  penal.repeat_penalty = 1.3f;
  penal.repeat_last_n = 7;
  const SamplerOptions of_text[] = {{.temperature = 0}, kPlain, penal};
  const std::vector<int32_t> recent{5, 9, 11, 5, 2};
  std::vector<DeviceText> begin(3);
  begin[0].forced = {.share = 0.6, .seed = 21};
  for (int i = 1; i < kMostVerifiedRows; ++i) begin[0].next[i] = i, begin[2].next[i] = 3 * i;
  std::vector<std::vector<float>> logits;  // of each step
  for (int step = 0; step < kSteps; ++step) {
    logits.push_back(normal_floats(40 + step, all.n_rows() * kVocab, 2));
    // A proposal is right: the next one decides.
    logits.back()[size_t(5 * kVocab) + 3] = 50;
  }
  // Of texts [first, end): numbers of the ring, text after text.
  const auto run = [&](int first, int end) {
    VerifiedRows rows{end - first, {}};
    for (int i = 0; i <= rows.n_texts; ++i) rows.first[i] = all.first[first + i] - all.first[first];
    DeviceSampler sampler(rows.n_rows(), kVocab, 0, rows.n_texts);
    for (int i = 0; i < rows.n_texts; ++i) sampler.set(stream(), rows.n_rows() + i, of_text[first + i], recent);
    gpu::TokenRing ring(3 * (kMostVerifiedRows + 1), kSteps);
    ring.reset(stream(), rows.n_texts * (kMostVerifiedRows + 1));
    const gpu::Buffer texts = up(std::vector<DeviceText>(begin.begin() + first, begin.begin() + end)),
                      sampled = up(std::vector<int32_t>(size_t(rows.n_rows())));
    std::vector<int32_t> numbers;
    for (int step = 0; step < kSteps; ++step) {
      const auto from = logits[size_t(step)].begin() + all.first[first] * kVocab;
      const gpu::Buffer of_rows = up(std::vector<float>(from, from + rows.n_rows() * kVocab));
      sampler.spread(stream(), rows, texts.as<DeviceText>());
      sampler.sample(stream(), rows.n_rows(), of_rows.as<float>(), sampled.as<int32_t>());
      sampler.verify(stream(), rows, sampled.as<int32_t>(), texts.as<DeviceText>(), ring.view());
      stream().synchronize();
      std::vector<int32_t> of_step(size_t(ring.n_seq()));
      EXPECT_TRUE(ring.read(step, of_step));
      numbers.insert(numbers.end(), of_step.begin(), of_step.end());
    }
    return numbers;
  };
  const std::vector<int32_t> together = run(0, 3);
  bool holds = false;
  for (int text = 0; text < 3; ++text) {
    const std::vector<int32_t> alone = run(text, text + 1);
    for (int step = 0; step < kSteps; ++step)
      for (int i = 0; i <= kMostVerifiedRows; ++i)
        EXPECT_EQ(together[size_t((3 * step + text) * (kMostVerifiedRows + 1) + i)],
                  alone[size_t(step * (kMostVerifiedRows + 1) + i)])
            << "text " << text << ", step " << step << ", number " << i;
    holds = holds || alone[0] > 1;
  }
  EXPECT_TRUE(holds);
}

/// Proposals that hold by chance hold as often as the share says, and the text is theirs.
TEST_F(SampleCuda, ForcedProposalsFollowTheirRandomNumbers) {
  constexpr int kVocab = 50, kRows = 4;
  const std::vector<float> rows(kRows * kVocab, 0.0f);  // the best is token 0
  const VerifiedRows all{1, {0, kRows}};
  DeviceSampler sampler(kRows, kVocab, 0, 1);
  sampler.set(stream(), kRows, {.temperature = 0});
  gpu::TokenRing ring(kMostVerifiedRows + 1, 4);
  ring.reset(stream());
  DeviceText begin{.forced = {.share = 0.6, .seed = 21}};
  for (int i = 1; i < kRows; ++i) begin.next[i] = 10 + i;
  const gpu::Buffer text = up(std::vector<DeviceText>{begin}), sampled = up(std::vector<int32_t>(kRows)),
                    logits = up(rows);
  Rng rng(21);
  for (int step = 0; step < 40; ++step) {
    sampler.spread(stream(), all, text.as<DeviceText>());
    sampler.sample(stream(), kRows, logits.as<float>(), sampled.as<int32_t>());
    sampler.verify(stream(), all, sampled.as<int32_t>(), text.as<DeviceText>(), ring.view());
    stream().synchronize();
    std::vector<int32_t> numbers(kMostVerifiedRows + 1), expected;
    while (ssize(expected) + 1 < kRows && rng.uniform() < 0.6) expected.push_back(11 + int32_t(expected.size()));
    expected.push_back(0);
    ASSERT_TRUE(ring.read(step, numbers));
    EXPECT_EQ(std::vector<int32_t>(numbers.begin() + 1, numbers.begin() + 1 + numbers[0]), expected) << step;
  }
}

TEST_F(SampleCuda, PenaltyLooksBackAsTheCpu) {
  constexpr int kVocab = 40;
  const auto logits = normal_floats(31, kVocab, 1);
  for (const int last_n : {1, 3, 64, 1024})
    for (const float temperature : {0.0f, 1.0f}) {
      const SamplerOptions o{.temperature = temperature, .repeat_penalty = 1.7f, .repeat_last_n = last_n, .seed = 3};
      const std::vector<int32_t> prompt = {5, 5, 7, -1, 39, 40, 3};
      DeviceSampler device(1, kVocab);
      device.set(stream(), 0, o, prompt);
      Sampler host(o, kVocab);
      host.accept(prompt);
      const gpu::Buffer token = up(std::vector<int32_t>{kGuard});
      for (int step = 0; step < 12; ++step) {
        const gpu::Buffer row = up(logits);
        device.sample(stream(), row.as<float>(), token.as<int32_t>());
        ASSERT_EQ(down(token.as<int32_t>(), 1)[0], host.sample(logits)) << last_n << " " << step;
      }
    }
  DeviceSampler device(1, kVocab);
  EXPECT_THROW(device.set(stream(), 0, {.repeat_penalty = 2, .repeat_last_n = 1025}), Error);
}

}  // namespace
}  // namespace ridge
