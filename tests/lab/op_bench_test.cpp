// Op benches without a device: problems, declared work, the choice of kernels and buffers, rows, references.
#include "lab/op/op_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lab/op/device_ceilings.h"
#include "lab/op/op_data.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMebibyte = 1 << 20, kGibi = 1 << 30;

const KvFormat& kv_format(std::string_view name) { return *find_kv_format(name).or_throw(); }

TEST(OpBenchParams, ShapesArePairs) {
  const auto heads = parse_op_shapes("--heads", "64/8,20/5", '/').or_throw();
  ASSERT_EQ(heads.size(), 2u);
  EXPECT_EQ(heads[1].first, 20);
  EXPECT_EQ(heads[1].second, 5);
  EXPECT_EQ(parse_op_shapes("--shape", "28672x4096", 'x').or_throw().at(0).second, 4096);
  for (const char* text :
       {"", "64", "64/", "/8", "64/8/2", "64x8", "0/8", "64/0", "-1/8", "64/8,", "1-2/8", "64/99999999999"})
    EXPECT_FALSE(parse_op_shapes("--heads", text, '/')) << text;
}

TEST(OpBenchParams, TheDefaultListsAreTheGoals) {
  const auto attention = op_problems({.op = Op::attention});
  EXPECT_EQ(attention.size(), 3u * 8 * 5);  // head counts, batches, formats
  EXPECT_EQ(attention[0].shape_text(), "20/5/128, 1 x 512 keys");
  EXPECT_EQ(attention[7].shape_text(), "20/5/128, 8 x 32768 keys");
  EXPECT_EQ(op_problems({.op = Op::gemv}).size(), 7u * 7 * 4);
  EXPECT_EQ(op_problems({.op = Op::append}).size(), 3u * 2 * 5);
}

TEST(OpBenchParams, WhatIsGivenReplacesTheLists) {
  OpBenchParams params{.op = Op::attention};
  params.heads = {{8, 2}};
  params.seq = {64, 128};
  params.kv = parse_kv_list("f32,q8_0/rotor-3:window=0:sinks=0").or_throw();
  const auto problems = op_problems(params);
  ASSERT_EQ(problems.size(), 4u);
  EXPECT_EQ(problems[1].shape_text(), "8/2/128, 1 x 128 keys");
  EXPECT_EQ(problems[2].format_text(), "q8_0/rotor-3:window=0:sinks=0");
  EXPECT_EQ(problems[2].v.policy.window, 0);
}

TEST(OpBenchParams, ShapesThatAFormatCannotHoldAreRefused) {
  OpBenchParams heads{.op = Op::attention};
  heads.heads = {{10, 3}};
  EXPECT_THROW(op_problems(heads), Error);
  OpBenchParams odd{.op = Op::attention, .head_dim = 40};  // q8_0 groups 32
  odd.kv = parse_kv_list("q8_0").or_throw();
  EXPECT_THROW(op_problems(odd), Error);
  OpBenchParams layers{.op = Op::attention};
  layers.kv = parse_kv_list("f16;0:q8_0").or_throw();
  EXPECT_THROW(op_problems(layers), Error);
  OpBenchParams groups{.op = Op::gemv};
  groups.shapes = {{64, 100}};
  EXPECT_THROW(op_problems(groups), Error);
}

TEST(OpWork, CountsRowsInTheirFormatAndActivationsAsFloats) {
  OpBenchParams params{.op = Op::attention};
  params.heads = {{64, 8}};
  params.seq = {4096};
  params.batch = {3};
  params.kv = parse_kv_list("f16/q8_0").or_throw();
  const Work attention = op_work(op_problems(params).at(0));
  const int64_t rows = 3 * 8 * 4096, queries = 4 * 3 * 64 * 128;
  // q8_0's own policy keeps nothing exact.
  EXPECT_EQ(attention.read_bytes, rows * (256 + kv_format("q8_0").row_bytes(128)) + queries);
  EXPECT_EQ(attention.write_bytes, queries);
  EXPECT_EQ(attention.flops, int64_t(4) * 3 * 64 * 128 * 4096);

  OpBenchParams gemv{.op = Op::gemv};
  gemv.shapes = {{57344, 8192}};
  gemv.batch = {8};
  gemv.weights = {find_weight_format("int4_g128").or_throw()};
  const Work product = op_work(op_problems(gemv).at(0));
  EXPECT_EQ(product.read_bytes, 57344ll * gemv.weights[0]->row_bytes(8192) + 4 * 8 * 8192);
  EXPECT_EQ(product.write_bytes, 4 * 8 * 57344);
  EXPECT_EQ(product.flops, 2ll * 8 * 8192 * 57344);

  OpBenchParams append{.op = Op::append};
  append.heads = {{64, 8}};
  append.batch = {2};
  append.n_new = {5};
  append.kv = parse_kv_list("f16/f32").or_throw();
  const Work coded = op_work(op_problems(append).at(0));
  EXPECT_EQ(coded.read_bytes, 2 * 5 * 8 * 2 * 512);
  EXPECT_EQ(coded.write_bytes, 2 * 5 * 8 * (256 + 512));
}

