// Sweeps: specs into cells, plans, and runs with kernels made for the test, which fail, do not fit or do not exist.
#include "lab/sweep/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cases/temp_dir.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SweepSpec spec_of(std::string_view grids, std::string_view front = "") {
  return parse_sweep_spec(
             fmt::format(R"({{{}"samples":5,"max_seconds":0.05,"roof_mib":16,"grids":[{}]}})", front, grids), "test")
      .or_throw();
}
constexpr std::string_view kGemv =
    R"({"bench":"gemv","shapes":["64x128"],"batch":[1,2],"weights":["f16","q8_0","q4_0","int4_g128"]})";

std::vector<std::string> texts(const SweepSpec& spec) {
  std::vector<std::string> list;
  for (const SweepCell& cell : spec.cells) list.push_back(cell.text());
  return list;
}

TEST(SweepSpec, GridsBecomeCellsWithAControlEach) {
  EXPECT_THAT(
      texts(spec_of(R"({"bench":"gemv","shapes":"64x128","batch":"1-2","weights":["f16","q8_0"]})")),
      ElementsAre("gemv 64x128, batch 1, f16", "gemv 64x128, batch 1, q8_0", "gemv 64x128, batch 1, f16, again",
                  "gemv 64x128, batch 2, f16", "gemv 64x128, batch 2, q8_0", "gemv 64x128, batch 2, f16, again"));
  EXPECT_THAT(
      texts(spec_of(R"({"bench":"attention","heads":["4/2"],"head_dim":64,"depth":[64],"kv":"f16,p8/q4_0"},
                               {"bench":"append","heads":["4/2"],"head_dim":64,"new":[3],"kv":["q8_0"]})")),
      ElementsAre("attention 4/2/64, batch 1, depth 64, f16", "attention 4/2/64, batch 1, depth 64, p8/q4_0",
                  "attention 4/2/64, batch 1, depth 64, f16, again", "append 4/2/64, batch 1, depth 8192, q8_0"));
}

TEST(SweepSpec, GridsOfOneComparisonComeTogetherAndTwinsAreDropped) {
  const SweepSpec spec = spec_of(R"({"bench":"gemv","shapes":["64x128"],"batch":[1,2],"weights":["f16","q8_0"]},
      {"bench":"gemv","shapes":["64x128"],"batch":[1],"weights":["q8_0"],"kernels":["two-op","best"]})");
  EXPECT_THAT(texts(spec), ElementsAre("gemv 64x128, batch 1, f16", "gemv 64x128, batch 1, q8_0",
                                       "gemv 64x128, batch 1, q8_0 by two-op", "gemv 64x128, batch 1, f16, again",
                                       "gemv 64x128, batch 2, f16", "gemv 64x128, batch 2, q8_0",
                                       "gemv 64x128, batch 2, f16, again"));
  EXPECT_EQ(spec.cells[0].comparison(), spec.cells[3].comparison());
  EXPECT_NE(spec.cells[0].comparison(), spec.cells[4].comparison());
}

TEST(SweepSpec, ShippedOnesAreAsDescribed) {
  for (const ShippedSpec& shipped : shipped_specs()) {
    const auto spec = find_sweep_spec(std::string(shipped.name));
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_GT(spec->cells.size(), 10u);
    std::set<std::string> keys;
    for (const SweepCell& cell : spec->cells) keys.insert(cell_key(cell.fields()));
    EXPECT_EQ(keys.size(), spec->cells.size());
  }
  // Seven batches, four shapes, four formats and a control.
  EXPECT_EQ(find_sweep_spec("regime").or_throw().cells.size(), 7u * 4 * 5);
}

TEST(SweepSpec, WhatIsWrongIsNamed) {
  const auto message = [](std::string_view text) {
    const auto spec = parse_sweep_spec(text, "file.json");
    if (spec) return std::string("accepted");
    EXPECT_EQ(spec.error().kind, ErrorKind::bad_file) << text;
    return spec.error().message;
  };
  const auto grid = [&](std::string_view text) { return message(fmt::format(R"({{"grids":[{}]}})", text)); };
  EXPECT_THAT(message("{"), HasSubstr("file.json"));
  EXPECT_THAT(message("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message("{}"), HasSubstr("'grids'"));
  EXPECT_THAT(message(R"({"grids":[],"seed":1})"), HasSubstr("'grids'"));
  EXPECT_THAT(message(R"({"grid":[]})"), HasSubstr("field 'grid': unknown"));
  EXPECT_THAT(message(R"({"samples":4,"grids":[1]})"), HasSubstr("'samples': expects a whole number from 5"));
  EXPECT_THAT(message(R"({"max_seconds":"1","grids":[1]})"), HasSubstr("'max_seconds'"));
  EXPECT_THAT(grid("3"), HasSubstr("grid 1: not an object"));
  EXPECT_THAT(grid(R"({"bench":"gemm"})"), HasSubstr("expects gemv, attention, append or decode"));
  EXPECT_THAT(grid(R"({"bench":7})"), HasSubstr("'bench'"));
  EXPECT_THAT(grid(R"({"bench":"gemv","shapes":["64x128"]})"), HasSubstr("'weights': is missing"));
  EXPECT_THAT(grid(R"({"bench":"gemv","shapes":["64"],"weights":["f16"]})"), HasSubstr("not a pair"));
  EXPECT_THAT(grid(R"({"bench":"gemv","shapes":["64x128"],"weights":["f99"]})"), HasSubstr("f99"));
  EXPECT_THAT(grid(R"({"bench":"gemv","shapes":["64x128"],"weights":[[]]})"), HasSubstr("texts or whole numbers"));
  EXPECT_THAT(grid(R"({"bench":"gemv","shapes":["64x128"],"weights":["f16"],"batch":[0]})"), HasSubstr("out of range"));
  EXPECT_THAT(grid(R"({"bench":"gemv","shapes":["64x128"],"weights":["f16"],"depth":[1]})"), HasSubstr("'depth'"));
  EXPECT_THAT(grid(R"({"bench":"gemv","shapes":["64x100"],"weights":["q8_0"]})"), HasSubstr("groups 32 inputs"));
  EXPECT_THAT(grid(R"({"bench":"attention","heads":["5/2"],"depth":[8],"kv":["f16"]})"), HasSubstr("do not divide"));
  EXPECT_THAT(grid(R"({"bench":"decode","models":["a","" ],"kv":["f16"]})"), HasSubstr("empty item"));
  EXPECT_THAT(grid(R"({"bench":"decode","models":["a"],"kv":["f16"],"depth":"0-999*2"})"), HasSubstr("'depth'"));
  EXPECT_THAT(grid(R"({"bench":"gemv","shapes":["64x128"],"weights":["f16"],"batch":"1-1000","kernels":
                       ["a","b","c","d","e","f","g","h","i","j","k"]})"),
              HasSubstr("more than 10000 cells"));
  EXPECT_EQ(find_sweep_spec("no-such-file").error().kind, ErrorKind::usage);
  EXPECT_THAT(find_sweep_spec("no-such-file").error().message, HasSubstr("quick, regime, large, depth, decode"));
}

/// A product that does nothing, right or wrong as its format says.
class FakeRun : public CpuOpRun {
 public:
  explicit FakeRun(bool wrong) : wrong_(wrong) {}
  void call(int) override {
    for (unsigned i = 0; i < 1000; ++i) sink_ = sink_ + i;
  }
  OpCheck check(int) override { return {.metric = "NMSE", .error = wrong_ ? 0.25 : 0, .bound = 1e-5, .what = "fake"}; }

 private:
  bool wrong_;
  volatile unsigned sink_ = 0;
};

/// q8_0 is wrong, q4_0 has no kernel, int4_g128 fits no memory.
OpKernel fake_kernel(std::string_view wrong = "q8_0") {
  OpKernel kernel;
  kernel.op = Op::gemv;
  kernel.name = "fake";
  kernel.supports = [](const OpProblem& p, const OpDevice&) {
    return p.weights->name == "q4_0" ? Support{false, "not made for it"} : Support{};
  };
  kernel.set_bytes = [](const OpProblem& p) { return p.weights->name == "int4_g128" ? int64_t(1) << 50 : 64; };
  kernel.open_cpu = [wrong](const OpProblem& p, CpuContext&, int, uint64_t) {
    return std::make_unique<FakeRun>(p.weights->name == wrong);
  };
  return kernel;
}

struct Sweep {
  SweepSpec spec = spec_of(kGemv);
  TempDir dir;
  Store store = Store::open(dir / "s.jsonl").or_throw();
  std::vector<std::string> measured;

  SweepPlan plan() const { return plan_sweep(spec, {.device = "cpu", .n_threads = 1, .isa = "scalar"}, store.rows()); }
  SweepCounts run(const OpKernel& kernel, const std::function<bool()>& stop = {}) {
    measured.clear();
    SweepHooks hooks;
    hooks.stop = stop;
    hooks.on_row = [&](const PlannedCell& cell, const Row&) { measured.push_back(cell.cell.text()); };
    return run_sweep(spec, plan(), std::span(&kernel, 1), store, hooks);
  }
  std::map<std::string, Row> rows() const {
    std::map<std::string, Row> by_text;
    const SweepPlan all = plan();
    for (const Row& row : store.rows())
      for (const PlannedCell& cell : all.cells)
        if (cell_key({{"cell", cell.identity}}) == cell_key(row)) by_text[cell.cell.text()] = row;
    return by_text;
  }
};

TEST(Sweep, EveryCellGetsARowAndFailedOnesNoTimes) {
  Sweep sweep;
  EXPECT_EQ(sweep.plan().n_left(), 10);
  const SweepCounts counts = sweep.run(fake_kernel());
  EXPECT_EQ(counts.n_done, 4);
  EXPECT_EQ(counts.n_failed, 2);
  EXPECT_EQ(counts.n_skipped, 4);
  const auto rows = sweep.rows();
  ASSERT_EQ(rows.size(), 10u);
  const Row& good = rows.at("gemv 64x128, batch 2, f16");
  EXPECT_EQ(row_state(good), "done");
  EXPECT_EQ(good["kernel"], "fake");
  EXPECT_EQ(good["n_tokens"], 2);
  EXPECT_EQ(good["samples_us"].size(), 5u);
  EXPECT_GT(good["median_us"].get<double>(), 0);
  EXPECT_TRUE(good["cell_seconds"].is_number());
  const Row& wrong = rows.at("gemv 64x128, batch 2, q8_0");
  EXPECT_EQ(row_state(wrong), "failed");
  EXPECT_EQ(wrong["weight_format"], "q8_0") << "a row is its own problem's";
  EXPECT_EQ(wrong["reason"], "NMSE 0.25 over 1e-05 (fake)");
  EXPECT_TRUE(wrong["median_us"].is_null());
  EXPECT_TRUE(wrong["samples_us"].empty());
  const Row& none = rows.at("gemv 64x128, batch 1, q4_0");
  EXPECT_EQ(row_state(none), "skipped");
  EXPECT_THAT(none["reason"].get<std::string>(), HasSubstr("no kernel: fake: not made for it"));
  EXPECT_FALSE(none.contains("median_us"));
  const Row& large = rows.at("gemv 64x128, batch 1, int4_g128");
  EXPECT_EQ(row_state(large), "skipped");
  EXPECT_THAT(large["reason"].get<std::string>(), HasSubstr("of memory"));
}

TEST(Sweep, ARerunMeasuresWhatIsNotDoneAndNothingElse) {
  Sweep sweep;
  sweep.run(fake_kernel());
  const auto before = sweep.rows();
  EXPECT_EQ(sweep.plan().n_left(), 6);
  sweep.run(fake_kernel("none"));  // the kernel was mended
  EXPECT_THAT(sweep.measured,
              testing::UnorderedElementsAre("gemv 64x128, batch 1, q8_0", "gemv 64x128, batch 2, q8_0",
                                            "gemv 64x128, batch 1, q4_0", "gemv 64x128, batch 2, q4_0",
                                            "gemv 64x128, batch 1, int4_g128", "gemv 64x128, batch 2, int4_g128"));
  const auto after = sweep.rows();
  EXPECT_EQ(after.size(), 10u);
  for (const auto& [text, row] : before)
    if (row_state(row) == "done") {
      EXPECT_EQ(after.at(text), row);
    }
  EXPECT_EQ(row_state(after.at("gemv 64x128, batch 1, q8_0")), "done");
}

TEST(Sweep, AStoppedSweepKeepsWhatWasFinishedAndGoesOn) {
  Sweep sweep;
  sweep.spec = spec_of(R"({"bench":"gemv","shapes":["64x128"],"batch":[1,2,4],"weights":["f16","q8_0"]})");
  const OpKernel kernel = fake_kernel("none");
  // Stops while the second comparison runs: the first is whole.
  sweep.run(kernel, [&] { return sweep.measured.size() >= 3; });
  EXPECT_EQ(sweep.measured.size(), 3u);
  const auto before = sweep.rows();
  EXPECT_EQ(before.size(), 3u);
  sweep.run(kernel);
  EXPECT_EQ(sweep.measured.size(), 6u);
  const auto after = sweep.rows();
  EXPECT_EQ(after.size(), 9u);
  for (const auto& [text, row] : before) EXPECT_EQ(after.at(text), row);
  sweep.run(kernel);
  EXPECT_TRUE(sweep.measured.empty());
}

TEST(Sweep, AnUnknownKernelIsAnError) {
  Sweep sweep;
  sweep.spec = spec_of(R"({"bench":"gemv","shapes":["64x128"],"weights":["f16"],"kernels":["nothing"]})");
  EXPECT_THROW(sweep.run(fake_kernel()), Error);
  EXPECT_TRUE(sweep.rows().empty());
}

TEST(Sweep, IdentityIsWhatIsMeasuredWhereAndByWhichBuild) {
  const SweepSpec spec = spec_of(kGemv);
  const auto key = [&](const SweepSpec& s, int n_threads, std::string_view isa) {
    const SweepPlan plan = plan_sweep(s, {.device = "cpu", .n_threads = n_threads, .isa = std::string(isa)}, {});
    return cell_key({{"cell", plan.cells.at(0).identity}});
  };
  SweepSpec seeded = spec;
  seeded.seed = 7;
  const std::string plain = key(spec, 1, "scalar");
  EXPECT_EQ(key(spec, 1, "scalar"), plain);
  EXPECT_NE(key(seeded, 1, "scalar"), plain);
  EXPECT_NE(key(spec, 2, "scalar"), plain);
  EXPECT_NE(key(spec, 1, "avx2"), plain);
  EXPECT_THAT(plain, HasSubstr(build_identity()));
  EXPECT_EQ(build_identity(), build_identity());
}

TEST(Sweep, PlansKnowBytesAndLearnTimes) {
  Sweep sweep;
  const SweepPlan first = sweep.plan();
  const Work work = op_work(op_problem(sweep.spec, first.cells[0].cell));
  EXPECT_EQ(first.cells[0].read_bytes, double(work.read_bytes + work.write_bytes));
  EXPECT_GT(first.seconds_left(), 0);
  sweep.run(fake_kernel());
  // The same cell by another build took 17 seconds: this one will too.
  std::vector<Row> rows = sweep.store.rows();
  for (Row& row : rows) {
    row["cell"]["build"] = "older";
    row["cell_seconds"] = 17;
  }
  const SweepPlan plan = plan_sweep(sweep.spec, first.target, rows);
  EXPECT_EQ(plan.n_left(), 10) << "another build's rows are not this one's";
  EXPECT_EQ(plan.cells[0].seconds, 17);
}

TEST(Sweep, DecodeCellsAreCheckedRowsAndTheirBytesWereForeseen) {
  Sweep sweep;
  sweep.spec = parse_sweep_spec(R"({"repeats":5,"grids":[{"bench":"decode","models":["synth:tiny-64@weights=q8_0"],
      "depth":[0,64],"n_gen":4,"kv":["f16","q8_0"]}]})",
                                "test")
                   .or_throw();
  const SweepPlan plan = sweep.plan();
  const SweepCounts counts = sweep.run(fake_kernel());
  EXPECT_EQ(counts.n_done, 6);
  const auto rows = sweep.rows();
  ASSERT_EQ(rows.size(), 6u);
  for (const PlannedCell& cell : plan.cells) {
    const Row& row = rows.at(cell.cell.text());
    EXPECT_EQ(row["checked"], true);
    EXPECT_EQ(row["n_depth"], cell.cell.depth);
    EXPECT_EQ(row["type_k"], cell.cell.format);
    EXPECT_EQ(row["samples_ns"].size(), 5u);
    EXPECT_NEAR(row["read_bytes"].get<double>() / *cell.read_bytes, 1, 0.03) << cell.cell.text();
  }
  EXPECT_EQ(sweep.plan().n_left(), 0);
}

TEST(Sweep, AModelThatCannotFitIsSkippedWithTheReason) {
  Sweep sweep;
  sweep.spec =
      spec_of(R"({"bench":"decode","models":["synth:llama-3.1-70b@layers=1024@weights=f32"],"kv":["f16","q8_0"]})");
  const SweepCounts counts = sweep.run(fake_kernel());
  EXPECT_EQ(counts.n_skipped, 3);
  EXPECT_THAT(sweep.rows().begin()->second["reason"].get<std::string>(), HasSubstr("GB of memory"));
}

}  // namespace
}  // namespace ridge::lab
