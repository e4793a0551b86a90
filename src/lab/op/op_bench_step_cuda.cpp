// step: append_decode, the one launch that takes a step's Q, K and V to where they belong. Stores are in tiles at the
// depth asked for, at a position where no tile leaves the window (which happens every 32 steps and costs another
// launch). Angles are zero: the arithmetic of RoPE is done and changes nothing, so that the bytes must be those of the
// general append.
#include <algorithm>

#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "model/device_kv.h"
#include "op/cache/decode_append_cuda.h"

namespace ridge::lab {
namespace {

int64_t row_pitch(const OpProblem& p) { return int64_t(p.n_heads + 2 * p.n_kv_heads) * p.head_dim; }

/// The last position up to n_keys at which no window loses a tile.
int position_of(const OpProblem& p) {
  const auto leaves = [](const KvSideConfig& side, int head_dim, int n) {
    const KvRetention retention = KvLayout(side, head_dim).retention;
    return retention.window > 0 && retention.coded_end(n + 1) > retention.coded_end(n);
  };
  int n = p.n_keys;
  while (n > 0 && (leaves(p.k, p.head_dim, n) || leaves(p.v, p.head_dim, n))) --n;
  return n;
}

/// Rounded to nearest: the metric of weighted rounding is used only where a tile leaves the window.
KvSideConfig nearest(KvSideConfig side) {
  side.policy.rounding = KvRounding::nearest;
  return side;
}

/// K and V of one layer, empty but for what is appended.
struct Stores {
  Stores(const OpProblem& p, const gpu::Stream& stream)
      : k(stream, nearest(p.k), true, 0, p.n_kv_heads, p.head_dim, p.n_keys + 1, p.n_seq, {}),
        v(stream, nearest(p.v), false, 0, p.n_kv_heads, p.head_dim, p.n_keys + 1, p.n_seq, {}) {}
  DeviceKvStore k, v;
};

class AppendStep : public OpRun {
 public:
  AppendStep(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : p_(p),
        rows_host_(random_values(seed, p.n_seq * row_pitch(p))),
        rows_(device_sets(stream, rows_host_, n_sets)),
        q_out_(DeviceSets::of_nan(stream, int64_t(p.n_seq) * p.n_heads * p.head_dim, n_sets)),
        n_past_(device_sets(stream, std::vector<int32_t>(size_t(p.n_seq), position_of(p)), 1)),
        cosines_(device_sets(stream, std::vector<float>(size_t(p.n_seq) * size_t(p.head_dim) / 2, 1.0f), 1)),
        sines_(device_sets(stream, std::vector<float>(size_t(p.n_seq) * size_t(p.head_dim) / 2, 0.0f), 1)),
        expected_(p, stream) {
    stores_.reserve(size_t(n_sets));
    for (int set = 0; set < n_sets; ++set) stores_.emplace_back(p, stream);
    DeviceKvScratch scratch;
    const gpu::Buffer k = side_rows(stream, p.n_heads), v = side_rows(stream, p.n_heads + p.n_kv_heads);
    expected_.k.append_tiles(stream, p.n_seq, position_of(p), 1, k.as<float>(), scratch);
    expected_.v.append_tiles(stream, p.n_seq, position_of(p), 1, v.as<float>(), scratch);
    stream.synchronize();
  }

  void queue(gpu::StreamHandle stream, int set) override {
    float* const rows = rows_.at(set);
    append_decode(stream, {.n_seq = p_.n_seq,
                           .n_heads = p_.n_heads,
                           .n_kv_heads = p_.n_kv_heads,
                           .head_dim = p_.head_dim,
                           .n_past = n_past_.at<int32_t>(0),
                           .q = rows,
                           .k = rows + int64_t(p_.n_heads) * p_.head_dim,
                           .v = rows + int64_t(p_.n_heads + p_.n_kv_heads) * p_.head_dim,
                           .q_pitch = row_pitch(p_),
                           .k_pitch = row_pitch(p_),
                           .v_pitch = row_pitch(p_),
                           .cosines = cosines_.at(0),
                           .sines = sines_.at(0),
                           .n_pairs = p_.head_dim / 2,
                           .rope_halves = true,
                           .q_out = q_out_.at(set),
                           .k_side = stores_[size_t(set)].k.append_side(),
                           .v_side = stores_[size_t(set)].v.append_side()});
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    const Stores& found = stores_[size_t(set)];
    const int64_t different = different_bytes(stream, found.k.tile_side(), expected_.k.tile_side()) +
                              different_bytes(stream, found.v.tile_side(), expected_.v.tile_side());
    return {.metric = "different bytes",
            .error = double(different),
            .bound = 0,
            .what = "the whole of both stores, byte for byte, against the general append"};
  }

 private:
  /// K or V rows [n_seq, n_kv_heads, head_dim] by themselves, from head `first` of the joint rows.
  gpu::Buffer side_rows(const gpu::Stream& stream, int first) const {
    std::vector<float> own;
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      const auto at = rows_host_.begin() + seq * row_pitch(p_) + int64_t(first) * p_.head_dim;
      own.insert(own.end(), at, at + int64_t(p_.n_kv_heads) * p_.head_dim);
    }
    gpu::Buffer rows = gpu::to_device(stream, std::span<const float>(own));
    stream.synchronize();
    return rows;
  }
  int64_t different_bytes(const gpu::Stream& stream, const TileSide& found, const TileSide& expected) const {
    const int64_t lists = int64_t(p_.n_seq) * p_.n_kv_heads;
    const auto different = [&](const std::byte* a, const std::byte* b, int64_t n) {
      const auto left = values_of(stream, a, n), right = values_of(stream, b, n);
      int64_t count = 0;
      for (size_t i = 0; i < left.size(); ++i) count += left[i] != right[i];
      return count;
    };
    return different(found.coded, expected.coded, p_.n_seq * found.seq_stride) +
           different(found.ring, expected.ring, lists * found.ring_tiles * TileShape(found.recent, p_.head_dim).bytes) +
           different(found.sinks, expected.sinks,
                     found.n_sinks > 0 ? lists * TileShape(TileKind::f16, p_.head_dim).bytes : 0);
  }

