// KV state files: what was saved comes back bit for bit, and nothing else does. And what files rest on: sequences that
// go back, move down and load.
#include "engine/kv_state.h"
#include "cases/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/rng.h"
#include "cases/kv_state_file.h"
#include "cases/temp_dir.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

using testing::HasSubstr;
constexpr int kStateHeads = 2, kStateDim = 32, kStateContext = 400;
constexpr uint64_t kStateModel = 0x1234;

KvSideConfig side(std::string_view name) {
  const KvFormat* format = find_kv_format(name).or_throw();
  return {format, format->policy};
}
KvSideConfig side(std::string_view name, const KvPolicy& policy) { return {find_kv_format(name).or_throw(), policy}; }

/// Every format once, with sections of every kind, and policies that stress the bookkeeping.
std::vector<KvLayerConfig> all_layers() {
  std::vector<KvLayerConfig> layers;
  for (const KvFormat& format : kv_formats())
    layers.push_back({side(format.name), side(format.name, {Rotation::hadamard, true, 32, 4, format.policy.scale}),
                      kStateHeads, kStateDim});
  layers.push_back({side("q8_0", {Rotation::none, false, 0, 5, KvScale::absmax}),
                    side("rotor-3", {Rotation::planar, true, 0, 0, KvScale::lsq}), kStateHeads, kStateDim});
  return layers;
}

/// Forms far from the identity, for sides that round weighted.
std::vector<KvMetricView> metrics(const std::vector<KvLayerConfig>& layers) {
  static const std::vector<float> form = [] {
    std::vector<float> values;
    for (int h = 0; h < kStateHeads; ++h)
      for (int i = 0; i < kStateDim; ++i)
        for (int j = 0; j < kStateDim; ++j) values.push_back(i == j ? 1.0f : std::abs(i - j) == 1 ? 0.4f : 0.0f);
    return values;
  }();
  const auto of_heads = std::span(form).first(size_t(layers[0].n_kv_heads * kStateDim * kStateDim));
  return std::vector<KvMetricView>(layers.size(), {of_heads, of_heads});
}

struct StatePool {
  std::unique_ptr<SequencePool> pool;
  SeqId seq;

  explicit StatePool(const std::vector<KvLayerConfig>& layers, int n_pages = 8)
      : pool(host_pool(layers, metrics(layers), n_pages, 3)), seq(pool->open().or_throw()) {}

  /// Values depend on the position and the seed alone.
  void append(int n, uint64_t seed) {
    if (n == 0) return;
    static CpuContext context(1);
    pool->reserve(seq, n).or_throw();
    auto& memory = static_cast<HostKvMemory&>(pool->memory());
    for (int layer = 0; layer < memory.n_layers(); ++layer) {
      const KvTiles &k = memory.tiles(layer, KvSide::k), &v = memory.tiles(layer, KvSide::v);
      const int64_t width = int64_t(k.n_kv_heads) * k.head_dim;
      std::vector<float> rows[2];
      for (std::vector<float>& values : rows)
        for (int i = 0; i < n; ++i) {
          Rng rng(seed * 1000003 + uint64_t(pool->length(seq) + i) * 97 + uint64_t(2 * layer + (&values == rows)));
          for (int64_t c = 0; c < width; ++c) values.push_back(float(rng.normal() + (c % k.head_dim == 3 ? 6 : 0)));
        }
      const KvSpan whole = pool->span(seq, 0, n, memory.page_class(layer));
      for (const KvSpan& span : cut_span(whole, most_rows_at_once(k, v), pool->calibrates(seq)))
        kv_append(context, k, v, {&span, 1}, {rows[0].data(), n, width}, {rows[1].data(), n, width});
    }
    pool->advance(seq, n);
  }
  std::vector<float> rows() { return read_back(*pool, seq); }
  std::vector<std::byte> file() {
    const TempDir dir;
    const auto path = dir.path() / "state.kv";
    save_kv_state(pool->memory().layouts(), pool->save(seq), kStateModel, path).or_throw();
    const io::MappedFile mapped = io::MappedFile::open(path).or_throw();
    return {mapped.bytes().begin(), mapped.bytes().end()};
  }
  /// Loads a file as `seq`; why not, or nothing.
  std::string restore(std::span<const std::byte> bytes, uint64_t model = kStateModel, int n_ctx = kStateContext) {
    const Result<SequenceImage> image = read_kv_state(*pool, n_ctx, model, bytes, "state.kv");
    if (!image) {
      EXPECT_EQ(image.error().kind, ErrorKind::bad_file);
      EXPECT_THAT(image.error().message, HasSubstr("cannot restore: state.kv: "));
      return image.error().message;
    }
    pool->close(seq);
    seq = pool->load(*image).or_throw();
    return "";
  }
};

