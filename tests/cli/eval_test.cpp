// eval kld and its base files, eval probe, the study of bench attention, and eval logits, as a user starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>

#include <nlohmann/json.hpp>

#include "cases/safetensors_builder.h"
#include "cli/run_program.h"
#include "io/safetensors.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class EvalCommands : public testing::Test {
 protected:
  EvalCommands() {
    std::string story;
    for (int i = 0; i < 12; ++i) story += "Once upon a time, there was a little girl named Lily. She loved the park. ";
    text_ = dir_.write("story.txt", story).native();
  }
  Outcome eval(std::vector<std::string> more) {
    std::vector<std::string> args{"eval", more[0], "-m", kTinyModel, "-c", "64", "--chunks", "2"};
    args.insert(args.end(), more.begin() + 1, more.end());  // of a flag given twice the last one counts
    return run_ridge(args);
  }

  TempDir dir_;
  std::string text_;
};

TEST_F(EvalCommands, KldPrintsATableAndStoresARowPerCache) {
  const std::string results = (dir_ / "r.jsonl").native();
  const Outcome outcome = eval({"kld", "-f", text_, "--kv", "f32,rotor-3", "--group", "2", "--results", results});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("| f16 |"));  // the control row comes by itself
  EXPECT_THAT(outcome.out, HasSubstr("| rotor-3 |"));
  EXPECT_THAT(outcome.out, HasSubstr("(limits: +0.25, KLD 0.02)"));
  std::istringstream lines(slurp(results));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) EXPECT_EQ(json::parse(line)["kind"], "eval_kld");
  EXPECT_EQ(n, 3);
  EXPECT_THAT(outcome.err, HasSubstr("caches   3 to run, 2 at a time beside f16"));
}

TEST_F(EvalCommands, KldGivesEveryCacheOfAListOnePolicy) {
  const Outcome outcome = eval(words(
      "kld -f {} -o json --quiet --chunks 1 -c 32 --kv f16,f32,rotor-4,f16/rotor-3:sinks=1 --kv-window 0 --kv-sinks 2",
      {text_}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> names;
  for (const json& row : json::parse(outcome.out)) {
    names.push_back(row["kv"]);
    EXPECT_EQ(row["kv_v"]["window"], 0) << row["kv"];
  }
  EXPECT_THAT(names, testing::ElementsAre("f16", "f32", "rotor-4:window=0:sinks=2", "f16/rotor-3:window=0:sinks=1"));
  EXPECT_EQ(eval({"kld", "-f", text_, "--kv", "q8_0", "-ctk", "q4_0"}).code, 2);
  EXPECT_EQ(eval({"kld", "-f", text_, "--kv", "q8_0,rotor-3", "--kv-scale", "nothing"}).code, 2);
}

TEST_F(EvalCommands, KldTakesTheShelfAndSingleLayers) {
  const auto caches = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"kld", "-f", text_, "-o", "json", "--quiet", "--chunks", "1", "-c", "32"});
    std::vector<std::string> names;
    for (const json& row : json::parse(eval(more).out)) names.push_back(row["kv"]);
    return names;
  };
  EXPECT_THAT(caches({"--each-layer", "f32"}), testing::IsSupersetOf({"f16", "f16;0:f32", "f16;1:f32"}));
  EXPECT_THAT(caches({"--kv", "shelf"}), testing::IsSupersetOf({"f16", "f32", "rotor-3u"}));
}

TEST_F(EvalCommands, AStudyRefusesFlagsOfAnother) {
  const auto refused = [&](std::vector<std::string> args, const char* why) {
    args.insert(args.end(), {"-m", kTinyModel, "-f", text_});
    const Outcome outcome = run_ridge(args);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
  };
  refused({"bench", "attention", "--heads", "12/2"}, "--heads: is of the bench");
  refused({"bench", "attention", "--kv", "f16", "-o", "jsonl"}, "md or json");
  EXPECT_EQ(run_ridge({"bench", "attention", "--windows", "3"}).code, 2);
  EXPECT_THAT(run_ridge({"bench", "attention", "-m", kTinyModel}).err, HasSubstr("--file: is required"));
}

