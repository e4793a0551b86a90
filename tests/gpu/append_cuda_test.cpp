// The cache on a device against the host's, bit for bit: random steps of several sequences, and what a pool does to
// them in between.
#include <cmath>
#include <cstring>
#include <memory>

#include "cases/attn_data.h"
#include "gpu/device_step.h"
#include "op/cache/append.h"

namespace ridge {
namespace {

constexpr int kGroup = 2, kPages = 24, kSlots = 6;

KvSideConfig side(const char* name) {
  const KvFormat& format = *find_kv_format(name).or_throw();
  return {&format, format.policy};
}
KvSideConfig side(const char* name, KvPolicy policy) {
  KvSideConfig config{find_kv_format(name).or_throw(), policy};
  if (policy.scale == KvScale::none) config.policy.scale = config.format->policy.scale;
  return config;
}

/// Values of a layer's rows: now and then a channel that stands out, a row of zeros, and values that must be clamped.
std::vector<float> row_values(Rng& rng, int64_t n_rows, int dim, bool outliers) {
  std::vector<float> values(size_t(n_rows * dim));
  for (float& x : values) x = float(rng.normal());
  for (int64_t i = 0; i < n_rows; ++i) {
    float* const row = &values[size_t(i * dim)];
    row[3] += 6;
    if (!outliers) continue;
    const uint64_t kind = rng.next() % 32;
    if (kind == 0) row[1] = 1e6f;
    if (kind == 1) row[7] = NAN;
    if (kind == 2) std::fill_n(row, dim, 0.0f);
    if (kind == 3) std::fill_n(row, dim, -0.0f);
    if (kind == 4) row[dim - 1] = -INFINITY;
  }
  return values;
}

/// A metric far from the identity, for layers that round weighted.
std::vector<std::vector<float>> metrics_of(std::span<const KvLayerConfig> layers) {
  std::vector<std::vector<float>> metrics;
  for (const KvLayerConfig& layer : layers) {
    std::vector<float>& metric = metrics.emplace_back();
    for (int head = 0; head < layer.n_kv_heads; ++head) {
      const auto seen = normal_floats(uint64_t(77 + head), layer.head_dim);
      for (int i = 0; i < layer.head_dim; ++i)
        for (int j = 0; j < layer.head_dim; ++j)
          metric.push_back(seen[size_t(i)] * seen[size_t(j)] + (i == j ? 0.2f : 0.0f));
    }
  }
  return metrics;
}

/// A pool on the host and one on the device that the same things happen to.
class Twins {
 public:
  Twins(const gpu::Stream& stream, std::vector<KvLayerConfig> layers, bool outliers)
      : stream_(stream),
        layers_(std::move(layers)),
        metrics_(metrics_of(layers_)),
        plan_(plan_of(layers_, kGroup)),
        host_(host_memory(kPages, kSlots), [this](int n_pages) { return host_memory(n_pages, 1); }),
        device_(std::make_unique<DeviceKvMemory>(stream, layers_, views(), kPages, kSlots),
                [this](int n_pages) { return host_memory(n_pages, 1); }),
        outliers_(outliers) {}

  SequencePool& host() { return host_; }
  SequencePool& device() { return device_; }
  DeviceKvMemory& memory() { return static_cast<DeviceKvMemory&>(device_.memory()); }

  SeqId open() {
    EXPECT_EQ(host_.open().or_throw(), device_.open().or_throw());
    return SeqId(n_sequences_++);
  }
  /// Calls change(pool) for both.
  template <class Change>
  void both(const Change& change) {
    change(host_);
    change(device_);
  }

  void step(const std::vector<SeqTokens>& seqs) {
    int n = 0;
    for (const SeqTokens& s : seqs) {
      both([&](SequencePool& pool) { pool.reserve(s.seq, s.n_tokens).or_throw(); });
      n += s.n_tokens;
    }
    const std::vector<int32_t> tokens(size_t(n), 0);
    DeviceStep step(stream_, plan_step({tokens, seqs}, device_, memory(), plan_), memory());
    for (int layer = 0; layer < ssize(layers_); ++layer) append(layer, step, seqs, n);
    for (const SeqTokens& s : seqs) both([&](SequencePool& pool) { pool.advance(s.seq, s.n_tokens); });
  }

