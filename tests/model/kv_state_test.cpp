// KV state files: what was saved comes back bit for bit, and nothing else does.
#include "model/kv_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "base/rng.h"
#include "cases/temp_dir.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

constexpr int kHeads = 2, kDim = 32;
constexpr uint64_t kModel = 0x1234;

KvSideConfig side(std::string_view name) {
  const KvFormat* format = find_kv_format(name).or_throw();
  return {format, format->policy};
}

struct Sides {
  std::vector<KvSideConfig> k, v;
};
/// Every format once, with sections of every kind, and policies that stress the bookkeeping.
Sides all_sides() {
  Sides sides;
  for (const KvFormat& format : kv_formats()) {
    sides.k.push_back({&format, format.policy});
    sides.v.push_back({&format, {Rotation::hadamard, true, 32, 4, format.policy.scale}});
  }
  sides.k.push_back({find_kv_format("q8_0").or_throw(), {Rotation::none, false, 0, 5, KvScale::absmax}});
  sides.v.push_back({find_kv_format("rotor-3").or_throw(), {Rotation::planar, true, 0, 0, KvScale::lsq}});
  return sides;
}

/// What stores that round weighted need: forms far from the identity.
const KvMetric& metric(int n_kv_heads) {
  static std::map<int, KvMetric> known;
  KvMetric& m = known[n_kv_heads];
  if (m.n_kv_heads == 0) {
    m.n_kv_heads = n_kv_heads, m.head_dim = kDim;
    for (int form = 0; form < 16 * n_kv_heads; ++form)
      for (int i = 0; i < kDim; ++i)
        for (int j = 0; j < kDim; ++j) m.k.push_back(i == j ? 1.0f : std::abs(i - j) == 1 ? 0.4f : 0.0f);
    m.v = m.k;
  }
  return m;
}
KvCache make_cache(const std::vector<KvSideConfig>& k, const std::vector<KvSideConfig>& v, int n_kv_heads, int n_ctx) {
  return KvCache(k, v, n_kv_heads, kDim, n_ctx, {.metric = &metric(n_kv_heads)});
}

void append(KvCache& cache, int n, uint64_t seed) {
  static CpuContext context(1);
  Rng rng(seed);
  std::vector<float> rows(size_t(n) * size_t(cache.k(0).n_kv_heads()) * kDim);
  for (int layer = 0; layer < cache.n_layers(); ++layer)
    for (const bool is_k : {true, false}) {
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = float(rng.normal() + (i % kDim == 3 ? 6 : 0));
      (is_k ? cache.k(layer) : cache.v(layer))
          .append(context, cache.n_past, View2<float>(rows.data(), n, int64_t(rows.size()) / n),
                  is_k ? cache.k_scratch : cache.v_scratch);
    }
  cache.n_past += n;
}

/// Everything attention reads of a cache, bit for bit.
std::vector<float> read_back(const KvCache& cache) {
  std::vector<float> out;
  for (int layer = 0; layer < cache.n_layers(); ++layer)
    for (const KvStore* store : {&cache.k(layer), &cache.v(layer)}) {
      const KvSide view = store->decode_side(cache.n_past);
      for (int s = 0; s < view.n_segments; ++s)
        for (int i = 0; i < view.segments[size_t(s)].count; ++i)
          for (int h = 0; h < store->n_kv_heads(); ++h) {
            const KvSegment& segment = view.segments[size_t(s)];
            out.resize(out.size() + kDim);
            segment.format->decode(segment.rows + h * segment.head_stride + i * segment.row_bytes, kDim,
                                   segment.coding(h), &*out.end() - kDim);
          }
    }
  return out;
}

std::vector<std::byte> saved(const KvCache& cache, const TempDir& dir) {
  const auto path = dir.path() / "state.kv";
  save_kv_state(cache, kModel, path).or_throw();
  const io::MappedFile file = io::MappedFile::open(path).or_throw();
  return {file.bytes().begin(), file.bytes().end()};
}

std::string refusal(KvCache& cache, std::span<const std::byte> file, uint64_t model = kModel) {
  const Status status = restore_kv_state(cache, model, file, "state.kv");
  if (status) return "";
  EXPECT_EQ(status.error().kind, ErrorKind::bad_file);
  return status.error().message;
}

