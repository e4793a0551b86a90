// Tasks: what is right, how caches are compared, and the same items from the same seed.
#include "lab/quality/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cases/paths.h"
#include "lab/quality/task_words.h"

namespace ridge::lab {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Statistics, SharesHaveWilsonsInterval) {
  const Share eight = share_of(8, 10);
  EXPECT_DOUBLE_EQ(eight.value, 0.8);
  EXPECT_NEAR(eight.low, 0.4902, 1e-4);
  EXPECT_NEAR(eight.high, 0.9433, 1e-4);
  EXPECT_EQ(share_of(0, 10).low, 0);
  EXPECT_NEAR(share_of(0, 10).high, 0.2775, 1e-4);
  EXPECT_EQ(share_of(10, 10).high, 1);
  EXPECT_NEAR(share_of(10, 10).low, 1 - 0.2775, 1e-4);
}

TEST(Statistics, McNemarsPIsThatOfABinomial) {
  EXPECT_DOUBLE_EQ(mcnemar_p(0, 0), 1);
  EXPECT_DOUBLE_EQ(mcnemar_p(5, 5), 1);
  EXPECT_NEAR(mcnemar_p(9, 1), 2 * 11 / 1024.0, 1e-12);
  EXPECT_NEAR(mcnemar_p(1, 9), mcnemar_p(9, 1), 1e-15);
  EXPECT_NEAR(mcnemar_p(6, 0), 2 / 64.0, 1e-12);
  EXPECT_NEAR(std::log(mcnemar_p(1000, 0)), std::log(2.0) - 1000 * std::log(2.0), 1e-6);
}

TEST(Canaries, JsonIsRightUpToTheLinesEnd) {
  EXPECT_TRUE(completes_json(R"({"a":)", " 1}\nand more"));
  EXPECT_TRUE(completes_json(R"({"a":)", " [1, 2]}"));
  EXPECT_FALSE(completes_json(R"({"a":)", " 1"));
  EXPECT_FALSE(completes_json(R"({"a":)", " 1\n}"));
  EXPECT_FALSE(completes_json(R"([)", "1]"));  // no object
}

TEST(Canaries, BracketsMatchAndCloseAtALinesEnd) {
  EXPECT_TRUE(closes_brackets("int f(int a) {", "\n  return (a);\n}\n"));
  EXPECT_TRUE(closes_brackets("int f(int a) {", "\n  return a;\n}\nint g(] {"));  // the second one is not looked at
  EXPECT_TRUE(closes_brackets("x = {", "1}"));
  EXPECT_FALSE(closes_brackets("int f(int a) {", "\n  return (a;\n}\n"));
  EXPECT_FALSE(closes_brackets("int f(int a) {", "\n  return a;\n"));
  EXPECT_FALSE(closes_brackets("x", "}\n"));
  EXPECT_TRUE(closes_brackets("print(", "\"(\\\"[\");\n"));
}

TEST(TaskWords, AreTheSameOfTheSameSeed) {
  Rng a(1), b(1), c(2);
  const std::string pattern = "$a $w $v $n $c $d $0 $b.";
  const std::string first = filled(pattern, a);
  EXPECT_EQ(first, filled(pattern, b));
  EXPECT_NE(first, filled(pattern, c));
  EXPECT_EQ(first.find('$'), first.npos);
  for (int i = 0; i < 200; ++i) {
    const int n = whole(a, 3, 5);
    EXPECT_TRUE(n >= 3 && n <= 5) << n;
  }
}

/// Says the token after the last one. Of a text, that token is likelier by `gap` than all others.
class NextNumber : public Texts {
 public:
  explicit NextNumber(int n_seq) : n_seq_(n_seq) {}
  int n_seq() const override { return n_seq_; }
  void reset() override { held.assign(size_t(n_seq_), {}); }
  void append(std::span<const std::span<const int32_t>> tokens, LogitRows rows) override {
    last_.clear();
    for (size_t i = 0; i < tokens.size(); ++i)
      for (const int32_t token : tokens[i]) {
        held[i].push_back(token);
        if (rows == LogitRows::all) last_.push_back(token);
      }
  }
  std::vector<int32_t> likeliest() override {
    std::vector<int32_t> next;
    for (const int32_t token : last_) next.push_back(token + 1);
    return next;
  }
  std::vector<double> nll(std::span<const int32_t> targets) override {
    std::vector<double> nll;
    for (size_t i = 0; i < targets.size(); ++i) nll.push_back(targets[i] == last_[i] + 1 ? 0.1 : 5);
    return nll;
  }
  void mark() override { marked_ = held; }
  void go_back() override { held = marked_; }

