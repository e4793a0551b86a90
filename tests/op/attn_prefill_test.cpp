// Prefill attention against the oracle and against decode: every query sees exactly the rows that token-by-token decode
// would have shown it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "base/f16.h"
#include "cases/attn_data.h"

namespace ridge {
namespace {

CpuContext& test_context() {
  static CpuContext context(2);
  return context;
}

/// One side during prefill: exact rows (fp16 values, so that decode can be given the same numbers) and coded rows.
struct Side {
  const KvFormat& format;
  int n_kv_heads, n_keys, head_dim, exact_first;
  KvRetention retention;
  int sinks;
  std::vector<float> exact, decoded;  // [n_kv_heads, n_keys, head_dim]
  std::vector<float> exact_tail, sink_rows, head_scales;
  FencedBytes coded;

  Side(const KvFormat& f, const HeadLayout& heads, int keys, int dim, KvRetention r, int n_sinks, int n_past,
       uint64_t seed)
      : format(f),
        n_kv_heads(heads.n_kv_heads),
        n_keys(keys),
        head_dim(dim),
        exact_first(r.coded_end(n_past)),
        retention(r),
        sinks(n_sinks),
        exact(random_floats(seed, int64_t(n_kv_heads) * keys * dim)),
        decoded(exact.size()),
        coded(int64_t(n_kv_heads) * coded_rows() * f.row_bytes(dim), kKvPadBytes) {
    const int64_t row_bytes = f.row_bytes(dim);
    for (float& x : exact) x = f16_to_f32(f32_to_f16(x));
    for (int h = 0; h < n_kv_heads; ++h) {
      head_scales.push_back(1 + 0.125f * float(h));
      const KvCoding coding{.fixed = f.head_scale ? head_scales.back() : 0.0f};
      for (int i = 0; i < r.coded_end(keys); ++i) {
        std::byte* row = coded.data() + (h * coded_rows() + i) * row_bytes;
        const int64_t at = (int64_t(h) * keys + i) * dim;
        // A sink is never coded: what lies in its place must not matter.
        if (i < sinks) std::fill_n(row, row_bytes, std::byte(0xFF));
        else format.encode(&exact[size_t(at)], dim, coding, row);
        format.decode(row, dim, coding, &decoded[size_t(at)]);
      }
      const auto head = exact.begin() + int64_t(h) * keys * dim;
      exact_tail.insert(exact_tail.end(), head + int64_t(exact_first) * dim, head + int64_t(keys) * dim);
      for (int i = 0; i < sink_stride(); ++i)
        for (int d = 0; d < dim; ++d) sink_rows.push_back(i < std::min(sinks, keys) ? head[int64_t(i) * dim + d] : NAN);
    }
  }
  int64_t coded_rows() const { return retention.coded_end(n_keys) + 1; }
  int sink_stride() const { return sinks + 2; }

  PrefillSide args() const {
    return {.format = &format,
            .rows = coded.data(),
            .row_bytes = format.row_bytes(head_dim),
            .head_stride = coded_rows() * format.row_bytes(head_dim),
            .retention = retention,
            .sinks = sinks,
            .sink_stride = sink_stride(),
            .sink_rows = sink_rows.data(),
            .exact = exact_tail.data(),
            .exact_first = exact_first,
            .head_scale = format.head_scale ? head_scales.data() : nullptr};
  }
  /// The row a query sees when the cache holds `n_visible` positions, written from the definition of KvRetention.
  const float* seen(int kv_head, int position, int n_visible) const {
    const int old = n_visible - retention.window;
    const bool enough = n_visible >= retention.calibration && old >= 0;
    const bool is_coded = enough && position < old / retention.tile * retention.tile && position >= sinks;
    return &(is_coded ? decoded : exact)[size_t((int64_t(kv_head) * n_keys + position) * head_dim)];
  }
};

struct Problem {
  HeadLayout heads;
  int head_dim, n_tokens, n_past;
  Side k, v;
  std::vector<float> q;
  float scale;

  Problem(HeadLayout h, int dim, int tokens, int past, const KvFormat& kf, const KvFormat& vf, KvRetention kr,
          KvRetention vr, int k_sinks, int v_sinks, uint64_t seed)
      : heads(h),
        head_dim(dim),
        n_tokens(tokens),
        n_past(past),
        k(kf, h, past + tokens, dim, kr, k_sinks, past, seed),
        v(vf, h, past + tokens, dim, vr, v_sinks, past, seed + 1),
        q(random_floats(seed + 2, int64_t(tokens) * h.n_heads * dim)),
        scale(float(1 / std::sqrt(double(dim)))) {}

