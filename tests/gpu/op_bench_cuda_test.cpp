// Op benches on a device: every kernel passes its check on a small problem, and a planted error gets no times.
#include "cases/op_bench.h"

#include "base/f16.h"
#include "gpu/device_data.h"
#include "lab/op/op_data.h"
#include "op/device_linear.h"
#include "op/gemm/cublaslt_cuda.h"
#include "op/stream/stream_cuda.h"

namespace ridge::lab {
namespace {

class OpBenchCuda : public OnDevice {};

OpBenchParams on_device(Op op) {
  OpBenchParams params = small(op);
  params.roof_bytes = kDeviceStreamUnit;
  params.device = 0;
  return params;
}

void expect_timed(const Found& found, size_t n_rows) {
  ASSERT_EQ(found.rows.size(), n_rows);
  expect_timed(found);
  for (const OpRow& row : found.rows) EXPECT_EQ(row.calls % row.sets.n, 0);
}

TEST_F(OpBenchCuda, AttentionOverRowsPasses) {
  OpBenchParams params = on_device(Op::attention);
  params.seq = {200, 70};
  params.n_new = {1, 3, 40};
  params.kv = parse_kv_list("f32,rotor-3:window=0,rotor-3u:window=32:sinks=4,rotor-3u:window=0").or_throw();
  const Found found = run(params);
  expect_timed(found, 24);
  for (const OpRow& row : found.rows) EXPECT_EQ(row.kernel, row.problem.k.format->name == "f32" ? "rows" : "rows-f16");
}

TEST_F(OpBenchCuda, AttentionOverTilesPassesWithWindowsAndSinks) {
  OpBenchParams params = on_device(Op::attention);
  params.seq = {330};
  params.batch = {2, 9};
  params.n_new = {1, 3, 16};
  params.kv = parse_kv_list("f16,bf16/q8_0,i8r/q4_0,rotor-4/rotor-3,rotor-3").or_throw();
  params.kernels = {"tiles", "tiles-overlap"};
  expect_timed(run(params), 60);
}

TEST_F(OpBenchCuda, AttentionOfPromptsPassesWithWindowsAndSinks) {
  OpBenchParams params = on_device(Op::attention);
  params.seq = {330};
  params.n_new = {17, 150, 330};
  params.kv = parse_kv_list("f16,bf16/q8_0,i8r/q4_0,rotor-4/rotor-3").or_throw();
  const Found found = run(params);
  expect_timed(found, 12);
  for (const OpRow& row : found.rows) EXPECT_EQ(row.kernel, "prefill");
}

TEST_F(OpBenchCuda, ADefaultFormatWithoutAKernelIsNamed) {
  OpBenchParams params = on_device(Op::attention);
  params.batch = {1};
  params.seq = {40};
  params.kernels = {"rows"};
  const Found found = run(params);
  expect_timed(found, 1);
  EXPECT_EQ(found.skipped.size(), 4u);
  EXPECT_NE(found.skipped[0].find("f16: rows: the cache's tiles are in the order of tensor cores"), std::string::npos)
      << found.skipped[0];
}

TEST_F(OpBenchCuda, EveryMatmulKernelPasses) {
  OpBenchParams params = on_device(Op::gemv);
  params.batch = {1, 5};
  params.kernels = {"all"};
  for (const char* name : {"f32", "f16", "bf16", "q8_0", "q4_k", "int4_g128", "i2_s"})
    params.weights.push_back(find_weight_format(name).or_throw());
  // Where there is cuBLASLt, its baselines too: cublaslt of f16, two-op of int4_g128.
  const size_t of_library = LibraryGemm::why_not().empty() ? 2 : 0;
  // f32: one kernel; f16, bf16, q8_0, q4_k: bricks with and without overlap, of q8_0 and q4_k as integers too;
  // int4_g128: bricks and three of integers; i2_s: ternary with and without overlap.
  expect_timed(run(params), 2 * (1 + 2 + 2 + 4 + 4 + 5 + 2 + of_library));
}

TEST_F(OpBenchCuda, WithoutANameTheKernelOfModelsIsTimed) {
  OpBenchParams params = on_device(Op::gemv);
  params.batch = {1};
  for (const char* name : {"q8_0", "int4_g128", "i2_s"}) params.weights.push_back(find_weight_format(name).or_throw());
  const Found found = run(params);
  expect_timed(found, params.weights.size());
  for (const OpRow& row : found.rows) {
    const DeviceLinearProblem problem{{.format = row.problem.weights,
                                       .n_out = row.problem.n_out,
                                       .n_in = row.problem.n_in,
                                       .int8_activations = row.problem.weights->name == "i2_s"},
                                      row.problem.n_tokens};
    EXPECT_EQ(row.kernel, choose_device_linear(problem, {}).name);
  }
}

TEST_F(OpBenchCuda, WhatComesBeforeTheLibrarysMatmulIsRight) {
  const WeightFormat& format = *find_weight_format("int4_g128").or_throw();
  std::vector<float> values = random_values(1, 3 * 256), expected(values.size());
  std::vector<std::byte> rows(size_t(3 * format.row_bytes(256)));
  encode_rows(format, values, 256, rows).or_throw();
  format.decode(rows.data(), 3 * 256, expected.data());
  const gpu::Buffer there = gpu::to_device(stream(), std::span<const std::byte>(rows)), floats = up(values);
  const gpu::Buffer f16(2 * 3 * 256);
  device_dequantize_int4(stream(), there.as<void>(), 6, f16.as<uint16_t>());
  std::vector<uint16_t> found = down(f16.as<uint16_t>(), 3 * 256);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], f32_to_f16(expected[i])) << i;
  device_to_f16(stream(), floats.as<float>(), 3 * 256, f16.as<uint16_t>());
  found = down(f16.as<uint16_t>(), 3 * 256);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], f32_to_f16(values[i])) << i;
}

