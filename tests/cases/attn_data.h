// Caches for attention and append tests: sequences of random rows in buffers that end at an inaccessible page, and what
// attention over them must be.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cases/attn_cases.h"
#include "cases/guarded.h"
#include "op/attn/attn.h"
#include "op/attn/kernels.h"
#include "op/cache/append.h"
#include "op/cache/rotation.h"

namespace ridge {

inline const KvFormat& kv(std::string_view name) { return *find_kv_format(name).or_throw(); }

/// A side in a format; the rotation, centre, window, sinks and recent format of `policy`, else the format's own rules.
/// Rounding is nearest: readers do not know how codes were chosen.
inline KvSideConfig side_of(const KvFormat& format, KvPolicy policy = {}) {
  policy.rounding = KvRounding::nearest;
  if (policy.scale == KvScale::none) policy.scale = format.policy.scale;
  return {&format, policy};
}
inline constexpr KvPolicy kPlainPolicy{};
inline constexpr KvPolicy kWindowPolicy{.window = 32, .sinks = 4, .recent = "i8r"};
inline constexpr KvPolicy kFullPolicy{
    .rotation = Rotation::hadamard, .centre = true, .window = 32, .sinks = 4, .recent = "i8r"};

/// Pairs of all channels, in halves; interleaved; or of the second half of the channels alone.
inline KeyRope rope_of(int head_dim, uint64_t form = 0) {
  const bool is_part = form % 3 == 2 && head_dim % 4 == 0;
  KeyRope rope{{}, is_part ? head_dim / 2 : 0, form % 3 != 1};
  const int n_pairs = head_dim / (is_part ? 4 : 2);
  for (int i = 0; i < n_pairs; ++i) rope.frequency.push_back(std::pow(1e-4, double(i) / n_pairs));
  return rope;
}

/// Bytes of one side, each kind in a buffer that ends kKvPadBytes before an inaccessible page. What was never written
/// is NaN in formats that have one.
struct FencedSide {
  KvLayout layout;
  RowRotation rotation;
  FencedBytes pages, ring, sinks;
  std::vector<float> centre, head_scale, turn;
  std::vector<PageCounts> counts;
  unsigned long long saturated = 0;
  KvTiles tiles;

  FencedSide(const KvLayerConfig& layer, KvSide side, int n_pages, int n_slots)
      : layout(layer, side, false),
        rotation(layout.config.policy.rotation, 3, layer.head_dim),
        pages(n_pages * layout.page_bytes(), kKvPadBytes),
        ring(n_slots * layout.ring_bytes(), kKvPadBytes),
        sinks(n_slots * layout.sinks_bytes(), kKvPadBytes),
        centre(size_t(n_slots * layout.centre_bytes() / 4), 0.0f),
        head_scale(size_t(n_slots * layout.head_scale_bytes() / 4), 0.0f),
        turn(turn_table(layout.frequency, n_pages * kPageTiles + layout.tiles.ring_tiles)),
        counts(size_t(n_pages)),
        tiles(layout.tiles) {
    tiles.turn.table = turn.data();
    tiles.rotation = rotation.view();
    tiles.pages = pages.data();
    tiles.ring = ring.data();
    tiles.sinks = sinks.data();
    tiles.centre = centre.empty() ? nullptr : centre.data();
    tiles.head_scale = head_scale.empty() ? nullptr : head_scale.data();
    tiles.counts = counts.data();
    tiles.saturated = &saturated;
  }
  FencedSide(const FencedSide&) = delete;
};

/// New tokens of a sequence.
struct Bring {
  int seq = 0, n = 0;
};

/// What every token of some sequences brings: standard normal rows, K with an outlier channel and an offset.
struct TokenRows {
  int n_heads, n_kv_heads, head_dim, n_ctx;
  std::vector<std::vector<float>> q, k, v;  // of each sequence, [n_ctx, heads * head_dim]

  TokenRows(const AttnCase& c, int n_seqs, uint64_t seed = 1)
      : n_heads(c.heads.n_heads), n_kv_heads(c.heads.n_kv_heads), head_dim(c.head_dim), n_ctx(c.n_keys) {
    for (int s = 0; s < n_seqs; ++s) {
      const uint64_t from = seed * 1000 + uint64_t(s) * 10;
      q.push_back(random_floats(from, int64_t(n_ctx) * n_heads * head_dim));
      k.push_back(random_floats(from + 1, int64_t(n_ctx) * n_kv_heads * head_dim));
      v.push_back(random_floats(from + 2, int64_t(n_ctx) * n_kv_heads * head_dim));
      for (size_t i = 3; i < k.back().size(); i += size_t(head_dim)) k.back()[i] += 2;
    }
  }
};

/// Sequences over one layer's cache, each on a slot and pages that are out of order.
class Caches {
 public:
  FencedSide k, v;
  float scale;