TEST(KvState, ComesBackBitForBitAndGoesOnAsIfNothingHadHappened) {
  const TempDir dir;
  const Sides sides = all_sides();
  for (const int n : {0, 1, 3, 40, 63, 64, 100, 161}) {
    KvCache original = make_cache(sides.k, sides.v, kHeads, 300);
    if (n > 0) append(original, n, 1);
    const std::vector<std::byte> file = saved(original, dir);
    // Into a used cache of another capacity.
    KvCache restored = make_cache(sides.k, sides.v, kHeads, 250);
    append(restored, 77, 9);
    ASSERT_EQ(refusal(restored, file), "") << n;
    ASSERT_EQ(restored.n_past, n);
    EXPECT_EQ(read_back(restored), read_back(original)) << n;
    EXPECT_EQ(saved(restored, dir), file) << "saving again gives the same file";
    for (KvCache* cache : {&original, &restored}) {
      append(*cache, 1, 2);
      append(*cache, 70, 3);
    }
    EXPECT_EQ(read_back(restored), read_back(original)) << n;
  }
}

TEST(KvState, ACopyIsTheSameCache) {
  const Sides sides = all_sides();
  KvCache original = make_cache(sides.k, sides.v, kHeads, 300);
  KvCache copy = make_cache(sides.k, sides.v, kHeads, 200);
  append(original, 150, 1);
  append(copy, 30, 5);
  ASSERT_TRUE(copy.copy_from(original));
  append(original, 40, 2);
  append(copy, 40, 2);
  EXPECT_EQ(read_back(copy), read_back(original));
  append(original, 50, 3);
  const Status too_long = copy.copy_from(original);
  ASSERT_FALSE(too_long);
  EXPECT_THAT(too_long.error().message, testing::HasSubstr("240 positions do not fit"));
  Sides other = sides;
  other.v[3].policy.window = 64;
  KvCache different = make_cache(other.k, other.v, kHeads, 300);
  const Status status = different.copy_from(original);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, testing::HasSubstr("V of layer 3: window 32, not 64"));
  EXPECT_EQ(different.n_past, 0);
}

/// A small state: one layer of few bytes, so that every byte can be tried.
struct SmallState {
  std::vector<KvSideConfig> k = {{find_kv_format("rotor-3s").or_throw(), {Rotation::hadamard, true, 0, 2}}},
                            v = {side("i8r")};
  TempDir dir;
  KvCache cache = make_cache(k, v, 1, 128);
  std::vector<std::byte> file;
  SmallState() {
    k[0].policy.scale = KvScale::norm;
    cache = make_cache(k, v, 1, 128);
    append(cache, 66, 4);
    file = saved(cache, dir);
  }
};

TEST(KvState, EveryFlippedBitIsRefusedAndChangesNothing) {
  const SmallState state;
  KvCache cache = make_cache(state.k, state.v, 1, 128);
  append(cache, 20, 6);
  const std::vector<float> before = read_back(cache);
  for (size_t at = 0; at < state.file.size(); ++at) {
    std::vector<std::byte> file = state.file;
    file[at] ^= std::byte(1 << at % 8);
    ASSERT_NE(refusal(cache, file), "") << "byte " << at;
    ASSERT_EQ(cache.n_past, 20) << "byte " << at;
  }
  EXPECT_EQ(read_back(cache), before);
}

TEST(KvState, EveryTruncationAndEveryExtensionIsRefused) {
  const SmallState state;
  KvCache cache = make_cache(state.k, state.v, 1, 128);
  for (size_t size = 0; size < state.file.size(); ++size)
    ASSERT_NE(refusal(cache, std::span(state.file).first(size)), "") << size;
  for (const size_t more : {1u, 56u, 4096u}) {
    std::vector<std::byte> file = state.file;
    file.resize(file.size() + more);
    EXPECT_NE(refusal(cache, file), "");
  }
  EXPECT_EQ(cache.n_past, 0);
}

