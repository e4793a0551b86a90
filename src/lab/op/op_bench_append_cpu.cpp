// Appending on the CPU by kv_append(). nearest: codes rounded to nearest, whatever the policy says.
// weighted: as the policy says, under a metric like those that models have.
//
// Calls go forward: each appends the next n_new positions, so that with a window the tiles that leave it are coded as
// often as in a model. Sets stand at different places of a tile, so that calls in turn over 32 sets hold one coding;
// with fewer sets a sample is that many turns. Going back to n_keys is not timed. A copy of the rows, which the append
// turns in place, is.
#include <numeric>

#include "lab/op/host_caches.h"
#include "lab/op/op_kernels.h"
#include "op/cache/append.h"

namespace ridge::lab {
namespace {

constexpr int kTile = 32;   // positions that a windowed cache codes together
constexpr int kLead = 512;  // positions in front of n_keys that are filled; the calibration's are too

/// Calls after which the same positions of tiles are reached.
int period(const OpProblem& p) { return p.n_new < kTile ? kTile / std::gcd(kTile, p.n_new) : 1; }
/// Positions behind n_keys.
int room(const OpProblem& p) {
  const int turn = period(p) * p.n_new;
  return turn * (1 + std::max(1, 512 / turn));
}
int n_ctx(const OpProblem& p) { return p.n_keys + room(p); }
int64_t width(const OpProblem& p) { return int64_t(p.n_kv_heads) * p.head_dim; }

/// One side: its rows, and what a cache must hold of them.
class SideRows {
 public:
  SideRows(const OpProblem& p, const KvSideConfig& config, std::span<const float> metric, uint64_t seed)
      : p_(p), config_(config), pool_(p.head_dim, seed), rotation_(config.policy.rotation, 0, p.head_dim) {
    if (!metric.empty()) metric_ = metric_in_cache_space(rotation_, p.head_dim, metric);
    expected_.resize(size_t(room(p)) * size_t(p.n_kv_heads));
  }

  const RowPool& pool() const { return pool_; }

  /// Bytes of positions [first, n), n_keys <= first, that differ from what the formats' encoders give.
  int64_t different_bytes(const KvTiles& tiles, const KvSpan& span, int first, int n) {
    int64_t different = 0;
    for (int position = first; position < n; ++position)
      for (int head = 0; head < p_.n_kv_heads; ++head) {
        const bool is_sink = position < tiles.n_sinks, is_coded = !is_sink && position < tiles.retention.coded_end(n);
        const std::byte* const found = is_sink    ? tiles.sink_row(span.slot, head, position)
                                       : is_coded ? tiles.coded_row(span.pages, head, position)
                                                  : tiles.ring_row(span.slot, head, position);
        const std::vector<std::byte>& right = expected(tiles, span.slot, position, head, is_coded);
        for (size_t b = 0; b < right.size(); ++b) different += found[b] != right[b];
      }
    return different;
  }

 private:
  struct Expected {
    std::vector<std::byte> exact, coded;
  };

  const std::vector<std::byte>& expected(const KvTiles& tiles, int slot, int position, int head, bool is_coded) {
    Expected& known = expected_[size_t(position - p_.n_keys) * size_t(p_.n_kv_heads) + size_t(head)];
    std::vector<std::byte>& bytes = is_coded ? known.coded : known.exact;
    if (!bytes.empty()) return bytes;
    const auto source = pool_.row(RowPool::index(head, position));
    std::vector<float> row(source.begin(), source.end());
    rotation_.forward(row.data());
    const bool in_f16 = position < tiles.n_sinks || tiles.ring_tiles == 0;
    const KvFormat& exact = in_f16 ? *find_kv_format("f16").or_throw() : config_.recent();
    if (tiles.n_sinks > 0 || tiles.ring_tiles > 0) {
      // Exact rows are rounded when they come, and coded from that.
      std::vector<std::byte> rounded(size_t(exact.row_bytes(p_.head_dim)));
      exact.encode(row.data(), p_.head_dim, {.scale = exact.policy.scale}, rounded.data());
      exact.decode(rounded.data(), p_.head_dim, {}, row.data());
    }
    const KvFormat& format = is_coded ? *config_.format : exact;
    KvCoding coding{.scale = format.policy.scale};
    if (is_coded) {
      coding = tiles.coding(slot, head);
      coding.round = nullptr;  // the reference
      coding.metric = metric_.empty() ? nullptr : metric_.data() + int64_t(head) * p_.head_dim * p_.head_dim;
    }
    bytes.resize(size_t(format.row_bytes(p_.head_dim)));
    format.encode(row.data(), p_.head_dim, coding, bytes.data());
    return bytes;
  }

