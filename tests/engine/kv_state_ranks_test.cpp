// State files of models that ranks hold together: written by some number of ranks, read by another one, the same bytes
// all the way, and the text goes on.
#include "engine/kv_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/led_texts.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

using testing::HasSubstr;

constexpr int kContext = 160;

std::vector<int32_t> text(int n, int vocab_size) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(int32_t((7 + 31 * i + i * i % 13) % vocab_size));
  return ids;
}

/// The first of several ranks, or a process alone, with one sequence.
struct Holder {
  Holder(const std::string& path, const std::string& kv, Ranks* ranks)
      : engine(path, {.n_threads = 1, .isa = "scalar"}, ranks) {
    SessionOptions options{.n_ctx = kContext, .n_ubatch = 32};
    options.k = options.v = parse_kv_side(kv).or_throw();
    layers = layer_configs(options, engine.plan());
    pool = engine.open_pool(layers, pool_pages(layers, kContext, 1, 32), 1, kContext);
    outputs = engine.backend().make_outputs();
  }
  void run(std::span<const int32_t> tokens, LogitRows rows) {
    const SeqTokens of_seq{seq, int(tokens.size())};
    pool->reserve(seq, of_seq.n_tokens).or_throw();
    engine.backend().run({.tokens = tokens, .seqs = {&of_seq, 1}, .logits = rows}, *pool, *outputs);
  }
  void begin(int n) {
    seq = pool->open().or_throw();
    const std::vector<int32_t> ids = text(n, engine.plan().vocab_size);
    for (size_t first = 0; first < ids.size(); first += 32)
      run(std::span(ids).subspan(first, std::min<size_t>(32, ids.size() - first)), LogitRows::none);
  }
  void save(const std::filesystem::path& path) {
    save_kv_state(pool->memory().layouts(), pool->save(seq), engine.hash(kContext), path).or_throw();
  }
  Result<SequenceImage> read(const std::filesystem::path& path) {
    const io::MappedFile file = io::MappedFile::open(path).or_throw();
    return read_kv_state(*pool, kContext, engine.hash(kContext), file.bytes(), path.native());
  }
  void load(const std::filesystem::path& path) { seq = pool->load(read(path).or_throw()).or_throw(); }
  /// Logits of tokens behind the text.
  std::vector<float> go_on() {
    std::vector<float> all;
    for (const int32_t id : {3, 5, 8}) {
      run({&id, 1}, LogitRows::last);
      const auto row = outputs->logits().row(0);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  Engine engine;
  std::vector<KvLayerConfig> layers;
  std::unique_ptr<SequencePool> pool;
  SeqId seq{};
  std::unique_ptr<Outputs> outputs;
};

/// How many ranks, in how many stages.
struct Layout {
  Layout(int of_ranks, int of_stages = 1) : n_ranks(of_ranks), n_stages(of_stages) {}
  int tp() const { return n_ranks / n_stages; }
  std::string text() const { return fmt::format("{} ranks in {} stages", n_ranks, n_stages); }
  int n_ranks, n_stages;
};

void on(Layout layout, const std::function<void(Ranks*)>& body) {
  if (layout.n_ranks == 1) return body(nullptr);
  on_led_ranks(
      layout.n_ranks, [&](Ranks& ranks) { body(&ranks); }, layout.n_stages);
}

std::vector<std::byte> bytes_of(const std::filesystem::path& path) {
  const io::MappedFile file = io::MappedFile::open(path).or_throw();
  return {file.bytes().begin(), file.bytes().end()};
}

/// Computes n_tokens with `writers` ranks and goes on with every number of `readers`. Where ranks add in another order,
/// the rows are those of the writers: what readers make of them differs by the rounding of three tokens (the bound of
/// parity_test.cpp). Stages add nothing.
void expect_moves(const std::string& path, const std::string& kv, int n_tokens, Layout writers,
                  std::initializer_list<Layout> readers) {
  constexpr double kBound = 1e-4;
  SCOPED_TRACE(fmt::format("{} {} of {} tokens by {}", path, kv, n_tokens, writers.text()));
  const TempDir dir;
  std::vector<float> expected;
  on(writers, [&](Ranks* ranks) {
    Holder holder(path, kv, ranks);
    holder.begin(n_tokens);
    holder.save(dir / "state.kv");
    expected = holder.go_on();
  });
  for (const Layout& layout : readers) {
    on(layout, [&](Ranks* ranks) {
      Holder holder(path, kv, ranks);
      holder.load(dir / "state.kv");
      holder.save(dir / "again.kv");
      const std::vector<float> logits = holder.go_on();
      ASSERT_EQ(logits.size(), expected.size());
      double worst = 0;
      for (size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::abs(double(logits[i]) - expected[i]));
      if (layout.tp() == writers.tp()) {
        EXPECT_EQ(worst, 0) << layout.text();
      } else {
        EXPECT_LT(worst, kBound) << layout.text();
      }
    });
    EXPECT_EQ(bytes_of(dir / "again.kv"), bytes_of(dir / "state.kv")) << layout.text();
  }
}

class RankState : public testing::Test {
 protected:
  void SetUp() override {
    if (!reference_data()) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  }
  static std::string model(const std::string& name) { return (*reference_data() / "parity/models" / name).native(); }
};

TEST_F(RankState, OfEveryKindOfCacheMovesBetweenNumbersOfRanks) {
  for (const char* kv : {"f16", "q8_0", "rotor-3:rounding=nearest", "rotor-3s:rounding=nearest:centre=on", "p8"})
    for (const int n_tokens : {20, 150}) {
      expect_moves(model("mistral"), kv, n_tokens, 2, {1, 2, 4});  // 2 kv heads: 4 ranks hold each twice
      expect_moves(model("mistral"), kv, n_tokens, 4, {1, 2});
      expect_moves(model("mistral"), kv, n_tokens, 1, {2, 4});
    }
  expect_moves(model("mistral"), "rotor-3:rounding=weighted", 150, 2, {1, 2});
}

TEST_F(RankState, OfSlidingLayersLatentRowsAndStatesDoesSoToo) {
  expect_moves(model("mistral_swa"), "f16", 150, 2, {1, 4});
  expect_moves(model("deepseek_v3"), "f16", 100, 4, {1, 2});
  for (const char* name : {"qwen3_5", "qwen3_5_moe/model-bf16.gguf", "qwen3_next"}) {
    expect_moves(model(name), "f16", 100, 2, {1, 2});
    expect_moves(model(name), "f16", 100, 1, {2});
  }
}

TEST_F(RankState, MovesBetweenStages) {
  const Layout stages(2, 2), pairs(4, 2);
  for (const char* kv : {"f16", "rotor-3s:rounding=nearest:centre=on", "rotor-3:rounding=weighted"})
    expect_moves(model("mistral"), kv, 150, stages, {1, 2, stages, pairs, Layout(3, 3)});
  expect_moves(model("mistral"), "q8_0", 150, pairs, {1, 2, stages});
  expect_moves(model("mistral_swa"), "f16", 150, 2, {stages, pairs});
  expect_moves(model("deepseek_v3"), "f16", 100, 1, {stages, pairs});
  expect_moves(model("qwen3_5"), "f16", 100, Layout(4, 4), {1, 2, pairs});  // the last stage has no state
  expect_moves(model("qwen3_next"), "f16", 100, pairs, {1, 2, stages});
}

TEST_F(RankState, OfAnotherModelIsRefused) {
  const TempDir dir;
  Holder other(model("llama3"), "f16", nullptr);
  other.begin(10);
  other.save(dir / "other.kv");
  Holder cached(model("mistral"), "q8_0", nullptr);
  cached.begin(10);
  cached.save(dir / "q8_0.kv");
  on_led_ranks(2, [&](Ranks& ranks) {
    Holder holder(model("mistral"), "f16", &ranks);
    const auto of_other = holder.read(dir / "other.kv"), of_format = holder.read(dir / "q8_0.kv");
    ASSERT_FALSE(of_other);
    EXPECT_THAT(of_other.error().message, HasSubstr("other.kv: "));
    ASSERT_FALSE(of_format);
    EXPECT_THAT(of_format.error().message, HasSubstr("K of layer 0: format q8_0, this cache has f16"));
  });
}

}  // namespace
}  // namespace ridge