TEST_F(EvalCommands, ProbePrintsALineAProbeAndFailsWithTheGatesCode) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "Once upon a time, there was a little girl named Lily. She loved the park. ";
  const std::string path = dir_.write("long.txt", text).native();
  const std::vector<std::string> args =
      words("eval probe -m {} -f {} --prompts 1 --trials 1 --positions 16 -n 8", {kTinyModel, path});
  const auto with = [&](const char* kv) {
    std::vector<std::string> all = args;
    all.insert(all.end(), {"--kv", kv});
    return run_ridge(all);
  };
  const Outcome f16 = with("f16");
  EXPECT_EQ(f16.code, 0) << f16.err;
  EXPECT_THAT(f16.out, HasSubstr("| next token, short, 128 tokens | PASS: 100.0 %, 1.000, 0.0000, 0.00000 |"));
  EXPECT_THAT(f16.out, HasSubstr("| next token, 2-8k, 2048 tokens | NOT APPLICABLE: the model was trained for 128"));
  EXPECT_THAT(f16.out, HasSubstr("| greedy text twice | PASS: 8 tokens, equal bits |"));
  const Outcome destroyed = with("rotor-3u:window=0:sinks=0");
  EXPECT_EQ(destroyed.code, 3) << destroyed.err << destroyed.out;
  EXPECT_THAT(destroyed.out, HasSubstr("| next token, short, 128 tokens | FAIL: "));
}

TEST_F(EvalCommands, KldJsonlHasOneRowPerLine) {
  const Outcome outcome = eval({"kld", "-f", text_, "--kv", "f16,f32", "-o", "jsonl", "--quiet"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  std::istringstream lines(outcome.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(json::parse(line)["kv"], "f16");
  EXPECT_EQ(eval({"kld", "-f", text_, "--kv", "f16", "-o", "html"}).code, 2);
}

TEST_F(EvalCommands, ABaseFileReplacesTextAndBaseRun) {
  const std::string base = (dir_ / "base.kld").native();
  ASSERT_EQ(eval({"kld", "-f", text_, "--kv", "f32", "--save-base", base}).code, 0);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"-f", text_}, {"--kl-divergence-base", base}}) {
    std::vector<std::string> args{"kld", "--base", base, "--kv", "f32", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = eval(args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json rows = json::parse(outcome.out);
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0]["kv"], "f16");
    EXPECT_EQ(rows[0]["base"], "file base.kld");
    EXPECT_NEAR(rows[0]["kld"]["mean"]["value"], 0, 1e-5);
  }
}

TEST_F(EvalCommands, ABaseThatDoesNotFitIsRefused) {
  const std::string base = (dir_ / "base.kld").native();
  ASSERT_EQ(eval({"kld", "-f", text_, "--save-base", base}).code, 0);
  const auto refused = [&](std::vector<std::string> args, int code, const char* why) {
    args.insert(args.begin(), "kld");
    const Outcome outcome = eval(args);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
  };
  refused({"-c", "32", "--base", base}, 2, "made with");
  refused({"--base", base, "--save-base", base}, 2, "--save-base");
  refused({"--base", base, "-f", dir_.write("other.txt", "Another story altogether.").native()}, 2, "tokens");
  refused({"--base", "none.kld", "-f", text_}, 2, "no cache and no file");
  refused({"--base", dir_.write("cut.kld", slurp(base).substr(0, 1000)).native()}, 4, "cut.kld");
  refused({}, 2, "--file");
}

TEST_F(EvalCommands, TheCurveCoversTheWindow) {
  const Outcome outcome = eval({"kld", "-f", text_, "--kv", "f32", "--curve", "--quiet"});
  EXPECT_THAT(outcome.out, HasSubstr("mean KLD at"));
  EXPECT_THAT(outcome.out, HasSubstr("0 to 3 "));
}

TEST_F(EvalCommands, TasksStoreARowATaskAndCache) {
  const std::string results = (dir_ / "tasks.jsonl").native();
  const std::vector<std::string> args = words(
      "eval tasks -m {} -f {} --only needle,json --items 2 --contexts 128,256 --kv-window 32 --kv f16,rotor-4 "
      "--results {}",
      {kTinyModel, text_, results});
  const Outcome outcome = run_ridge(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("| json | rotor-4:window=32 | 2 |"));
  EXPECT_THAT(outcome.out, HasSubstr("| needle, 256 tokens | f16 | the model was trained for 128 tokens |"));
  std::istringstream lines(slurp(results));
  std::vector<json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
  ASSERT_EQ(rows.size(), 6u);
  for (const json& row : rows) EXPECT_EQ(row["kind"], "eval_task");
  EXPECT_EQ(rows[2]["task"], "json");
  EXPECT_EQ(rows[2]["equal"]["value"], 1);  // f16 beside itself
  EXPECT_EQ(rows[5]["kv_k"]["window"], 32);
  EXPECT_EQ(run_ridge({"eval", "tasks", "-m", kTinyModel, "-f", text_, "--only", "haystack"}).code, 2);
  EXPECT_EQ(run_ridge({"eval", "tasks", "-m", kTinyModel, "-f", text_, "-ctk", "q8_0"}).code, 2);
}