  /// The same bits in all sequences that are open.
  void check(std::span<const SeqId> seqs, const std::string& what) {
    for (const SeqId seq : seqs) {
      const SequenceImage want = host_.save(seq), got = device_.save(seq);
      ASSERT_EQ(got.n, want.n) << what;
      ASSERT_EQ(got.calibrated, want.calibrated) << what;
      for (size_t i = 0; i < want.sides.size(); ++i) {
        const std::vector<std::byte>&a = got.sides[i].bytes, &b = want.sides[i].bytes;
        ASSERT_EQ(got.sides[i].ring_first, want.sides[i].ring_first) << what;
        ASSERT_EQ(a.size(), b.size()) << what;
        const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
        ASSERT_TRUE(a == b) << what << ": " << (i % 2 ? "V" : "K") << " of layer " << i / 2 << ", sequence " << int(seq)
                            << " of " << want.n << " positions, exact from " << want.sides[i].ring_first << ", byte "
                            << at << " of " << a.size();
      }
    }
    for (int layer = 0; layer < ssize(layers_); ++layer)
      for (const KvSide side : kKvSides) {
        ASSERT_EQ(device_.memory().saturated(layer, side), host_.memory().saturated(layer, side))
            << what << ", layer " << layer;
        if (outliers_) continue;  // counts of a page with a NaN are none
        // Sums of as many floats, none negative, in any order on either side.
        const double terms =
            double(kPagePositions) * layers_[size_t(layer)].n_kv_heads + layers_[size_t(layer)].head_dim;
        for (int page = 0; page < kPages; ++page) {
          const PageCounts got = device_.memory().counts(layer, side, page),
                           want = host_.memory().counts(layer, side, page);
          ASSERT_NEAR(got.norm2, want.norm2, 2 * terms * 0x1p-24 * want.norm2) << what << ", page " << page;
          ASSERT_NEAR(got.error2, want.error2, 2 * terms * 0x1p-24 * want.error2) << what << ", page " << page;
        }
      }
  }

 private:
  std::vector<KvMetricView> views() const {
    std::vector<KvMetricView> views;
    for (size_t i = 0; i < metrics_.size(); ++i) {
      views.push_back({metrics_[i], metrics_[i]});
      if (layers_[i].v_is_k) views.back().v = {};
    }
    return views;
  }
  std::unique_ptr<HostKvMemory> host_memory(int n_pages, int n_slots) const {
    return std::make_unique<HostKvMemory>(layers_, views(), nullptr, n_pages, n_slots);
  }

  void append(int layer, DeviceStep& step, const std::vector<SeqTokens>& seqs, int n) {
    const KvLayerConfig& config = layers_[size_t(layer)];
    const int64_t n_rows = int64_t(n) * config.n_kv_heads, width = int64_t(config.n_kv_heads) * config.head_dim;
    StepValues values{normal_floats(rng_.next(), n_rows * kGroup * config.head_dim),
                      row_values(rng_, n_rows, config.head_dim, outliers_),
                      row_values(rng_, n_rows, config.head_dim, outliers_)};
    const gpu::Buffer q_out = step.append(layer, kGroup, values, [](auto&&...) {});

    const auto& host = static_cast<HostKvMemory&>(host_.memory());
    const KvTiles &k = host.tiles(layer, KvSide::k), &v = host.tiles(layer, KvSide::v);
    int row = 0;
    for (const SeqTokens& s : seqs) {
      for (const KvSpan& span :
           cut_span(host_.span(s.seq, row, s.n_tokens), most_rows_at_once(k, v), host_.calibrates(s.seq)))
        kv_append(context_, k, v, {&span, 1}, {values.k.data(), n, width}, {values.v.data(), n, width});
      row += s.n_tokens;
    }
    std::vector<float> q(values.q.size());
    gpu::download(stream_, q.data(), q_out.as<void>(), 4 * ssize(q));
    stream_.synchronize();
    if (step.q_weights()) check_weights(layer, step.q_weights(), seqs, values.q);
    for (size_t at = 0; at < q.size(); at += size_t(config.head_dim)) k.rotation.forward(&values.q[at]);
    ASSERT_EQ(q, values.q) << "queries in cache space";
  }

