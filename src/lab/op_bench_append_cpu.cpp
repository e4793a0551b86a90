// Appending on the CPU, through the cache's own stores. nearest: codes rounded to nearest, whatever the policy says.
// weighted: as the policy says, under a metric like those that models have.
//
// Calls go forward: each appends the next n_new positions, so that with a window the tiles that leave it are coded as
// often as in a model. Sets stand at different places of a tile, so that calls in turn over 32 sets hold one coding;
// with fewer sets a sample is that many turns. Going back to n_keys is not timed. A copy of the rows, which the append
// turns in place, is.
#include <cmath>
#include <cstring>
#include <numeric>

#include "lab/op_data.h"
#include "lab/op_kernels.h"
#include "op/kv_append/rounding.h"

namespace ridge::lab {
namespace {

constexpr int kTile = 32;    // positions that a windowed cache codes together
constexpr int kBatch = 256;  // positions of an append that fills
constexpr int kLead = 512;   // positions in front of n_keys that are filled; the calibration's are too
constexpr int kFirst = 64;

/// Calls after which the same positions of tiles are reached.
int period(const OpProblem& p) { return p.n_new < kTile ? kTile / std::gcd(kTile, p.n_new) : 1; }
/// Positions behind n_keys.
int room(const OpProblem& p) {
  const int turn = period(p) * p.n_new;
  return turn * (1 + std::max(1, 512 / turn));
}
int n_ctx(const OpProblem& p) { return p.n_keys + room(p); }
int64_t width(const OpProblem& p) { return int64_t(p.n_kv_heads) * p.head_dim; }

/// [n_kv_heads, head_dim, head_dim]: the identity and a few directions that matter more.
std::vector<float> make_metric(const OpProblem& p, uint64_t seed) {
  constexpr int kDirections = 8;
  const int dim = p.head_dim;
  std::vector<float> metric(size_t(p.n_kv_heads) * size_t(dim) * size_t(dim), 0.0f);
  for (int head = 0; head < p.n_kv_heads; ++head) {
    const auto directions = random_values(seed + uint64_t(head), int64_t(kDirections) * dim, 0.5);
    float* form = metric.data() + int64_t(head) * dim * dim;
    for (int i = 0; i < dim; ++i)
      for (int j = 0; j < dim; ++j) {
        float sum = i == j ? 1.0f : 0.0f;
        for (int d = 0; d < kDirections; ++d) sum += directions[size_t(d * dim + i)] * directions[size_t(d * dim + j)];
        form[i * dim + j] = sum;
      }
  }
  return metric;
}

/// One side: its rows, and what stores must hold of them.
class AppendSide {
 public:
  AppendSide(const OpProblem& p, KvSideConfig config, bool weighted, CpuContext& context, uint64_t seed)
      : p_(p), config_(std::move(config)), pool_(p.head_dim, seed), rotation_(config_.policy.rotation, 0, p.head_dim) {
    if (!weighted) config_.policy.rounding = KvRounding::nearest;
    if (config_.policy.rounding == KvRounding::weighted) {
      metric_ = make_metric(p, seed + 1000);
      cache_metric_ = metric_in_cache_space(rotation_, p.head_dim, metric_);
      round_ = select_round_row(context, p.head_dim);
    }
    rows_.resize(size_t(room(p) * width(p)));
    copy_rows(p.n_keys, room(p), rows_.data());
    expected_.resize(size_t(room(p)) * size_t(p.n_kv_heads));
  }

  KvStore make_store() const { return KvStore(config_, 0, p_.n_kv_heads, p_.head_dim, n_ctx(p_), metric_, round_); }
  /// The rows of positions [first, first + n) of the model, not in cache space.
  void copy_rows(int first, int n, float* out) const {
    for (int i = 0; i < n; ++i)
      for (int head = 0; head < p_.n_kv_heads; ++head)
        std::memcpy(out + i * width(p_) + int64_t(head) * p_.head_dim,
                    pool_.row(RowPool::index(head, first + i)).data(), sizeof(float) * size_t(p_.head_dim));
  }
  /// The same of positions from n_keys on, made before.
  const float* rows_at(int position) const { return rows_.data() + (position - p_.n_keys) * width(p_); }