TEST(OpKernels, TheLastThatCanOrWhatIsAskedFor) {
  const auto open = [](const OpProblem&, const gpu::Stream&, int, uint64_t) { return std::unique_ptr<OpRun>(); };
  const auto open_cpu = [](const OpProblem&, CpuContext&, int, uint64_t) { return std::unique_ptr<CpuOpRun>(); };
  const auto bytes = [](const OpProblem&) { return int64_t(1); };
  const auto any = [](const OpProblem&, const OpDevice&) { return Support{}; };
  const auto none = [](const OpProblem&, const OpDevice&) { return Support{false, "never"}; };
  const OpKernel table[] = {
      {Op::gemv, "slow", any, bytes, open},
      {Op::attention, "other", any, bytes, open},
      {Op::gemv, "fast", any, bytes, open},
      {Op::gemv, "picky", none, bytes, open},
      {.op = Op::gemv, .name = "two", .supports = any, .set_bytes = bytes, .open = open, .is_baseline = true},
      {.op = Op::gemv, .name = "cpu", .supports = any, .set_bytes = bytes, .open_cpu = open_cpu}};
  const OpDevice gpu{.index = 0};
  OpBenchParams params{.op = Op::gemv};
  const OpProblem problem = op_problems(params).at(0);
  const auto names = [&](std::vector<std::string> asked) {
    params.kernels = std::move(asked);
    std::vector<std::string> found;
    for (const OpKernel* kernel : choose_kernels(params, problem, table, gpu).kernels) found.emplace_back(kernel->name);
    return found;
  };
  EXPECT_THAT(names({}), ElementsAre("fast"));
  EXPECT_THAT(names({"slow"}), ElementsAre("slow"));
  EXPECT_THAT(names({"all"}), ElementsAre("slow", "fast", "two")) << "baselines only when asked for";
  EXPECT_THAT(names({"two"}), ElementsAre("two"));
  EXPECT_THAT(names({"fast", "slow"}), ElementsAre("slow", "fast"));
  EXPECT_THAT(names({"picky"}), ElementsAre());
  EXPECT_EQ(choose_kernels(params, problem, table, gpu).why_none, "picky: never");
  EXPECT_THROW(names({"other"}), Error);
  EXPECT_THROW(names({"cpu"}), Error) << "of another kind of device";
  EXPECT_EQ(choose_kernels({.op = Op::gemv}, problem, table, {}).kernels.at(0)->name, "cpu");
  EXPECT_THROW(names({"slow", "nothing"}), Error);
  EXPECT_EQ(choose_kernels({.op = Op::gemv}, problem, {}, {}).why_none, "the table has no row for this op");
}

