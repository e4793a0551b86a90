// What ranks, each a thread, and a process alone make of the same text; and a reference model's own numbers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "cases/logit_bounds.h"
#include "cases/safetensors_data.h"
#include "cases/thread_ranks.h"
#include "engine/engine.h"

namespace ridge {

/// What one rank, or a process alone, makes of a text.
struct Answer {
  std::vector<float> prompt, decoded;  ///< logits of all positions, as a prompt and token by token
  std::vector<int32_t> greedy;         ///< ids behind the text
};

inline Answer answer_of(Engine& engine, std::span<const int32_t> ids, int n_greedy, const std::string& kv) {
  constexpr int kStep = 20;
  SessionOptions options{.n_ctx = int(ids.size()) + n_greedy, .n_ubatch = kStep};
  options.k.format = options.v.format = kv;
  const std::vector<KvLayerConfig> layers = layer_configs(options, engine.plan());
  const auto pool = engine.open_pool(layers, pool_pages(layers, options.n_ctx, 1, kStep), 1, options.n_ctx);
  const auto outputs = engine.backend().make_outputs();
  SeqId seq = pool->open().or_throw();
  const auto run = [&](std::span<const int32_t> tokens, std::vector<float>& all) {
    const SeqTokens of_seq{seq, int(tokens.size())};
    pool->reserve(seq, of_seq.n_tokens).or_throw();
    engine.backend().run({.tokens = tokens, .seqs = {&of_seq, 1}, .logits = LogitRows::all}, *pool, *outputs);
    const View2<const float> rows = outputs->logits();
    all.insert(all.end(), rows.data, rows.data + rows.rows * rows.cols);
  };
  Answer answer;
  for (size_t first = 0; first < ids.size(); first += kStep)
    run(ids.subspan(first, std::min<size_t>(kStep, ids.size() - first)), answer.prompt);
  pool->close(seq);
  seq = pool->open().or_throw();
  for (size_t i = 0; i < ids.size(); ++i) run(ids.subspan(i, 1), answer.decoded);
  std::vector<float> last(answer.decoded.end() - engine.plan().vocab_size, answer.decoded.end());
  while (int(answer.greedy.size()) < n_greedy) {
    answer.greedy.push_back(int32_t(std::ranges::max_element(last) - last.begin()));
    last.clear();
    run({&answer.greedy.back(), 1}, last);
  }
  return answer;
}

/// The answers of n ranks in n_stages stages, which must be the same bits.
inline Answer answer_of_ranks(int n, const std::string& path, std::span<const int32_t> ids, int n_greedy,
                              const std::string& kv = "f32", const std::string& isa = "", int n_stages = 1) {
  std::vector<Answer> answers(static_cast<size_t>(n));
  on_ranks(n, [&](Ranks& ranks) {
    ranks.set_stages(n_stages);
    Engine engine(path, {.n_threads = 1, .isa = isa}, &ranks);
    answers[size_t(ranks.rank())] = answer_of(engine, ids, n_greedy, kv);
  });
  for (int r = 1; r < n; ++r) {
    EXPECT_EQ(answers[size_t(r)].prompt, answers[0].prompt) << "rank " << r;
    EXPECT_EQ(answers[size_t(r)].decoded, answers[0].decoded) << "rank " << r;
    EXPECT_EQ(answers[size_t(r)].greedy, answers[0].greedy) << "rank " << r;
  }
  return answers[0];
}

inline void expect_refusal(int n, const std::string& path, const std::string& why, int n_stages = 1) {
  on_ranks(n, [&](Ranks& ranks) {
    ranks.set_stages(n_stages);
    try {
      const Engine engine(path, {.n_threads = 1}, &ranks);
      ADD_FAILURE() << path << " is shared by " << n;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr(why));
    }
  });
}

/// Golden numbers of a reference model.
struct Golden {
  explicit Golden(const std::filesystem::path& directory) : bound(logit_bound(directory.filename().native())) {
    const auto tensors = read_safetensors(directory / "golden.safetensors");
    ids = values_of<int32_t>(tensors.at("input_ids"));
    greedy = values_of<int32_t>(tensors.at("greedy_ids"));
    logits = values_of<float>(tensors.at("logits"));
  }

  std::vector<int32_t> ids, greedy;
  std::vector<float> logits;
  double bound;
};

/// Ranks only choose another order of sums, which the bounds of one rank allow (cases/logit_bounds.h).
inline constexpr double kRankBound = kFloatBound;

/// An answer must be the golden one within the model's bound.
inline void expect_golden(const Answer& answer, const Golden& golden) {
  EXPECT_EQ(answer.greedy, golden.greedy);
  for (const auto* logits : {&answer.prompt, &answer.decoded}) {
    ASSERT_EQ(logits->size(), golden.logits.size());
    double worst = 0;
    for (size_t i = 0; i < logits->size(); ++i)
      worst = std::max(worst, std::abs(double((*logits)[i]) - golden.logits[i]));
    EXPECT_LT(worst, golden.bound);
  }
}

}  // namespace ridge
