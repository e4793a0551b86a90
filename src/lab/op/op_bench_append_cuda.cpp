// append: device_append, the launch that takes a step's Q, K and V to where they belong, of a few new tokens a
// sequence. The step stands where no tile leaves a window: that happens every 32 positions and is another launch, for
// all layers at once. Angles are zero: the arithmetic of RoPE is done and changes nothing, so that the bytes must be
// those that the host's append leaves.
//
// leaving: encode_leaving, that other launch, of one layer: the tiles that leave their windows when positions n_keys,
// n_keys + 1, ... have come. Where the policy says so, they are rounded under a metric like those that models have.
#include <algorithm>
#include <map>

#include "lab/op/device_caches.h"
#include "lab/op/host_caches.h"
#include "lab/op/op_kernels.h"
#include "op/attn/device_attention.h"
#include "op/cache/append.h"

namespace ridge::lab {
namespace {

/// Query, key and value rows of a token lie together.
int64_t row_pitch(const OpProblem& p) { return int64_t(p.n_heads + 2 * p.n_kv_heads) * p.head_dim; }
int64_t all_values(const OpProblem& p) { return p.n_seq * p.n_new * row_pitch(p); }

/// The last number of positions up to n_keys + n_new at which the n_new newest have made no tile leave; 0: there is
/// none.
int positions_of(const OpProblem& p) {
  const auto leaves = [&](KvSide side, int n) {
    const KvRetention r = KvLayout(p.layer(), side, false).tiles.retention;
    return r.window > 0 && r.coded_end(n) > r.coded_end(n - p.n_new);
  };
  int n = p.n_keys + p.n_new;
  while (n > p.n_new && (leaves(KvSide::k, n) || leaves(KvSide::v, n))) --n;
  return n > p.n_new ? n : 0;
}

int calibration_of(const OpProblem& p) {
  const auto of = [&](KvSide side) { return KvLayout(p.layer(), side, false).tiles.retention.calibration; };
  return std::max(of(KvSide::k), of(KvSide::v));
}

class AppendOnDevice : public OpRun {
 public:
  AppendOnDevice(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : p_(p),
        n_keys_(positions_of(p)),
        caches_(p, stream, n_sets, n_keys_, seed + 1),
        expected_(p.nearest_layer(), {}, nullptr, p.n_seq, n_keys_),
        rows_host_(random_values(seed, all_values(p))),
        rows_(device_sets(stream, rows_host_, n_sets)),
        q_out_(DeviceSets::of_nan(stream, int64_t(p.n_seq) * p.n_new * p.n_heads * p.head_dim, n_sets)),
        cosines_(device_sets(stream, angles(1), 1)),
        sines_(device_sets(stream, angles(0), 1)) {
    CpuContext context(1);
    for (const KvSide side : kKvSides)
      if (float* const scales = expected_.tiles(side).head_scale)
        std::fill_n(scales, p.n_seq * p.n_kv_heads, 1.0f);  // as the device's fill() leaves them
    for (int seq = 0; seq < p.n_seq; ++seq) {
      std::vector<float> k = side_rows(seq, p.n_heads), v = side_rows(seq, p.n_heads + p.n_kv_heads);
      const int64_t width = int64_t(p.n_kv_heads) * p.head_dim;
      expected_.append(context, seq, n_keys_ - p.n_new, {k.data(), p.n_new, width}, {v.data(), p.n_new, width});
    }
  }

  void queue(gpu::StreamHandle stream, int set) override {
    const float* const rows = rows_.at(set);
    device_append(stream, {.rows = caches_.rows(set),
                           .n_heads = p_.n_heads,
                           .k_tiles = caches_.tiles(KvSide::k),
                           .v_tiles = caches_.tiles(KvSide::v),
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
                           .q_out = q_out_.at(set)});
  }

  OpCheck check(const gpu::Stream&, int set) override {
    return {.metric = "different bytes",
            .error = double(different_bytes(KvSide::k, set) + different_bytes(KvSide::v, set)),
            .what = "all appended rows, byte for byte, against the host's append"};
  }

 private:
  std::vector<float> angles(float value) const {
    return std::vector<float>(size_t(p_.n_seq) * size_t(p_.n_new) * size_t(p_.head_dim / 2), value);
  }
  /// K or V rows [n_new, n_kv_heads * head_dim] of a sequence, from head `first` of the joint rows.
  std::vector<float> side_rows(int seq, int first) const {
    std::vector<float> own;
    for (int i = 0; i < p_.n_new; ++i) {
      const auto at = rows_host_.begin() + (int64_t(seq) * p_.n_new + i) * row_pitch(p_) + int64_t(first) * p_.head_dim;
      own.insert(own.end(), at, at + int64_t(p_.n_kv_heads) * p_.head_dim);
    }
    return own;
  }

  int64_t different_bytes(KvSide side, int set) const {
    const KvTiles& t = expected_.tiles(side);
    int64_t different = 0;
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      const KvSpan span = expected_.span(seq, 0, 0, n_keys_);
      for (int position = n_keys_ - p_.n_new; position < n_keys_; ++position)
        for (int head = 0; head < p_.n_kv_heads; ++head) {
          const std::byte* const right = position < t.n_sinks ? t.sink_row(seq, head, position)
                                         : position < t.retention.coded_end(n_keys_)
                                             ? t.coded_row(span.pages, head, position)
                                             : t.ring_row(seq, head, position);
          const std::vector<std::byte> found = caches_.row_bytes(side, set, seq, head, position);
          for (size_t i = 0; i < found.size(); ++i) different += found[i] != right[i];
        }
    }
    return different;
  }