  /// Fills a store to its end.
  void fill(CpuContext& context, KvStore& store, KvScratch& scratch) const {
    std::vector<float> rows(size_t(kBatch * width(p_)));
    const int lead = std::max(kLead, store.layout().ring_rows), from = std::max(kFirst, p_.n_keys - lead);
    for (int past = 0; past < n_ctx(p_);) {
      const int end = past < kFirst ? std::min(kFirst, n_ctx(p_)) : n_ctx(p_), n = std::min(kBatch, end - past);
      copy_rows(past, n, rows.data());
      store.append(context, past, View2<float>(rows.data(), n, width(p_)), scratch);
      past = past + n == kFirst ? std::max(kFirst, from) : past + n;
    }
  }

  /// Bytes of positions [first, n), n_keys <= first, that differ from what the formats' encoders give.
  int64_t different_bytes(const KvStore& store, int first, int n) {
    const KvSide side = store.decode_side(n);
    int64_t different = 0;
    for (int s = 0; s < side.n_segments; ++s) {
      const KvSegment& segment = side.segments[size_t(s)];
      for (int i = std::max(0, first - segment.first); i < segment.count; ++i)
        for (int head = 0; head < p_.n_kv_heads; ++head) {
          const std::byte* found = segment.rows + head * segment.head_stride + i * segment.row_bytes;
          const std::vector<std::byte>& right = expected(store, segment, segment.first + i, head, n);
          for (size_t b = 0; b < right.size(); ++b) different += found[b] != right[b];
        }
    }
    return different;
  }

 private:
  struct Expected {
    std::vector<std::byte> exact, coded;
  };

  const std::vector<std::byte>& expected(const KvStore& store, const KvSegment& segment, int position, int head,
                                         int n) {
    const KvLayout& layout = store.layout();
    const int sinks = config_.policy.sinks;
    const bool is_coded = position >= sinks && position < layout.retention.coded_end(n);
    Expected& known = expected_[size_t(position - p_.n_keys) * size_t(p_.n_kv_heads) + size_t(head)];
    std::vector<std::byte>& bytes = is_coded ? known.coded : known.exact;
    if (!bytes.empty()) return bytes;
    const auto source = pool_.row(RowPool::index(head, position));
    std::vector<float> row(source.begin(), source.end());
    rotation_.forward(row.data());
    bytes.resize(size_t(segment.row_bytes));
    if (sinks > 0 || layout.ring_rows > 0) {
      // Exact rows are rounded when they come, and coded from that.
      const KvFormat& format =
          position < sinks || layout.ring_rows == 0 ? *find_kv_format("f16").or_throw() : config_.recent();
      std::vector<std::byte> rounded(size_t(format.row_bytes(p_.head_dim)));
      format.encode(row.data(), p_.head_dim, {.scale = format.policy.scale}, rounded.data());
      format.decode(rounded.data(), p_.head_dim, {}, row.data());
    }
    KvCoding coding = segment.coding(head);
    coding.scale = is_coded ? config_.policy.scale : segment.format->policy.scale;
    if (is_coded && !cache_metric_.empty())
      coding.metric = cache_metric_.data() + int64_t(head) * p_.head_dim * p_.head_dim;
    segment.format->encode(row.data(), p_.head_dim, coding, bytes.data());
    return bytes;
  }

  OpProblem p_;
  KvSideConfig config_;
  RowPool pool_;
  RowRotation rotation_;
  std::vector<float> metric_, cache_metric_;  ///< [n_kv_heads, head_dim, head_dim], empty when rounding to nearest
  RoundRow round_ = nullptr;
  std::vector<float> rows_;         ///< [room, n_kv_heads, head_dim]
  std::vector<Expected> expected_;  ///< [room, n_kv_heads], made when looked at
};

class AppendCpu : public CpuOpRun {
 public:
  AppendCpu(const OpProblem& p, CpuContext& context, bool weighted, int n_sets, uint64_t seed)
      : p_(p), context_(context), k_(p, p.k, weighted, context, seed), v_(p, p.v, weighted, context, seed + 1) {
    for (int i = 0; i < n_sets; ++i) {
      Set& set = sets_.emplace_back();
      set.n_past = n_ctx(p);
      for (int seq = 0; seq < p.n_seq; ++seq) set.sequences.emplace_back(k_.make_store(), v_.make_store());
      set.rows.resize(size_t(p.n_new * width(p)));
    }
    Sequence& first = sets_[0].sequences[0];
    k_.fill(context, first.k, first.k_scratch);
    v_.fill(context, first.v, first.v_scratch);
    for (Set& set : sets_)
      for (Sequence& sequence : set.sequences)
        if (&sequence != &first) {
          copy_state(first.k, sequence.k);
          copy_state(first.v, sequence.v);
        }
    for (size_t i = 0; i < sets_.size(); ++i) {
      go_back(sets_[i]);
      for (int call = 0; call < int(i) % period(p); ++call) this->call(int(i));
    }
  }