TEST(KvState, ComesBackBitForBitAndGoesOnAsIfNothingHadHappened) {
  const std::vector<KvLayerConfig> layers = all_layers();
  for (const int n : {0, 1, 3, 40, 63, 64, 100, 161}) {
    StatePool original(layers), restored(layers, 6);
    original.append(n, 1);
    const std::vector<std::byte> file = original.file();
    restored.append(77, 9);  // into a used pool of another size
    ASSERT_EQ(restored.restore(file), "") << n;
    ASSERT_EQ(restored.pool->length(restored.seq), n);
    EXPECT_EQ(restored.rows(), original.rows()) << n;
    EXPECT_EQ(restored.file(), file) << "saving again gives the same file";
    for (StatePool* pool : {&original, &restored}) {
      pool->append(1, 2);
      pool->append(70, 3);
    }
    EXPECT_EQ(restored.rows(), original.rows()) << n;
    EXPECT_EQ(restored.file(), original.file()) << n;
  }
}

/// Files of sliding layers have the rows that a sequence holds, and say from which position on.
TEST(KvState, SlidingLayersBeginWhereTheirRowsAreHeld) {
  std::vector<KvLayerConfig> layers = {
      {side("f16"), side("q8_0", {Rotation::hadamard, true, 32, 4, KvScale::absmax}), 1, kStateDim, 50},
      {side("f16"), side("f16"), 1, kStateDim}};
  StatePool original(layers), restored(layers);
  original.append(390, 1);
  const std::vector<std::byte> file = original.file();
  ASSERT_EQ(restored.restore(file), "");
  EXPECT_EQ(restored.rows(), original.rows());
  EXPECT_EQ(restored.file(), file);
  const auto with = [&](size_t at, uint32_t value) {
    std::vector<std::byte> changed = file;
    std::memcpy(&changed[at], &value, sizeof value);
    sign_state(changed);
    return restored.restore(changed);
  };
  // Of 390 positions a sequence of 358 sees those from 309 on: the third page begins at 256.
  const size_t coded_first = kStateHeader + 52;
  uint32_t found = 0;
  std::memcpy(&found, &file[coded_first], sizeof found);
  EXPECT_EQ(found, 256);
  EXPECT_THAT(with(coded_first, 400), HasSubstr("coded_first is 400 of 390 positions"));
  EXPECT_THAT(with(coded_first, 342), HasSubstr("K of layer 0: coded_first is 342, expected 0 to 341"));
  EXPECT_THAT(with(coded_first, uint32_t(-1)), HasSubstr("coded_first"));
  EXPECT_THAT(with(coded_first, 0), HasSubstr("payload of"));
  for (StatePool* pool : {&original, &restored}) {
    pool->pool->trim(pool->seq, 358, TrimMode::exact).or_throw();
    pool->append(100, 3);
  }
  EXPECT_EQ(restored.rows(), original.rows());

  // A file of a build that gave nothing back: the same but for the rows behind the window.
  std::vector<KvLayerConfig> full = layers;
  full[0].attention_window = 0;
  StatePool before(full);
  before.append(390, 1);
  ASSERT_EQ(restored.restore(before.file()), "");
  EXPECT_EQ(restored.file(), file);
}

TEST(KvState, EveryPairOfFormats) {
  std::vector<KvLayerConfig> layers;
  for (const KvFormat& k : kv_formats())
    for (const KvFormat& v : kv_formats()) layers.push_back({side(k.name), side(v.name), 1, kStateDim});
  StatePool original(layers, 2), restored(layers, 2);
  original.append(230, 1);
  const std::vector<std::byte> file = original.file();
  ASSERT_EQ(restored.restore(file), "");
  EXPECT_EQ(restored.rows(), original.rows());
  EXPECT_EQ(restored.file(), file);
}