TEST(KvState, WhatDiffersIsNamed) {
  const SmallState state;
  const auto refused_by = [&](const std::vector<KvSideConfig>& k, const std::vector<KvSideConfig>& v, int heads = 1,
                              int n_ctx = 128) {
    KvCache cache = make_cache(k, v, heads, n_ctx);
    return refusal(cache, state.file);
  };
  using testing::HasSubstr;
  const auto k_with = [&](const auto& change) {
    std::vector<KvSideConfig> k = state.k;
    change(k[0]);
    return k;
  };
  EXPECT_EQ(refused_by(state.k, state.v), "");
  EXPECT_THAT(refused_by(state.k, {side("q8_0")}),
              HasSubstr("state.kv: V of layer 0: format i8r, this session has q8_0"));
  EXPECT_THAT(refused_by(k_with([](auto& c) { c.policy.rotation = Rotation::planar; }), state.v),
              HasSubstr("rotation hadamard, this session has planar"));
  EXPECT_THAT(refused_by(k_with([](auto& c) { c.policy.centre = false; }), state.v), HasSubstr("centring"));
  EXPECT_THAT(refused_by(k_with([](auto& c) { c.policy.window = 32; }), state.v),
              HasSubstr("window 0, this session has 32"));
  EXPECT_THAT(refused_by(k_with([](auto& c) { c.policy.sinks = 4; }), state.v),
              HasSubstr("sinks 2, this session has 4"));
  EXPECT_THAT(refused_by(state.k, {{side("i8r").format, {.scale = KvScale::lsq}}}), HasSubstr("scale rule absmax"));
  EXPECT_THAT(refused_by({state.k[0], state.k[0]}, {state.v[0], state.v[0]}), HasSubstr("n_layers is 1"));
  EXPECT_THAT(refused_by(state.k, state.v, 2), HasSubstr("n_kv_heads is 1"));
  EXPECT_THAT(refused_by(state.k, state.v, 1, 65), HasSubstr("n_past is 66, this session holds 65"));
  KvCache cache = make_cache(state.k, state.v, 1, 128);
  EXPECT_THAT(refusal(cache, state.file, kModel + 1), HasSubstr("model hash"));
  std::vector<std::byte> file = state.file;
  file[8] = std::byte(9);
  EXPECT_THAT(refusal(cache, file), HasSubstr("version 9"));
  file[0] = std::byte('X');
  EXPECT_THAT(refusal(cache, file), HasSubstr("not a KV state file"));
}

TEST(KvState, TheFuzzSeedsAreMadeHere) {
  // The caches of tests/fuzz/fuzz_kv_state.cpp. RIDGE_BLESS=1 writes the corpus.
  const KvPolicy full{.rotation = Rotation::hadamard, .centre = true, .window = 32, .sinks = 4, .scale = KvScale::norm};
  KvPolicy small_ring = full;
  small_ring.recent = "i8r";
  const std::vector<KvSideConfig> k = {{side("rotor-3s").format, full}, side("q8_0")},
                                  v = {{side("rotor-3").format, small_ring}, side("f16")};
  const TempDir dir;
  for (const int n : {0, 5, 70}) {
    KvCache cache = make_cache(k, v, 1, 128);
    if (n > 0) append(cache, n, 1);
    const auto path = std::filesystem::path(RIDGE_SOURCE_DIR) / "tests/fuzz/corpus/kv_state" / fmt::format("n{}", n);
    if (std::getenv("RIDGE_BLESS")) {
      std::filesystem::create_directories(path.parent_path());
      save_kv_state(cache, kModel, path).or_throw();
    }
    const io::MappedFile file = io::MappedFile::open(path).or_throw();
    KvCache restored = make_cache(k, v, 1, 128);
    EXPECT_EQ(refusal(restored, file.bytes()), "") << "the committed seeds are still read";
    EXPECT_EQ(restored.n_past, n);
    EXPECT_EQ(saved(cache, dir), std::vector<std::byte>(file.bytes().begin(), file.bytes().end()));
  }
}

TEST(KvCacheTruncate, IsAsIfItHadNeverGoneFurtherWhileTheRowsAreHeld) {
  const Sides sides = all_sides();
  // (further, back to): everything the shorter cache wants exact is still in the rings of 64.
  for (const auto& [far, near] : {std::pair{10, 4}, {63, 1}, {101, 100}, {127, 96}, {150, 150}, {160, 128}, {64, 63}}) {
    KvCache gone = make_cache(sides.k, sides.v, kHeads, 300);
    KvCache fresh = make_cache(sides.k, sides.v, kHeads, 300);
    append(fresh, near, 1);
    append(gone, near, 1);
    if (far > near) append(gone, far - near, 2);
    gone.truncate(near);
    ASSERT_EQ(gone.n_past, near);
    // Below calibration a cache that has been further keeps its centre: other bits, the same rows.
    if (near >= 64 || far < 64) {
      EXPECT_EQ(read_back(gone), read_back(fresh)) << far << " to " << near;
      for (KvCache* cache : {&gone, &fresh}) append(*cache, 45, 3);
      EXPECT_EQ(read_back(gone), read_back(fresh)) << far << " to " << near << ", later";
    }
  }
}