  OpProblem p_;
  int n_keys_;
  DeviceCaches caches_;
  HostCaches expected_;
  std::vector<float> rows_host_;
  DeviceSets rows_, q_out_, cosines_, sines_;
};

Support append_support(const OpProblem& p, const OpDevice&) {
  if (p.head_dim > 256 || p.head_dim % 2 != 0)
    return {false, fmt::format("head_dim {} is odd or larger than 256", p.head_dim)};
  if (p.k.policy.centre || p.v.policy.centre) return {false, "a centre is not part of this bench"};
  if (p.n_new > kShortTokens)
    return {false,
            fmt::format("{} new tokens: rows of more than {} go through a ring of their step", p.n_new, kShortTokens)};
  const int n = positions_of(p);
  if (n == 0) return {false, fmt::format("a tile leaves the window wherever {} tokens come", p.n_new)};
  if (n - p.n_new < calibration_of(p)) return {false, fmt::format("calibration takes {} positions", calibration_of(p))};
  return {};
}

class LeavingOnDevice : public OpRun {
 public:
  LeavingOnDevice(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : p_(p),
        metric_(make_metric(p.n_kv_heads, p.head_dim, seed)),
        caches_(p, stream, n_sets, n(), seed + 1, metric_) {
    std::vector<StepSpan> spans;
    for (int set = 0; set < n_sets; ++set)
      for (const StepSpan& span : caches_.spans(set)) spans.push_back(span);
    spans_ = gpu::to_device(stream, std::span<const StepSpan>(spans));
    n_spans_ = gpu::to_device(stream, std::span<const int32_t>(&p_.n_seq, 1));
    stream.synchronize();
  }

  void queue(gpu::StreamHandle stream, int set) override {
    const KvTiles &k = caches_.tiles(KvSide::k), &v = caches_.tiles(KvSide::v);
    const StepRows rows = caches_.rows(set);
    encode_leaving(stream, {.n_sides = 2,
                            .pair = {k, v},
                            .in_fragments = k.kind != TileKind::rows,
                            .weighs = k.metric || v.metric,
                            .n_kv_heads = p_.n_kv_heads,
                            .head_dim = p_.head_dim,
                            .spans = spans_.as<StepSpan>() + int64_t(set) * p_.n_seq,
                            .n_spans = n_spans_.as<int32_t>(),
                            .most_spans = p_.n_seq,
                            .most_tiles = std::max(n_leaving(k), n_leaving(v)) / kTilePositions,
                            .pages = rows.pages,
                            .page_pitch = rows.page_pitch});
  }

  OpCheck check(const gpu::Stream&, int set) override {
    return {.metric = "different bytes",
            .error = double(different_bytes(KvSide::k, set) + different_bytes(KvSide::v, set)),
            .bound = 0,
            .what = "all rows that left, byte for byte, against the formats' encoders"};
  }

 private:
  int n() const { return p_.n_keys + p_.n_new; }
  int n_leaving(const KvTiles& t) const { return t.retention.coded_end(n()) - t.retention.coded_end(p_.n_keys); }

  int64_t different_bytes(KvSide side, int set) {
    const KvTiles& t = caches_.tiles(side);
    const KvSideConfig& settings = side == KvSide::k ? p_.k : p_.v;
    const bool weighs = settings.policy.rounding == KvRounding::weighted;
    const int64_t size = int64_t(p_.head_dim) * p_.head_dim;
    const std::vector<float> metric =
        metric_in_cache_space(RowRotation(settings.policy.rotation, 0, p_.head_dim), p_.head_dim, metric_);
    int64_t different = 0;
    for (int head = 0; head < p_.n_kv_heads; ++head) {
      std::map<std::vector<float>, std::vector<std::byte>> coded;  // sequences and rings repeat few rows
      const KvCoding coding{.scale = t.scale, .fixed = 1.0f, .metric = weighs ? &metric[size_t(head * size)] : nullptr};
      for (int seq = 0; seq < p_.n_seq; ++seq)
        for (int position = t.retention.coded_end(p_.n_keys); position < t.retention.coded_end(n()); ++position) {
          const std::vector<float> row = caches_.leaving_row(side, seq, head, position);
          const auto [right, is_new] = coded.try_emplace(row, size_t(settings.format->row_bytes(p_.head_dim)));
          if (is_new) settings.format->encode(row.data(), p_.head_dim, coding, right->second.data());
          const std::vector<std::byte> found = caches_.row_bytes(side, set, seq, head, position);
          for (size_t i = 0; i < found.size(); ++i) different += found[i] != right->second[i];
        }
    }
    return different;
  }

  OpProblem p_;
  std::vector<float> metric_;
  DeviceCaches caches_;
  gpu::Buffer spans_, n_spans_;
};

Support leaving_support(const OpProblem& p, const OpDevice&) {
  if (p.head_dim > 256 || p.head_dim % 2 != 0)
    return {false, fmt::format("head_dim {} is odd or larger than 256", p.head_dim)};
  if (p.k.policy.centre || p.v.policy.centre) return {false, "a centre is not part of this bench"};
  if (p.n_keys < calibration_of(p)) return {false, fmt::format("calibration takes {} positions", calibration_of(p))};
  const auto leaves = [&](KvSide side) {
    const KvRetention r = KvLayout(p.layer(), side, false).tiles.retention;
    return r.window > 0 && r.coded_end(p.n_keys + p.n_new) > r.coded_end(p.n_keys);
  };
  if (!leaves(KvSide::k) && !leaves(KvSide::v)) return {false, "no tile leaves a window"};
  return {};
}

}  // namespace

std::vector<OpKernel> gpu_append_kernels() {
  return {
      {.op = Op::append,
       .name = "leaving",
       .supports = leaving_support,
       .set_bytes = [](const OpProblem& p) { return DeviceCaches::bytes(p, p.n_keys + p.n_new); },
       .open = [](const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) -> std::unique_ptr<OpRun> {
         return std::make_unique<LeavingOnDevice>(p, stream, n_sets, seed);
       }},
      {.op = Op::append,
       .name = "append",
       .supports = append_support,
       .set_bytes =
           [](const OpProblem& p) {
             return DeviceCaches::bytes(p, p.n_keys + p.n_new) + set_stride(4 * all_values(p)) +
                    set_stride(4 * int64_t(p.n_seq) * p.n_new * p.n_heads * p.head_dim);
           },
       .open = [](const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) -> std::unique_ptr<OpRun> {
         return std::make_unique<AppendOnDevice>(p, stream, n_sets, seed);
       }}};
}

}  // namespace ridge::lab