  std::vector<std::vector<int32_t>> held;

 private:
  int n_seq_;
  std::vector<int32_t> last_;
  std::vector<std::vector<int32_t>> marked_;
};

class Tasks : public testing::Test {
 protected:
  static const Model& model() {
    static const Model loaded = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {.n_threads = 1});
    return loaded;
  }
  /// For needles, which want a longer context.
  static const Model& larger() {
    static const Model loaded = Model::load(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf", {.n_threads = 1});
    return loaded;
  }
  Tasks() {
    for (int i = 0; i < 100; ++i)
      story_ +=
          filled("The $a $w was in $c. Then $n and $n went to see it. They had $d of them, and it was $b. ", rng_);
    corpus_.tokens = model().tokenize(story_);
    options_.sizes = {.needle_contexts = {256, 8192},
                      .n_needles = 2,
                      .n_canaries = 2,
                      .n_continuations = 3,
                      .continued_tokens = 40,
                      .continuation_lengths = {8, 24},
                      .n_cloze = 5,
                      .cloze_context = 48,
                      .cloze_ending = 6,
                      .n_sums = 3,
                      .n_worked_sums = 1};
    options_.chat = [](std::span<const ChatTurn> turns) {
      std::string text;
      for (const ChatTurn& turn : turns) text += turn.role + ": " + turn.content + "\n";
      return model().tokenize(text);
    };
  }
  std::vector<Task> only(std::vector<std::string> names) {
    options_.only = std::move(names);
    return make_tasks(model(), corpus_, options_);
  }
  static bool go_on(int64_t /*n*/) { return true; }

  Rng rng_{7};
  std::string story_;
  Corpus corpus_;
  TaskOptions options_;
};

TEST_F(Tasks, TextsAreWrittenGreedilyInGroups) {
  Task task{.name = "t", .n_generate = 3};
  for (const int32_t first : {10, 20, 30}) task.items.push_back({.prompt = {1, first}});
  task.items[2].prompt = {5, 6, 7, 30};
  NextNumber texts(2);
  int64_t n_tokens = 0;
  const auto answers = run_task(task, model(), texts, [&](int64_t n) {
    n_tokens += n;
    return true;
  });
  ASSERT_TRUE(answers);
  EXPECT_THAT(answers->texts, ElementsAre(ElementsAre(11, 12, 13), ElementsAre(21, 22, 23), ElementsAre(31, 32, 33)));
  EXPECT_THAT(texts.held[0], ElementsAre(5, 6, 7, 30, 31, 32));  // the last token is not fed
  EXPECT_EQ(n_tokens, task.n_tokens());
  EXPECT_EQ(task.n_ctx(), 7);
  EXPECT_FALSE(run_task(task, model(), texts, [](int64_t) { return false; }));
}

TEST_F(Tasks, TheLikeliestEndingATokenIsChosen) {
  Task task{.name = "t"};
  // Behind 1, 2 comes 3, 4: of the second item a wrong ending, of the third the right one is longer and has the same
  // likelihood a token.
  task.items.push_back({.prompt = {1, 2}, .endings = {{3, 4}, {3, 9}}});
  task.items.push_back({.prompt = {1, 2}, .endings = {{3, 9}, {3, 4}}});
  task.items.push_back({.prompt = {1, 2}, .endings = {{3, 4, 5}, {9, 10}}});
  NextNumber texts(8);
  int64_t n_tokens = 0;
  const auto answers = run_task(task, model(), texts, [&](int64_t n) {
    n_tokens += n;
    return true;
  });
  ASSERT_TRUE(answers);
  EXPECT_THAT(answers->right, ElementsAre(true, false, true));
  EXPECT_EQ(n_tokens, task.n_tokens());
  EXPECT_THAT(texts.held[0], ElementsAre(1, 2, 3));
}