  void prepare(int, int calls) override {
    const int most = (calls + int(sets_.size()) - 1) / int(sets_.size());
    for (Set& set : sets_)
      if (set.n_past + most * p_.n_new > n_ctx(p_)) go_back(set);
  }
  int most_calls() const override { return (room(p_) / p_.n_new - period(p_)) * int(sets_.size()); }
  int calls_multiple() const override {
    return int(sets_.size()) < period(p_) ? period(p_) * int(sets_.size()) : period(p_);
  }

  void call(int at) override {
    Set& set = sets_[size_t(at)];
    const View2<float> rows(set.rows.data(), p_.n_new, width(p_));
    for (Sequence& sequence : set.sequences) {
      std::memcpy(rows.data, k_.rows_at(set.n_past), 4 * set.rows.size());
      sequence.k.append(context_, set.n_past, rows, sequence.k_scratch);
      std::memcpy(rows.data, v_.rows_at(set.n_past), 4 * set.rows.size());
      sequence.v.append(context_, set.n_past, rows, sequence.v_scratch);
    }
    set.n_past += p_.n_new;
  }

  OpCheck check(int at) override {
    int64_t different = 0;
    Set& set = sets_[size_t(at)];
    for (Sequence& sequence : set.sequences)
      different +=
          k_.different_bytes(sequence.k, set.first, set.n_past) + v_.different_bytes(sequence.v, set.first, set.n_past);
    return {.metric = "different bytes",
            .error = double(different),
            .bound = 0,
            .what = "all appended rows, byte for byte, against the formats' encoders"};
  }

 private:
  struct Sequence {
    Sequence(KvStore k_store, KvStore v_store) : k(std::move(k_store)), v(std::move(v_store)) {}
    KvStore k, v;
    KvScratch k_scratch, v_scratch;
  };
  struct Set {
    int n_past = 0;
    int first = 0;  ///< positions from here on are as appended; those before may have been read back from codes
    std::vector<Sequence> sequences;
    std::vector<float> rows;  ///< of one sequence's call
  };

  void copy_state(const KvStore& from, KvStore& to) const {
    std::vector<std::byte> bytes(size_t(from.state_bytes(n_ctx(p_), from.ring_first())));
    const KvSideState state = from.export_state(n_ctx(p_), bytes.data());
    to.import_state(n_ctx(p_), state, bytes.data());
  }
  /// To the first place behind n_keys that is at the same place of a tile.
  void go_back(Set& set) const {
    const int n = p_.n_keys + (set.n_past - p_.n_keys) % (period(p_) * p_.n_new);
    for (Sequence& sequence : set.sequences) {
      sequence.k.truncate(set.n_past, n);
      sequence.v.truncate(set.n_past, n);
    }
    set.n_past = set.first = n;
  }

  OpProblem p_;
  CpuContext& context_;
  AppendSide k_, v_;
  std::vector<Set> sets_;
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
          [](const OpProblem& p) {
            return p.n_seq * (kv_bytes(p.k, p.n_kv_heads, p.head_dim).total(n_ctx(p)) +
                              kv_bytes(p.v, p.n_kv_heads, p.head_dim).total(n_ctx(p))) +
                   4 * p.n_new * width(p);
          },
      .open_cpu = [](const OpProblem& p, CpuContext& context, int n_sets, uint64_t seed) -> std::unique_ptr<CpuOpRun> {
        return std::make_unique<AppendCpu>(p, context, kWeighted, n_sets, seed);
      }};
}

}  // namespace

std::vector<OpKernel> cpu_append_kernels() { return {kernel_row<false>("nearest"), kernel_row<true>("weighted")}; }

}  // namespace ridge::lab