/// A small state: one layer of few bytes, so that every byte can be tried.
struct SmallState {
  std::vector<KvLayerConfig> layers = {
      {side("rotor-3s", {Rotation::hadamard, true, 0, 2, KvScale::norm}), side("i8r"), 1, kStateDim}};
  std::vector<std::byte> file;
  SmallState() {
    StatePool pool(layers);
    pool.append(66, 4);
    file = pool.file();
  }
};

TEST(KvState, EveryFlippedBitIsRefusedAndChangesNothing) {
  const SmallState state;
  StatePool pool(state.layers);
  pool.append(20, 6);
  const std::vector<float> before = pool.rows();
  for (size_t at = 0; at < state.file.size(); ++at) {
    std::vector<std::byte> file = state.file;
    file[at] ^= std::byte(1 << at % 8);
    ASSERT_NE(pool.restore(file), "") << "byte " << at;
  }
  EXPECT_EQ(pool.rows(), before);
}

TEST(KvState, EveryTruncationAndEveryExtensionIsRefusedWithRightChecksumsToo) {
  const SmallState state;
  StatePool pool(state.layers);
  for (size_t size = 0; size < state.file.size(); ++size) {
    std::vector<std::byte> file(state.file.begin(), state.file.begin() + ptrdiff_t(size));
    ASSERT_NE(pool.restore(file), "") << size;
    sign_state(file);
    ASSERT_NE(pool.restore(file), "") << size << ", signed";
  }
  for (const size_t more : {1u, 56u, 4096u}) {
    std::vector<std::byte> file = state.file;
    file.resize(file.size() + more);
    EXPECT_THAT(pool.restore(file), HasSubstr("it was cut or something was appended"));
    sign_state(file);
    EXPECT_NE(pool.restore(file), "");
  }
  EXPECT_EQ(pool.pool->length(pool.seq), 0);
}

TEST(KvState, FieldsThatLieAreRefusedByNameThoughTheChecksumsAreRight) {
  const SmallState state;
  StatePool pool(state.layers);
  const auto with = [&](size_t at, auto value) {
    std::vector<std::byte> file = state.file;
    std::memcpy(&file[at], &value, sizeof value);
    sign_state(file);
    return pool.restore(file);
  };
  const size_t k = kStateHeader;
  uint64_t k_payload;
  std::memcpy(&k_payload, &state.file[k + 64], 8);
  const size_t v = k + kStateSide + size_t(k_payload);
  EXPECT_EQ(with(24, uint32_t(66)), "") << "nothing was changed";
  EXPECT_THAT(with(24, uint32_t(0xFFFFFFFF)), HasSubstr("n_past is 4294967295"));
  EXPECT_THAT(with(24, uint32_t(67)), HasSubstr("payload of"));
  EXPECT_THAT(with(28, uint32_t(1)), HasSubstr("rotation seed 00000001"));
  EXPECT_THAT(with(k + 16, 'x'), HasSubstr("window format x16, this cache has f16"));
  EXPECT_THAT(with(k + 32, uint8_t(7)), HasSubstr("rotation of an unknown kind"));
  EXPECT_THAT(with(k + 33, uint8_t(9)), HasSubstr("scale rule of an unknown kind"));
  EXPECT_THAT(with(k + 34, uint8_t(2)), HasSubstr("centring 2"));
  EXPECT_THAT(with(k + 35, uint8_t(2)), HasSubstr("calibrated is 2"));
  EXPECT_THAT(with(k + 35, uint8_t(0)), HasSubstr("K of layer 0: calibrated is false at 66"));
  EXPECT_THAT(with(v + 35, uint8_t(1)), HasSubstr("V of layer 0: calibrated is true"));
  EXPECT_THAT(with(k + 36, uint32_t(1)), HasSubstr("rounding 1"));
  EXPECT_THAT(with(k + 48, uint32_t(67)), HasSubstr("ring_first is 67 of 66"));
  EXPECT_THAT(with(k + 48, uint32_t(1)), HasSubstr("ring_first is 1, expected 2 to 66"));
  EXPECT_THAT(with(v + 48, uint32_t(1)), HasSubstr("V of layer 0: ring_first is 1, expected 0 to 0"));
  EXPECT_THAT(with(k + 52, uint32_t(1)), HasSubstr("coded_first is 1, expected 0 to 0"));
  EXPECT_THAT(with(k + 56, int64_t(-1)), HasSubstr("saturated is -1"));
  EXPECT_THAT(with(k + 64, k_payload - 1), HasSubstr("payload of"));
  EXPECT_THAT(with(k + 64, ~uint64_t(0)), HasSubstr("payload of"));
  EXPECT_THAT(with(k + kStateSide + 4 * 5, NAN), HasSubstr("K of layer 0: centre 5 is nan"));
  EXPECT_THAT(with(k + kStateSide + 4 * kStateDim, -1.0f), HasSubstr("head scale 0 is -1"));
}