TEST(BufferSets, TogetherAreFourCaches) {
  EXPECT_EQ(choose_buffer_sets(10 * kMebibyte, 50 * kMebibyte, kGibi, 512).n, 20);
  EXPECT_TRUE(choose_buffer_sets(10 * kMebibyte, 50 * kMebibyte, kGibi, 512).cold);
  EXPECT_EQ(choose_buffer_sets(kGibi, 50 * kMebibyte, 8 * kGibi, 512).n, 2);
  EXPECT_TRUE(choose_buffer_sets(kGibi, 50 * kMebibyte, 8 * kGibi, 512).cold);
  // Little memory, tiny sets: then calls find data in the cache, and the row says so.
  EXPECT_EQ(choose_buffer_sets(kGibi, 50 * kMebibyte, kGibi, 512).n, 1);
  EXPECT_FALSE(choose_buffer_sets(kGibi, 50 * kMebibyte, kGibi, 512).cold);
  EXPECT_EQ(choose_buffer_sets(kGibi, 50 * kMebibyte, kGibi - 1, 512).n, 0);
  EXPECT_EQ(choose_buffer_sets(1024, 50 * kMebibyte, kGibi, 512).n, 512);
  EXPECT_FALSE(choose_buffer_sets(1024, 50 * kMebibyte, kGibi, 512).cold);
  EXPECT_EQ(choose_buffer_sets(10 * kMebibyte, 50 * kMebibyte, kGibi, 1).n, 1);
  EXPECT_FALSE(choose_buffer_sets(kGibi, 0, 8 * kGibi, 512).cold) << "an unknown cache";
}

OpRow sample_row() {
  OpBenchParams params{.op = Op::attention};
  params.heads = {{64, 8}};
  params.seq = {4096};
  params.kv = parse_kv_list("f16").or_throw();
  OpRow row;
  row.problem = op_problems(params).at(0);
  row.kernel = "some";
  row.work = {.read_bytes = 15000000, .write_bytes = 1000000, .flops = 1};
  row.moved_bytes = 16000000;
  row.check = {.metric = "NMSE", .error = 1e-9, .bound = 1e-7, .what = "all"};
  row.sets = {4, true};
  row.calls = 40;
  row.seconds = {4e-6, 5e-6, 3e-6};
  row.roof_gb_s = 5000;
  row.roof_kernel = "read 512x8 4";
  return row;
}

TEST(OpRow, RatesFollowFromBytesAndTheMedian) {
  OpRow row = sample_row();
  row.device.index = 1;
  row.seed = 7;
  EXPECT_NEAR(row.us().median, 4, 1e-9);
  EXPECT_NEAR(row.gb_s(), 4000, 1e-6);
  EXPECT_NEAR(row.pct_of_roof(), 80, 1e-6);
  EXPECT_NEAR(row.predicted_us(), 3.2, 1e-9);
  const Row f = op_columns().fields(row);
  EXPECT_EQ(f["op"], "attention");
  EXPECT_EQ(f["n_keys"], 4096);
  EXPECT_EQ(f["kv"], "f16");
  EXPECT_EQ(f["kv_k"]["format"], "f16");
  EXPECT_EQ(f["checked"], true);
  EXPECT_EQ(f["cold"], true);
  EXPECT_EQ(f["replays"], 3);
  EXPECT_EQ(f["samples_us"].size(), 3u);
  EXPECT_EQ(f["device"], "cuda:1");
  EXPECT_EQ(f["seed"], 7);
  EXPECT_TRUE(f["gpu_before"].is_null());
  for (const char* field : {"date", "version", "build_commit", "command", "compiler"})
    EXPECT_TRUE(f.contains(field)) << field;
  EXPECT_THAT(op_columns().line(row),
              HasSubstr("| 4.00 | 3.50 - 4.50 | 16.0 MB | 3.20 | 4000.0 | 80.0 % | NMSE 1.0e-09 |"));
  const std::string head = op_columns().head(), line = op_columns().line(row);
  EXPECT_EQ(std::count(line.begin(), line.end(), '|'),
            std::count(head.begin(), head.begin() + std::ptrdiff_t(head.find('\n')), '|'));
}

TEST(OpRow, AFailedCheckIsWrittenOutAndHasNoFigures) {
  OpRow row = sample_row();
  row.check.error = 0.5;
  row.seconds.clear();
  EXPECT_TRUE(row.failed());
  EXPECT_THAT(op_columns().line(row), HasSubstr("FAILED"));
  EXPECT_THAT(op_columns().line(row), HasSubstr("NMSE 5.0e-01 > 1.0e-07"));
  const Row f = op_columns().fields(row);
  EXPECT_EQ(f["checked"], false);
  for (const char* field : {"median_us", "gb_s", "pct_of_roof"}) EXPECT_TRUE(f[field].is_null()) << field;
  row.after_replays = true;
  EXPECT_THAT(op_columns().line(row), HasSubstr("after the replays"));
  row.check.error = NAN;  // a result of NaN
  EXPECT_TRUE(row.failed());
  EXPECT_FALSE(check_nmse(std::vector<float>{NAN, 1}, std::vector<float>{1, 1}, 10, "").passed());
}

