// The gates on made-up rows: true ones, missing ones, and planted lies.
#include "lab/decide/gates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "cases/temp_dir.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr const char* kFormat = "rotor-3";

DecisionQuestion question() {
  return {.subject = {.model_path = "model.gguf",
                      .model_hash = "00000000000000aa",
                      .device = "cpu",
                      .device_name = "AMD EPYC",
                      .isa = "avx512",
                      .n_threads = 2,
                      .build = "abc"},
          .n_ctx = 16384,
          .n_sessions = 2,
          .shape = {12, 2, 128},
          .target = {64, 8, 128},
          .depths = {2048, 8192, 16384},
          .target_depths = {4096, 16384},
          .prompts = {1024, 4096},
          .n_gen = 256,
          .eval_ctx = 1024,
          .eval_chunks = 20,
          .corpus = "0b10"};
}

/// Times about `median` with a bell-shaped spread.
Row timed(Row cell, double median, double spread = 0.002, uint64_t seed = 1) {
  Rng rng(seed + uint64_t(median * 1000));
  Row row{{"kind", "op"}, {"command", "ridge sweep"}, {"samples_us", Row::array()}, {"median_us", median}};
  for (int i = 0; i < 21; ++i) row["samples_us"].push_back(median * (1 + spread * rng.normal()));
  row["cell"] = std::move(cell);
  return row;
}

/// Rows of everything that is asked: attention `attention` times, requests `service` times as fast as with f16.
struct Evidences {
  DecisionQuestion q = question();
  double attention = 1.3, target = 1.5, service = 1.1, spread = 0.002;
  double rise = 0.05, rise_error = 0.01, kld = 0.004, kld_error = 0.0002;
  double share = 80, total = 5e9, f16_total = 6e9, memory = 8e9;

  std::vector<Row> rows() const {
    std::vector<Row> all;
    const auto of_attention = [&](const HeadShape& shape, int depth, double speedup) {
      for (const bool control : {false, true})
        all.push_back(timed(attention_cell(q, shape, depth, "f16", control), depth, spread, control));
      all.push_back(timed(attention_cell(q, shape, depth, kFormat, false), depth / speedup, spread, 7));
      for (size_t i = all.size() - 3; i < all.size(); ++i) {
        all[i]["pct_of_roof"] = share;
        all[i]["cold"] = true;
        all[i]["flops"] = 1000;
        all[i]["read_bytes"] = i + 1 < all.size() ? 2000 : 500;
      }
    };
    for (const int depth : q.depths) of_attention(q.shape, depth, attention);
    for (const int depth : q.target_depths) of_attention(q.target, depth, target);
    for (const int n_prompt : q.prompts) {
      for (const bool control : {false, true})
        all.push_back(timed(service_cell(q, n_prompt, "f16", control), n_prompt, spread, 3 + control));
      all.push_back(timed(service_cell(q, n_prompt, kFormat, false), n_prompt / service, spread, 9));
    }
    all.push_back({{"kind", "eval_kld"},
                   {"cell", quality_cell(q, kFormat)},
                   {"path", "decode"},
                   {"difference", {{"value", rise}, {"error", rise_error}}},
                   {"ppl_base", {{"value", 20}, {"error", 0.1}}},
                   {"kld", {{"mean", {{"value", kld}, {"error", kld_error}}}}}});
    all.push_back(
        {{"kind", "plan"}, {"cell", plan_cell(q, "f16")}, {"total_bytes", f16_total}, {"memory_bytes", memory}});
    all.push_back(
        {{"kind", "plan"}, {"cell", plan_cell(q, kFormat)}, {"total_bytes", total}, {"memory_bytes", memory}});
    return all;
  }
  CandidateRecord judged() const { return judge_candidate(rows(), q, kFormat, {}); }
};

std::string verdicts(const CandidateRecord& candidate) {
  std::string text;
  for (const GateResult& gate : candidate.gates)
    if (gate.number <= 6) text += "-PF"[size_t(gate.verdict)];
  return text;
}

TEST(Gates, AllPassAndTheFormatIsOn) {
  const CandidateRecord c = Evidences().judged();
  EXPECT_EQ(verdicts(c), "PPPPPP");
  EXPECT_TRUE(c.on);
  EXPECT_EQ(c.from_depth, 1024);
  EXPECT_NEAR(c.speedup, 1.1, 0.01);
  EXPECT_THAT(c.gates[0].rows, SizeIs(9));
  EXPECT_THAT(c.gates[0].commands, testing::ElementsAre("ridge sweep"));
  EXPECT_GT(c.gates[0].noise, 0);
  EXPECT_NEAR(c.gates[4].numbers["target"]["speedup_by_bytes"].get<double>(), 4, 1e-9);
}