TEST(KvState, FilesBeforeHadamardPartsChangedAreReadWhereTheirPartsAreTheSame) {
  const KvPolicy rotated{.rotation = Rotation::hadamard, .window = 0};
  for (const auto& [head_dim, policy, same] : {std::tuple(64, rotated, true),
                                               {128, rotated, true},
                                               {80, rotated, false},
                                               {96, rotated, false},
                                               {192, rotated, false},
                                               {96, KvPolicy{.rotation = Rotation::planar, .window = 0}, true},
                                               {96, KvPolicy{.window = 0}, true}}) {
    const KvSideConfig plain{*find_kv_format("f32"), {}};
    const std::vector<KvLayerConfig> layers = {{plain, {*find_kv_format("f16"), policy}, 1, head_dim}};
    StatePool pool(layers), restored(layers);
    pool.append(40, 5);
    std::vector<std::byte> file = pool.file();
    EXPECT_EQ(file[8], std::byte(3)) << "the version that is written";
    file[8] = std::byte(1);
    sign_state(file);
    const std::string refused = restored.restore(file);
    if (same) {
      EXPECT_EQ(refused, "") << head_dim;
      EXPECT_EQ(restored.rows(), pool.rows());
    } else {
      EXPECT_THAT(refused,
                  HasSubstr(fmt::format("V of layer 0: version 1 rotated rows of {} in other parts", head_dim)));
      EXPECT_EQ(restored.pool->length(restored.seq), 0);
    }
  }
}

TEST(KvState, FilesBeforeTheCentreTurnedAreReadWhereNoSideIsCentred) {
  for (const int version : {1, 2})
    for (const bool centre : {false, true}) {
      const KvSideConfig plain{*find_kv_format("f32"), {}};
      const std::vector<KvLayerConfig> layers = {
          {{*find_kv_format("f16"), {.centre = centre, .window = 32}}, plain, 1, 64}};
      StatePool pool(layers), restored(layers);
      pool.append(80, 5);
      std::vector<std::byte> file = pool.file();
      file[8] = std::byte(uint8_t(version));
      sign_state(file);
      EXPECT_THAT(restored.restore(file),
                  centre ? HasSubstr(fmt::format("K of layer 0: version {} centred rows in another way", version))
                         : HasSubstr(""));
      EXPECT_EQ(restored.pool->length(restored.seq), centre ? 0 : 80);
    }
}

TEST(KvState, WhatDiffersIsNamed) {
  const SmallState state;
  const auto refused_by = [&](const std::vector<KvLayerConfig>& layers, int n_ctx = kStateContext) {
    return StatePool(layers).restore(state.file, kStateModel, n_ctx);
  };
  const auto changed = [&](const auto& change) {
    std::vector<KvLayerConfig> layers = state.layers;
    change(layers[0]);
    return refused_by(layers);
  };
  EXPECT_EQ(refused_by(state.layers), "");
  EXPECT_THAT(changed([](auto& l) { l.v = side("q8_0"); }),
              HasSubstr("state.kv: V of layer 0: format i8r, this cache has q8_0"));
  EXPECT_THAT(changed([](auto& l) { l.k.policy.rotation = Rotation::planar; }),
              HasSubstr("rotation hadamard, this cache has planar"));
  EXPECT_THAT(changed([](auto& l) { l.k.policy.centre = false; }), HasSubstr("centring"));
  EXPECT_THAT(changed([](auto& l) { l.k.policy.window = 32; }), HasSubstr("window 0, this cache has 32"));
  EXPECT_THAT(changed([](auto& l) { l.k.policy.sinks = 4; }), HasSubstr("sinks 2, this cache has 4"));
  EXPECT_THAT(changed([](auto& l) { l.v.policy.scale = KvScale::lsq; }), HasSubstr("scale rule absmax"));
  EXPECT_THAT(changed([](auto& l) { l.n_kv_heads = 2; }), HasSubstr("n_kv_heads is 1"));
  EXPECT_THAT(changed([](auto& l) { l.head_dim = 64; }), HasSubstr("head_dim is 32"));
  EXPECT_THAT(refused_by({state.layers[0], state.layers[0]}), HasSubstr("n_layers is 1"));
  EXPECT_THAT(refused_by(state.layers, 65), HasSubstr("n_past is 66, this cache holds 65"));
  StatePool pool(state.layers);
  EXPECT_THAT(pool.restore(state.file, kStateModel + 1), HasSubstr("model hash"));
  std::vector<std::byte> file = state.file;
  file[8] = std::byte(9);
  EXPECT_THAT(pool.restore(file), HasSubstr("version 9"));
  file[0] = std::byte('X');
  EXPECT_THAT(pool.restore(file), HasSubstr("not a KV state file"));
}