  /// Of queries q [n, heads, head_dim] of the model, where their sequence had a centre before.
  void check_weights(int layer, const float* on_device, const std::vector<SeqTokens>& seqs,
                     const std::vector<float>& q) {
    const auto& host = static_cast<HostKvMemory&>(host_.memory());
    const KvTiles& k = host.tiles(layer, KvSide::k);
    const size_t dim = size_t(k.head_dim), width = size_t(k.n_kv_heads * kGroup) * dim;
    std::vector<float> got(q.size()), want(dim);
    gpu::download(stream_, got.data(), on_device, 4 * ssize(got));
    stream_.synchronize();
    size_t row = 0;
    for (const SeqTokens& s : seqs) {
      const KvSpan span = host_.span(s.seq, int(row), s.n_tokens);
      for (size_t i = row * width; i < (row + size_t(s.n_tokens)) * width && span.n_past >= kCalibration; i += dim) {
        const int head = int(i % width / dim);
        centre_weights(k.turn, &q[i], k.centre_of(span.slot, head / kGroup), 1, want.data());
        for (int j = 0; j < k.turn.pitch(); ++j) ASSERT_EQ(got[i + size_t(j)], want[size_t(j)]) << "angle " << j;
      }
      row += size_t(s.n_tokens);
    }
  }