TEST_F(OpBenchCuda, AppendsOfEveryFormatPass) {
  OpBenchParams params = on_device(Op::append);
  params.head_dim = 128;
  params.seq = {127, 200};  // at 127 and a window of 96 a tile would leave
  params.n_new = {1, 3};
  for (const KvFormat& format : kv_formats()) params.kv.push_back(parse_kv_choice(std::string(format.name)).or_throw());
  params.kv.push_back(parse_kv_choice("bf16/q8_0").or_throw());
  params.kv.push_back(parse_kv_choice("rotor-4/rotor-3").or_throw());
  expect_timed(run(params), 4 * params.kv.size());
}

TEST_F(OpBenchCuda, LeavingTilesOfEveryWindowPass) {
  OpBenchParams params = on_device(Op::append);
  params.seq = {223};
  params.n_new = {1, 40};  // from a ring of the sequence, and of the step
  params.kernels = {"leaving"};
  params.kv =
      parse_kv_list("rotor-3,rotor-4/rotor-3,rotor-3:rounding=nearest,q8_0:window=32/q4_0:window=64,rotor-3u:window=32")
          .or_throw();
  expect_timed(run(params), 2 * params.kv.size());
}

TEST_F(OpBenchCuda, WhatWasAskedForAndHasNoKernelIsAnError) {
  OpBenchParams params = on_device(Op::gemv);
  params.weights = {find_weight_format("q6_k").or_throw()};
  EXPECT_THROW(run(params, op_kernels().first(1)), Error);
  params.device = 99;
  EXPECT_THROW(run(params), Error);
}

/// Writes the set's number + 1 into its word; a call on `wrong_set` writes 0.
class Planted : public OpRun {
 public:
  Planted(const gpu::Stream& stream, int n_sets, int wrong_set)
      : n_sets_(n_sets), wrong_set_(wrong_set), words_(n_sets * kDeviceStreamUnit), from_(2 * kDeviceStreamUnit) {
    device_write(stream, from_.as<void>(), kDeviceStreamUnit);
  }
  void queue(gpu::StreamHandle stream, int set) override {
    const bool wrong = set == (wrong_set_ < 0 ? n_sets_ + wrong_set_ : wrong_set_);
    gpu::copy(stream, words_.as<std::byte>() + set * kDeviceStreamUnit,
              from_.as<std::byte>() + (wrong ? kDeviceStreamUnit : 0), kDeviceStreamUnit);
  }
  OpCheck check(const gpu::Stream& stream, int set) override {
    std::vector<uint32_t> words(2);
    gpu::download(stream, words.data(), words_.as<std::byte>() + set * kDeviceStreamUnit, 8);
    stream.synchronize();
    return {.metric = "different", .error = words[1] == 0x9E3779B9u ? 0.0 : 1.0, .bound = 0};
  }

 private:
  int n_sets_, wrong_set_;
  gpu::Buffer words_, from_;
};

constexpr int kNone = 1 << 20;
template <int kWrongSet>
OpKernel planted(std::string_view name) {
  return {Op::gemv, name, [](const OpProblem&, const OpDevice&) { return Support{}; },
          [](const OpProblem&) { return kDeviceStreamUnit; },
          [](const OpProblem&, const gpu::Stream& stream, int n_sets, uint64_t) -> std::unique_ptr<OpRun> {
            return std::make_unique<Planted>(stream, n_sets, kWrongSet);
          }};
}

TEST_F(OpBenchCuda, APlantedErrorGetsNoTimesAndTheOthersDo) {
  const OpKernel table[] = {planted<kNone>("right"), planted<0>("wrong"), planted<-1>("wrong-later")};
  OpBenchParams params = on_device(Op::gemv);
  params.weights = {find_weight_format("f32").or_throw()};
  params.batch = {1};
  params.kernels = {"all"};
  const Found found = run(params, table);
  EXPECT_EQ(found.n_failed, 2);
  ASSERT_EQ(found.rows.size(), 3u);
  EXPECT_FALSE(found.rows[0].failed());
  EXPECT_EQ(found.rows[0].seconds.size(), 2u);
  EXPECT_TRUE(found.rows[1].failed());
  EXPECT_FALSE(found.rows[1].after_replays);
  EXPECT_TRUE(found.rows[1].seconds.empty());
  EXPECT_TRUE(found.rows[2].failed()) << "the last set is looked at after the replays";
  EXPECT_TRUE(found.rows[2].after_replays);
  EXPECT_TRUE(found.rows[2].seconds.empty());
}

TEST_F(OpBenchCuda, StopsBeforeTheNextProblem) {
  OpBenchParams params = on_device(Op::gemv);
  params.weights = {find_weight_format("f32").or_throw()};
  OpBenchHooks hooks;
  int rows = 0;
  hooks.stop = [] { return true; };
  hooks.on_row = [&](const OpRow&) { ++rows; };
  EXPECT_EQ(run_op_bench(params, op_kernels(), hooks), 0);
  EXPECT_EQ(rows, 0);
}

}  // namespace
}  // namespace ridge::lab
