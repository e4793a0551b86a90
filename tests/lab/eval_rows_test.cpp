// Evaluations of several caches of the shipped stories260K: stored rows are kept, groups change nothing, the table says
// what rows say.
#include "lab/quality/eval_rows.h"
#include "cases/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/temp_dir.h"
#include "format/list.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;

class EvalRows : public testing::Test {
 protected:
  EvalRows() : model_(Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {.n_threads = 2})) {
    std::string story;
    for (int i = 0; i < 12; ++i) story += "Once upon a time, there was a little girl named Lily. She loved the park. ";
    dir_.write("story.txt", story);
    corpus_ = read_corpus(model_, (dir_ / "story.txt").native());
    options_.n_ctx = 64;
    options_.max_chunks = 2;
    options_.against_base = true;
    options_.candidates = parse_kv_list("f16,f32,f16:centre=on").or_throw();
  }
  std::filesystem::path store() const { return dir_ / "rows.jsonl"; }
  std::vector<Row> run(int group, EvalRowHooks hooks = {}) {
    ResultsFile file = ResultsFile::open(store()).or_throw();
    options_.group = group;
    return evaluate_rows(model_, corpus_, options_, file.rows().or_throw(), file, hooks);
  }
  /// Rows without what may differ between two runs of the same cell.
  static std::string figures(std::vector<Row> rows) {
    std::string text;
    for (Row& row : rows) {
      for (const char* name : {"seconds", "date", "load_1min"}) row.erase(name);
      text += row.dump() + "\n";
    }
    return text;
  }

  TempDir dir_;
  Model model_;
  Corpus corpus_;
  EvalOptions options_;
};

TEST_F(EvalRows, GroupsDoNotChangeTheFiguresOrTheirOrder) {
  const std::string together = figures(run(8));
  std::filesystem::remove(store());
  std::vector<int> left;
  EvalRowHooks hooks;
  hooks.on_group = [&](const EvalResult&, int n_left) { left.push_back(n_left); };
  EXPECT_EQ(figures(run(2, hooks)), together);
  EXPECT_THAT(left, testing::ElementsAre(1, 0));
  EXPECT_EQ(read_rows(store()).or_throw().size(), 3u);
}

TEST_F(EvalRows, FinishedCellsAreNotRunAgain) {
  const std::string first = figures(run(8));
  int stored = -1, missing = -1, groups = 0;
  EvalRowHooks hooks;
  hooks.on_start = [&](int n_stored, int n_left) { stored = n_stored, missing = n_left; };
  hooks.on_group = [&](const EvalResult&, int) { ++groups; };
  EXPECT_EQ(figures(run(8, hooks)), first);
  EXPECT_EQ(stored, 3);
  EXPECT_EQ(groups, 0);
  for (const auto& change :
       std::vector<std::function<void()>>{[&] { options_.max_chunks = 1; }, [&] { options_.path = EvalPath::decode; },
                                          [&] { options_.base.k.format = "f32"; }, [&] { options_.n_ctx = 32; }}) {
    change();
    run(8, hooks);
    EXPECT_EQ(missing, 3);
  }
}

TEST_F(EvalRows, AStoppedGroupIsRunAgainAndTheOthersAreKept) {
  int chunks = 0;
  EvalRowHooks hooks;
  hooks.eval.on_chunk = [&](const EvalResult&) { ++chunks; };
  hooks.eval.stop = [&] { return chunks >= 3; };  // two chunks of the first group, one of the second
  const std::vector<Row> partial = run(2, hooks);
  ASSERT_EQ(partial.size(), 3u);
  EXPECT_EQ(partial[2]["chunks"], 1);
  int missing = 0;
  EvalRowHooks again;
  again.on_start = [&](int, int n_left) { missing = n_left; };
  const std::vector<Row> whole = run(2, again);
  EXPECT_EQ(missing, 1);
  EXPECT_EQ(whole[2]["chunks"], 2);
}

TEST_F(EvalRows, RowsCarryWhatTheyNeedToStandAlone) {
  const Row row = run(8)[0];
  for (const char* name : {"kind", "model", "device", "isa", "path", "n_ctx", "chunks", "tokens_scored", "build_commit",
                           "command", "corpus_xxh64", "kv", "base", "effective_bits_4k", "kld_by_position", "date"})
    EXPECT_TRUE(row.contains(name)) << name;
}

TEST_F(EvalRows, TheTableMarksTheGate) {
  std::vector<Row> rows = run(8);
  EXPECT_THAT(eval_table(rows), HasSubstr("| f16 | none | 16 | 16.000 |"));
  EXPECT_THAT(eval_table(rows), HasSubstr("+0.0000 ± 0.0000 pass"));
  rows[0]["difference"] = {{"value", 0.251}, {"error", 0.0}};
  EXPECT_THAT(eval_table(rows), HasSubstr("+0.2510 ± 0.0000 FAIL"));
  rows[0]["difference"]["error"] = 0.01;
  EXPECT_THAT(eval_table(rows), HasSubstr("+0.2510 ± 0.0100 no verdict"));
}

TEST(CacheList, EachLayerIsCompressedAlone) {
  const std::vector<KvChoice> list = each_layer(parse_kv_choice("q8_0/rotor-3").or_throw(), 3);
  ASSERT_EQ(list.size(), 3u);
  for (int i = 0; i < 3; ++i)  // as a user would type it
    EXPECT_EQ(kv_text(list[size_t(i)]), kv_text(parse_kv_choice(fmt::format("f16;{}:q8_0/rotor-3", i)).or_throw()));
}

TEST(CacheList, TheShelfHasEveryFormatOnceAndFitsTheHead) {
  for (const int head_dim : {128, 64, 8}) {
    const std::vector<KvChoice> list = shelf_caches(head_dim);
    std::vector<std::string> names;
    for (const KvChoice& kv : list) names.push_back(kv_text(kv));
    std::vector<std::string> sorted = names;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end()) << "twice in the list";
    for (const KvFormat& format : kv_formats())
      EXPECT_EQ(std::count(names.begin(), names.end(), format.name), head_dim % format.group == 0 ? 1 : 0)
          << format.name << " " << head_dim;
    EXPECT_LE(names.size(), 100u);
    for (const KvChoice& kv : list)
      for (const KvSideOptions* side : {&kv.k, &kv.v})
        EXPECT_EQ(head_dim % find_kv_format(side->format).or_throw()->group, 0) << kv_text(kv) << " " << head_dim;
  }
}

}  // namespace
}  // namespace ridge::lab