  const gpu::Stream& stream_;
  const std::vector<KvLayerConfig> layers_;
  const std::vector<std::vector<float>> metrics_;
  const ModelPlan plan_;
  SequencePool host_, device_;
  const bool outliers_;
  int n_sequences_ = 0;
  CpuContext context_{1};
  Rng rng_{5};
};

class AppendCuda : public OnDevice {
 protected:
  /// Prompts, single tokens and short spans of two sequences, through calibration and out of windows.
  void steps(const std::string& what, std::vector<KvLayerConfig> layers, bool outliers) {
    for (KvLayerConfig& layer : layers)  // kernels of tensor cores know pairs from the first channel on
      layer.rope = rope_of(layer.head_dim, device_tiles(layer).ok ? uint64_t(layer.n_kv_heads % 2) : 2);
    Twins twins(stream(), std::move(layers), outliers);
    const std::array seqs{twins.open(), twins.open()};
    const std::vector<std::pair<int, int>> steps = {{1, 0},  {40, 3}, {2, 16}, {17, 20}, {1, 1},   {7, 22},
                                                    {90, 5}, {1, 30}, {16, 1}, {1, 1},   {15, 40}, {4, 130}};
    for (const auto& [a, b] : steps) {
      std::vector<SeqTokens> batch;
      if (a > 0) batch.push_back({seqs[0], a});
      if (b > 0) batch.push_back({seqs[1], b});
      twins.step(batch);
      twins.check(seqs, what);
      if (HasFatalFailure()) return;
    }
    // Token by token across the borders of a tile.
    for (int i = 0; i < 34; ++i) twins.step({{seqs[1], 1}, {seqs[0], 1}});
    twins.check(seqs, what);
  }
};

struct NamedLayer {
  const char* name;
  KvLayerConfig layer;
};

/// Every kind of tile in the order of tensor cores on either side, with and without rotations, windows and sinks.
std::vector<NamedLayer> fragment_layers(int dim) {
  const KvPolicy window{Rotation::hadamard, false, 32, 4}, wide{Rotation::planar, false, 96, 0};
  KvPolicy weighted{Rotation::hadamard, true, 96, 4, KvScale::unbiased, KvRounding::weighted, "i8r"};
  return {
      {"f16/q8_0", {side("f16"), side("q8_0"), 2, dim}},
      {"bf16/i8r", {side("bf16"), side("i8r"), 2, dim}},
      {"q4_0/p8", {side("q4_0"), side("p8"), 2, dim}},
      {"p8 rotated, q4_0 with sinks",
       {side("p8", {Rotation::hadamard}), side("q4_0", {Rotation::planar, false, 0, 5}), 2, dim}},
      {"windows of q8_0 and q4_0", {side("q8_0", window), side("q4_0", window), 2, dim}},
      {"windows of i8r and f16", {side("i8r", window), side("f16", wide), 1, dim}},
      {"rotor-3", {side("rotor-3"), side("rotor-3"), 2, dim}},
      {"rotor-4, other rules",
       {side("rotor-4", {Rotation::planar, true, 32, 0, KvScale::norm}),
        side("rotor-3", {Rotation::hadamard, true, 64, 4, KvScale::lsq}), 2, dim}},
      {"weighted rotor-3 and rotor-4", {side("rotor-3", weighted), side("rotor-4", weighted), 1, dim}},
  };
}

/// Formats and rules that only tiles of rows hold.
std::vector<NamedLayer> row_layers(int dim) {
  return {
      {"f32", {side("f32"), side("f32", {Rotation::hadamard}), 2, dim}},
      {"rotor-3s", {side("rotor-3s"), side("rotor-3s", {Rotation::planar, true, 32, 4}), 2, dim}},
      {"rotor-3u", {side("rotor-3u"), side("rotor-3u", {Rotation::hadamard}), 2, dim}},
      {"centres without a window",
       {side("rotor-3", {Rotation::hadamard, true, 0, 0}), side("rotor-4", {Rotation::planar, true, 0, 4}), 2, dim}},
      {"scales by least squares",
       {side("p8", {Rotation::none, false, 0, 0, KvScale::lsq}),
        side("i8r", {Rotation::none, true, 32, 3, KvScale::lsq}), 2, dim}},
      {"weighted rotor-3s",
       {side("rotor-3s", {Rotation::hadamard, true, 64, 4, KvScale::norm, KvRounding::weighted}),
        side("rotor-3", {Rotation::hadamard, false, 0, 0}), 1, dim}},
  };
}

TEST_F(AppendCuda, FragmentsHoldTheHostsBits) {
  for (const auto& [name, layer] : fragment_layers(64)) {
    ASSERT_TRUE(device_tiles(layer).ok) << name;
    for (const bool outliers : {false, true}) steps(name, {layer}, outliers);
  }
}

TEST_F(AppendCuda, RowsHoldTheHostsBits) {
  for (const auto& [name, layer] : row_layers(32)) {
    ASSERT_FALSE(device_tiles(layer).ok) << name;
    const bool replaces_nan = layer.k.format->name != "f32";
    for (const bool outliers : {false, replaces_nan}) steps(name, {layer}, outliers);
  }
  // Rotor rows of the head sizes that all lanes code, held in rows as they have no window.
  const KvPolicy weighted{Rotation::hadamard, true, 0, 4, KvScale::unbiased, KvRounding::weighted};
  for (const int dim : {64, 256, 512})
    steps(fmt::format("weighted rotor rows of {}", dim),
          {{side("rotor-3", weighted), side("rotor-4", weighted), 1, dim}}, false);
  // Formats of tiles at a head_dim that has none.
  for (const int dim : {96, 192, 512})
    for (const auto& [name, layer] : fragment_layers(dim))
      if (device_tiles(layer).ok == false && layer.n_kv_heads == 2)
        steps(fmt::format("{} of {}", name, dim), {layer}, true);
}

/// Rows that are K and V in one: those that a thread holds, and wider ones.
TEST_F(AppendCuda, LatentRowsHoldTheHostsBits) {
  const KvPolicy window{Rotation::hadamard, false, 32, 4, KvScale::none, KvRounding::nearest, "i8r"};
  const auto layer_of = [](const KvSideConfig& both, int dim) {
    KvLayerConfig layer{both, both, 1, dim};
    layer.v_is_k = true;
    return layer;
  };
  for (const int dim : {96, 128}) {
    for (const KvFormat& format : kv_formats()) {
      ASSERT_FALSE(device_tiles(layer_of(side(format.name.data()), dim)).ok) << format.name;
      steps(std::string(format.name) + " of " + std::to_string(dim), {layer_of(side(format.name.data()), dim)}, false);
    }
  }
  KvPolicy nearest = side("rotor-3").policy;
  nearest.rounding = KvRounding::nearest;
  for (const auto& [name, both] : {std::pair{"f16", side("f16")},
                                   {"bf16", side("bf16", {Rotation::hadamard})},
                                   {"q8_0", side("q8_0")},
                                   {"q4_0 with a window", side("q4_0", window)},
                                   {"p8 with sinks", side("p8", {Rotation::planar, false, 0, 5})},
                                   {"rotor-3", side("rotor-3", nearest)}})
    steps(std::string(name) + " of 576", {layer_of(both, 576)}, name == std::string_view("q8_0"));
}

TEST_F(AppendCuda, WideRows) {
  for (const int dim : {128, 256})
    for (const auto& [name, layer] : fragment_layers(dim))
      if (dim == 128 || layer.k.policy.rounding == KvRounding::nearest)
        steps(std::string(name) + " of " + std::to_string(dim), {layer}, false);
}

/// Every rotor format on either side under every rule and rounding, from exact rows of either kind: tiles of several
/// sequences that leave together, among them rows of zeros and values that were clamped.
TEST_F(AppendCuda, RotorTilesThatLeaveHoldTheHostsBits) {
  for (const int dim : {64, 128, 256})
    for (const KvRounding rounding : {KvRounding::nearest, KvRounding::weighted})
      for (const KvScale rule : {KvScale::unbiased, KvScale::norm, KvScale::lsq}) {
        const KvPolicy policy{Rotation::hadamard, true, 32, 4, rule, rounding, rule == KvScale::norm ? "f16" : "i8r"};
        KvPolicy plain = policy;  // zeros stay zeros
        plain.rotation = Rotation::none, plain.centre = false;
        Twins twins(stream(),
                    {{side("rotor-3", policy), side("rotor-4", policy), 2, dim},
                     {side("rotor-4", plain), side("rotor-3", plain), 1, dim}},
                    true);
        const std::array seqs{twins.open(), twins.open()};
        for (const auto& [a, b] : {std::pair{70, 140}, {110, 40}, {12, 11}, {1, 12}}) {
          twins.step({{seqs[0], a}, {seqs[1], b}});
          twins.check(seqs, "rule " + std::to_string(int(rule)) + " of " + std::to_string(dim));
          if (HasFatalFailure()) return;
        }
      }
}

/// One launch codes what leaves all layers' windows: of more rules than a list of them has room for, and both orders.
TEST_F(AppendCuda, LayersOfDifferentKinds) {
  std::vector<KvLayerConfig> layers;
  for (const NamedLayer& named : fragment_layers(64)) layers.push_back(named.layer);
  for (const NamedLayer& named : row_layers(32)) layers.push_back(named.layer);
  steps("all kinds", layers, false);
}

/// Forks with shared pages, ways back, parking, files and copies: every one leaves the host's bits, and sequences go on
/// from there.
TEST_F(AppendCuda, PoolsDoTheSameThings) {
  const KvPolicy window{Rotation::hadamard, true, 32, 4};
  Twins twins(stream(),
              {{side("rotor-3"), side("q4_0", window), 2, 64},
               {side("q8_0"), side("q4_0"), 1, 64},
               {side("rotor-3s"), side("rotor-3", {Rotation::planar, true, 0, 4}), 2, 32}},
              false);
  const SeqId a = twins.open();
  std::vector<SeqId> open{a};
  const auto step = [&](std::vector<SeqTokens> batch, const char* what) {
    twins.step(batch);
    twins.check(open, what);
  };
  const auto opened = [&](Result<SeqId> host, Result<SeqId> device) {
    open.push_back(std::move(host).or_throw());
    EXPECT_EQ(std::move(device).or_throw(), open.back());
    return open.back();
  };
  step({{a, 150}}, "a prompt");
  const SeqId b = opened(twins.host().fork(a, 150), twins.device().fork(a, 150));
  EXPECT_EQ(twins.device().report().pages_shared, 2);
  step({{b, 3}, {a, 1}}, "behind a fork");
  step({{a, 120}, {b, 9}}, "on pages of their own");
  const SeqId c = opened(twins.host().fork(a, 250), twins.device().fork(a, 250));
  twins.both([&](SequencePool& pool) { EXPECT_TRUE(pool.trim(a, 262, TrimMode::exact).or_throw().exact); });
  step({{c, 2}, {a, 17}, {b, 1}}, "behind ways back");
  twins.both([&](SequencePool& pool) { pool.park(b); });
  step({{a, 1}, {c, 30}}, "while a sequence is parked");
  twins.both([&](SequencePool& pool) { pool.unpark(b).or_throw(); });
  step({{b, 40}}, "of a sequence that was parked");

  // Images go from one kind of memory to the other.
  const SeqId d = opened(twins.host().load(twins.device().save(b)), twins.device().load(twins.host().save(b)));
  step({{d, 5}, {b, 5}}, "of a sequence from the other memory");
  const auto on_host = twins.host().checkpoint(c).or_throw(), on_device = twins.device().checkpoint(c).or_throw();
  step({{c, 33}}, "behind a checkpoint");
  const SeqId e = opened(twins.host().open(on_host), twins.device().open(on_device));
  step({{e, 33}, {a, 1}}, "from a checkpoint");

  twins.both([&](SequencePool& pool) { EXPECT_FALSE(pool.trim(a, 200, TrimMode::coded_window).or_throw().exact); });
  step({{a, 50}}, "of a coded window");
  twins.both([&](SequencePool& pool) {
    pool.shift(b, 40, 30, [](int, KvSide, float* row) { std::swap(row[0], row[1]); }).or_throw();
  });
  step({{b, 50}}, "behind a shift");
  twins.both([&](SequencePool& pool) { pool.reset(c); });
  step({{c, 70}}, "of a sequence that was reset");
}

TEST_F(AppendCuda, FillIsValidAndTheSameForTheSameSeed) {
  for (NamedLayer named : {fragment_layers(64)[6], fragment_layers(128)[2], row_layers(32)[1]}) {
    named.layer.k.policy.rounding = named.layer.v.policy.rounding = KvRounding::nearest;
    const std::vector<KvLayerConfig> layers(2, named.layer);
    SequencePool pool(std::make_unique<DeviceKvMemory>(stream(), layers, std::span<const KvMetricView>(), 4, 2),
                      nullptr);
    const SeqId a = pool.open().or_throw(), b = pool.open().or_throw();
    pool.fill(a, 200, 7).or_throw();
    pool.fill(b, 200, 7).or_throw();
    const SequenceImage image = pool.save(a), again = pool.save(b);
    pool.check_image(image).or_throw();
    for (size_t i = 0; i < image.sides.size(); ++i) ASSERT_EQ(image.sides[i].bytes, again.sides[i].bytes) << named.name;
    ASSERT_NE(image.sides[0].bytes, image.sides[2].bytes) << named.name << ": layers differ";

    // As a host's rows: finite, and about as large as real ones.
    HostKvMemory host(layers, {}, nullptr, 2, 1);
    const int32_t pages[] = {0, 1};
    std::vector<int> ring_first;
    for (const SideImage& of_side : image.sides) ring_first.push_back(of_side.ring_first);
    host.write(image, {0, 200, pages, ring_first});
    std::vector<float> row(size_t(named.layer.head_dim));
    for (const KvSide side : kKvSides) {
      double size2 = 0;
      for (int position = 0; position < 200; ++position) {
        read_cached_row(host.tiles(0, side), {.pages = pages}, 1, position, 200, row.data());
        for (const float x : row) size2 += double(x) * x;
      }
      EXPECT_GT(size2 / (200 * named.layer.head_dim), 0.1) << named.name;
      EXPECT_LT(size2 / (200 * named.layer.head_dim), 10) << named.name;
    }
  }
}

/// What stands in front of the cache: the norm of every head of Q and K, and their turn.
TEST_F(AppendCuda, NormsAndTurnsQueriesAndKeys) {
  constexpr int kKvHeads = 2, kHeads = 4;
  const int position = 200;
  for (const auto& [dim, format] : {std::pair{128, "bf16"}, {64, "bf16"}, {96, "f32"}})
    for (const bool halves : {true, false})
      for (const int n_pairs : {dim / 2, 20}) {
        const KvLayerConfig layer{side(format), side(format), kKvHeads, dim};
        DeviceKvMemory memory(stream(), {&layer, 1}, {}, 2, 1);
        const std::vector<int32_t> pages{1, 0};
        memory.set_pages(0, 0, pages);
        const auto q = normal_floats(1, kHeads * dim), kv = normal_floats(2, kKvHeads * dim),
                   weight = normal_floats(3, dim);
        std::vector<double> frequency(static_cast<size_t>(n_pairs));
        for (int i = 0; i < n_pairs; ++i) frequency[size_t(i)] = std::pow(10000.0, -double(i) / n_pairs);
        const gpu::Buffer dq = up(q), dk = up(kv), dw = up(weight), df = up(frequency),
                          rows = up(std::vector<StepRow>{{.row = 0, .position = position, .slot = 0, .ring = 0}});
        const gpu::Buffer cosines(4 * n_pairs), sines(4 * n_pairs), q_out(4 * kHeads * dim);
        const StepRows step{.n = 1, .rows = rows.as<StepRow>(), .pages = memory.page_table(), .page_pitch = 2};
        device_rope_angles(stream(), step, n_pairs, df.as<double>(), 1.25f, cosines.as<float>(), sines.as<float>());
        device_append(stream(), {.rows = step,
                                 .n_heads = kHeads,
                                 .k_tiles = memory.tiles(0, KvSide::k),
                                 .v_tiles = memory.tiles(0, KvSide::v),
                                 .q = dq.as<float>(),
                                 .k = dk.as<float>(),
                                 .v = dk.as<float>(),
                                 .q_pitch = kHeads * dim,
                                 .k_pitch = kKvHeads * dim,
                                 .v_pitch = kKvHeads * dim,
                                 .q_norm = dw.as<float>(),
                                 .k_norm = dw.as<float>(),
                                 .norm_eps = 1e-5f,
                                 .cosines = cosines.as<float>(),
                                 .sines = sines.as<float>(),
                                 .n_pairs = n_pairs,
                                 .rope_halves = halves,
                                 .q_out = q_out.as<float>()});
        // In double. Two floats are rounded on the way (the norm's and the turned value), each sum of two products.
        const auto expected = [&](const float* x) {
          double size2 = 0;
          for (int d = 0; d < dim; ++d) size2 += double(x[d]) * x[d];
          std::vector<double> y(static_cast<size_t>(dim));
          for (int d = 0; d < dim; ++d)
            y[size_t(d)] = x[d] / std::sqrt(size2 / dim + double(1e-5f)) * weight[size_t(d)];
          for (int i = 0; i < n_pairs; ++i) {
            double &first = y[size_t(halves ? i : 2 * i)], &second = y[size_t(halves ? i + n_pairs : 2 * i + 1)];
            const double angle = position * frequency[size_t(i)], c = 1.25 * std::cos(angle),
                         s = 1.25 * std::sin(angle);
            const double turned = first * c - second * s;
            second = first * s + second * c;
            first = turned;
          }
          return y;
        };
        // A cosine, the normed value, two products and their sum: five roundings of at most 1.25 (|a| + |b|).
        const auto near = [&](double got, const std::vector<double>& want, size_t d, double more) {
          double size = 0;
          for (const double y : want) size = std::max(size, std::abs(y));
          ASSERT_NEAR(got, want[d], 5 * 0x1p-24 * 2 * 1.25 * size + more * std::abs(want[d])) << dim << ", " << d;
        };
        const auto got_q = down(q_out.as<float>(), kHeads * dim);
        for (int h = 0; h < kHeads; ++h) {
          const auto want = expected(&q[size_t(h * dim)]);
          for (int d = 0; d < dim; ++d) near(got_q[size_t(h * dim + d)], want, size_t(d), 0);
        }
        std::vector<float> row(static_cast<size_t>(dim));
        const auto read = [&](KvSide side, int h) {
          const auto bytes =
              memory.row_bytes(0, side, DeviceKvMemory::RowForm::coded, pages[position / kPagePositions], h, position);
          layer.k.format->decode(bytes.data(), dim, {}, row.data());
        };
        const double rounded = format == std::string("bf16") ? 0x1p-8 : 0;
        for (int h = 0; h < kKvHeads; ++h) {
          read(KvSide::k, h);
          const auto want = expected(&kv[size_t(h * dim)]);
          for (int d = 0; d < dim; ++d) near(row[size_t(d)], want, size_t(d), rounded);
          read(KvSide::v, h);
          for (int d = 0; d < dim; ++d) {
            const float x = kv[size_t(h * dim + d)];
            ASSERT_NEAR(row[size_t(d)], x, rounded * std::abs(x));
          }
        }
      }
}

}  // namespace
}  // namespace ridge