TEST(Gates, EachFailsByItself) {
  EXPECT_EQ(verdicts(Evidences{.attention = 1.05}.judged()), "FPPPPP");
  EXPECT_EQ(verdicts(Evidences{.target = 0.9}.judged()), "PFPPPP");
  EXPECT_EQ(verdicts(Evidences{.service = 0.95}.judged()), "PPFPPP");
  EXPECT_EQ(verdicts(Evidences{.rise = 0.5}.judged()), "PPPFPP");
  EXPECT_EQ(verdicts(Evidences{.share = 30}.judged()), "PPPPFP");
  EXPECT_EQ(verdicts(Evidences{.total = 9e9, .f16_total = 9e9}.judged()), "PPPPPF");
  // Equal times are measured well enough to say that nothing is gained.
  EXPECT_EQ(verdicts(Evidences{.service = 1.0, .spread = 0.0005}.judged()), "PPFPPP");
}

TEST(Gates, TheFlipRule) {
  for (const Evidences& of :
       {Evidences{.attention = 1.05}, Evidences{.target = 0.9}, Evidences{.service = 0.95}, Evidences{.rise = 0.5}})
    EXPECT_FALSE(of.judged().on) << verdicts(of.judged());
  // Neither what binds a kernel nor memory to spare decides.
  EXPECT_TRUE(Evidences{.share = 30}.judged().on);
  // Where f16 does not fit quality is enough, and only quality.
  const CandidateRecord c = Evidences{.service = 0.95, .f16_total = 9e9}.judged();
  EXPECT_TRUE(c.on);
  EXPECT_EQ(c.from_depth, 0);
  EXPECT_THAT(c.why, HasSubstr("f16 does not fit"));
  EXPECT_FALSE((Evidences{.rise = 0.5, .f16_total = 9e9}.judged().on));
  EXPECT_FALSE((Evidences{.service = 0.95, .total = 9e9, .f16_total = 9e9}.judged().on));
}

TEST(Gates, MissingRowsGiveNoVerdict) {
  const Evidences of;
  const std::vector<Row> all = of.rows();
  EXPECT_EQ(verdicts(judge_candidate({}, of.q, kFormat, {})), "------");
  // Any one row of a gate.
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<Row> rows = all;
    rows.erase(rows.begin() + int64_t(i));
    EXPECT_THAT(verdicts(judge_candidate(rows, of.q, kFormat, {})), HasSubstr("-")) << all[i]["cell"];
  }
  DecisionQuestion q = of.q;
  q.depths = {2048, 16384};
  const GateResult gate = attention_gate(all, q, kFormat, {});
  EXPECT_EQ(gate.verdict, GateVerdict::none);
  EXPECT_THAT(gate.why, HasSubstr("no depth of 8192"));
  // A row that failed its check.
  std::vector<Row> rows = all;
  rows[0]["state"] = "failed";
  rows[0]["reason"] = "NMSE 0.2 over 1e-5";
  EXPECT_THAT(attention_gate(rows, of.q, kFormat, {}).why, HasSubstr("NMSE 0.2"));
}

TEST(Gates, RowsOfOthersGiveNoVerdict) {
  const Evidences of;
  const auto with = [&](const char* field, const Row& value) {
    std::vector<Row> rows = of.rows();
    for (Row& row : rows)
      if (row["cell"].contains(field)) row["cell"][field] = value;
    return judge_candidate(rows, of.q, kFormat, {});
  };
  for (const auto& [field, value] : {std::pair<const char*, Row>{"device_name", "Intel Xeon"},
                                     {"build", "abd"},
                                     {"n_threads", 4},
                                     {"isa", "avx2"},
                                     {"device", "cuda:0"}}) {
    const CandidateRecord c = with(field, value);
    EXPECT_EQ(verdicts(c), "------") << field;
    EXPECT_THAT(c.gates[0].why, HasSubstr(value.is_string() ? value.get<std::string>() : "4"));
  }
  const CandidateRecord other_model = with("model_hash", "00000000000000bb");
  EXPECT_EQ(verdicts(other_model), "PP--P-");  // attention of a shape is no model's
  EXPECT_THAT(other_model.gates[2].why, HasSubstr("of another model"));
}

