// Sliding layers give pages back behind their window: models whose texts are many windows long have the logits of one
// step that holds everything, and bytes that do not grow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "cases/temp_dir.h"
#include "engine/decode/text.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"

namespace ridge {
namespace {

constexpr const char* kModels[] = {"synth:tiny-gemma@weights=q8_0", "synth:tiny-oss@weights=f16"};
constexpr const char* kCaches[] = {"f16", "q8_0:window=32:sinks=4", "rotor-3"};
constexpr int kLength = 700;  // the window is 40

std::vector<int32_t> text_of(const Engine& engine, int n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(engine.plan().vocab_size)));
  return tokens;
}

/// One sequence of a pool, and the logits of all that it ran.
struct Running {
  Running(Engine& of, const std::vector<KvLayerConfig>& layers, PageNumbers n_pages)
      : engine(of),
        pool(of.open_pool(layers, n_pages, 1)),
        outputs(of.backend().make_outputs()),
        seq(pool->open().or_throw()) {}
  void run(std::span<const int32_t> tokens, int step) {
    for (size_t at = 0; at < tokens.size(); at += size_t(step)) {
      const auto some = tokens.subspan(at, std::min(size_t(step), tokens.size() - at));
      const SeqTokens one{seq, int(some.size())};
      pool->reserve(seq, one.n_tokens).or_throw();
      engine.backend().run({.tokens = some, .seqs = {&one, 1}, .logits = LogitRows::all}, *pool, *outputs);
      const View2<const float> logits = outputs->logits();
      rows.insert(rows.end(), logits.data, logits.data + logits.rows * logits.cols);
    }
  }

  Engine& engine;
  std::unique_ptr<SequencePool> pool;
  std::unique_ptr<Outputs> outputs;
  SeqId seq;
  std::vector<float> rows;
};

TEST(Sliding, StepsGiveTheBitsOfOneStepThatHoldsEverything) {
  for (const char* model : kModels) {
    Engine engine(model, {.n_threads = 2});
    const std::vector<int32_t> tokens = text_of(engine, kLength, 1);
    for (const char* cache : kCaches) {
      const auto layers = layer_configs(session_options(parse_kv_choice(cache).or_throw(), kLength, 0), engine.plan());
      Running whole(engine, layers, pages_for(layers, kLength));
      whole.run(tokens, kLength);
      for (const int step : {1, 50, 129}) {
        const PageNumbers n_pages = pool_pages(layers, kLength, 1, step);
        EXPECT_LT(n_pages.sliding, n_pages.full) << model << " " << cache;
        Running steps(engine, layers, n_pages);
        steps.run(tokens, step);
        EXPECT_TRUE(steps.rows == whole.rows) << model << " " << cache << ", steps of " << step;
        EXPECT_LE(ssize(steps.pool->pages(steps.seq, PageClass::sliding)), most_sliding_pages(layers));
      }
    }
  }
}

TEST(Sliding, RowsOfSlidingLayersAreThoseOfTheirWindow) {
  for (const char* model : kModels) {
    const Engine engine(model, {.n_threads = 1});
    int64_t values = 0;
    for (const LayerPlan& layer : engine.plan().layers) {
      const AttentionPlan& a = layer.attention;
      values += int64_t(2) * a.n_kv_heads * a.head_dim * (a.window > 0 ? std::min(a.window, kLength) : kLength);
    }
    const SessionOptions f16 = session_options(parse_kv_choice("f16").or_throw(), kLength, 0);
    EXPECT_EQ(kv_row_bytes(f16, engine.plan(), kLength), 2 * values) << model;
  }
}

TEST(Sliding, BytesOfSlidingLayersDoNotGrowWithTheContext) {
  for (const char* model : kModels) {
    Engine engine(model, {.n_threads = 1});
    int n_sliding = 0;
    const auto memory_of = [&](int n_ctx) {
      const auto layers = layer_configs(session_options({}, n_ctx, 0), engine.plan());
      return engine.open_host_memory(layers, pool_pages(layers, n_ctx, 2, 64), 2);
    };
    const auto small = memory_of(600), large = memory_of(2000);
    for (int layer = 0; layer < small->n_layers(); ++layer)
      for (const KvSide side : kKvSides) {
        const int64_t before = small->allocated_bytes(layer, side), after = large->allocated_bytes(layer, side);
        const bool slides = small->page_class(layer) == PageClass::sliding;
        n_sliding += slides;
        if (slides) {
          EXPECT_EQ(after, before) << "layer " << layer;
        } else {
          EXPECT_GT(after, 3 * before) << "layer " << layer;
        }
      }
    EXPECT_GT(n_sliding, small->n_layers()) << "more than half of the layers, K and V";
  }
}

TEST(Sliding, SessionsSaveRestoreAndSayHowFarTheyGoBack) {
  const TempDir dir;
  for (const char* path : kModels) {
    const Model model = Model::load(path, {.n_threads = 2});
    for (const char* cache : kCaches) {
      const SessionOptions options = session_options(parse_kv_choice(cache).or_throw(), 1000, 64);
      const std::vector<int32_t> tokens = text_of(model.engine(), kLength, 2);
      Session session(model, options), other(model, options);
      session.prefill(tokens);
      EXPECT_THROW(session.truncate(300), Error);
      EXPECT_THROW(session.shift(4, kLength - 30), Error);
      EXPECT_EQ(session.n_past(), kLength);
      const std::string file = (dir.path() / "state").native();
      session.save(file);
      other.restore(file);
      const auto as_vector = [](std::span<const float> row) { return std::vector<float>(row.begin(), row.end()); };
      EXPECT_EQ(as_vector(other.decode(3)), as_vector(session.decode(3))) << path << " " << cache;
      // 32 back, and on.
      for (Session* s : {&session, &other}) s->truncate(kLength + 1 - 32);
      Session fresh(model, options);
      fresh.prefill(std::span(tokens).first(kLength + 1 - 32));
      const std::vector<float> expected = as_vector(fresh.decode(9));
      EXPECT_EQ(as_vector(session.decode(9)), expected) << path << " " << cache;
      EXPECT_EQ(as_vector(other.decode(9)), expected) << path << " " << cache;
      session.shift(4, 200);
      for (const float x : session.decode(7)) ASSERT_TRUE(std::isfinite(x));
      session.truncate(0);
      fresh.reset();
      EXPECT_EQ(as_vector(session.prefill(tokens)), as_vector(fresh.prefill(tokens))) << path << " " << cache;
    }
  }
}

/// A draft that slides cannot always go back to where another text parts: it reads that text anew.
TEST(Sliding, DraftsReadATextAnewWhereTheyCannotGoBack) {
  const Model model = Model::load("synth:tiny-gemma@weights=q8_0", {.n_threads = 2});
  const SessionOptions options = session_options({}, 1000, 64);
  const std::vector<int32_t> first = text_of(model.engine(), kLength, 3);
  std::vector<int32_t> second(first.begin(), first.begin() + 200);
  for (const int32_t token : text_of(model.engine(), 200, 4)) second.push_back(token);
  const auto used = draft_proposers(model, model, options, 0)(), fresh = draft_proposers(model, model, options, 0)();
  used->propose(first, 4);
  EXPECT_EQ(used->propose(second, 4), fresh->propose(second, 4));
}

}  // namespace
}  // namespace ridge
