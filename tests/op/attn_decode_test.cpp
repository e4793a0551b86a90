// Every decode-attention kernel and every row decoder against oracles; the bound is AttendOracle's.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "cases/attn_data.h"

namespace ridge {
namespace {

CpuContext& test_context() {
  static CpuContext context(2);
  return context;
}

std::vector<const KvFormat*> formats_for(int head_dim) {
  std::vector<const KvFormat*> formats;
  for (const KvFormat& format : kv_formats())
    if (head_dim % format.group == 0) formats.push_back(&format);
  return formats;
}

struct Problem {
  AttnCase shape;
  CachedSide k, v;
  std::vector<float> q;
  float scale;

  explicit Problem(const AttnCase& c, uint64_t seed = 1, double spread = 1)
      : shape(c),
        k(c.heads.n_kv_heads, c.n_keys, c.head_dim, seed, spread),
        v(c.heads.n_kv_heads, c.n_keys, c.head_dim, seed + 1),
        q(random_floats(seed + 2, c.heads.n_heads * c.head_dim)),
        scale(float(1 / std::sqrt(double(c.head_dim)))) {}

  AttnDecode args(float* out, int split = 0) const {
    return {.n_heads = shape.heads.n_heads,
            .n_kv_heads = shape.heads.n_kv_heads,
            .head_dim = shape.head_dim,
            .n_keys = shape.n_keys,
            .scale = scale,
            .q = q.data(),
            .k = k.side(),
            .v = v.side(),
            .out = out,
            .split = split};
  }
  /// Computed once for all the kernels of a problem, when everything is in the cache.
  const AttendOracle& oracle(int head) const {
    auto& known = oracles_[head];
    const int kv_head = head / (shape.heads.n_heads / shape.heads.n_kv_heads);
    if (!known)
      known.emplace(
          &q[size_t(head * shape.head_dim)], shape.n_keys, shape.head_dim, scale,
          [&](int i) { return k.row(kv_head, i); }, [&](int i) { return v.row(kv_head, i); });
    return *known;
  }

