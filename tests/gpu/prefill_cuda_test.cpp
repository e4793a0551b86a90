// Prefill attention on tensor cores against softmax in double, over every mix of coded and exact rows.
#include "op/attn/prefill_cuda.h"

#include <fmt/format.h>

#include <cmath>

#include "base/f16.h"
#include "gpu/device_data.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr double kHalf = 0x1p-11;   // how far rounding to f16 moves a value, relative to it
constexpr double kFloor = 0x1p-25;  // and at least, where f16 has no exponent left

template <class Row>
constexpr bool kFloats = std::is_same_v<Row, float>;

double value_of(float x) { return x; }
double value_of(uint16_t x) { return f16_to_f32(x); }

template <class Row>
std::vector<Row> normal_rows(uint64_t seed, int64_t n) {
  const auto values = normal_floats(seed, n);
  if constexpr (kFloats<Row>) return values;
  std::vector<Row> rows(values.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = Row(f32_to_f16(values[i]));
  return rows;
}

/// Attention of one query in double, and how far prefill_attn() may be from it (prefill_cuda.h), element by element.
///
/// Score i is off by d_i: roundings of q and k relative to sum |q k|, their floors, and dim + 8 sums of 2^-22. A weight
/// is then off by a factor within 1 +- e: the largest d_i (once: the maximum is taken of the same scores), the
/// difference's rounding, and 2^-21 for exp2 here and each time the maximum rises. Numerator and denominator have these
/// alike; the numerator alone has weights and values rounded to f16, and both have n sums.
struct HalvesOracle {
  std::vector<double> out, bound;

  template <class Row, class Key, class Value>
  HalvesOracle(const float* q, int n, int dim, double scale, int planes, Row, Key key, Value value)
      : out(size_t(dim)), bound(size_t(dim)) {
    const double q_unit = planes == 1 ? kHalf : kHalf * kHalf, row_unit = kFloats<Row> ? kHalf : 0;
    const double row_floor = kFloats<Row> ? kFloor : 0;
    std::vector<double> weight(size_t(n), 0.0), magnitude(size_t(dim), 0.0), size_of_v(size_t(dim), 0.0);
    double score_error = 0, top = -INFINITY, least = INFINITY, total = 0;
    for (int i = 0; i < n; ++i) {
      const Row* row = key(i);
      double dot = 0, size = 0, q_size = 0, k_size = 0;
      for (int d = 0; d < dim; ++d) {
        const double k = value_of(row[d]);
        dot += q[d] * k;
        size += std::abs(q[d] * k);
        q_size += std::abs(q[d]);
        k_size += std::abs(k);
      }
      weight[size_t(i)] = dot * scale;
      score_error = std::max(score_error, scale * size * (q_unit + row_unit + (dim + 8) * 0x1p-22) +
                                              kFloor * k_size * std::log(2.0) + scale * row_floor * q_size);
      top = std::max(top, dot * scale);
      least = std::min(least, dot * scale);
    }
    for (double& w : weight) total += w = std::exp(w - top);
    for (int i = 0; i < n; ++i) {
      const Row* row = value(i);
      for (int d = 0; d < dim; ++d) {
        const double v = value_of(row[d]);
        out[size_t(d)] += weight[size_t(i)] * v / total;
        magnitude[size_t(d)] += weight[size_t(i)] * std::abs(v) / total;
        size_of_v[size_t(d)] += std::abs(v);
      }
    }
    const double e = score_error + std::min(top - least, 87.0) * 0x1p-23 + (n / 8 + 16) * 0x1p-21;
    for (size_t d = 0; d < out.size(); ++d)
      bound[d] = (2 * std::expm1(1.01 * e) + kHalf + row_unit + (n + 16) * 0x1p-21) * magnitude[d] +
                 1.01 * kFloor * size_of_v[d] / total + row_floor;
  }
};

struct Shape {
  int n_heads, n_kv_heads, head_dim, n_past, n_tokens, n_seq = 2;
  int n_keys() const { return n_past + n_tokens; }
};

/// One side's rows: what is coded and what is exact differ everywhere, so a row taken from the wrong place shows.
template <class Row>
struct Side {
  Side(const gpu::Stream& stream, uint64_t seed, const Shape& s, KvRetention r) : shape(s), retention(r) {
    n_coded = r.coded_end(s.n_keys());
    exact_first = std::min(s.n_keys(), r.coded_end(s.n_past));
    const int64_t heads = int64_t(s.n_seq) * s.n_kv_heads;
    coded = normal_rows<Row>(seed, heads * n_coded * s.head_dim);
    exact = normal_rows<Row>(seed + 1, heads * (s.n_keys() - exact_first) * s.head_dim);
    on_device[0] = gpu::to_device(stream, std::span<const Row>(coded));
    on_device[1] = gpu::to_device(stream, std::span<const Row>(exact));
    stream.synchronize();
  }
  const Row* row(int seq_head, int position, int n_visible) const {
    const int64_t dim = shape.head_dim;
    if (position < retention.coded_end(n_visible)) return &coded[size_t((seq_head * n_coded + position) * dim)];
    return &exact[size_t((seq_head * (shape.n_keys() - exact_first) + position - exact_first) * dim)];
  }
  DeviceKvRows<Row> view() const {
    return {.coded = on_device[0].as<Row>(),
            .n_coded = n_coded,
            .exact = on_device[1].as<Row>(),
            .exact_first = exact_first,
            .retention = retention};
  }
  Shape shape;
  KvRetention retention;
  int n_coded, exact_first;
  std::vector<Row> coded, exact;
  gpu::Buffer on_device[2];
};

class PrefillCuda : public OnDevice {
 protected:
  static constexpr int kGuard = 64;  // floats on either side of the output

  template <class Row>
  DeviceAttnOver<Row> call(const Shape& s, const Side<Row>& k, const Side<Row>& v, const gpu::Buffer& q,
                           const gpu::Buffer& out) const {
    return {.n_seq = s.n_seq,
            .n_heads = s.n_heads,
            .n_kv_heads = s.n_kv_heads,
            .head_dim = s.head_dim,
            .n_tokens = s.n_tokens,
            .n_keys = s.n_keys(),
            .scale = 1 / std::sqrt(float(s.head_dim)),
            .q = q.as<float>(),
            .k = k.view(),
            .v = v.view(),
            .out = out.as<float>() + kGuard};
  }

  static size_t n_values(const Shape& s) { return size_t(s.n_seq) * s.n_tokens * s.n_heads * s.head_dim; }

  /// The output between two guards, which must be as they were.
  std::vector<float> result(const Shape& s, const gpu::Buffer& out) const {
    const auto all = down(out.as<float>(), int64_t(n_values(s)) + 2 * kGuard);
    for (int i = 0; i < kGuard; ++i) {
      EXPECT_EQ(all[size_t(i)], 7) << "before the output";
      EXPECT_EQ(all[all.size() - 1 - size_t(i)], 7) << "behind the output";
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }
  gpu::Buffer guarded(const Shape& s) const { return up(std::vector<float>(n_values(s) + 2 * kGuard, 7.0f)); }

  /// Holds prefill_attn() to the oracle, and the root mean square of its errors to what roundings make of it: q and
  /// rows are standard normal, sum (q k)^2 scale^2 is about 1, so a relative rounding of q or K moves a score by as
  /// much as one of a weight or of V moves its term; each is at most 2^-11, its mean square at most a third of the
  /// square.
  template <class Row>
  void check(const Shape& s, KvRetention k_retention, KvRetention v_retention, const PrefillPlan& plan) {
    const Side<Row> k(stream(), 20, s, k_retention), v(stream(), 30, s, v_retention);
    const auto q = normal_floats(40, int64_t(n_values(s)));
    const gpu::Buffer device_q = up(q), out = guarded(s);
    const auto a = call(s, k, v, device_q, out);
    prefill_attn(stream(), a, plan);
    const auto got = result(s, out);
    const std::string what =
        fmt::format("{} rows, head_dim {}, {} + {}, heads {}/{}, planes {}, warps {}", kFloats<Row> ? "float" : "half",
                    s.head_dim, s.n_past, s.n_tokens, s.n_heads, s.n_kv_heads, plan.planes, plan.warps);
    double error = 0, size = 0;
    for (int seq = 0; seq < s.n_seq; ++seq)
      for (int t = 0; t<s.n_tokens; t += s.n_tokens> 8 ? 5 : 1)
        for (int h = 0; h < s.n_heads; ++h) {
          const int n = s.n_past + t + 1, seq_head = seq * s.n_kv_heads + h / (s.n_heads / s.n_kv_heads);
          const size_t at = size_t(((seq * s.n_tokens + t) * s.n_heads + h) * s.head_dim);
          const HalvesOracle oracle(
              &q[at], n, s.head_dim, a.scale, plan.planes, Row(), [&](int i) { return k.row(seq_head, i, n); },
              [&](int i) { return v.row(seq_head, i, n); });
          for (int d = 0; d < s.head_dim; ++d) {
            const double want = oracle.out[size_t(d)], off = got[at + size_t(d)] - want;
            ASSERT_NEAR(got[at + size_t(d)], want, oracle.bound[size_t(d)])
                << what << ", sequence " << seq << ", token " << t << ", head " << h << ", element " << d;
            error += off * off;
            size += want * want;
          }
        }
    const int roundings = (plan.planes == 1 ? 1 : 0) + (kFloats<Row> ? 2 : 0) + 1;
    EXPECT_LE(std::sqrt(error / size), kHalf * std::sqrt(roundings / 3.0)) << what;
  }
};

constexpr KvRetention kPlain, kWindow{32, 32, 0}, kCentred{0, 1, 64}, kBoth{64, 32, 64}, kOdd{5, 1, 0};

TEST_F(PrefillCuda, IsSoftmaxForEveryWayToCutTheWork) {
  for (const int head_dim : {64, 128, 256})
    for (const PrefillPlan plan : {PrefillPlan{1, 4}, PrefillPlan{1, 8}, PrefillPlan{2, 4}, PrefillPlan{1, 0}}) {
      const Shape s{2, 1, head_dim, 75, 150, 1};
      check<float>(s, kWindow, kWindow, plan);
      check<uint16_t>(s, kWindow, kWindow, plan);
    }
}

TEST_F(PrefillCuda, IsSoftmaxOverTheRowsEachQuerySees) {
  const std::pair<KvRetention, KvRetention> mixes[] = {{kPlain, kPlain},    {kWindow, kPlain}, {kPlain, kBoth},
                                                       {kCentred, kWindow}, {kBoth, kCentred}, {kOdd, kBoth}};
  const PrefillPlan exact{.planes = 2};  // the smallest bound
  for (const int n_past : {0, 31, 64, 200})
    for (const int n_tokens : {2, 70})
      for (const auto& [k, v] : mixes) check<uint16_t>({3, 1, 64, n_past, n_tokens}, k, v, exact);
  for (const auto& [k, v] : mixes) {
    check<uint16_t>({4, 2, 128, 37, 50}, k, v, exact);
    check<float>({4, 2, 128, 63, 45}, k, v, {});
  }
}

TEST_F(PrefillCuda, TakesAnyNumberOfHeadsAndTokens) {
  for (const int n_tokens : {1, 2, 3, 17, 128, 129})
    for (const int group : {1, 5, 8}) check<uint16_t>({group, 1, 64, 3, n_tokens}, kPlain, kPlain, {});
}

TEST_F(PrefillCuda, SequencesSideBySideGiveTheBitsOfOneAlone) {
  const Shape s{4, 2, 64, 20, 90, 3};
  const Side<float> k(stream(), 20, s, kWindow), v(stream(), 30, s, kBoth);
  const gpu::Buffer q = up(normal_floats(40, int64_t(n_values(s)))), out = guarded(s);
  auto a = call(s, k, v, q, out);
  prefill_attn(stream(), a);
  const auto together = result(s, out);
  const gpu::Buffer out_alone = guarded(s);
  a.n_seq = 1;
  a.out = out_alone.as<float>() + kGuard;
  for (int seq = 0; seq < s.n_seq; ++seq) {
    prefill_attn(stream(), a);
    for (DeviceKvSide* side : {&a.k, &a.v}) {
      side->coded += s.n_kv_heads * side->n_coded * s.head_dim;
      side->exact += s.n_kv_heads * (s.n_keys() - side->exact_first) * s.head_dim;
    }
    a.q += n_values(s) / 3;
    a.out += n_values(s) / 3;
  }
  EXPECT_EQ(result(s, out_alone), together);
}

TEST_F(PrefillCuda, DeviceAttnTakesItForRowsThatMayBeRounded) {
  const Shape s{4, 2, 64, 20, 30};
  const Side<float> k(stream(), 20, s, kWindow), v(stream(), 30, s, kPlain);
  const gpu::Buffer q = up(normal_floats(40, int64_t(n_values(s)))), out = guarded(s);
  auto a = call(s, k, v, q, out);
  prefill_attn(stream(), a);
  const auto halves = result(s, out);
  for (const bool k_rounds : {false, true})
    for (const bool v_rounds : {false, true}) {
      a.k.rounds = k_rounds;
      a.v.rounds = v_rounds;
      device_attn(stream(), a);
      EXPECT_EQ(result(s, out) == halves, k_rounds && v_rounds);
    }
}

TEST_F(PrefillCuda, SaysWhatItCannotDo) {
  EXPECT_EQ(prefill_attn_unsupported(128, 2), nullptr);
  EXPECT_NE(prefill_attn_unsupported(96, 2), nullptr);
  const DeviceAttn a{
      .n_seq = 1, .n_heads = 3, .n_kv_heads = 1, .head_dim = 64, .n_tokens = 1, .n_keys = 1, .k = {}, .v = {}};
  const auto with = [&](auto change, PrefillPlan plan = {}) {
    auto changed = a;
    change(changed);
    prefill_attn(stream(), changed, plan);
  };
  EXPECT_THROW(with([](auto& x) { x.head_dim = 96; }), Error);
  EXPECT_THROW(with([](auto& x) { x.n_kv_heads = 2; }), Error);
  EXPECT_THROW(with([](auto&) {}, {.planes = 3}), Error);
  EXPECT_THROW(with([](auto&) {}, {.planes = 2, .warps = 8}), Error);
}

}  // namespace
}  // namespace ridge
