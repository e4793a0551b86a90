// tiles: tile_attn over a cache in tiles, formats and policies as asked for. tiles-overlap: the same with programmatic
// dependent launch, each call starting while the one before it drains.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/f16.h"
#include "base/rng.h"
#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/attn/decode_cuda.h"

namespace ridge::lab {
namespace {

// Tiles of the pools that caches are made of: primes.
constexpr int kCodedTiles = 61, kRingTiles = 7, kSinkTiles = 5;

std::optional<TileKind> kind_of(std::string_view format) {
  constexpr std::pair<std::string_view, TileKind> kKinds[] = {
      {"f16", TileKind::f16},        {"bf16", TileKind::bf16},     {"q8_0", TileKind::int8_blocks},
      {"p8", TileKind::int8_blocks}, {"i8r", TileKind::int8_row},  {"q4_0", TileKind::q4},
      {"rotor-4", TileKind::rotor4}, {"rotor-3", TileKind::rotor3}};
  for (const auto& [name, kind] : kKinds)
    if (name == format) return kind;
  return std::nullopt;
}

/// A random code, and what it stands for at a scale of 1.
struct Code {
  uint32_t code;
  double value;
};
Code random_code(TileKind kind, Rng& rng) {
  const auto below = [&](uint64_t n) { return uint32_t((rng.next() >> 32) % n); };
  switch (kind) {
    case TileKind::f16: {
      const uint16_t half = f32_to_f16(float(rng.normal()));
      return {half, f16_to_f32(half)};
    }
    case TileKind::bf16: {
      const uint16_t half = f32_to_bf16(float(rng.normal()));
      return {half, bf16_to_f32(half)};
    }
    case TileKind::int8_blocks:
    case TileKind::int8_row: {
      const int value = int(below(255)) - 127;
      return {uint32_t(value) & 0xFFu, double(value)};
    }
    case TileKind::q4: {
      const uint32_t code = below(16);
      return {code, double(code) - 8};
    }
    case TileKind::rotor4: {
      const uint32_t code = below(16);
      return {code, tile_level4(int(code))};
    }
    case TileKind::rotor3: {
      const uint32_t code = below(8);
      return {code, tile_level3(int(code))};
    }
  }
  return {};
}

/// Random tiles and the rows they hold: values of about 1.
struct TilePool {
  TilePool(TileKind kind, bool is_k, int head_dim, int n_tiles, uint64_t seed) : shape(kind, head_dim) {
    Rng rng(seed);
    bytes.resize(size_t(n_tiles) * size_t(shape.bytes));
    const double unit = shape.bits == 8 ? 1.0 / 64 : kind == TileKind::q4 ? 0.25 : 1;
    for (int t = 0; t < n_tiles; ++t) {
      std::byte* const tile = bytes.data() + size_t(t) * size_t(shape.bytes);
      const auto load = [&](int at) {
        uint32_t word;
        std::memcpy(&word, tile + at, 4);
        return word;
      };
      const auto store = [&](int at, uint32_t word) { std::memcpy(tile + at, &word, 4); };
      for (int p = 0; p < kTilePositions; ++p) {
        double scale = 1;
        for (int d = 0; d < head_dim; ++d) {
          if (shape.scale_blocks > 0 && d % (head_dim / shape.scale_blocks) == 0) {
            const uint16_t half = f32_to_f16(float(unit * (0.5 + rng.uniform())));
            std::memcpy(tile + shape.scale_at(shape.scale_blocks > 1 ? d / 32 : 0, p), &half, 2);
            scale = f16_to_f32(half);
          }
          const Code code = random_code(kind, rng);
          set_tile_code(kind, shape, tile_place(is_k, p, d), code.code, load, store);
          rows.push_back(float(code.value * scale));
        }
      }
    }
  }
  std::span<const std::byte> tile(int i) const {
    return std::span(bytes).subspan(size_t(i) * size_t(shape.bytes), size_t(shape.bytes));
  }
  TileShape shape;
  std::vector<std::byte> bytes;
  std::vector<float> rows;
};

/// Sizes of one side.
struct SideSizes {
  SideSizes(const OpProblem& p, const KvSideConfig& config)
      : layout(config, p.head_dim),
        lists(int64_t(p.n_seq) * p.n_kv_heads),
        coded_tiles((p.n_keys + kTilePositions - 1) / kTilePositions),
        // A window may begin inside a tile.
        ring_tiles(layout.ring_rows > 0 ? (layout.ring_rows + kTilePositions - 1) / kTilePositions + 1 : 0),
        coded_bytes(lists * coded_tiles * TileShape(*kind_of(config.format->name), p.head_dim).bytes),
        ring_bytes(lists * ring_tiles * TileShape(*kind_of(config.policy.recent), p.head_dim).bytes),
        sink_bytes(config.policy.sinks > 0 ? lists * TileShape(TileKind::f16, p.head_dim).bytes : 0) {}
  KvLayout layout;
  int64_t lists;
  int coded_tiles, ring_tiles;
  int64_t coded_bytes, ring_bytes, sink_bytes;
};

class TiledSide {
 public:
  TiledSide(const OpProblem& p, const KvSideConfig& config, bool is_k, const gpu::Stream& stream, int n_sets,
            uint64_t seed)
      : config_(config),
        sizes_(p, config),
        n_keys_(p.n_keys),
        n_kv_heads_(p.n_kv_heads),
        rotation_(config.policy.rotation, 0, p.head_dim),
        table_(stream, std::as_bytes(rotation_.table()), 1) {
    const TilePool coded(kind(), is_k, p.head_dim, kCodedTiles, seed),
        ring(recent(), is_k, p.head_dim, kRingTiles, seed + 1),
        sinks(TileKind::f16, is_k, p.head_dim, kSinkTiles, seed + 2);
    const auto laid_out = [&](const TilePool& pool, int64_t bytes, int n_tiles, const auto& index) {
      std::vector<std::byte> out;
      out.reserve(size_t(bytes));
      for (int64_t list = 0; bytes > 0 && list < sizes_.lists; ++list)
        for (int t = 0; t < n_tiles; ++t) {
          const auto tile = pool.tile(index(list, t));
          out.insert(out.end(), tile.begin(), tile.end());
        }
      return DeviceSets(stream, out, n_sets);
    };
    coded_ = laid_out(coded, sizes_.coded_bytes, sizes_.coded_tiles, coded_tile);
    ring_ = laid_out(ring, sizes_.ring_bytes, sizes_.ring_tiles, ring_tile);
    sinks_ = laid_out(sinks, sizes_.sink_bytes, 1, [](int64_t list, int) { return sink_tile(list); });
    std::vector<float> rows = coded.rows;
    rows.insert(rows.end(), ring.rows.begin(), ring.rows.end());
    rows.insert(rows.end(), sinks.rows.begin(), sinks.rows.end());
    pool_.emplace(p.head_dim, std::move(rows));
  }