 private:
  mutable std::map<int, std::optional<AttendOracle>> oracles_;
};

std::vector<float> run_guarded(const AttnDecodeVariant& variant, const Problem& p, int split = 0) {
  Guarded<float> out(int64_t(p.q.size()), 1);
  variant.run(test_context(), p.args(out.data(), split));
  EXPECT_TRUE(out.intact()) << "wrote outside the output";
  return {out.begin(), out.end()};
}

/// Kernels of floats; those of integers have other bounds (attn_int_test.cpp).
template <class Body>
void for_each_runnable(const Problem& p, const Body& body) {
  float unused = 0;
  for (const AttnDecodeVariant& variant : attn_decode_variants())
    if (!variant.rounds && variant.isa <= detect_isa() && variant.supports(p.args(&unused)).ok) {
      SCOPED_TRACE(fmt::format("{} {}", variant.name, p.shape.name()));
      body(variant);
    }
}

void expect_within_bound(const std::vector<float>& out, const Problem& p) {
  int n_bad = 0;
  for (int head = 0; head < p.shape.heads.n_heads; ++head) {
    const AttendOracle& oracle = p.oracle(head);
    for (int d = 0; d < p.shape.head_dim; ++d) {
      const float actual = out[size_t(head * p.shape.head_dim + d)];
      if (std::abs(actual - oracle.out[size_t(d)]) <= oracle.bound[size_t(d)]) continue;
      if (++n_bad <= 3)
        ADD_FAILURE() << "head " << head << " element " << d << ": " << actual << ", exact " << oracle.out[size_t(d)]
                      << ", bound " << oracle.bound[size_t(d)];
    }
  }
}

TEST(AttnDecode, EveryKernelIsWithinItsBoundOnEveryShapeAndPairOfFormats) {
  size_t turn = 0;
  for (const AttnCase& c : attn_cases()) {
    const auto formats = formats_for(c.head_dim);
    Problem p(c, ++turn);
    const KvFormat& k = *formats[turn % formats.size()];
    const KvFormat& v = *formats[turn / formats.size() % formats.size()];
    const bool mixed = turn % 3 == 0;
    SCOPED_TRACE(fmt::format("K {} V {}{}", k.name, v.name, mixed ? ", in segments" : ""));
    if (mixed) {
      add_cache_like_segments(p.k, k, c.n_keys);
      p.v.add(v, 0, c.n_keys);
    } else {
      p.k.add(k, 0, c.n_keys);
      add_cache_like_segments(p.v, v, c.n_keys);
    }
    for_each_runnable(p, [&](const AttnDecodeVariant& variant) { expect_within_bound(run_guarded(variant, p), p); });
  }
}

TEST(AttnDecode, EveryPairOfFormatsAtOneShape) {
  for (const AttnCase& c : {AttnCase{{4, 2}, 128, 100}, AttnCase{{6, 2}, 64, 33}})
    for (const KvFormat* k : formats_for(c.head_dim))
      for (const KvFormat* v : formats_for(c.head_dim)) {
        SCOPED_TRACE(fmt::format("K {} V {}", k->name, v->name));
        Problem p(c, 77);
        p.k.add(*k, 0, c.n_keys);
        p.v.add(*v, 0, c.n_keys);
        for_each_runnable(p,
                          [&](const AttnDecodeVariant& variant) { expect_within_bound(run_guarded(variant, p), p); });
      }
}

TEST(AttnDecode, ResultDoesNotDependOnTheSplit) {
  for (const int n_keys : {1, 33, 1031}) {
    Problem p({{8, 2}, 64, n_keys}, 5);
    add_cache_like_segments(p.k, *formats_for(64).back(), n_keys);
    add_cache_like_segments(p.v, *formats_for(64).back(), n_keys);
    for_each_runnable(p, [&](const AttnDecodeVariant& variant) {
      for (const int split : {1, 32, 64, 1000, n_keys, std::numeric_limits<int>::max()}) {
        SCOPED_TRACE(fmt::format("split {}", split));
        expect_within_bound(run_guarded(variant, p, split), p);
      }
    });
  }
}

TEST(AttnDecode, ResultDoesNotDependOnTheNumberOfThreadsAtAGivenSplit) {
  Problem p({{12, 2}, 128, 500}, 6);
  add_cache_like_segments(p.k, **find_kv_format("rotor-3"), 500);
  add_cache_like_segments(p.v, **find_kv_format("q8_0"), 500);
  for_each_runnable(p, [&](const AttnDecodeVariant& variant) {
    std::vector<std::vector<float>> results;
    for (const int n_threads : {1, 2, 4}) {
      CpuContext context(n_threads);
      std::vector<float> out(p.q.size(), NAN);
      variant.run(context, p.args(out.data(), 64));
      results.push_back(out);
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  });
}

/// One kv head, f16, q = (1, 0, 0, ...) and scale 1: key i's score is its first element.
struct ScoreProblem : Problem {
  ScoreProblem(int n_keys, const std::function<float(int)>& score) : Problem({{3, 1}, 32, n_keys}, 9) {
    scale = 1;
    for (size_t i = 0; i < q.size(); ++i) q[i] = i % 32 == 0 ? 1.0f : 0.0f;
    for (int i = 0; i < n_keys; ++i) k.row(0, i)[0] = score(i);
    k.add(**find_kv_format("f16"), 0, n_keys);
    v.add(**find_kv_format("f16"), 0, n_keys);
  }
};

TEST(AttnDecode, OneDominatingKeyGivesItsValue) {
  for (const int n_keys : {2, 33, 500})
    for (const int winner : {0, n_keys / 2, n_keys - 1})
      for (const float gap : {100.0f, 60000.0f}) {
        const ScoreProblem p(n_keys, [&](int i) { return i == winner ? gap : 0.0f; });
        for_each_runnable(p, [&](const AttnDecodeVariant& variant) {
          for (const int split : {0, 32}) {
            const std::vector<float> out = run_guarded(variant, p, split);
            for (size_t i = 0; i < out.size(); ++i)
              ASSERT_FLOAT_EQ(out[i], p.v.row(0, winner)[i % 32]) << "winner " << winner << " split " << split;
          }
        });
      }
}

TEST(AttnDecode, EqualScoresGiveTheMeanHoweverLargeTheyAre) {
  for (const float score : {0.0f, 60000.0f, -60000.0f})
    for (const float scale : {1.0f, 1e15f, 1e24f}) {  // scores up to 6e28; the mask stands at -1e30
      if (std::abs(score) * scale > 5e29) continue;
      ScoreProblem p(77, [&](int) { return score; });
      p.scale = scale;
      for_each_runnable(p, [&](const AttnDecodeVariant& variant) { expect_within_bound(run_guarded(variant, p), p); });
      const std::vector<float> out = run_guarded(attn_decode_variants().back(), p);
      double mean = 0;
      for (int i = 0; i < 77; ++i) mean += p.v.row(0, i)[3] / 77.0;
      EXPECT_NEAR(out[3], mean, 1e-5) << score << " x " << scale;
    }
}

TEST(AttnDecode, LateKeyAboveAllOthersRescalesEarlierSplits) {
  const ScoreProblem p(500, [](int i) { return float(i) * 0.25f; });
  for_each_runnable(p, [&](const AttnDecodeVariant& variant) {
    expect_within_bound(run_guarded(variant, p, 32), p);
    expect_within_bound(run_guarded(variant, p), p);
  });
}

TEST(AttnDecode, ANanQueryGivesNan) {
  Problem p({{4, 2}, 64, 40}, 3);
  p.k.add(**find_kv_format("q8_0"), 0, 40);
  p.v.add(**find_kv_format("q8_0"), 0, 40);
  p.q[64 + 5] = NAN;  // head 1
  for_each_runnable(p, [&](const AttnDecodeVariant& variant) {
    const std::vector<float> out = run_guarded(variant, p);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i / 64 == 1) << "element " << i;
  });
}

TEST(AttnDecode, EntryPointRefusesImpossibleShapes) {
  Problem p({{4, 2}, 64, 40}, 3);
  p.k.add(**find_kv_format("f16"), 0, 40);
  p.v.add(**find_kv_format("f16"), 0, 40);
  std::vector<float> out(p.q.size(), NAN);
  AttnDecode a = p.args(out.data());
  attn_decode(test_context(), a);
  expect_within_bound(out, p);
  a.n_keys = 0;
  EXPECT_THROW(attn_decode(test_context(), a), Error);
  a.n_keys = 40;
  a.n_heads = 5;
  EXPECT_THROW(attn_decode(test_context(), a), Error);
}

TEST(AttnDecode, WorkCountsEveryCachedRowOncePerKvHead) {
  Problem p({{12, 2}, 128, 100}, 3);
  add_cache_like_segments(p.k, **find_kv_format("rotor-3"), 100);
  p.v.add(**find_kv_format("q8_0"), 0, 100);
  float unused = 0;
  const Work work = attn_decode_work(p.args(&unused));
  // 4 sinks and positions 64..99 in f16, 60 rows of 50 bytes between; V is 100 rows of 136 bytes; q in, out.
  EXPECT_EQ(work.read_bytes, 2 * ((4 + 36) * 256 + 60 * 50 + 100 * 136) + 4 * 12 * 128);
  EXPECT_EQ(work.write_bytes, 4 * 12 * 128);
  EXPECT_EQ(work.flops, 4 * 12 * 128 * 100);
}

struct RowDecoder {
  Isa isa;
  DecodeRows (*find)(const KvFormat&, int head_dim);
};
constexpr RowDecoder kRowDecoders[] = {{Isa::avx2, decode_rows_avx2}, {Isa::avx512, decode_rows_avx512}};

/// Decodes `count` rows of bytes with the ISA's decoder from a fenced buffer and expects the reference's bits.
void expect_equal_rows(const RowDecoder& decoder, const KvFormat& format, int head_dim, std::span<const uint8_t> bytes,
                       int count) {
  const int64_t row_bytes = format.row_bytes(head_dim);
  FencedBytes rows(count * row_bytes, kKvPadBytes);
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  Guarded<float> out(count * head_dim, 1);
  const KvCoding coding{.fixed = 0.3f};
  decoder.find(format, head_dim)(format, coding, rows.data(), row_bytes, count, head_dim, out.data());
  ASSERT_TRUE(out.intact());
  std::vector<float> expected(size_t(head_dim), 0.0f);
  for (int i = 0; i < count; ++i) {
    format.decode(rows.data() + i * row_bytes, head_dim, coding, expected.data());
    for (int d = 0; d < head_dim; ++d)
      ASSERT_EQ(std::bit_cast<uint32_t>(out[int64_t(i) * head_dim + d]), std::bit_cast<uint32_t>(expected[size_t(d)]))
          << isa_name(decoder.isa) << " " << format.name << " head_dim " << head_dim << " row " << i << " element "
          << d;
  }
}

TEST(DecodeRows, EveryByteAtEveryPlaceGivesTheReferenceBits) {
  // Sweeps all values of one byte while the others are random: every code at every position, every half of every scale
  // (zero, subnormal, infinity and NaN among them).
  for (const RowDecoder& decoder : kRowDecoders) {
    if (decoder.isa > detect_isa()) continue;
    for (const KvFormat& format : kv_formats())
      for (const int head_dim : {8, 16, 32, 64, 80, 96, 128}) {
        if (head_dim % format.group != 0) continue;
        if (format.bits_per_value(head_dim) >= 16 && head_dim > 32) continue;  // values are coded on their own
        const size_t row_bytes = size_t(format.row_bytes(head_dim));
        Rng rng(4);
        std::vector<uint8_t> rows(256 * row_bytes);
        for (size_t at = 0; at < row_bytes; ++at) {
          for (uint8_t& byte : rows) byte = uint8_t(rng.next() >> 13);
          for (size_t value = 0; value < 256; ++value) rows[value * row_bytes + at] = uint8_t(value);
          expect_equal_rows(decoder, format, head_dim, rows, 256);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
  }
}

TEST(DecodeRows, All16BitCodesGiveTheReferenceBits) {
  std::vector<uint8_t> rows(2 * 65536);
  for (size_t code = 0; code < 65536; ++code) rows[2 * code] = uint8_t(code), rows[2 * code + 1] = uint8_t(code >> 8);
  for (const RowDecoder& decoder : kRowDecoders)
    if (decoder.isa <= detect_isa())
      for (const int head_dim : {8, 64})
        for (const char* name : {"f16", "bf16"})
          expect_equal_rows(decoder, **find_kv_format(name), head_dim, rows, 65536 / head_dim);
}

TEST(DecodeRows, OneRowAndWideRowsStayInsideTheSlack) {
  for (const RowDecoder& decoder : kRowDecoders) {
    if (decoder.isa > detect_isa()) continue;
    for (const KvFormat& format : kv_formats())
      for (const int head_dim : {8, 16, 24, 64, 72, 80, 96, 112, 128, 144, 192, 256, 512}) {
        if (head_dim % format.group != 0) continue;
        std::vector<uint8_t> row(size_t(format.row_bytes(head_dim)));
        Rng rng(uint64_t(head_dim) + 1);
        for (uint8_t& byte : row) byte = uint8_t(rng.next() >> 13);
        expect_equal_rows(decoder, format, head_dim, row, 1);
      }
  }
}

}  // namespace
}  // namespace ridge