  OpProblem p_;
  KvSideConfig config_;
  RowPool pool_;
  RowRotation rotation_;
  std::vector<float> metric_;       ///< [n_kv_heads, head_dim, head_dim] in cache space, empty when rounding to nearest
  std::vector<Expected> expected_;  ///< [room, n_kv_heads], made when looked at
};

class AppendCpu : public CpuOpRun {
 public:
  AppendCpu(const OpProblem& p, CpuContext& context, bool weighted, int n_sets, uint64_t seed)
      : p_(p),
        context_(context),
        metric_(make_metric(p.n_kv_heads, p.head_dim, seed + 1000)),
        k_(p, p.k, metric_of(p.k, weighted), seed),
        v_(p, p.v, metric_of(p.v, weighted), seed + 1),
        caches_(weighted ? p.layer() : p.nearest_layer(), std::vector(1, KvMetricView{metric_, metric_}),
                select_round_row(context, p.head_dim), n_sets * p.n_seq, n_ctx(p)),
        sets_(size_t(n_sets)),
        rows_(size_t(2 * room(p) * width(p))),
        step_(size_t(2 * p.n_new * width(p))) {
    caches_.fill(context, k_.pool(), v_.pool(), p.n_keys, kCalibration, std::max(kCalibration, p.n_keys - kLead));
    for (const KvSide side : kKvSides)
      pool_rows((side == KvSide::k ? k_ : v_).pool(), caches_.tiles(side), p.n_keys, room(p), rows(side, p.n_keys));
    for (int i = 0; i < n_sets; ++i) {
      sets_[size_t(i)] = {p.n_keys, p.n_keys};
      for (int call = 0; call < i % period(p); ++call) this->call(i);
    }
  }

  void prepare(int, int calls) override {
    const int most = (calls + int(sets_.size()) - 1) / int(sets_.size());
    for (Set& set : sets_)
      if (set.n_past + most * p_.n_new > n_ctx(p_))  // back to the first place behind n_keys at this place of a tile
        set.n_past = set.first = p_.n_keys + (set.n_past - p_.n_keys) % (period(p_) * p_.n_new);
  }
  int most_calls() const override { return (room(p_) / p_.n_new - period(p_)) * int(sets_.size()); }
  int calls_multiple() const override {
    return int(sets_.size()) < period(p_) ? period(p_) * int(sets_.size()) : period(p_);
  }

  void call(int at) override {
    Set& set = sets_[size_t(at)];
    const int64_t n = p_.n_new * width(p_);
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      float* const k = step_.data();
      std::copy_n(rows(KvSide::k, set.n_past), n, k);
      std::copy_n(rows(KvSide::v, set.n_past), n, k + n);
      caches_.append(context_, at * p_.n_seq + seq, set.n_past, {k, p_.n_new, width(p_)}, {k + n, p_.n_new, width(p_)});
    }
    set.n_past += p_.n_new;
  }

  OpCheck check(int at) override {
    int64_t different = 0;
    const Set& set = sets_[size_t(at)];
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      const KvSpan span = caches_.span(at * p_.n_seq + seq, 0, 0, set.n_past);
      different += k_.different_bytes(caches_.tiles(KvSide::k), span, set.first, set.n_past) +
                   v_.different_bytes(caches_.tiles(KvSide::v), span, set.first, set.n_past);
    }
    return {.metric = "different bytes",
            .error = double(different),
            .what = "all appended rows, byte for byte, against the formats' encoders"};
  }

 private:
  struct Set {
    int n_past = 0;
    int first = 0;  ///< positions from here on are as appended; those before may be of an earlier turn
  };

  std::span<const float> metric_of(const KvSideConfig& side, bool weighted) const {
    return weighted && side.policy.rounding == KvRounding::weighted ? std::span<const float>(metric_)
                                                                    : std::span<const float>();
  }
  /// Rows of a position from n_keys on, made before.
  float* rows(KvSide side, int position) {
    return rows_.data() + (side == KvSide::k ? 0 : room(p_) * width(p_)) + (position - p_.n_keys) * width(p_);
  }

  OpProblem p_;
  CpuContext& context_;
  std::vector<float> metric_;  ///< of both sides, not rotated
  SideRows k_, v_;
  HostCaches caches_;
  std::vector<Set> sets_;
  std::vector<float> rows_;  ///< [2, room, n_kv_heads, head_dim]
  std::vector<float> step_;  ///< of one call and sequence
};

template <bool kWeighted>
OpKernel kernel_row(std::string_view name) {
  return {
      .op = Op::append,
      .name = name,
      .supports = [](const OpProblem& p, const OpDevice&) -> Support {
        if (p.k.policy.centre || p.v.policy.centre) return {false, "a centre is not part of this bench"};
        const bool weighs = p.k.policy.rounding == KvRounding::weighted || p.v.policy.rounding == KvRounding::weighted;
        if (kWeighted && !weighs) return {false, "neither side rounds weighted"};
        return {};
      },
      .set_bytes =
          [](const OpProblem& p) { return HostCaches::bytes(p.layer(), p.n_seq, n_ctx(p)) + 8 * p.n_new * width(p); },
      .open_cpu = [](const OpProblem& p, CpuContext& context, int n_sets, uint64_t seed) -> std::unique_ptr<CpuOpRun> {
        return std::make_unique<AppendCpu>(p, context, kWeighted, n_sets, seed);
      }};
}

}  // namespace

std::vector<OpKernel> cpu_append_kernels() { return {kernel_row<false>("nearest"), kernel_row<true>("weighted")}; }

}  // namespace ridge::lab