  AttnPrefill args(View2<const float> q_view, View2<float> out) const {
    return {.n_heads = heads.n_heads,
            .n_kv_heads = heads.n_kv_heads,
            .head_dim = head_dim,
            .n_tokens = n_tokens,
            .n_keys = n_past + n_tokens,
            .scale = scale,
            .q = q_view,
            .k = k.args(),
            .v = v.args(),
            .out = out};
  }
  /// Computed once for all the kernels of a problem.
  const AttendOracle& oracle(int token, int head) const {
    auto& known = oracles_[{token, head}];
    const int kv_head = head / (heads.n_heads / heads.n_kv_heads), n = n_past + token + 1;
    if (!known)
      known.emplace(
          &q[size_t((token * heads.n_heads + head) * head_dim)], n, head_dim, scale,
          [&](int i) { return k.seen(kv_head, i, n); }, [&](int i) { return v.seen(kv_head, i, n); });
    return *known;
  }
  std::string name() const {
    return fmt::format(
        "heads {}/{} head_dim {} tokens {} past {} K {} window {} tile {} calibration {} sinks {}, V {} window {} tile "
        "{} "
        "calibration {} sinks {}",
        heads.n_heads, heads.n_kv_heads, head_dim, n_tokens, n_past, k.format.name, k.retention.window,
        k.retention.tile, k.retention.calibration, k.sinks, v.format.name, v.retention.window, v.retention.tile,
        v.retention.calibration, v.sinks);
  }