TEST(Gates, NoiseAboveTheEffectGivesNoVerdict) {
  const CandidateRecord c = Evidences{.attention = 1.12, .target = 1.05, .service = 1.02, .spread = 0.2}.judged();
  EXPECT_EQ(verdicts(c).substr(0, 3), "---");
  EXPECT_THAT(c.gates[2].why, HasSubstr("inside the noise"));
  EXPECT_FALSE(c.on);
  // Perplexity within two errors of its limit, on either side.
  EXPECT_EQ(verdicts(Evidences{.rise = 0.24, .rise_error = 0.02}.judged()), "PPP-PP");
  EXPECT_EQ(verdicts(Evidences{.rise = 0.27, .rise_error = 0.02}.judged()), "PPP-PP");
  EXPECT_EQ(verdicts(Evidences{.kld = 0.0199, .kld_error = 0.001}.judged()), "PPP-PP");
}

TEST(Gates, AFormatOfAWrongScaleFailsByDivergence) {
  // Perplexity alone may even fall by chance.
  const CandidateRecord c = Evidences{.rise = -0.1, .kld = 1.7, .kld_error = 0.05}.judged();
  EXPECT_EQ(verdicts(c), "PPPFPP");
  EXPECT_FALSE(c.on);
}

TEST(Gates, QualityOfRandomWeightsAndOfPromptsIsNoEvidence) {
  Evidences of;
  of.q.subject.synthetic = true;
  const CandidateRecord c = of.judged();
  EXPECT_EQ(verdicts(c), "PPP-PP");
  EXPECT_THAT(c.gates[3].why, HasSubstr("random weights"));
  EXPECT_FALSE(c.on);
  std::vector<Row> rows = Evidences().rows();
  for (Row& row : rows)
    if (row.contains("path")) row["path"] = "prefill";
  EXPECT_EQ(verdicts(judge_candidate(rows, question(), kFormat, {})), "PPP-PP");
  for (Row& row : rows)
    if (row.contains("path")) row["path"] = "decode", row.erase("kld");
  EXPECT_EQ(verdicts(judge_candidate(rows, question(), kFormat, {})), "PPP-PP");
}

TEST(Gates, WithoutATextQualityNamesTheFlag) {
  DecisionQuestion q = question();
  q.corpus.clear();
  q.eval_chunks = 0;
  const CandidateRecord c = judge_candidate(Evidences().rows(), q, kFormat, {});
  EXPECT_EQ(verdicts(c), "PPP-PP");
  EXPECT_THAT(c.gates[3].why, HasSubstr("no text was named (-f FILE"));
}

TEST(Gates, DataInACacheSaysNothingAboutMemory) {
  const Evidences of;
  std::vector<Row> rows = of.rows();
  for (Row& row : rows)
    if (row.contains("cold")) row["cold"] = false;
  EXPECT_EQ(verdicts(judge_candidate(rows, of.q, kFormat, {})), "PPPP-P");
}

TEST(Gates, LayersThatDifferAreMeasuredByThemselves) {
  // Three layers of rotor-3, one of f16: the mean of what their attention takes.
  const char* mixed = "rotor-3;3:f16";
  Evidences of;
  of.q.attention_layers = {0, 1, 2, 3};
  EXPECT_EQ(layer_caches(of.q, kFormat).size(), 1u);
  const auto caches = layer_caches(of.q, mixed);
  ASSERT_THAT(caches, SizeIs(2));
  EXPECT_EQ(caches[0], (std::pair<std::string, double>("f16", 0.25)));
  EXPECT_EQ(caches[1], (std::pair<std::string, double>("rotor-3", 0.75)));
  const GateResult gate = attention_gate(of.rows(), of.q, mixed, {});
  EXPECT_EQ(gate.verdict, GateVerdict::pass) << gate.why;
  const double ratio = gate.numbers["depths"][0]["comparison"]["ratio"].get<double>();
  EXPECT_NEAR(ratio, 1 / (0.25 + 0.75 / 1.3), 0.005);
  EXPECT_THAT(gate.rows, SizeIs(12));  // f16 twice, and both kinds of layers, at three depths
  // Bytes are f16's 2000 in one of four layers, 500 in the others.
  const GateResult bound = bound_gate(of.rows(), of.q, mixed, {});
  EXPECT_NEAR(bound.numbers["target"]["speedup_by_bytes"].get<double>(), 2000 / (0.25 * 2000 + 0.75 * 500), 1e-9);
  // A kind of layer without rows decides nothing, whatever the others have.
  EXPECT_EQ(attention_gate(of.rows(), of.q, "rotor-3;3:rotor-4", {}).verdict, GateVerdict::none);
}