TEST(KvCacheTruncate, ToNothingIsReset) {
  const Sides sides = all_sides();
  KvCache gone = make_cache(sides.k, sides.v, kHeads, 300);
  KvCache fresh = make_cache(sides.k, sides.v, kHeads, 300);
  append(gone, 150, 1);
  gone.truncate(0);
  for (KvCache* cache : {&gone, &fresh}) append(*cache, 100, 3);
  EXPECT_EQ(read_back(gone), read_back(fresh));
}

TEST(KvCacheTruncate, BeyondTheRingCodedRowsStandInForExactOnes) {
  const std::vector<KvSideConfig> one = {{side("rotor-3").format, {Rotation::hadamard, true, 32, 4, KvScale::norm}}};
  KvCache cache = make_cache(one, one, kHeads, 300);
  append(cache, 290, 1);
  const std::vector<float> far = read_back(cache);
  cache.truncate(130);
  const std::vector<float> near = read_back(cache);
  // Positions 4 to 129 were coded at 290; at 130 those from 96 on are exact rows again, with the coded values in f16.
  const size_t stride = kHeads * kDim;
  for (size_t i = 0; i < 130 * stride; ++i)
    ASSERT_NEAR(near[i], far[i], i < 96 * stride ? 0 : std::abs(far[i]) * 0x1p-11);
  append(cache, 100, 3);
  for (const float x : read_back(cache)) ASSERT_TRUE(std::isfinite(x));
}

TEST(KvCacheDiscard, RowsMoveDownAndKeepTheirValues) {
  const Sides sides = all_sides();
  for (const int discard : {1, 31, 32, 64, 100}) {
    KvCache cache = make_cache(sides.k, sides.v, kHeads, 300);
    append(cache, 200, 1);
    const std::vector<float> before = read_back(cache);
    cache.discard(10, discard, nullptr);
    ASSERT_EQ(cache.n_past, 200 - discard);
    const std::vector<float> after = read_back(cache);
    const size_t stride = kHeads * kDim, n = size_t(200 - discard);
    double error = 0, size = 0;
    for (size_t store = 0; store < 2 * sides.k.size(); ++store)
      for (size_t i = 0; i < n * stride; ++i) {
        const size_t from = i < 10 * stride ? i : i + size_t(discard) * stride;
        const double a = after[store * n * stride + i], b = before[store * 200 * stride + from];
        error += (a - b) * (a - b), size += b * b;
      }
    // A row changes only where it is coded for the first time now, by what coding costs.
    EXPECT_LT(error / size, 0.02) << discard;
    append(cache, 100, 2);
    for (const float x : read_back(cache)) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST(KvCacheDiscard, PlainCachesMoveBitForBitAndTurnsReachEveryLaterRowOnce) {
  const std::vector<KvSideConfig> one = {side("f16")};
  KvCache cache = make_cache(one, one, kHeads, 300);
  append(cache, 100, 1);
  const std::vector<float> before = read_back(cache);
  int turned = 0;
  cache.discard(7, 20, [&](float* row) {
    ++turned;
    row[0] += 1024;
  });
  EXPECT_EQ(turned, (100 - 27) * kHeads);
  const std::vector<float> after = read_back(cache);
  const size_t stride = kHeads * kDim, v_before = 100 * stride, v_after = 80 * stride;
  for (size_t i = 0; i < 80 * stride; ++i) {
    const size_t from = i < 7 * stride ? i : i + 20 * stride;
    ASSERT_EQ(after[v_after + i], before[v_before + from]);
    if (i % kDim != 0 || i < 7 * stride) ASSERT_EQ(after[i], before[from]);
    else ASSERT_NEAR(after[i], before[from] + 1024, 0.5);
  }
}

}  // namespace
}  // namespace ridge