TEST_F(Tasks, CachesAreComparedItemByItem) {
  const TaskLine line =
      compare_answers({.name = "t", .size = 9, .chance = 0.25}, {{true, true, true, false, false}, {}},
                      {{true, false, false, true, false}, {}})[0];
  EXPECT_EQ(line.n_items, 5);
  EXPECT_EQ(line.n_right, 2);
  EXPECT_EQ(line.n_right_base, 3);
  EXPECT_EQ(line.n_lost, 2);
  EXPECT_EQ(line.n_gained, 1);
  const std::vector<Row> rows = to_rows({{"kind", "eval_task"}}, options_, {.kv = {}, .cache = {}, .lines = {line}});
  EXPECT_EQ(rows[0]["share"]["value"], 0.4);
  EXPECT_EQ(rows[0]["p"], 1);
  EXPECT_FALSE(rows[0].contains("equal"));
  EXPECT_THAT(task_table(rows),
              HasSubstr("| t, 9 tokens | f16 | 5 | 40.0 (11.8 to 76.9) | 60.0 (23.1 to 88.2) | 2 | 1 | 1.000 |"));
}

TEST_F(Tasks, ContinuationsAreComparedToEachLength) {
  const Task task{.name = "t", .n_generate = 4, .lengths = {2, 4}};
  const TaskAnswers base{{true, true}, {{1, 2, 3, 4}, {5, 6, 7, 8}}}, cache{{true, true}, {{1, 2, 3, 9}, {5, 6, 7, 8}}};
  const std::vector<TaskLine> lines = compare_answers(task, base, cache);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].task, "t of 2");
  EXPECT_EQ(lines[0].n_right, 2);
  EXPECT_EQ(lines[1].n_right, 1);
  EXPECT_EQ(lines[1].n_lost, 1);
  EXPECT_THAT(lines[0].first_differences, ElementsAre(2, 2));
  EXPECT_THAT(lines[1].first_differences, ElementsAre(3, 4));
  const std::vector<Row> rows = to_rows({{"kind", "eval_task"}}, options_, {.kv = {}, .cache = {}, .lines = lines});
  EXPECT_EQ(rows[1]["equal"]["value"], 0.5);
  EXPECT_EQ(rows[1]["first_difference"]["median"], 3.5);
}

TEST_F(Tasks, ItemsFollowFromTheSeed) {
  const std::vector<Task> a = only({}), b = only({});
  options_.seed = 43;
  const std::vector<Task> c = only({});
  ASSERT_EQ(a.size(), 7u);
  bool differs = false;
  for (size_t t = 0; t < a.size(); ++t) {
    ASSERT_EQ(a[t].items.size(), b[t].items.size());
    for (size_t i = 0; i < a[t].items.size(); ++i) {
      EXPECT_EQ(a[t].items[i].prompt, b[t].items[i].prompt) << a[t].name;
      EXPECT_EQ(a[t].items[i].endings, b[t].items[i].endings) << a[t].name;
      if (i < c[t].items.size()) differs |= a[t].items[i].prompt != c[t].items[i].prompt;
    }
  }
  EXPECT_TRUE(differs);
}

TEST_F(Tasks, NeedlesAreToldOnceAndAskedAtTheEnd) {
  EXPECT_THAT(only({"needle"})[0].why_not, HasSubstr("trained for 128 tokens"));
  options_.only = {"needle"};
  Corpus corpus;
  corpus.tokens = larger().tokenize(story_);
  const std::vector<Task> tasks = make_tasks(larger(), corpus, options_);
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_THAT(tasks[1].why_not, HasSubstr("trained for 4096 tokens"));
  ASSERT_EQ(tasks[0].items.size(), 2u);
  for (const TaskItem& item : tasks[0].items) {
    EXPECT_EQ(item.prompt.size() + size_t(tasks[0].n_generate), 256u);
    EXPECT_EQ(item.prompt[0], larger().info().add_bos ? *larger().bos() : corpus.tokens[0]);
    const std::string text = larger().detokenize(item.prompt);
    const size_t asked = text.rfind("The secret code of the "), told = text.find("The secret code of the ");
    ASSERT_LT(told, asked);
    const std::string question = text.substr(asked);
    ASSERT_EQ(text.compare(told, question.size(), question), 0) << text;
    const std::string code = text.substr(told + question.size() + 1, 5);
    EXPECT_TRUE(item.is_right(" " + code + ". And"));
    EXPECT_TRUE(item.is_right("\n" + code));
    EXPECT_FALSE(item.is_right(" the code " + code));
    EXPECT_FALSE(item.is_right(""));
  }
  // Depths differ.
  EXPECT_LT(larger().detokenize(tasks[0].items[0].prompt).find("The secret"),
            larger().detokenize(tasks[0].items[1].prompt).find("The secret"));
}