/// Rows of requests that tell prompts from tokens, `prompt` and `decode` times as fast as f16's.
std::vector<Row> promotion_rows(const DecisionQuestion& q, double prompt, double decode, double spread = 0.002) {
  std::vector<Row> rows;
  const auto add = [&](const char* kv, bool control, double of_prompt, double of_decode, uint64_t seed) {
    Rng rng(seed);
    Row row{{"kind", "service"}, {"cell", service_cell(q, kPromotionPrompt, kv, control)}};
    for (int i = 0; i < 9; ++i) {
      row["prompt_seconds"].push_back(of_prompt * (1 + spread * rng.normal()));
      row["decode_seconds"].push_back(of_decode * (1 + spread * rng.normal()));
    }
    rows.push_back(std::move(row));
  };
  add("f16", false, 4, 10, 1);
  add("f16", true, 4, 10, 2);
  add(kFormat, false, 4 / prompt, 10 / decode, 3);
  return rows;
}

TEST(Gates, PromotionLooksAtPromptsAndTokens) {
  const DecisionQuestion q = question();
  const auto verdict = [&](double prompt, double decode, double spread = 0.002, bool both = true) {
    return promotion_gate(promotion_rows(q, prompt, decode, spread), q, kFormat, {.promotion_both = both}).verdict;
  };
  EXPECT_EQ(verdict(1.1, 1.0), GateVerdict::pass);
  EXPECT_EQ(verdict(1.1, 0.95), GateVerdict::fail);
  EXPECT_EQ(verdict(1.02, 1.2), GateVerdict::fail);
  EXPECT_EQ(verdict(1.02, 1.2, 0.002, false), GateVerdict::pass);  // one is enough where the limits say so
  EXPECT_EQ(verdict(1.02, 0.9, 0.002, false), GateVerdict::fail);
  EXPECT_EQ(verdict(1.05, 1.0), GateVerdict::none);      // at the limit
  EXPECT_EQ(verdict(1.3, 1.0, 0.1), GateVerdict::none);  // noise hides 2 %
  EXPECT_EQ(verdict(1.1, 0.5, 0.1), GateVerdict::fail);  // but not this
}

TEST(Gates, PromotionWantsItsOwnRows) {
  DecisionQuestion q = question();
  const std::vector<Row> all = promotion_rows(q, 1.2, 1.1);
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<Row> rows = all;
    rows.erase(rows.begin() + int64_t(i));
    EXPECT_EQ(promotion_gate(rows, q, kFormat, {}).verdict, GateVerdict::none);
    rows = all;
    rows[i].erase("prompt_seconds");
    EXPECT_THAT(promotion_gate(rows, q, kFormat, {}).why, HasSubstr("do not tell the prompt's time"));
    rows = all;
    rows[i]["state"] = "failed";
    rows[i]["reason"] = "NMSE";
    EXPECT_EQ(promotion_gate(rows, q, kFormat, {}).verdict, GateVerdict::none);
  }
  // Requests with other prompts; and it never flips a format.
  q.prompts = {1024};
  EXPECT_THAT(promotion_gate(all, q, kFormat, {}).why, HasSubstr("have no prompt of 4096"));
  std::vector<Row> rows = Evidences().rows();
  const CandidateRecord c = judge_candidate(rows, question(), kFormat, {});
  ASSERT_THAT(c.gates, SizeIs(7));
  EXPECT_EQ(c.gates[6].verdict, GateVerdict::none);
  EXPECT_TRUE(c.on);
}

TEST(Gates, SweepsReachTheContext) {
  EXPECT_THAT(sweep_depths(512), testing::ElementsAre(512));
  EXPECT_THAT(sweep_depths(300), testing::ElementsAre(300));
  EXPECT_THAT(sweep_depths(20000), testing::IsSupersetOf({8192, 16384, 20000}));
}

DecisionRecord record_of(const Evidences& of) { return decide(of.rows(), of.q, {"q8_0", kFormat}, {}); }