  Caches(const KvLayerConfig& layer, const TokenRows& rows, uint64_t order = 1)
      : k(layer, KvSide::k, n_pages(rows), n_slots(rows)),
        v(layer, KvSide::v, n_pages(rows), n_slots(rows)),
        scale(float(1 / std::sqrt(double(rows.head_dim)))),
        rows_(rows),
        n_past_(rows.q.size(), 0) {
    std::vector<int32_t> pages(static_cast<size_t>(n_pages(rows)));
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = int32_t(i);
    Rng rng(order);
    for (size_t i = pages.size(); i-- > 1;) std::swap(pages[i], pages[rng.next() % (i + 1)]);
    for (size_t s = 0; s < rows.q.size(); ++s) {
      const size_t each = pages.size() / rows.q.size();
      pages_.emplace_back(pages.begin() + ptrdiff_t(s * each), pages.begin() + ptrdiff_t((s + 1) * each));
      slots_.push_back(int((s + order) % size_t(n_slots(rows))));
    }
  }

  int length(int seq) const { return n_past_[size_t(seq)]; }
  KvSpan span(int seq, int first_row, int n_rows) const {
    return {.first_row = first_row,
            .n_rows = n_rows,
            .n_past = length(seq),
            .slot = slots_[size_t(seq)],
            .pages = pages_[size_t(seq)].data()};
  }

  /// Appends the next tokens of sequences in the parts that the engine would make; each(spans) follows every part.
  template <class EachPart>
  void bring(CpuContext& context, std::span<const Bring> what, const EachPart& each) {
    int n = 0;
    for (const Bring& b : what) n += b.n;
    const int64_t q_dim = int64_t(rows_.n_heads) * rows_.head_dim, kv_dim = int64_t(rows_.n_kv_heads) * rows_.head_dim;
    q_.emplace(n, q_dim), out_.emplace(n, q_dim, 7);
    GuardedMatrix k_rows(n, kv_dim), v_rows(n, kv_dim, 5);
    std::vector<std::vector<KvSpan>> parts;
    int row = 0;
    for (const Bring& b : what) {
      const auto copy = [&](const std::vector<std::vector<float>>& from, GuardedMatrix& to, int64_t dim) {
        for (int i = 0; i < b.n; ++i)
          std::copy_n(&from[size_t(b.seq)][size_t((length(b.seq) + i) * dim)], dim, &to.view()(row + i, 0));
      };
      copy(rows_.q, *q_, q_dim), copy(rows_.k, k_rows, kv_dim), copy(rows_.v, v_rows, kv_dim);
      const bool calibrates = (k.layout.calibrates() || v.layout.calibrates()) && length(b.seq) < kCalibration;
      const auto cut = cut_span(span(b.seq, row, b.n), most_rows_at_once(k.tiles, v.tiles), calibrates);
      if (parts.size() < cut.size()) parts.resize(cut.size());
      for (size_t i = 0; i < cut.size(); ++i) parts[i].push_back(cut[i]);
      row += b.n;
    }
    for (const std::vector<KvSpan>& part : parts) {
      kv_append(context, k.tiles, v.tiles, part, k_rows.view(), v_rows.view());
      each(part);
    }
    if (!k_rows.intact() || !v_rows.intact() || !q_->intact() || !out_->intact())
      throw std::runtime_error("something wrote outside its rows");
    for (const Bring& b : what) n_past_[size_t(b.seq)] += b.n;
  }
  void bring(CpuContext& context, std::span<const Bring> what) {
    bring(context, what, [](std::span<const KvSpan>) {});
  }

  /// Queries of the tokens brought last.
  Attention problem(std::span<const KvSpan> spans) {
    return {.n_heads = rows_.n_heads,
            .scale = scale,
            .k = k.tiles,
            .v = v.tiles,
            .spans = spans,
            .q = q_ ? q_->view() : View2<float>(),
            .out = out_ ? out_->view() : View2<float>()};
  }
  /// [tokens brought last, n_heads * head_dim]
  std::vector<float> out() { return out_->values(); }
  View2<float> q() { return q_->view(); }

