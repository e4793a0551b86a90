// The cache on a device against the host's, bit for bit: random steps of several sequences, and what a pool does to them
// in between.
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "gpu/device_step.h"
#include "op/cache/append.h"
#include "op/norm_rope/norm_rope.h"

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
      for (const bool is_k : {true, false}) {
        ASSERT_EQ(device_.memory().saturated(layer, is_k), host_.memory().saturated(layer, is_k))
            << what << ", layer " << layer;
        if (outliers_) continue;  // counts of a page with a NaN are none
        // Sums of as many floats, none negative, in any order on either side.
        const double terms = double(kPagePositions) * layers_[size_t(layer)].n_kv_heads + layers_[size_t(layer)].head_dim;
        for (int page = 0; page < kPages; ++page) {
          const PageCounts got = device_.memory().counts(layer, is_k, page),
                           want = host_.memory().counts(layer, is_k, page);
          ASSERT_NEAR(got.norm2, want.norm2, 2 * terms * 0x1p-24 * want.norm2) << what << ", page " << page;
          ASSERT_NEAR(got.error2, want.error2, 2 * terms * 0x1p-24 * want.error2) << what << ", page " << page;
        }
      }
  }

 private:
  std::vector<KvMetricView> views() const {
    std::vector<KvMetricView> views;
    for (const std::vector<float>& metric : metrics_) views.push_back({metric, metric});
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
    const KvTiles &k = host.tiles(layer, true), &v = host.tiles(layer, false);
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
    for (size_t at = 0; at < q.size(); at += size_t(config.head_dim)) k.rotation.forward(&values.q[at]);
    ASSERT_EQ(q, values.q) << "queries in cache space";
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
    Twins twins(stream(), std::move(layers), outliers);
    const std::array seqs{twins.open(), twins.open()};
    const std::vector<std::pair<int, int>> steps = {{1, 0},  {40, 3}, {2, 16}, {17, 20}, {1, 1},  {7, 22},
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
      {"p8 rotated, q4_0 with sinks", {side("p8", {Rotation::hadamard}), side("q4_0", {Rotation::planar, false, 0, 5}), 2, dim}},
      {"windows of q8_0 and q4_0", {side("q8_0", window), side("q4_0", window), 2, dim}},
      {"windows of i8r and f16", {side("i8r", window), side("f16", wide), 1, dim}},
      {"rotor-3", {side("rotor-3"), side("rotor-3"), 2, dim}},
      {"rotor-4, other rules", {side("rotor-4", {Rotation::planar, true, 32, 0, KvScale::norm}), side("rotor-3", {Rotation::hadamard, true, 64, 4, KvScale::lsq}), 2, dim}},
      {"weighted rotor-3 and rotor-4", {side("rotor-3", weighted), side("rotor-4", weighted), 1, dim}},
  };
}

/// Formats and rules that only tiles of rows hold.
std::vector<NamedLayer> row_layers(int dim) {
  return {
      {"f32", {side("f32"), side("f32", {Rotation::hadamard}), 2, dim}},
      {"rotor-3s", {side("rotor-3s"), side("rotor-3s", {Rotation::planar, true, 32, 4}), 2, dim}},
      {"rotor-3u", {side("rotor-3u"), side("rotor-3u", {Rotation::hadamard}), 2, dim}},
      {"centres without a window", {side("rotor-3", {Rotation::hadamard, true, 0, 0}), side("rotor-4", {Rotation::planar, true, 0, 4}), 2, dim}},
      {"scales by least squares", {side("p8", {Rotation::none, false, 0, 0, KvScale::lsq}), side("i8r", {Rotation::none, true, 32, 3, KvScale::lsq}), 2, dim}},
      {"weighted rotor-3s", {side("rotor-3s", {Rotation::hadamard, true, 64, 4, KvScale::norm, KvRounding::weighted}), side("rotor-3", {Rotation::hadamard, false, 0, 0}), 1, dim}},
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
  // Formats of tiles at a head_dim that has none.
  for (const auto& [name, layer] : fragment_layers(96))
    if (device_tiles(layer).ok == false && layer.n_kv_heads == 2) steps(std::string(name) + " of 96", {layer}, true);
}

TEST_F(AppendCuda, WideRows) {
  for (const int dim : {128, 256})
    for (const auto& [name, layer] : fragment_layers(dim))
      if (dim == 128 || layer.k.policy.rounding == KvRounding::nearest)
        steps(std::string(name) + " of " + std::to_string(dim), {layer}, false);
}

/// One launch codes what leaves all layers' windows: of more rules than a list of them has room for, and both orders.
TEST_F(AppendCuda, LayersOfDifferentKinds) {
  std::vector<KvLayerConfig> layers;
  for (const NamedLayer& named : fragment_layers(64)) layers.push_back(named.layer);
  for (const NamedLayer& named : row_layers(32)) layers.push_back(named.layer);
  steps("all kinds", layers, false);
}

}  // namespace
}  // namespace ridge