TEST_F(EvalCommands, ConversationsAreShownByTheTemplate) {
  const char* const line =
      R"({"messages": [{"role": "user", "content": "Who is Lily?"}, {"role": "assistant", "content": "A girl."}]})";
  const std::string chat =
      dir_.write("chat.jsonl", std::string(line) + "\n\n" + line + "\n" + line + "\n" + line).native();
  const std::string plain = "User: Who is Lily?\nAssistant: A girl.\n";
  const Outcome outcome = eval({"ppl", "-f", chat, "--chat", "--json", "-c", "32", "--quiet", "--chunks", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const int64_t n = json::parse(outcome.out)[0]["corpus_tokens"].get<int64_t>();
  EXPECT_EQ(n, 4 * int64_t(Model::load(kTinyModel, {.n_threads = 1}).tokenize(plain).size()));
  const Outcome refused = eval({"ppl", "-f", dir_.write("bad.jsonl", std::string(line) + "\nWho?").native(), "--chat"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--file: line 2 is no conversation"));
}

TEST_F(EvalCommands, TheStudyOfAttentionPrintsATableAndStoresARowPerCache) {
  const std::string results = (dir_ / "rows.jsonl").native();
  const Outcome outcome =
      run_ridge(words("bench attention -c 32 --windows 1 --queries 4 -m {} -f {} --kv f16,f32 --results {}",
                      {kTinyModel, text_, results}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::AllOf(HasSubstr("| norm ratio |"), HasSubstr("| f32 |")));
  std::istringstream lines(slurp(results));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    const json row = json::parse(line);
    EXPECT_EQ(row["kind"], "eval_attention");
    for (const char* field : {"kv", "model", "device", "build_commit", "command", "corpus_xxh64"})
      EXPECT_TRUE(row.contains(field)) << field;
  }
  EXPECT_EQ(n, 2);
}

TEST_F(EvalCommands, TheStudyOfAModelWithoutATokenizerTakesRandomTokens) {
  const Outcome outcome =
      run_ridge(words("bench attention -c 32 --windows 1 --queries 4 -m {} --kv q8_0 --json", {"synth:tiny-gemma4"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json row = json::parse(outcome.out)[0];
  EXPECT_EQ(row["corpus"], "random tokens");
  EXPECT_EQ(row["attention"]["layers"].size(), 6u);
}

/// eval logits with the tiny model: 512 pieces, a context of 128 tokens.
class EvalLogits : public testing::Test {
 protected:
  static constexpr size_t kVocab = 512;

  EvalLogits() {
    for (int i = 0; i < 80; ++i) ids_.push_back(i == 0 ? 1 : (i * 37 + i / 7) % 500);
    json_ = dir_.write("ids.json", json(ids_).dump()).native();
  }
  Outcome logits(const std::string& ids, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args{"eval", "logits", "-m", kTinyModel, "--ids", ids, "-o", out_};
    args.insert(args.end(), more.begin(), more.end());
    return run_ridge(args);
  }
  /// The bytes of a tensor of the file that was written, after a look at its form.
  std::string written(std::string_view name, std::string_view format, const std::vector<int64_t>& shape) {
    const io::MappedFile file = io::MappedFile::open(out_).or_throw();
    const std::vector<io::Tensor> tensors = io::parse_safetensors(file.bytes(), out_).or_throw();
    EXPECT_EQ(tensors.size(), 2u);
    for (const io::Tensor& tensor : tensors) {
      if (tensor.name != name) continue;
      EXPECT_EQ(tensor.format->name, format);
      EXPECT_EQ(tensor.shape, shape);
      return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  std::string logits_of(const std::string& ids, const std::vector<std::string>& more = {}) {
    std::filesystem::remove(out_);
    const Outcome outcome = logits(ids, more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return written("logits", "f32", {int64_t(ids_.size()), int64_t(kVocab)});
  }
  template <class Word>
  std::string safetensors_ids(const char* dtype, const std::string& shape) {
    const std::vector<Word> words(ids_.begin(), ids_.end());
    const std::string data(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(Word));
    const std::string header =
        fmt::format(R"({{"input_ids":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})", dtype, shape, data.size());
    return dir_.write("ids.safetensors", safetensors_image(padded_header(header), data)).native();
  }

  TempDir dir_;
  std::vector<int32_t> ids_;
  std::string json_, out_ = (dir_ / "logits.safetensors").native();
};

TEST_F(EvalLogits, PrefillDecodeAndEveryCutGiveTheSameBits) {
  for (const char* kv : {"f32", "f16", "rotor-3"}) {
    const std::string prefill = logits_of(json_, {"--kv", kv});
    EXPECT_EQ(prefill, logits_of(json_, {"--kv", kv, "--path", "decode"})) << kv;
    EXPECT_EQ(prefill, logits_of(json_, {"--kv-quant", kv, "-ub", "7"})) << kv;
  }
}

TEST_F(EvalLogits, TheRowsAreTheModelsOwn) {
  const std::string file = logits_of(json_, {"--quiet"});
  const Model model = Model::load(kTinyModel);
  Session session(model, {.n_ctx = 80});
  for (size_t row = 0; row < ids_.size(); ++row)
    ASSERT_EQ(0, std::memcmp(session.decode(ids_[row]).data(), file.data() + row * kVocab * 4, kVocab * 4)) << row;
  std::string ids(ids_.size() * 4, '\0');
  std::memcpy(ids.data(), ids_.data(), ids.size());
  EXPECT_EQ(written("input_ids", "i32", {80}), ids);
}

TEST_F(EvalLogits, EveryFormOfIdsIsRead) {
  const std::string expected = logits_of(json_);
  EXPECT_EQ(expected, logits_of(dir_.write("o.json", json{{"input_ids", ids_}, {"text", "x"}}.dump()).native()));
  EXPECT_EQ(expected, logits_of(safetensors_ids<int32_t>("I32", "[80]")));
  EXPECT_EQ(expected, logits_of(safetensors_ids<int64_t>("I64", "[80]")));
  EXPECT_EQ(expected, logits_of(safetensors_ids<int64_t>("I64", "[1,80]")));
  EXPECT_EQ(expected, logits_of(safetensors_ids<int32_t>("I32", "[1,80]")));
}

TEST_F(EvalLogits, JsonAndQuietSayWhatTheyPromise) {
  const Outcome facts = logits(json_, {"--json", "--quiet"});
  ASSERT_EQ(facts.code, 0) << facts.err;
  EXPECT_EQ(facts.err, "");
  EXPECT_EQ(json::parse(facts.out)["n_tokens"], 80);
  EXPECT_EQ(json::parse(facts.out)["vocab_size"], kVocab);
  EXPECT_EQ(json::parse(facts.out)["kv"], "f16");
  EXPECT_THAT(logits(json_).out, HasSubstr("logits of 80 tokens"));
}

TEST_F(EvalLogits, HostileIdsAreRefusedAndLeaveNoFile) {
  struct Case {
    std::string bytes;
    int code;
    const char* why;
  };
  const auto tensor = [](const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& data) {
    return safetensors_image(padded_header(fmt::format(R"({{"{}":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})",
                                                       name, dtype, shape, data.size())),
                             data);
  };
  const std::string four("\x01\0\0\0", 4), minus("\xFF\xFF\xFF\xFF", 4), wide("\0\0\0\0\x01\0\0\0", 8);
  const std::string deep(100000, '[');
  std::vector<int32_t> many(129, 1);
  const std::vector<Case> cases{
      {tensor("ids", "I32", "[1]", four), 4, "no tensor 'input_ids'"},
      {tensor("input_ids", "F32", "[1]", four), 4, "has dtype F32, expected I32 or I64"},
      {tensor("input_ids", "I32", "[1,1,1]", four), 4, "expected [T] or [1, T]"},
      {tensor("input_ids", "I32", "[2,1]", four + four), 4, "expected [T] or [1, T]"},
      {tensor("input_ids", "I32", "[0]", ""), 4, "dimension 0 of size 0"},
      {tensor("input_ids", "I32", "[1]", minus), 4, "input_ids[0] is -1, expected a token id"},
      {tensor("input_ids", "I64", "[1]", wide), 4, "input_ids[0] is 4294967296"},
      {tensor("input_ids", "I32", "[1]", four).substr(0, 40), 4, "header length"},
      {"[1, -2]", 4, "input_ids[1] is -2"},
      {"[1, 2.5]", 4, "input_ids[1] is 2.5, expected a whole number"},
      {"[\"1\"]", 4, "input_ids[0] is string"},
      {"[18446744073709551615]", 4, "expected a token id from 0"},
      {"[]", 4, "empty"},
      {"{\"ids\": [1]}", 4, "has no 'input_ids'"},
      {"{\"input_ids\": 7}", 4, "expected a list"},
      {deep, 4, "deep"},
      {"1 2 3", 4, "hostile"},
      {"[1, 512]", 2, "input_ids[1] in"},
      {json(many).dump(), 2, "expected at most 128, the model's context"},
  };
  for (const Case& c : cases) {
    const Outcome outcome = logits(dir_.write("hostile", c.bytes).native());
    EXPECT_EQ(outcome.code, c.code) << c.why << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(c.why));
    EXPECT_FALSE(std::filesystem::exists(out_)) << c.why;
  }
  EXPECT_EQ(logits("absent.json").code, 4);
  EXPECT_EQ(logits(json_, {"--kv", "q8_0", "-ctk", "q8_0"}).code, 2);
  EXPECT_EQ(logits(json_, {"--path", "sideways"}).code, 2);
  EXPECT_EQ(logits(json_, {"-o", (dir_ / "none" / "x").native()}).code, 1);
  size_t n_files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir_.path())) ++n_files;
  EXPECT_EQ(n_files, 2u);  // the ids of this test, no temporary
}

}  // namespace
}  // namespace ridge