TEST_F(Tasks, ClozeEndingsBeginSentencesAndDiffer) {
  const std::vector<Task> tasks = only({"cloze"});
  ASSERT_EQ(tasks[0].why_not, "") << corpus_.tokens.size();
  ASSERT_EQ(tasks[0].items.size(), 5u);
  for (const TaskItem& item : tasks[0].items) {
    EXPECT_EQ(item.prompt.size(), 48u);
    ASSERT_EQ(item.endings.size(), 4u);
    // The first ending is what the text goes on with.
    std::vector<int32_t> whole_text(item.prompt.begin() + 1, item.prompt.end());
    whole_text.insert(whole_text.end(), item.endings[0].begin(), item.endings[0].end());
    EXPECT_FALSE(std::ranges::search(corpus_.tokens, whole_text).empty());
    for (size_t i = 1; i < 4; ++i) EXPECT_NE(item.endings[i], item.endings[0]);
    for (const auto& ending : item.endings) {
      const std::string text = model().detokenize(ending);
      EXPECT_TRUE(std::isupper(static_cast<unsigned char>(text[text.find_first_not_of(' ')]))) << text;
    }
  }
  options_.sizes.n_cloze = 100000;
  EXPECT_THAT(only({"cloze"})[0].why_not, HasSubstr("sentences"));
}

TEST_F(Tasks, ACacheEqualToTheBaseGivesEqualAnswersAndAPoorOneDoesNot) {
  options_.only = {"needle", "json", "continuation", "cloze", "sums"};
  options_.candidates = parse_kv_list("f16,rotor-3:window=0:sinks=0:none:rounding=nearest").or_throw();
  std::vector<TaskResult> results;
  int64_t done = 0, total = 0;
  TaskHooks hooks;
  hooks.on_progress = [&](int64_t n, int64_t all) { done = n, total = all; };
  hooks.on_result = [&](const TaskResult& result) { results.push_back(result); };
  run_tasks(model(), corpus_, options_, hooks);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(done, total);
  int n_differ = 0;
  for (size_t i = 0; i < results[0].lines.size(); ++i) {
    const TaskLine &same = results[0].lines[i], &poor = results[1].lines[i];
    EXPECT_EQ(same.task, poor.task);
    EXPECT_EQ(same.n_lost + same.n_gained, 0) << same.task;
    EXPECT_THAT(same.first_differences, Each(same.n_generate));
    for (const int n : poor.first_differences) n_differ += n < poor.n_generate;
  }
  EXPECT_GT(n_differ, 0);
  const std::vector<Row> rows = to_rows(subject("eval_task", model().info(), corpus_, "cpu"), options_, results[0]);
  EXPECT_EQ(rows.size(), 7u);  // two needles that are too long, and two lengths of continuations
  EXPECT_THAT(task_table(rows), HasSubstr("| the model was trained for 128 tokens |"));
}

TEST_F(Tasks, EndingsAreScoredAsInOneTextWithEveryCache) {
  // What go_back() brings back is the text as it was: each ending alone gives the same likelihoods.
  const std::vector<int32_t> prompt(corpus_.tokens.begin(), corpus_.tokens.begin() + 150);
  const std::vector<int32_t> a(corpus_.tokens.begin() + 150, corpus_.tokens.begin() + 158),
      b(corpus_.tokens.begin() + 300, corpus_.tokens.begin() + 308);
  for (const char* const kv : {"f16", "rotor-3", "rotor-4:window=0:sinks=0"}) {
    EngineTexts texts(model(), parse_kv_choice(kv).or_throw(), 200, 2);
    const std::span<const int32_t> prompts[] = {prompt, prompt}, endings[] = {a, b}, swapped[] = {b, a};
    const auto score = [&](std::span<const std::span<const int32_t>> of) {
      texts.append(of, LogitRows::all);
      std::vector<int32_t> targets(16, 5);
      return texts.nll(targets);
    };
    texts.reset();
    texts.append(prompts, LogitRows::none);
    texts.mark();
    const std::vector<double> first = score(endings);
    texts.go_back();
    const std::vector<double> other = score(swapped);
    texts.go_back();
    EXPECT_EQ(score(endings), first) << kv;
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(other[8 + i], first[i], 1e-5) << kv;
      EXPECT_NEAR(other[i], first[8 + i], 1e-5) << kv;
    }
  }
}

TEST_F(Tasks, UnknownNamesAreRefusedWithTheKnownOnes) {
  try {
    only({"needles"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("no task 'needles' (there are: needle, json, code, continuation, cloze, sums)"));
  }
}

}  // namespace
}  // namespace ridge::lab
