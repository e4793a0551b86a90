// The KV cache: what it holds depends on positions and values only, never on how the tokens were batched.
#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <map>

#include "base/metrics.h"
#include "base/rng.h"

namespace ridge {
namespace {

constexpr int kHeads = 2, kDim = 32, kContext = 400;

KvSideConfig side(const char* name, KvPolicy policy) { return {find_kv_format(name).or_throw(), policy}; }
KvSideConfig side(const char* name) {
  const KvFormat* format = find_kv_format(name).or_throw();
  return {format, format->policy};
}

/// Every format with its own policy, and the policies that stress the bookkeeping.
std::vector<std::pair<std::string, KvSideConfig>> all_sides() {
  std::vector<std::pair<std::string, KvSideConfig>> sides;
  for (const KvFormat& format : kv_formats()) sides.emplace_back(format.name, KvSideConfig{&format, format.policy});
  sides.emplace_back("rotor-3 no window", side("rotor-3", {Rotation::hadamard, true, 0, 0}));
  sides.emplace_back("rotor-3 no window, sinks", side("rotor-3", {Rotation::planar, true, 0, 4}));
  sides.emplace_back("rotor-3 no centre", side("rotor-3", {Rotation::hadamard, false, 32, 0}));
  KvPolicy weighted{Rotation::hadamard, false, 0, 0, KvScale::unbiased, KvRounding::weighted};
  sides.emplace_back("rotor-3 weighted, no window", side("rotor-3", weighted));
  weighted = {Rotation::planar, true, 32, 4, KvScale::norm, KvRounding::weighted, "q8_0"};
  sides.emplace_back("rotor-4 weighted, recent q8_0", side("rotor-4", weighted));
  sides.emplace_back("rotor-3 wide", side("rotor-3", {Rotation::none, true, 128, 7}));
  sides.emplace_back("rotor-3s bare", side("rotor-3s", {Rotation::hadamard, false, 0, 0}));
  sides.emplace_back("rotor-3s uncentred, sinks", side("rotor-3s", {Rotation::none, false, 32, 4}));
  sides.emplace_back("rotor-4 lsq", side("rotor-4", {Rotation::hadamard, true, 32, 4, KvScale::lsq}));
  sides.emplace_back("p8 lsq", side("p8", {Rotation::none, false, 0, 0, KvScale::lsq}));
  sides.emplace_back("q8_0 everything", side("q8_0", {Rotation::hadamard, true, 64, 32}));
  sides.emplace_back("q8_0 sinks only", side("q8_0", {Rotation::none, false, 0, 5}));
  return sides;
}

/// What weighted rounding needs, a form far from the identity; empty for configurations that round nearest.
std::span<const float> metric_of(const KvSideConfig& config, int n_kv_heads, int dim) {
  static std::map<std::pair<int, int>, std::vector<float>> forms;
  if (config.policy.rounding != KvRounding::weighted) return {};
  std::vector<float>& form = forms[{n_kv_heads, dim}];
  if (form.empty()) {
    Rng rng(99);
    for (int h = 0; h < n_kv_heads; ++h) {
      std::vector<float> seen(size_t(dim), 0.0f);  // one direction that every query looks at
      for (float& x : seen) x = float(rng.normal());
      for (int i = 0; i < dim; ++i)
        for (int j = 0; j < dim; ++j) form.push_back(seen[size_t(i)] * seen[size_t(j)] + (i == j ? 0.2f : 0.0f));
    }
  }
  return form;
}

std::vector<float> random_rows(int n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> rows(size_t(n) * kHeads * kDim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = float(rng.normal() + (i % kDim == 3 ? 6 : 0));
  return rows;
}

/// All positions as attention reads them, [n, kHeads, kDim].
std::vector<float> read_back(const KvStore& store, int n) {
  std::vector<float> out(size_t(n) * kHeads * kDim, NAN);
  const KvSide view = store.decode_side(n);
  int next = 0;
  for (int s = 0; s < view.n_segments; ++s) {
    const KvSegment& segment = view.segments[size_t(s)];
    EXPECT_EQ(segment.first, next) << "segments must follow each other";
    next = segment.first + segment.count;
    for (int i = 0; i < segment.count; ++i)
      for (int h = 0; h < kHeads; ++h)
        segment.format->decode(segment.rows + h * segment.head_stride + i * segment.row_bytes, kDim, segment.coding(h),
                               &out[(size_t(segment.first + i) * kHeads + size_t(h)) * kDim]);
  }
  EXPECT_EQ(next, n) << "segments must cover every position";
  return out;
}

void append(KvStore& store, CpuContext& context, const std::vector<float>& rows, int first, int last,
            KvScratch& scratch) {
  std::vector<float> batch(rows.begin() + int64_t(first) * kHeads * kDim, rows.begin() + int64_t(last) * kHeads * kDim);
  store.append(context, first, View2<float>(batch.data(), last - first, kHeads * kDim), scratch);
}

TEST(KvCache, HoldsTheSameBitsHoweverTokensAreBatched) {
  CpuContext context(2);
  const std::vector<float> rows = random_rows(kContext, 1);
  for (const auto& [name, config] : all_sides()) {
    KvStore one_by_one(config, 3, kHeads, kDim, kContext, metric_of(config, kHeads, kDim));
    KvScratch scratch;
    for (int n = 0; n < kContext; ++n) append(one_by_one, context, rows, n, n + 1, scratch);
    const std::vector<float> expected = read_back(one_by_one, kContext);
    for (const int step : {2, 7, 31, 64, 65, 100, 399, 400}) {
      KvStore batched(config, 3, kHeads, kDim, kContext, metric_of(config, kHeads, kDim));
      for (int n = 0; n < kContext; n += step) append(batched, context, rows, n, std::min(kContext, n + step), scratch);
      EXPECT_EQ(read_back(batched, kContext), expected) << name << ", " << step << " at a time";
    }
  }
}

TEST(KvCache, SegmentsCoverEveryPositionAtEveryLength) {
  CpuContext context(1);
  const std::vector<float> rows = random_rows(kContext, 2);
  for (const auto& [name, config] : all_sides()) {
    KvStore store(config, 0, kHeads, kDim, kContext, metric_of(config, kHeads, kDim));
    KvScratch scratch;
    for (int n = 1; n <= kContext; ++n) {
      append(store, context, rows, n - 1, n, scratch);
      for (const float x : read_back(store, n)) ASSERT_TRUE(std::isfinite(x)) << name << " at " << n;
    }
  }
}

TEST(KvCache, NewestAndFirstTokensStayExact) {
  CpuContext context(1);
  const KvPolicy policy{Rotation::none, false, 32, 4};
  KvStore store(side("rotor-3", policy), 0, kHeads, kDim, kContext, metric_of(side("rotor-3", policy), kHeads, kDim));
  const std::vector<float> rows = random_rows(kContext, 3);
  KvScratch scratch;
  append(store, context, rows, 0, 300, scratch);
  const std::vector<float> held = read_back(store, 300);
  const auto worst = [&](int first, int last) {
    double error = 0;
    for (size_t i = size_t(first) * kHeads * kDim; i < size_t(last) * kHeads * kDim; ++i)
      error = std::max(error, std::abs(double(held[i]) - rows[i]));
    return error;
  };
  EXPECT_LT(worst(0, 4), 0.01) << "sinks";
  EXPECT_LT(worst(300 - 32, 300), 0.01) << "window";
  EXPECT_GT(worst(4, 300 - 64), 0.1) << "the middle is coded, so 3 bits must show";
}

TEST(KvCache, CentreIsTheMeanOfTheCalibrationTokensAndComesBack) {
  CpuContext context(1);
  const KvPolicy policy{Rotation::hadamard, true, 32, 4};
  KvStore store(side("q8_0", policy), 1, kHeads, kDim, kContext, metric_of(side("q8_0", policy), kHeads, kDim));
  const std::vector<float> rows = random_rows(200, 4);
  KvScratch scratch;
  append(store, context, rows, 0, 200, scratch);
  std::vector<float> held = read_back(store, 200);
  // restore_output() undoes exactly what append() did to a row: treat each cached row as an attention output.
  store.restore_output(context, kHeads, View2<float>(held.data(), 200, kHeads * kDim));
  const Comparison c = compare(held, rows);
  EXPECT_LT(c.nmse, 1e-4) << "only the 8-bit error is left";
}

TEST(KvCache, AllocatedBytesFollowTheFormula) {
  for (const auto& [name, config] : all_sides()) {
    const KvStore store(config, 0, kHeads, kDim, kContext, metric_of(config, kHeads, kDim));
    EXPECT_EQ(store.allocated_bytes(), kv_bytes(config, kHeads, kDim).total(kContext)) << name;
  }
}

TEST(KvCache, HeldBytesAreTheRowsThatDecodeReads) {
  CpuContext context(1);
  const std::vector<float> rows = random_rows(kContext, 8);
  for (const auto& [name, config] : all_sides()) {
    KvStore store(config, 0, kHeads, kDim, kContext, metric_of(config, kHeads, kDim));
    KvScratch scratch;
    append(store, context, rows, 0, kContext, scratch);
    for (const int n : {1, 40, 64, 130, kContext}) {
      int64_t bytes = (config.policy.centre ? 4 * kHeads * kDim : 0) + (config.format->head_scale ? 4 * kHeads : 0);
      const KvSide view = store.decode_side(n);
      for (int s = 0; s < view.n_segments; ++s)
        bytes += kHeads * view.segments[size_t(s)].count * view.segments[size_t(s)].row_bytes;
      EXPECT_EQ(kv_held_bytes(config, kHeads, kDim, n), bytes) << name << " at " << n;
    }
  }
}

TEST(KvCache, BytesAreThePublishedOnes) {
  // Bytes per token and side at the shapes whose memory is quoted: BitNet-2B-4T, Qwen2.5-1.5B, Llama-3.1-70B.
  struct Shape {
    int n_kv_heads, n_layers;
  };
  constexpr Shape kShapes[] = {{5, 30}, {2, 28}, {8, 80}};
  const std::pair<std::string_view, double> bits[] = {
      {"f32", 32},   {"f16", 16},        {"bf16", 16},       {"q8_0", 8.5},   {"p8", 8.5},    {"i8r", 8.125},
      {"q4_0", 4.5}, {"rotor-4", 4.125}, {"rotor-3", 3.125}, {"rotor-3s", 3}, {"rotor-3u", 3}};
  EXPECT_EQ(std::size(bits), kv_formats().size());
  for (const auto& [name, per_value] : bits)
    for (const Shape& shape : kShapes) {
      const KvSideConfig config = side(name.data());
      const KvBytes bytes = kv_bytes(config, shape.n_kv_heads, 128);
      EXPECT_EQ(double(shape.n_layers * bytes.per_token), shape.n_layers * shape.n_kv_heads * 128 * per_value / 8)
          << name;
      // Only what the policy keeps exact costs more: f16 sinks, a ring of int8 rows (window and tile), a centre, a
      // scale.
      const int64_t ring = config.policy.window > 0 ? config.policy.window + 32 : 0;
      const int64_t fixed = config.policy.sinks * 256 + ring * 130 + (config.policy.centre ? 512 : 0) +
                            (config.format->head_scale ? 4 : 0);
      EXPECT_EQ(bytes.fixed, shape.n_kv_heads * fixed) << name;
      const KvStore store(config, 0, shape.n_kv_heads, 128, 100, metric_of(config, shape.n_kv_heads, 128));
      EXPECT_EQ(store.allocated_bytes(), bytes.total(100)) << name;
    }
}

TEST(KvCache, ResetForgetsTheCalibration) {
  CpuContext context(1);
  KvStore store(side("rotor-3"), 0, kHeads, kDim, kContext, metric_of(side("rotor-3"), kHeads, kDim)),
      fresh(side("rotor-3"), 0, kHeads, kDim, kContext, metric_of(side("rotor-3"), kHeads, kDim));
  KvScratch scratch;
  append(store, context, random_rows(200, 5), 0, 200, scratch);
  store.reset();
  const std::vector<float> rows = random_rows(200, 6);
  append(store, context, rows, 0, 200, scratch);
  append(fresh, context, rows, 0, 200, scratch);
  EXPECT_EQ(read_back(store, 200), read_back(fresh, 200));
}

TEST(KvCache, NonFiniteRowsAreCountedAndDoNotSpread) {
  CpuContext context(1);
  for (const auto& [name, config] : all_sides()) {
    KvStore store(config, 0, kHeads, kDim, kContext, metric_of(config, kHeads, kDim));
    std::vector<float> rows = random_rows(100, 7);
    rows[size_t(70) * kHeads * kDim + 5] = NAN;
    rows[size_t(71) * kHeads * kDim + 6] = INFINITY;
    KvScratch scratch;
    append(store, context, rows, 0, 100, scratch);
    EXPECT_GT(store.saturated(), 0) << name;
    for (const float x : read_back(store, 100)) ASSERT_TRUE(std::isfinite(x)) << name;
  }
}

TEST(KvCache, PoliciesThatCannotWorkAreRefusedWithTheFlag) {
  const auto message = [](const KvSideConfig& config, int head_dim) {
    const Status status = check_kv_side(config, "K", head_dim);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message(side("rotor-3"), 128), "");
  EXPECT_NE(message(side("rotor-3"), 12).find("multiple of 8"), std::string::npos);
  EXPECT_NE(message(side("q8_0"), 80).find("multiple of 32"), std::string::npos);
  EXPECT_NE(message(side("rotor-3", {Rotation::none, false, 33, 0}), 128).find("--kv-window 33"), std::string::npos);
  EXPECT_NE(message(side("rotor-3", {Rotation::none, false, -32, 0}), 128).find("--kv-window"), std::string::npos);
  EXPECT_NE(message(side("rotor-3", {Rotation::none, false, 0, -1}), 128).find("--kv-sinks"), std::string::npos);
  KvPolicy policy{Rotation::none, false, 32, 0, KvScale::none, KvRounding::weighted};
  EXPECT_NE(message(side("q8_0", policy), 128).find("nearest rounding only"), std::string::npos);
  policy = {Rotation::none, false, 32, 0, KvScale::none, KvRounding::nearest, "rotor-3"};
  EXPECT_NE(message(side("q8_0", policy), 128).find("recent=i8r"), std::string::npos);
  policy.recent = "q8_0";
  EXPECT_NE(message(side("rotor-3", policy), 80).find("cannot hold the window"), std::string::npos);
}

}  // namespace
}  // namespace ridge