TEST(KvState, TheFuzzSeedsAreMadeHere) {
  // RIDGE_BLESS=1 writes the corpus.
  for (const int n : {0, 5, 70}) {
    StatePool pool(fuzz_layers()), restored(fuzz_layers());
    pool.append(n, 1);
    const auto path = std::filesystem::path(RIDGE_SOURCE_DIR) / "tests/fuzz/corpus/kv_state" / fmt::format("n{}", n);
    if (std::getenv("RIDGE_BLESS")) {
      std::filesystem::create_directories(path.parent_path());
      save_kv_state(pool.pool->memory().layouts(), pool.pool->save(pool.seq), kStateModel, path).or_throw();
    }
    const io::MappedFile file = io::MappedFile::open(path).or_throw();
    EXPECT_EQ(restored.restore(file.bytes()), "") << "the committed seeds are still read";
    EXPECT_EQ(restored.pool->length(restored.seq), n);
    EXPECT_TRUE(std::ranges::equal(pool.file(), file.bytes()));
  }
}

TEST(SequencePoolLoad, RefusesWhatDoesNotFitAndStaysAsItWas) {
  const std::vector<KvLayerConfig> layers = {{side("f16"), side("rotor-3"), kStateHeads, kStateDim}};
  StatePool original(layers), small(layers, 2);
  original.append(300, 1);
  const SequenceImage image = original.pool->save(original.seq);
  const Result<SeqId> refused = small.pool->load(image);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("300 positions need 3 pages, 2 are free"));
  EXPECT_EQ(small.pool->report().pages_free, 2);
  EXPECT_EQ(small.pool->report().slots_free, 2);
  SequenceImage hostile = image;
  hostile.sides[1].bytes.pop_back();
  EXPECT_THAT(original.pool->load(hostile).error().message, HasSubstr("V of layer 0: "));
  hostile.sides.pop_back();
  EXPECT_THAT(original.pool->load(hostile).error().message, HasSubstr("1 sides, this pool has 2"));
}

TEST(SequencePoolTrim, IsAsIfItHadNeverGoneFurtherWhileTheRowsAreHeld) {
  const std::vector<KvLayerConfig> layers = all_layers();
  // (further, back to): what the shorter sequence wants exact is still in the rings.
  for (const auto& [far, near] : {std::pair{10, 4},
                                  {63, 1},
                                  {101, 100},
                                  {127, 96},
                                  {150, 150},
                                  {160, 128},
                                  {97, 65},
                                  {192, 160},
                                  {223, 191},
                                  {290, 258}}) {
    StatePool gone(layers), fresh(layers);
    for (StatePool* pool : {&gone, &fresh}) pool->append(near, 1);
    gone.append(far - near, 2);
    const TrimReport report = gone.pool->trim(gone.seq, near, TrimMode::exact).or_throw();
    EXPECT_TRUE(report.exact);
    ASSERT_EQ(gone.pool->length(gone.seq), near);
    EXPECT_EQ(gone.rows(), fresh.rows()) << far << " to " << near;
    for (StatePool* pool : {&gone, &fresh}) pool->append(45, 3);
    EXPECT_EQ(gone.rows(), fresh.rows()) << far << " to " << near << ", later";
  }
}

TEST(SequencePoolTrim, BelowCalibrationOnlyNothingIsExact) {
  StatePool gone(all_layers()), fresh(all_layers());
  gone.append(80, 1);
  for (const TrimMode mode : {TrimMode::exact, TrimMode::coded_window}) {
    const Result<TrimReport> refused = gone.pool->trim(gone.seq, 63, mode);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("the centre was set at 64 positions"));
  }
  EXPECT_EQ(gone.pool->length(gone.seq), 80);
  EXPECT_TRUE(gone.pool->trim(gone.seq, 0, TrimMode::exact)->exact);
  for (StatePool* pool : {&gone, &fresh}) pool->append(100, 3);
  EXPECT_EQ(gone.rows(), fresh.rows());
}