TEST(OpRow, ClocksThatGiveNothingGiveNoFigures) {
  for (const double bad : {0.0, -1.0, double(NAN)}) {
    OpRow row = sample_row();
    row.seconds.push_back(bad);
    EXPECT_TRUE(op_columns().fields(row)["median_us"].is_null()) << bad;
    EXPECT_THAT(op_columns().line(row), HasSubstr("no verdict"));
  }
  OpRow row = sample_row();
  row.roof_gb_s = 0;
  EXPECT_TRUE(op_columns().fields(row)["pct_of_roof"].is_null());
}

TEST(GpuState, IsThreeNumbersOrNothing) {
  const auto state = parse_gpu_state("1980, 3201, 41\n");
  ASSERT_TRUE(state);
  EXPECT_EQ(state->sm_mhz, 1980);
  EXPECT_EQ(state->memory_mhz, 3201);
  EXPECT_EQ(state->temperature_c, 41);
  EXPECT_EQ(to_row(state)["temperature_c"], 41);
  for (const char* line :
       {"", "No devices were found", "1980, 3201", "1980, 3201, [N/A]", "1980, 3201, 41, 5", "a,b,c"})
    EXPECT_FALSE(parse_gpu_state(line)) << line;
  EXPECT_FALSE(read_gpu_state("0; echo 1, 2, 3"));
}

TEST(DeviceCeilings, BuffersPassTheCacheManyTimes) {
  EXPECT_EQ(choose_device_stream_size(50 * kMebibyte, 140 * kGibi).bytes, 4 * kGibi);
  EXPECT_EQ(choose_device_stream_size(512 * kMebibyte, 140 * kGibi).bytes, 8 * kGibi);
  EXPECT_EQ(choose_device_stream_size(50 * kMebibyte, 8 * kGibi).bytes, kGibi);
}

TEST(DeviceCeilings, TheBandwidthIsTheBestReplayOfTheFastestReader) {
  DeviceCeilings ceilings;
  EXPECT_EQ(ceilings.read_gb_s(), 0);
  ceilings.streams = {{"read a", 1, {.median = 4000, .max = 4700}, 3},
                      {"read b", 1, {.median = 4500, .max = 4600}, 3},
                      {"copy", 1, {.median = 9000, .max = 9000}, 3}};
  EXPECT_EQ(ceilings.best_read()->name, "read b");
  EXPECT_EQ(ceilings.read_gb_s(), 4600);
  const Row row = device_ceiling_columns().fields(ceilings);
  EXPECT_EQ(row["streams"].size(), 3u);
  EXPECT_EQ(row["read_roof_gb_s"], 4600);
}

TEST(OpData, AttentionReferenceIsSoftmaxOverThePoolsRows) {
  OpBenchParams params{.op = Op::attention, .head_dim = 8};
  params.heads = {{4, 2}};
  params.seq = {1500};  // the pool goes round
  params.batch = {2};
  params.kv = parse_kv_list("f32").or_throw();
  const OpProblem p = op_problems(params).at(0);
  const RowPool k(8, 1), v(8, 2);
  const auto q = random_values(3, 2 * 4 * 8, 2);
  const AttentionReference found = attention_reference(p, q, k, v, RowPool::index, RowPool::index);
  for (int seq = 0; seq < 2; ++seq)
    for (int head = 0; head < 4; ++head) {
      const size_t at = size_t(seq * 4 + head) * 8;
      double total = 0, out[8] = {};
      for (int i = 0; i < 1500; ++i) {
        const int row = RowPool::index(seq * 2 + head / 2, i);
        double dot = 0;
        for (size_t d = 0; d < 8; ++d) dot += double(q[at + d]) * k.row(row)[d];
        const double weight = std::exp(dot / std::sqrt(8.0));
        total += weight;
        for (size_t d = 0; d < 8; ++d) out[d] += weight * v.row(row)[d];
      }
      for (size_t d = 0; d < 8; ++d) EXPECT_NEAR(found.out[at + d], out[d] / total, 1e-6);
    }
  EXPECT_GT(found.amplification, 1);
  EXPECT_LT(found.score_error, 1e-4);
}