  TileSide view(int set) const {
    const int64_t head_stride = int64_t(sizes_.coded_tiles) * TileShape(kind(), int(pool_->width())).bytes;
    TileSide side{.kind = kind(),
                  .coded = coded_.at<std::byte>(set),
                  .seq_stride = n_kv_heads_ * head_stride,
                  .head_stride = head_stride,
                  .recent = recent(),
                  .ring = sizes_.ring_tiles > 0 ? ring_.at<std::byte>(set) : nullptr,
                  .ring_tiles = sizes_.ring_tiles,
                  .sinks = config_.policy.sinks > 0 ? sinks_.at<std::byte>(set) : nullptr,
                  .n_sinks = config_.policy.sinks,
                  .retention = sizes_.layout.retention,
                  .rotation = rotation_.view()};
    side.rotation.table = table_.at(0);
    return side;
  }
  const RowPool& pool() const { return *pool_; }
  /// What multiplies these rows is rounded to steps of this, 1 being its largest: 22 bits beside f16 alone, else 15.
  double step() const {
    const bool fine = kind() == TileKind::f16 && (sizes_.ring_tiles == 0 || recent() == TileKind::f16);
    return fine ? 0x1p-21 : 0x1p-14;
  }
  const RowRotation& rotation() const { return rotation_; }
  /// The pool's row at a position.
  int index(int64_t list, int64_t position) const {
    const auto tile = int(position / kTilePositions);
    const auto row = [&](int of_pool) { return of_pool * kTilePositions + int(position % kTilePositions); };
    if (position < config_.policy.sinks) return row(kCodedTiles + kRingTiles + sink_tile(list));
    if (position < sizes_.layout.retention.coded_end(n_keys_)) return row(coded_tile(list, tile));
    return row(kCodedTiles + ring_tile(list, tile % sizes_.ring_tiles));
  }

 private:
  static int coded_tile(int64_t list, int tile) { return int((list * 17 + int64_t(tile) * 37) % kCodedTiles); }
  static int ring_tile(int64_t list, int slot) { return int((list * 3 + slot) % kRingTiles); }
  static int sink_tile(int64_t list) { return int(list % kSinkTiles); }
  TileKind kind() const { return *kind_of(config_.format->name); }
  TileKind recent() const { return *kind_of(config_.policy.recent); }