 private:
  mutable std::map<std::pair<int, int>, std::optional<AttendOracle>> oracles_;
};

std::vector<float> run_guarded(const AttnPrefillVariant& variant, const Problem& p) {
  const int64_t width = int64_t(p.heads.n_heads) * p.head_dim;
  GuardedMatrix q(p.n_tokens, width, 7, 1), out(p.n_tokens, width, 3, 1);
  for (int t = 0; t < p.n_tokens; ++t) std::copy_n(&p.q[size_t(t * width)], width, &q.view()(t, 0));
  variant.run(test_context(), p.args(q.view(), out.view()));
  EXPECT_TRUE(q.intact() && out.intact()) << "wrote outside the output";
  return out.values();
}

template <class Body>
void for_each_runnable(const Problem& p, const Body& body) {
  for (const AttnPrefillVariant& variant : attn_prefill_variants())
    if (variant.isa <= detect_isa() && variant.supports(p.args({}, {})).ok) {
      SCOPED_TRACE(fmt::format("{} {}", variant.name, p.name()));
      body(variant);
    }
}

void expect_within_bound(const std::vector<float>& out, const Problem& p) {
  int n_bad = 0;
  for (int t = 0; t < p.n_tokens; ++t)
    for (int head = 0; head < p.heads.n_heads; ++head) {
      const AttendOracle& oracle = p.oracle(t, head);
      for (int d = 0; d < p.head_dim; ++d) {
        const float actual = out[size_t((t * p.heads.n_heads + head) * p.head_dim + d)];
        if (std::abs(actual - oracle.out[size_t(d)]) <= oracle.bound[size_t(d)]) continue;
        if (++n_bad <= 3)
          ADD_FAILURE() << "token " << t << " head " << head << " element " << d << ": " << actual << ", exact "
                        << oracle.out[size_t(d)] << ", bound " << oracle.bound[size_t(d)];
      }
    }
}

void expect_all_within_bound(const Problem& p) {
  for_each_runnable(p, [&](const AttnPrefillVariant& variant) { expect_within_bound(run_guarded(variant, p), p); });
}

constexpr KvRetention kPlain{};  // everything coded at once: f16 and q8_0 caches
constexpr KvRetention kWindow{.window = 32, .tile = 32, .calibration = 64};

const KvFormat& kv(std::string_view name) { return **find_kv_format(name); }

TEST(AttnPrefill, EveryTokenCountAfterEveryPast) {
  for (const int n_past : {0, 5, 63, 100})
    for (const int n_tokens : {1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 64, 65, 70})
      expect_all_within_bound(Problem({6, 2}, 32, n_tokens, n_past, kv("rotor-3"), kv("q8_0"), kWindow, kPlain, 4, 0,
                                      uint64_t(n_past * 100 + n_tokens)));
}

TEST(AttnPrefill, EveryRetention) {
  for (const KvRetention retention :
       {kPlain, kWindow, KvRetention{.window = 64, .tile = 32, .calibration = 64},
        KvRetention{.window = 32, .tile = 64, .calibration = 0}, KvRetention{.window = 0, .tile = 32, .calibration = 0},
        KvRetention{.window = 0, .tile = 1, .calibration = 64}})
    for (const int sinks : {0, 4, 32, 40})
      for (const int n_past : {0, 63, 100})
        for (const auto& [k, v] : {std::pair(&kv("rotor-3"), &kv("f16")), std::pair(&kv("f16"), &kv("rotor-3")),
                                   std::pair(&kv("rotor-3"), &kv("rotor-3"))}) {
          const bool k_coded = k->name == "rotor-3", v_coded = v->name == "rotor-3";
          expect_all_within_bound(Problem({4, 2}, 16, 70, n_past, *k, *v, k_coded ? retention : kPlain,
                                          v_coded ? retention : kPlain, k_coded ? sinks : 0, v_coded ? sinks : 0, 9));
        }
}

TEST(AttnPrefill, EveryHeadLayoutHeadSizeAndPairOfFormats) {
  size_t turn = 0;
  for (const HeadLayout heads : kHeadLayouts)
    for (const int head_dim : kHeadDims) {
      std::vector<const KvFormat*> formats;
      for (const KvFormat& format : kv_formats())
        if (head_dim % format.group == 0) formats.push_back(&format);
      ++turn;
      const KvFormat& k = *formats[turn % formats.size()];
      const KvFormat& v = *formats[turn / formats.size() % formats.size()];
      expect_all_within_bound(Problem(heads, head_dim, 37, 70, k, v, turn % 2 ? kWindow : kPlain,
                                      turn % 3 ? kWindow : kPlain, turn % 2 ? 4 : 0, turn % 3 ? 4 : 0, turn));
    }
}

TEST(AttnPrefill, KernelsRefuseRetentionThatSplitsTheirTiles) {
  const Problem p({4, 2}, 16, 40, 20, kv("rotor-3"), kv("rotor-3"), {.window = 5, .tile = 1, .calibration = 0},
                  {.window = 32, .tile = 8, .calibration = 0}, 4, 4, 3);
  for (const AttnPrefillVariant& variant : attn_prefill_variants())
    EXPECT_EQ(variant.supports(p.args({}, {})).ok, variant.name == "ref") << variant.name;
  expect_all_within_bound(p);
}

TEST(AttnPrefill, EveryRowEqualsDecodeAtThatPosition) {
  const int n_past = 40, n_tokens = 70;
  const Problem p({8, 2}, 64, n_tokens, n_past, kv("rotor-3"), kv("q8_0"), kWindow, kPlain, 4, 0, 12);
  const KvFormat& f16 = kv("f16");
  // The exact rows as an f16 cache would hold them.
  const auto as_f16 = [&](const Side& side) {
    std::vector<std::byte> rows(side.exact.size() * 2);
    for (size_t i = 0; i < side.exact.size(); i += 64) f16.encode(&side.exact[i], 64, {}, &rows[2 * i]);
    return rows;
  };
  const std::vector<std::byte> k16 = as_f16(p.k), v16 = as_f16(p.v);
  CpuContext floats(2);
  floats.forced["attn_decode"] = detect_isa() == Isa::scalar ? "ref" : "split-avx2";
  for_each_runnable(p, [&](const AttnPrefillVariant& variant) {
    const std::vector<float> prefill = run_guarded(variant, p);
    for (const int t : {0, 3, 23, 24, 31, 55, 56, 69}) {
      const int n = n_past + t + 1;
      const auto side_at = [&](const Side& side, const std::vector<std::byte>& exact) {
        KvSide s;
        const auto add = [&](const KvFormat& format, const std::byte* rows, int64_t head_rows, int first, int last) {
          if (first >= last) return;
          const int64_t row_bytes = format.row_bytes(64);
          s.segments[size_t(s.n_segments++)] = {
              &format, rows + first * row_bytes, row_bytes, head_rows * row_bytes, first, last - first, nullptr};
        };
        const int coded_end = std::max(side.sinks, side.retention.coded_end(n)), ring = coded_end + (n - coded_end) / 2;
        add(f16, exact.data(), side.n_keys, 0, std::min(n, side.sinks));
        add(side.format, side.coded.data(), side.coded_rows(), side.sinks, std::min(coded_end, n));
        add(f16, exact.data(), side.n_keys, coded_end, ring);
        add(f16, exact.data(), side.n_keys, ring, n);
        return s;
      };
      std::vector<float> out(8 * 64, NAN);
      attn_decode(floats, {.n_heads = 8,
                           .n_kv_heads = 2,
                           .head_dim = 64,
                           .n_keys = n,
                           .scale = p.scale,
                           .q = &p.q[size_t(t * 8 * 64)],
                           .k = side_at(p.k, k16),
                           .v = side_at(p.v, v16),
                           .out = out.data()});
      for (int head = 0; head < 8; ++head) {
        const AttendOracle& oracle = p.oracle(t, head);
        for (int d = 0; d < 64; ++d)
          ASSERT_LE(std::abs(out[size_t(head * 64 + d)] - prefill[size_t((t * 8 + head) * 64 + d)]),
                    2 * oracle.bound[size_t(d)])
              << "token " << t << " head " << head << " element " << d;
      }
    }
  });
}

TEST(AttnPrefill, ResultDoesNotDependOnTheNumberOfThreads) {
  const Problem p({12, 2}, 64, 70, 63, kv("rotor-3"), kv("rotor-3"), kWindow, kWindow, 4, 4, 2);
  const int64_t width = 12 * 64;
  for_each_runnable(p, [&](const AttnPrefillVariant& variant) {
    std::vector<std::vector<float>> results;
    for (const int n_threads : {1, 2, 4}) {
      CpuContext context(n_threads);
      std::vector<float> out(p.q.size(), NAN);
      variant.run(context, p.args({p.q.data(), p.n_tokens, width}, {out.data(), p.n_tokens, width}));
      results.push_back(out);
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  });
}

TEST(AttnPrefill, EarlierTokensDoNotDependOnLaterOnes) {
  Problem p({4, 2}, 64, 33, 10, kv("f16"), kv("f16"), kPlain, kPlain, 0, 0, 21);
  for_each_runnable(p, [&](const AttnPrefillVariant& variant) {
    const std::vector<float> before = run_guarded(variant, p);
    const std::vector<float> kept = p.q;
    for (size_t i = size_t(20 * 4 * 64); i < p.q.size(); ++i) p.q[i] = NAN;
    const std::vector<float> after = run_guarded(variant, p);
    p.q = kept;
    for (size_t i = 0; i < before.size(); ++i) {
      if (i < size_t(20 * 4 * 64)) ASSERT_EQ(before[i], after[i]) << "element " << i;
      else ASSERT_TRUE(std::isnan(after[i])) << "element " << i;
    }
  });
}

TEST(AttnPrefill, EntryPointRefusesImpossibleShapes) {
  const Problem p({4, 2}, 16, 3, 0, kv("f16"), kv("f16"), kPlain, kPlain, 0, 0, 1);
  std::vector<float> out(p.q.size(), NAN);
  AttnPrefill a = p.args({p.q.data(), 3, 64}, {out.data(), 3, 64});
  attn_prefill(test_context(), a);
  expect_within_bound(out, p);
  a.n_keys = 2;
  EXPECT_THROW(attn_prefill(test_context(), a), Error);
  a.n_keys = 3;
  a.n_kv_heads = 3;
  EXPECT_THROW(attn_prefill(test_context(), a), Error);
}

TEST(KvRetention, CodesWholeTilesBehindTheWindowOnceCalibrated) {
  EXPECT_EQ(kPlain.coded_end(0), 0);
  EXPECT_EQ(kPlain.coded_end(17), 17);
  EXPECT_EQ(kWindow.coded_end(63), 0);
  EXPECT_EQ(kWindow.coded_end(64), 32);
  EXPECT_EQ(kWindow.coded_end(95), 32);
  EXPECT_EQ(kWindow.coded_end(96), 64);
  EXPECT_EQ((KvRetention{.window = 64, .tile = 32, .calibration = 0}).coded_end(63), 0);
}

}  // namespace
}  // namespace ridge