 private:
  static int n_slots(const TokenRows& rows) { return int(rows.q.size()) + 2; }
  static int n_pages(const TokenRows& rows) { return int(rows.q.size()) * (rows.n_ctx / kPagePositions + 1); }

  const TokenRows& rows_;
  std::vector<int> n_past_, slots_;
  std::vector<std::vector<int32_t>> pages_;
  std::optional<GuardedMatrix> q_, out_;
};

/// What the centre of the tile of a position takes from a query's score in cache space, and the product of the sizes of
/// the query and the centre: a float sum over 2 n_pairs angles is within 1.5 (head_dim + 6) u of it.
struct CentreScore {
  double score = 0, size = 0;
  CentreScore() = default;
  CentreScore(const KvTiles& k, int slot, int kv_head, int position, const float* q) {
    if (!k.centre) return;
    std::vector<float> centre(size_t(k.head_dim), 0.0f);
    k.move_row(slot, kv_head, position / kTilePositions, 1, centre.data());
    double q2 = 0, c2 = 0;
    for (int d = 0; d < k.head_dim; ++d) {
      if (!k.turn.turns(d)) continue;
      const double c = centre[size_t(d)], whole = k.centre_of(slot, kv_head)[d];
      score += q[d] * c, q2 += double(q[d]) * q[d], c2 += whole * whole;
    }
    size = std::sqrt(q2 * c2);
  }
};

/// Attention of one query in double, and how far a float kernel may be from it, element by element.
///
/// u = 2^-24. A float score is within (head_dim + 2) u scale sum|q k| of the exact one; d is the worst of these. The
/// exponent s - top is then off by at most 2 d plus its own rounding, u times the largest gap (beyond 87 the weight is
/// below e^-87, whatever it is), and exp() by 1.5e-7 plus, when partial softmaxes are merged, the same again twice. So
/// every weight is off by a factor within 1 +- e, e = 2 d + 4 u gap + 6e-7; the sums of n terms add (n + 8) u, once in
/// the numerator and once in the denominator: |error| <= (2 e + 2 (n + 8) u) sum p|v| / sum p.
struct AttendOracle {
  std::vector<double> out, bound;

  /// key(i) and value(i) give the rows the query sees, i < n, more(i) what is added to the product with a key. Kernels
  /// on tensor cores round queries, keys, weights and values to f16: by 2^-11 of a value, at least by 2^-25.
  template <class Key, class Value, class More>
  AttendOracle(const float* q, int n, int head_dim, double scale, Key key, Value value, More more, bool in_f16 = false)
      : out(size_t(head_dim)), bound(size_t(head_dim)) {
    constexpr double kUnit = 0x1p-24, kFloor = 0x1p-25;
    const double coarse = in_f16 ? 2.01 * 0x1p-11 : 0;  // of two factors
    std::vector<double> weight(size_t(n), 0.0), magnitude(size_t(head_dim), 0.0);
    double score_error = 0, top = -INFINITY, least = INFINITY, total = 0, largest = 0;
    for (int i = 0; i < n; ++i) {
      const float* row = key(i);
      const CentreScore of_centre = more(i);
      double dot = of_centre.score, size = 2 * of_centre.size, sums = 0;
      for (int d = 0; d < head_dim; ++d) {
        dot += double(q[d]) * row[d];
        size += std::abs(double(q[d]) * row[d]);
        sums += std::abs(q[d]) * std::abs(scale) + std::abs(row[d]);  // queries are rounded with the scale on them
      }
      weight[size_t(i)] = dot * scale;
      score_error = std::max(score_error,
                             ((head_dim + 2) * kUnit + coarse) * size * std::abs(scale) + (in_f16 ? kFloor * sums : 0));
      top = std::max(top, dot * scale);
      least = std::min(least, dot * scale);
    }
    for (double& w : weight) total += w = std::exp(w - top);
    for (int i = 0; i < n; ++i) {
      const float* row = value(i);
      for (int d = 0; d < head_dim; ++d) {
        out[size_t(d)] += weight[size_t(i)] * row[d] / total;
        magnitude[size_t(d)] += weight[size_t(i)] * std::abs(row[d]) / total;
        largest = std::max(largest, double(std::abs(row[d])));
      }
    }
    const double e = 2 * score_error + 4 * kUnit * std::min(top - least, 87.0) + 6e-7;
    for (size_t d = 0; d < out.size(); ++d)
      bound[d] = (2 * e + coarse + 2 * (n + 8) * kUnit) * magnitude[d] + n * (in_f16 ? 2 * kFloor : 2e-38) * largest;
  }
};

}  // namespace ridge
