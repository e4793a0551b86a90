// Cache sides for attention tests and benches: random rows, coded in segments of chosen formats, each segment in a
// buffer that ends kKvPadBytes before an inaccessible page.
#pragma once

#include <vector>

#include "cases/attn_cases.h"
#include "cases/guarded.h"
#include "op/attn/kernels.h"

namespace ridge {

/// One side of a cache and what a kernel must see in it.
class CachedSide {
 public:
  /// Rows are standard normal times `spread`.
  CachedSide(int n_kv_heads, int n_keys, int head_dim, uint64_t seed, double spread = 1)
      : n_kv_heads_(n_kv_heads),
        n_keys_(n_keys),
        head_dim_(head_dim),
        seen_(random_floats(seed, int64_t(n_kv_heads) * n_keys * head_dim)) {
    for (float& x : seen_) x *= float(spread);
    for (int h = 0; h < n_kv_heads; ++h) head_scales_.push_back(float(spread) * (1 + 0.125f * float(h)));
  }

  /// Stores positions [first, first + count) in a format; row() then gives the decoded values. A count of 0 adds
  /// nothing.
  CachedSide& add(const KvFormat& format, int first, int count) {
    if (count <= 0) return *this;
    const int64_t row_bytes = format.row_bytes(head_dim_), head_stride = (count + 1) * row_bytes;
    storage_.emplace_back((n_kv_heads_ - 1) * head_stride + count * row_bytes, kKvPadBytes);
    std::byte* rows = storage_.back().data();
    for (int h = 0; h < n_kv_heads_; ++h)
      for (int i = 0; i < count; ++i) {
        std::byte* row_at = rows + h * head_stride + i * row_bytes;
        const KvCoding coding{.fixed = format.head_scale ? head_scales_[size_t(h)] : 0.0f};
        format.encode(row(h, first + i), head_dim_, coding, row_at);
        format.decode(row_at, head_dim_, coding, row(h, first + i));
      }
    side_.segments[size_t(side_.n_segments++)] = {.format = &format,
                                                  .rows = rows,
                                                  .row_bytes = row_bytes,
                                                  .head_stride = head_stride,
                                                  .first = first,
                                                  .count = count,
                                                  .head_scale = format.head_scale ? head_scales_.data() : nullptr};
    return *this;
  }

  float* row(int kv_head, int position) { return &seen_[size_t((int64_t(kv_head) * n_keys_ + position) * head_dim_)]; }
  const float* row(int kv_head, int position) const { return const_cast<CachedSide*>(this)->row(kv_head, position); }
  const KvSide& side() const { return side_; }

 private:
  int n_kv_heads_, n_keys_, head_dim_;
  std::vector<float> seen_;         // [n_kv_heads, n_keys, head_dim]
  std::vector<float> head_scales_;  // [n_kv_heads], different so that a kernel that mixes heads up is found
  std::vector<FencedBytes> storage_;
  KvSide side_;
};

/// Sinks in f16, the middle coded, the rest in another format as a ring buffer has it: in two pieces.
inline void add_cache_like_segments(CachedSide& side, const KvFormat& coded, int n_keys,
                                    std::string_view recent_name = "f16") {
  const KvFormat &f16 = **find_kv_format("f16"), &recent = **find_kv_format(recent_name);
  const int sinks = std::min(4, n_keys), coded_end = std::max(sinks, (n_keys - 20) / 32 * 32);
  const int ring = coded_end + (n_keys - coded_end) / 3;
  side.add(f16, 0, sinks)
      .add(coded, sinks, coded_end - sinks)
      .add(recent, coded_end, ring - coded_end)
      .add(recent, ring, n_keys - ring);
}

/// Attention of one query in double, and how far a float kernel may be from it, element by element.
///
/// u = 2^-24. A float score is within (head_dim + 2) u scale sum|q k| of the exact one; d is the worst of these. The
/// exponent s - top is then off by at most 2 d plus its own rounding, u times the largest gap (beyond 87 the weight is
/// below e^-87, whatever it is), and exp() by 1.5e-7 plus, when partial softmaxes are merged, the same again twice. So
/// every weight is off by a factor within 1 +- e, e = 2 d + 4 u gap + 6e-7; the sums of n terms add (n + 8) u, once in
/// the numerator and once in the denominator: |error| <= (2 e + 2 (n + 8) u) sum p|v| / sum p.
struct AttendOracle {
  std::vector<double> out, bound;

  /// key(i) and value(i) give the rows the query sees, i < n.
  template <class Key, class Value>
  AttendOracle(const float* q, int n, int head_dim, double scale, Key key, Value value)
      : out(size_t(head_dim)), bound(size_t(head_dim)) {
    constexpr double kUnit = 0x1p-24;
    std::vector<double> weight(size_t(n), 0.0), magnitude(size_t(head_dim), 0.0);
    double score_error = 0, top = -INFINITY, least = INFINITY, total = 0, largest = 0;
    for (int i = 0; i < n; ++i) {
      const float* row = key(i);
      double dot = 0, size = 0;
      for (int d = 0; d < head_dim; ++d) {
        dot += double(q[d]) * row[d];
        size += std::abs(double(q[d]) * row[d]);
      }
      weight[size_t(i)] = dot * scale;
      score_error = std::max(score_error, (head_dim + 2) * kUnit * size * std::abs(scale));
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
      bound[d] = (2 * e + 2 * (n + 8) * kUnit) * magnitude[d] + n * 2e-38 * largest;
  }
};

}  // namespace ridge