  OpProblem p_;
  std::vector<float> rows_host_;
  DeviceSets rows_, q_out_, n_past_, cosines_, sines_;
  Stores expected_;
  std::vector<Stores> stores_;
};

Support supports(const OpProblem& p, const OpDevice&) {
  if (p.n_new != 1) return {false, fmt::format("takes one token a sequence, not {}", p.n_new)};
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) return {false, "head_dim must be 64, 128 or 256"};
  for (const KvSideConfig* side : {&p.k, &p.v}) {
    TileKind kind;
    const KvRetention retention = KvLayout(*side, p.head_dim).retention;
    if (!find_tile_kind(int(side->format - kv_formats().data()), kind))
      return {false, fmt::format("{} has no tiles", side->format->name)};
    if (retention.calibration > 0) return {false, "calibration is not part of this bench"};
    if (const char* why = decode_append_unsupported(kind, side->policy.scale, retention)) return {false, why};
  }
  return {};
}

int64_t set_bytes(const OpProblem& p) {
  // Stores end on whole tiles and keep a ring and sinks: sixteen tiles a head cover them.
  constexpr int kMorePositions = 512;
  const int64_t rows = int64_t(p.n_seq) * p.n_kv_heads * (p.n_keys + kMorePositions);
  return rows * (p.k.format->row_bytes(p.head_dim) + p.v.format->row_bytes(p.head_dim)) +
         set_stride(4 * p.n_seq * row_pitch(p)) + set_stride(4 * int64_t(p.n_seq) * p.n_heads * p.head_dim);
}

}  // namespace

const OpKernel kAppendStep = {
    Op::append, "step", supports, set_bytes,
    [](const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) -> std::unique_ptr<OpRun> {
      return std::make_unique<AppendStep>(p, stream, n_sets, seed);
    }};

}  // namespace ridge::lab