TEST(SequencePoolTrim, BeyondTheRingCodedRowsStandInForExactOnesIfTheyMay) {
  const KvSideConfig rotor = side("rotor-3", {Rotation::hadamard, true, 32, 4, KvScale::norm});
  StatePool pool({{rotor, rotor, kStateHeads, kStateDim}});
  pool.append(290, 1);
  const std::vector<float> far = pool.rows();
  const Result<TrimReport> refused = pool.pool->trim(pool.seq, 130, TrimMode::exact);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("the exact rows of positions 96 to"));
  EXPECT_EQ(pool.rows(), far) << "a refusal changes nothing";
  const TrimReport report = pool.pool->trim(pool.seq, 130, TrimMode::coded_window).or_throw();
  EXPECT_FALSE(report.exact);
  EXPECT_EQ(report.coded_positions, 130 - 96);
  const std::vector<float> near = pool.rows();
  // Positions 4 to 129 were coded at 290; at 130 those from 96 on are exact rows again, with the coded values in f16.
  const size_t stride = kStateHeads * kStateDim;
  for (const size_t k_or_v : {0u, 1u})
    for (size_t i = 0; i < 130 * stride; ++i) {
      const float before = far[k_or_v * 290 * stride + i], after = near[k_or_v * 130 * stride + i];
      ASSERT_NEAR(after, before, i < 96 * stride ? 0 : std::abs(before) * 0x1p-11);
    }
  pool.append(100, 3);
  for (const float x : pool.rows()) ASSERT_TRUE(std::isfinite(x));
}

TEST(SequencePoolShift, RowsMoveDownAndKeepTheirValues) {
  const std::vector<KvLayerConfig> layers = all_layers();
  for (const int n_removed : {1, 31, 32, 64, 100}) {
    StatePool pool(layers);
    pool.append(200, 1);
    const std::vector<float> before = pool.rows();
    const auto same = [](int, KvSide, float*) {};
    EXPECT_FALSE(pool.pool->shift(pool.seq, 10, n_removed, same).or_throw().exact);
    ASSERT_EQ(pool.pool->length(pool.seq), 200 - n_removed);
    const std::vector<float> after = pool.rows();
    const size_t stride = kStateHeads * kStateDim, n = size_t(200 - n_removed);
    double error = 0, size = 0;
    for (size_t of_side = 0; of_side < 2 * layers.size(); ++of_side)
      for (size_t i = 0; i < n * stride; ++i) {
        const size_t from = i < 10 * stride ? i : i + size_t(n_removed) * stride;
        const double a = after[of_side * n * stride + i], b = before[of_side * 200 * stride + from];
        error += (a - b) * (a - b), size += b * b;
      }
    // A row changes only where it is coded for the first time now, by what coding costs.
    EXPECT_LT(error / size, 0.02) << n_removed;
    pool.append(100, 2);
    for (const float x : pool.rows()) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST(SequencePoolShift, PlainCachesMoveBitForBitAndTurnsReachEveryLaterRowOnce) {
  StatePool pool({{side("f16"), side("f16"), kStateHeads, kStateDim}});
  pool.append(100, 1);
  const std::vector<float> before = pool.rows();
  int turned = 0;
  pool.pool
      ->shift(pool.seq, 7, 20,
              [&](int layer, KvSide, float* row) {
                EXPECT_EQ(layer, 0);
                ++turned;
                row[0] += 1024;
              })
      .or_throw();
  EXPECT_EQ(turned, (100 - 27) * kStateHeads);
  const std::vector<float> after = pool.rows();
  const size_t stride = kStateHeads * kStateDim, v_before = 100 * stride, v_after = 80 * stride;
  for (size_t i = 0; i < 80 * stride; ++i) {
    const size_t from = i < 7 * stride ? i : i + 20 * stride;
    ASSERT_EQ(after[v_after + i], before[v_before + from]);
    if (i % kStateDim != 0 || i < 7 * stride) ASSERT_EQ(after[i], before[from]);
    else ASSERT_NEAR(after[i], before[from] + 1024, 0.5);
  }
}

}  // namespace
}  // namespace ridge
