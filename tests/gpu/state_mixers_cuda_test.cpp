// Short convolutions and Mamba2 on the device, against the CPU's.
#include <gtest/gtest.h>

#include <cmath>

#include "base/metrics.h"
#include "base/rng.h"
#include "cases/delta_spans.h"
#include "cases/guarded.h"
#include "gpu/device_data.h"
#include "op/delta/mamba.h"
#include "op/delta/mamba_chunks_cuda.h"
#include "op/delta/short_conv.h"
#include "op/delta/short_conv_cuda.h"
#include "op/norm_rope/norm_rope.h"

namespace ridge {
namespace {

constexpr int kRows = 45, kSlots = 4;

/// Ragged sequences in any order of slots, an empty span, and rows and a slot of nobody.
const std::vector<DeltaSpan> kSpans = {{7, 37, 3}, {0, 1, 0}, {2, 3, 1}, {}};

/// The spans with their places in slots that have a history: the states behind 4, 9 and 6 tokens.
std::vector<DeltaSpan> placed(std::vector<DeltaSpan> spans) {
  const int n_past[] = {4, 9, 6};
  for (size_t i = 0; i < 3; ++i) spans[i].n_past = n_past[i];
  return spans;
}
std::vector<KvSpan> of_host(const std::vector<DeltaSpan>& spans) {
  std::vector<KvSpan> list;
  for (const DeltaSpan& span : spans)
    if (span.n > 0)
      list.push_back({.first_row = span.first, .n_rows = span.n, .n_past = span.n_past, .slot = span.slot});
  return list;
}

class ShortConvCuda : public OnDevice {};

TEST_F(ShortConvCuda, StepsAreTheReferences) {
  for (const auto& [kernel, channels] : {std::pair{3, 200}, {2, 1}, {4, 129}, {6, 64}})
    for (const int n_histories : {0, kSlots}) {
      const int64_t n_tail = kernel - 1, values = n_tail * channels;
      const int64_t n_states = SlotNumbers(kSlots, n_histories).n_states();
      const std::vector<DeltaSpan> spans = n_histories > 0 ? placed(kSpans) : kSpans;
      const std::vector<float> weights = random_floats(1, kernel * channels),
                               bcx = random_floats(2, kRows * 3 * channels);
      std::vector<float> states = random_floats(3, n_states * values), out(size_t(kRows * channels), 7.0f);
      const gpu::Buffer of_weights = up(weights), of_bcx = up(bcx), of_states = up(states), of_out = up(out),
                        list = up(spans);
      device_short_conv(stream(), {.kernel = kernel,
                                   .channels = channels,
                                   .weights = of_weights.as<float>(),
                                   .spans = list.as<DeltaSpan>(),
                                   .n_spans = int(spans.size()),
                                   .most = 37,
                                   .states = {of_states.as<float>(), values, n_histories},
                                   .bcx = of_bcx.as<float>(),
                                   .out = of_out.as<float>()});
      CpuContext context(1, Isa::scalar);
      const std::vector<KvSpan> host_spans = of_host(spans);
      short_conv(context, {.kernel = kernel,
                           .weights = weights.data(),
                           .spans = host_spans,
                           .states = {states.data(), values, n_histories},
                           .bcx = {bcx.data(), kRows, 3 * channels},
                           .out = {out.data(), kRows, channels}});
      SCOPED_TRACE(fmt::format("kernel {}, {} channels, {} histories", kernel, channels, n_histories));
      EXPECT_EQ(down(of_states.as<float>(), ssize(states)), states);
      const std::vector<float> given = down(of_out.as<float>(), ssize(out));
      for (size_t i = 0; i < out.size(); ++i)  // kernel + 2 roundings of terms of at most 5^3
        ASSERT_NEAR(given[i], out[i], 8 * 0x1p-24 * 125) << i;
    }
}

constexpr MambaShape kShapes[] = {{.n_heads = 1, .head_dim = 1, .n_groups = 1, .state_dim = 1, .kernel = 2},
                                  {.n_heads = 8, .head_dim = 16, .n_groups = 2, .state_dim = 16, .kernel = 4},
                                  {.n_heads = 2, .head_dim = 64, .n_groups = 1, .state_dim = 128, .kernel = 4},
                                  {.n_heads = 6, .head_dim = 33, .n_groups = 3, .state_dim = 40, .kernel = 3}};

struct MambaProblem {
  MambaShape shape;
  int n_rows;
  std::vector<float> conv, conv_bias, decay, dt_bias, d, norm, in, states;