TEST(OpData, MatmulReferenceIsTheProduct) {
  OpBenchParams params{.op = Op::gemv};
  params.shapes = {{1100, 13}};
  params.batch = {2};
  params.weights = {find_weight_format("f32").or_throw()};
  const OpProblem p = op_problems(params).at(0);
  const RowPool w(13, 5);
  const auto x = random_values(6, 2 * 13);
  const auto y = matmul_reference(p, x, w);
  ASSERT_EQ(y.size(), 2200u);
  for (const size_t token : {0, 1})
    for (const size_t o : {0, 1, 1020, 1021, 1099}) {
      double sum = 0;
      for (size_t d = 0; d < 13; ++d) sum += double(x[token * 13 + d]) * w.row(RowPool::index(0, int64_t(o)))[d];
      EXPECT_NEAR(y[token * 1100 + o], sum, 1e-5);
    }
}

TEST(OpData, RowsAreLaidOutAsTheIndexSays) {
  std::vector<std::byte> coded(size_t(RowPool::kRows) * 2);
  for (size_t i = 0; i < coded.size(); ++i) coded[i] = std::byte(i / 2 % 251);
  const auto rows = lay_out_rows(coded, 2, 3, 1000);
  ASSERT_EQ(rows.size(), 6000u);
  for (const int64_t group : {0, 2})
    for (const int64_t row : {0, 1, 999})
      EXPECT_EQ(rows[size_t((group * 1000 + row) * 2 + 1)], std::byte(RowPool::index(group, row) % 251));
}

TEST(OpRow, OfTheCpuSaysSo) {
  OpRow row = sample_row();
  row.device = {.isa = Isa::avx2, .n_threads = 3, .cache_bytes = 5};
  const Row f = op_columns().fields(row);
  EXPECT_EQ(f["device"], "cpu");
  EXPECT_EQ(f["isa"], "avx2");
  EXPECT_EQ(f["n_threads"], 3);
  EXPECT_EQ(f["llc_bytes"], 5);
}

TEST(OpRow, OfAMatmulHasItsShapeAndNoCache) {
  OpRow row = sample_row();
  row.problem =
      op_problems({.op = Op::gemv, .batch = {3}, .shapes = {{64, 32}}, .weights = {&weight_formats()[0]}}).at(0);
  const Row f = op_columns().fields(row);
  EXPECT_EQ(f["n_out"], 64);
  EXPECT_EQ(f["n_in"], 32);
  EXPECT_EQ(f["n_tokens"], 3);
  EXPECT_EQ(f["weight_format"], weight_formats()[0].name);
  for (const char* field : {"kv", "kv_k", "n_heads", "n_keys", "n_new"}) EXPECT_FALSE(f.contains(field)) << field;
}

TEST(OpRow, ABaselineIsHeldAgainstItsOwnTraffic) {
  OpRow row = sample_row();
  row.moved_bytes = 32000000;
  EXPECT_NEAR(row.predicted_us(), 6.4, 1e-9);
  EXPECT_NEAR(row.gb_s(), 4000, 1e-6) << "of the declared work";
  EXPECT_EQ(op_columns().fields(row)["moved_bytes"], 32000000);
  EXPECT_EQ(
      op_prediction(row),
      "attention 64/8/128, 1 x 4096 keys f16, some: predicted 32.0 MB (the work needs 16.0 MB), 6.40 us at 5000.0 "
      "GB/s");
}

#ifndef RIDGE_CUDA
TEST(OpBench, WithoutCudaThereAreNoKernelsOfAGpuAndNoDevice) {
  for (const OpKernel& kernel : op_kernels()) EXPECT_TRUE(kernel.on_cpu()) << kernel.name;
  const auto kind_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::failure;
  };
  EXPECT_EQ(kind_of([] { run_op_bench({.device = 0}, {}, {}); }), ErrorKind::no_device);
  EXPECT_EQ(kind_of([] { measure_device_ceilings({}); }), ErrorKind::no_device);
}
#endif

}  // namespace
}  // namespace ridge::lab