  KvSideConfig config_;
  SideSizes sizes_;
  int n_keys_, n_kv_heads_;
  RowRotation rotation_;
  DeviceSets table_, coded_, ring_, sinks_;
  std::optional<RowPool> pool_;
};

int64_t query_values(const OpProblem& p) { return int64_t(p.n_seq) * p.n_heads * p.head_dim; }
int64_t scratch_bytes(const OpProblem& p) {
  return tile_attn_scratch_bytes(p.n_seq, p.n_heads, p.n_kv_heads, p.head_dim, tile_attn_blocks());
}

class AttentionTiles : public OpRun {
 public:
  AttentionTiles(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed, bool overlap)
      : p_(p),
        overlap_(overlap),
        q_host_(random_values(seed, query_values(p), 1.5)),
        q_(device_sets(stream, q_host_, n_sets)),
        out_(DeviceSets::of_nan(stream, query_values(p), n_sets)),
        n_keys_(device_sets(stream, std::vector<int32_t>(size_t(p.n_seq), p.n_keys), 1)),
        scratch_(scratch_bytes(p)),
        k_(p, p.k, true, stream, n_sets, seed + 1),
        v_(p, p.v, false, stream, n_sets, seed + 4) {}

  void queue(gpu::StreamHandle stream, int set) override {
    tile_attn(stream,
              {.n_seq = p_.n_seq,
               .n_heads = p_.n_heads,
               .n_kv_heads = p_.n_kv_heads,
               .head_dim = p_.head_dim,
               .scale = 1 / std::sqrt(float(p_.head_dim)),
               .n_keys = n_keys_.at<int32_t>(0),
               .q = q_.at(set),
               .k = k_.view(set),
               .v = v_.view(set),
               .out = out_.at(set),
               .scratch = scratch_.as<std::byte>()},
              {.overlap = overlap_});
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    if (reference_.out.empty()) make_reference();
    return check_nmse(values_of(stream, out_.at(set), query_values(p_)), reference_.out, bound_,
                      "all heads of all sequences against softmax in double over the tiles' values");
  }

 private:
  void make_reference() {
    const int dim = p_.head_dim;
    std::vector<float> q = q_host_;
    double score_error = 0, largest = 0;
    for (size_t at = 0; at < q.size(); at += size_t(dim)) k_.rotation().forward(q.data() + at);
    float q_top = 0;
    for (const float x : q) q_top = std::max(q_top, std::abs(x));
    for (int i = 0; i < k_.pool().n_rows(); ++i) {
      double square = 0;
      for (const float x : k_.pool().row(i)) square += double(x) * x;
      score_error = std::max(score_error, std::sqrt(square) * q_top * k_.step() / std::sqrt(double(dim)));
    }
    for (const float x : v_.pool().rows()) largest = std::max(largest, double(std::abs(x)));
    reference_ = attention_reference(
        p_, q, k_.pool(), v_.pool(), [&](int64_t list, int64_t position) { return k_.index(list, position); },
        [&](int64_t list, int64_t position) { return v_.index(list, position); });
    for (size_t at = 0; at < q.size(); at += size_t(dim)) v_.rotation().backward(reference_.out.data() + at);
    // Queries are rounded to steps of their largest value, in every channel by itself: a score is off by 0.3 |K|_2
    // steps on the mean, and four |K|_2 are never seen; a weight is off by as much. Weights of V are rounded to steps
    // of the largest of a tile; and float rounds as for float rows.
    const double e = 4 * score_error + 2 * reference_.score_error + 1e-5;
    const double coarse = v_.step() * largest;
    bound_ = std::pow(e * std::sqrt(reference_.amplification) + coarse / std::sqrt(reference_.mean_square), 2);
  }

  OpProblem p_;
  bool overlap_;
  std::vector<float> q_host_;
  DeviceSets q_, out_, n_keys_;
  gpu::Buffer scratch_;
  TiledSide k_, v_;
  AttentionReference reference_;
  double bound_ = 0;
};

Support supports(const OpProblem& p, const OpDevice&) {
  for (const KvSideConfig* side : {&p.k, &p.v}) {
    if (!kind_of(side->format->name)) return {false, fmt::format("{} has no tiles", side->format->name)};
    if (side->policy.recent != "f16" && side->policy.recent != "i8r")
      return {false, fmt::format("a window in {} has no tiles", side->policy.recent)};
    if (side->policy.centre) return {false, "a centre is not part of this bench"};
  }
  const char* why = tile_attn_unsupported(p.head_dim, p.k.policy.sinks, p.v.policy.sinks);
  return why ? Support{false, why} : Support{};
}

int64_t set_bytes(const OpProblem& p) {
  int64_t bytes = 2 * set_stride(4 * query_values(p));
  for (const KvSideConfig* side : {&p.k, &p.v}) {
    const SideSizes sizes(p, *side);
    bytes += set_stride(sizes.coded_bytes) + set_stride(sizes.ring_bytes) + set_stride(sizes.sink_bytes);
  }
  return bytes;
}

template <bool kOverlap>
std::unique_ptr<OpRun> open(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) {
  return std::make_unique<AttentionTiles>(p, stream, n_sets, seed, kOverlap);
}

}  // namespace

const OpKernel kAttentionTiles = {Op::attention, "tiles", supports, set_bytes, open<false>};
const OpKernel kAttentionTilesOverlap = {Op::attention, "tiles-overlap", supports, set_bytes, open<true>};

}  // namespace ridge::lab