  MambaProblem(const MambaShape& s, int n_histories, int rows = kRows) : shape(s), n_rows(rows) {
    conv = random_floats(1, s.kernel * s.channels());
    conv_bias = random_floats(2, s.channels());
    decay = random_floats(3, s.n_heads);
    for (float& value : decay) value = -std::exp(value);
    dt_bias = random_floats(4, s.n_heads);
    d = random_floats(5, s.n_heads);
    norm = random_floats(6, s.inner());
    in = random_floats(7, n_rows * s.columns());
    states = random_floats(8, SlotNumbers(kSlots, n_histories).n_states() * s.state_values());
  }
  /// Gated and normed, in rows of spans; states move on.
  std::vector<float> run_on_host(const std::vector<DeltaSpan>& spans, int n_histories) {
    constexpr float kEps = 1e-5f;
    CpuContext context(1, Isa::scalar);
    const std::vector<KvSpan> list = of_host(spans);
    const int64_t inner = shape.inner(), part = inner / shape.n_groups;
    std::vector<float> z, rows = in, out(size_t(n_rows * inner), 0.0f);
    for (int64_t t = 0; t < n_rows; ++t)
      z.insert(z.end(), &in[size_t(t * shape.columns())], &in[size_t(t * shape.columns())] + inner);
    mamba2(context, {.shape = shape,
                     .conv = conv.data(),
                     .conv_bias = conv_bias.data(),
                     .decay = decay.data(),
                     .dt_bias = dt_bias.data(),
                     .d = d.data(),
                     .spans = list,
                     .states = {states.data(), shape.state_values(), n_histories},
                     .in = {rows.data(), n_rows, shape.columns()},
                     .out = {out.data(), n_rows, inner}});
    const View2<float> gates(z.data(), n_rows, inner);
    swiglu(context, gates, View2<const float>(out.data(), n_rows, inner));
    for (int64_t g = 0; g < shape.n_groups; ++g) {
      const View2<float> of_group(z.data() + g * part, n_rows, part, inner);
      rms_norm(context, of_group, norm.data() + g * part, kEps, of_group);
    }
    return z;
  }
};

/// Mean squared error of the rows of a span over the mean square of the reference.
double error_of(const std::vector<float>& given, const std::vector<float>& expected, const DeltaSpan& span,
                int64_t inner) {
  const auto first = size_t(span.first * inner), count = size_t(span.n * inner);
  return compare(std::span(given).subspan(first, count), std::span(expected).subspan(first, count)).nmse;
}

class MambaCuda : public OnDevice {
 protected:
  /// A step of n rows of p.in from `first` on, as the device makes it: what it gives, and p.states moved on.
  std::vector<float> run(MambaProblem& p, const std::vector<DeltaSpan>& spans, int n_histories, int first,
                         int n) const {
    const MambaShape& shape = p.shape;
    const SpanCounts counts(spans);
    const gpu::Buffer conv = up(p.conv), conv_bias = up(p.conv_bias), decay = up(p.decay), dt_bias = up(p.dt_bias),
                      d = up(p.d), norm = up(p.norm), in = up(p.in), states = up(p.states), list = up(spans),
                      mixed = up(std::vector<float>(size_t(n * shape.channels()), 7.0f)),
                      out = up(std::vector<float>(size_t(n * shape.inner()))),
                      chunks(4 * kMambaChunkFloats * counts.n_chunks * shape.n_heads + 1);
    device_mamba(stream(), {.shape = shape,
                            .conv = conv.as<float>(),
                            .conv_bias = conv_bias.as<float>(),
                            .decay = decay.as<float>(),
                            .dt_bias = dt_bias.as<float>(),
                            .d = d.as<float>(),
                            .norm = norm.as<float>(),
                            .norm_eps = 1e-5f,
                            .spans = list.as<DeltaSpan>(),
                            .n_spans = int(spans.size()),
                            .most = counts.most,
                            .n_rows = n,
                            .states = {states.as<float>(), shape.state_values(), n_histories},
                            .in = in.as<float>() + first * shape.columns(),
                            .mixed = mixed.as<float>(),
                            .out = out.as<float>(),
                            .n_chunked = counts.n_chunked,
                            .shared_bytes = shared_bytes,
                            .chunks = chunks.as<float>()});
    p.states = down(states.as<float>(), ssize(p.states));
    return down(out.as<float>(), n * shape.inner());
  }
  int shared_bytes = 0;  ///< that a block may have
};

TEST_F(MambaCuda, StepsAreTheReferences) {
  for (const MambaShape& shape : kShapes)
    for (const int n_histories : {0, kSlots}) {
      SCOPED_TRACE(fmt::format("{} heads of {} x {}, {} histories", shape.n_heads, shape.head_dim, shape.state_dim,
                               n_histories));
      const std::vector<DeltaSpan> spans = n_histories > 0 ? placed(kSpans) : kSpans;
      MambaProblem ours(shape, n_histories), theirs(shape, n_histories);
      const std::vector<float> before = ours.states, given = run(ours, spans, n_histories, 0, kRows),
                               expected = theirs.run_on_host(spans, n_histories);
      // A state's entry is a sum whose terms decay, each off by a few roundings of exp() and the convolution.
      EXPECT_LT(compare(ours.states, theirs.states).nmse, 1e-12);
      EXPECT_GT(compare(ours.states, before).nmse, 1e-3) << "states that did not move";
      for (const DeltaSpan& span : spans) {
        if (span.n == 0) continue;
        EXPECT_LT(error_of(given, expected, span, shape.inner()), 1e-11);
      }
    }
}

/// A prompt is the same bits whole and token by token.
TEST_F(MambaCuda, TheCutOfAPromptChangesNoBit) {
  const auto run_cut = [&](const std::vector<int>& sizes) {
    MambaProblem p(kShapes[1], 0);
    int first = 0;
    std::vector<float> all;
    for (const int n : sizes) {
      const std::vector<float> given = run(p, {{0, n, 2}}, 0, first, n);
      all.insert(all.end(), given.begin(), given.end());
      first += n;
    }
    all.insert(all.end(), p.states.begin(), p.states.end());
    return all;
  };
  EXPECT_EQ(run_cut({45}), run_cut({1, 20, 1, 2, 21}));
}

constexpr MambaShape kChunkShapes[] = {{.n_heads = 8, .head_dim = 16, .n_groups = 2, .state_dim = 16, .kernel = 4},
                                       {.n_heads = 2, .head_dim = 64, .n_groups = 1, .state_dim = 128, .kernel = 4},
                                       {.n_heads = 4, .head_dim = 33, .n_groups = 4, .state_dim = 64, .kernel = 3},
                                       {.n_heads = 2, .head_dim = 98, .n_groups = 1, .state_dim = 80, .kernel = 2}};

/// Whole chunks and tails of every kind, beside sequences without chunks and a span of nobody; blocks with one stage
/// and two.
TEST_F(MambaCuda, ChunksAreTheReferences) {
  for (const MambaShape& shape : kChunkShapes) {
    ASSERT_TRUE(has_mamba_chunks(shape));
    for (const auto& [n, n_histories, bytes] :
         {std::tuple{32, 0, 0}, {33, kSlots, 48 << 10}, {64, 0, 0}, {79, kSlots, 0}}) {
      SCOPED_TRACE(fmt::format("{} tokens, {} heads of {} x {}", n, shape.n_heads, shape.head_dim, shape.state_dim));
      shared_bytes = bytes;
      const int n_past = n_histories > 0 ? 5 : 0;
      const std::vector<DeltaSpan> spans = {{.first = 7, .n = n, .slot = 3, .chunk = 2, .n_past = n_past},
                                            {.first = 0, .n = 1, .slot = 0, .n_past = n_past},
                                            {.first = 2, .n = 3, .slot = 1, .n_past = n_past},
                                            {}};
      constexpr int kNobody = kDeltaChunk;  // rows behind the last span, as many as a wrong last chunk could reach
      const int n_rows = 7 + n + kNobody;
      MambaProblem ours(shape, n_histories, n_rows), theirs(shape, n_histories, n_rows);
      const std::vector<float> given = run(ours, spans, n_histories, 0, n_rows),
                               expected = theirs.run_on_host(spans, n_histories);
      // A product of a sum is off by 3 2^-16 of it at most. State, scores and changes are rounded likewise, each once a
      // chunk: some six such roundings of independent signs, sqrt(6) 3 2^-16 / 2 = 6e-5; its square is 3e-9.
      EXPECT_LT(compare(ours.states, theirs.states).nmse, 3e-9);
      for (const DeltaSpan& span : std::span(spans).first(3))
        EXPECT_LT(error_of(given, expected, span, shape.inner()), 3e-9) << span.n;
      const int64_t end = (7 + n) * shape.inner();
      EXPECT_EQ(std::vector(given.begin() + end, given.end()), std::vector<float>(size_t(kNobody * shape.inner())))
          << "rows of nobody";
    }
  }
}

/// Decays from nothing to everything within a token.
TEST_F(MambaCuda, ChunksOfHardGatesAreTheReferences) {
  const MambaShape& shape = kChunkShapes[0];
  MambaProblem ours(shape, 0, 64);
  ours.decay = {-1e-6f, -1e-3f, -0.1f, -1, -10, -100, -1e4f, -1e8f};
  for (size_t i = 0; i < ours.in.size(); i += 5) ours.in[i] *= 30;  // also of dt, which softplus leaves large
  MambaProblem theirs = ours;
  const std::vector<DeltaSpan> spans = {{.first = 0, .n = 64, .slot = 1, .chunk = 0}};
  const std::vector<float> given = run(ours, spans, 0, 0, 64), expected = theirs.run_on_host(spans, 0);
  for (const float value : given) ASSERT_TRUE(std::isfinite(value));
  EXPECT_LT(compare(ours.states, theirs.states).nmse, 3e-9);
  EXPECT_LT(error_of(given, expected, spans[0], shape.inner()), 3e-9);
}

/// Tokens go on from the state and the inputs of the convolution that chunks leave.
TEST_F(MambaCuda, TokensFollowChunks) {
  const MambaShape& shape = kChunkShapes[1];
  MambaProblem ours(shape, 0, 50), theirs(shape, 0, 50);
  std::vector<float> given = run(ours, {{.first = 0, .n = 40, .slot = 1, .chunk = 0}}, 0, 0, 40);
  const std::vector<float> rest = run(ours, {{.first = 0, .n = 10, .slot = 1}}, 0, 40, 10),
                           expected = theirs.run_on_host({{.first = 0, .n = 50, .slot = 1}}, 0);
  given.insert(given.end(), rest.begin(), rest.end());
  EXPECT_LT(error_of(given, expected, {.first = 0, .n = 50}, shape.inner()), 3e-9);
  EXPECT_LT(compare(ours.states, theirs.states).nmse, 3e-9);
}

/// A state of a size that has no chunks goes token by token, whatever its span says: the same bits.
TEST_F(MambaCuda, ShapesWithoutChunksGoTokenByToken) {
  const MambaShape& shape = kShapes[3];
  ASSERT_FALSE(has_mamba_chunks(shape));
  MambaProblem ours(shape, 0), theirs(shape, 0);
  EXPECT_EQ(run(ours, {{.first = 0, .n = 40, .slot = 1, .chunk = 0}}, 0, 0, kRows),
            run(theirs, {{.first = 0, .n = 40, .slot = 1}}, 0, 0, kRows));
  EXPECT_EQ(ours.states, theirs.states);
}

}  // namespace
}  // namespace ridge