TEST(Record, ChoosesTheFastestThatIsOnAndSaysSo) {
  const DecisionRecord record = record_of({});
  EXPECT_EQ(record.choice, kFormat);
  EXPECT_EQ(record.from_depth, 1024);
  EXPECT_THAT(record.sentence, HasSubstr("Use rotor-3 from 1024 tokens on: gates 1 to 4 pass; requests are 1.10x"));
  EXPECT_EQ(choice_at(record, 1023), "f16");
  EXPECT_EQ(choice_at(record, 1024), kFormat);
  const DecisionRecord none = record_of({.service = 0.95});
  EXPECT_EQ(none.choice, "f16");
  EXPECT_THAT(none.sentence, HasSubstr("Stay with f16."));
  EXPECT_THAT(none.sentence, HasSubstr("Speed: no cache is faster in whole requests."));
  EXPECT_THAT(none.sentence, HasSubstr("Smallest cache within the quality limit: rotor-3 (perplexity"));
  EXPECT_THAT(record_page(record), HasSubstr("measured by\n  ridge sweep\n"));
}

TEST(Record, ComesBackFromItsFile) {
  const TempDir dir;
  const DecisionRecord record = record_of({});
  const auto path = record_path(dir.path(), record.subject.model_hash);
  write_record(record, path);
  const DecisionRecord read = read_record(path).or_throw();
  EXPECT_EQ(record_text(read), record_text(record));
  EXPECT_EQ(record_page(read), record_page(record));
  EXPECT_EQ(why_not_for(read, question().subject), "");
}

TEST(Record, AnEditedOrCutOneIsRefused) {
  const std::string text = record_text(record_of({}));
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string edited = text;
    const size_t at = edited.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return edited.replace(at, from.size(), to);
  };
  const auto refused = [](const std::string& edited) {
    const auto record = parse_record(edited, "r.json");
    return record ? std::string("accepted") : record.error().message;
  };
  EXPECT_THAT(refused(replaced("\"verdict\": \"PASS\"", "\"verdict\": \"FAIL\"")), HasSubstr("it was edited or cut"));
  EXPECT_THAT(refused(replaced("\"from_depth\": 1024", "\"from_depth\": 1")), HasSubstr("it was edited or cut"));
  EXPECT_THAT(refused(replaced("\"version\": 2", "\"version\": 3")), HasSubstr("version 3"));
  EXPECT_THAT(refused(replaced("ridge-decision", "ridge-decisioN")), HasSubstr("not a decision record"));
  EXPECT_NE(refused(text.substr(0, text.size() / 2)), "accepted");
  for (const char* other : {"", "[]", "{}", "1", "{\"format\":\"ridge-decision\"}"})
    EXPECT_NE(refused(other), "accepted");
}

TEST(Record, AFieldOfAnotherTypeIsRefusedByName) {
  // A checksum that fits is no protection against a program that writes nonsense.
  DecisionRecord record = record_of({});
  record.choice = "f17";
  EXPECT_THAT(parse_record(record_text(record), "r.json").error().message, HasSubstr("choice: "));
  record = record_of({});
  record.candidates[0].from_depth = -1;
  EXPECT_THAT(parse_record(record_text(record), "r.json").error().message,
              HasSubstr("candidates[0].from_depth is not a whole number"));
}

TEST(Record, IsForOneModelMachineAndBuild) {
  const DecisionRecord record = record_of({});
  const auto why = [&](auto change) {
    RecordSubject here = question().subject;
    change(here);
    return why_not_for(record, here);
  };
  EXPECT_THAT(why([](RecordSubject& s) { s.model_hash = "bb"; }), HasSubstr("bb"));
  EXPECT_THAT(why([](RecordSubject& s) { s.device_name = "Intel Xeon"; }), HasSubstr("Intel Xeon"));
  EXPECT_THAT(why([](RecordSubject& s) { s.build = "abd"; }), HasSubstr("abd"));
  EXPECT_THAT(why([](RecordSubject& s) { s.n_threads = 8; }), HasSubstr("threads"));
  EXPECT_THAT(why([](RecordSubject& s) { s.isa = "avx2"; }), HasSubstr("avx2"));
  EXPECT_EQ(why([](RecordSubject& s) { s.model_path = "elsewhere.gguf"; }), "");  // a file may move
  Evidences synthetic;
  synthetic.q.subject.synthetic = true;
  EXPECT_THAT(why_not_for(record_of(synthetic), question().subject), HasSubstr("random weights"));
}

}  // namespace
}  // namespace ridge::lab
