// The gated delta rule and what stands around it on the device, against the CPU's.
#include "op/delta/delta_cuda.h"

#include <cmath>

#include "base/metrics.h"
#include "cases/delta_problem.h"
#include "cases/delta_spans.h"
#include "cases/drafted_steps.h"
#include "gpu/device_data.h"
#include "op/norm_rope/norm_rope.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {
namespace {

constexpr double kRounding = 0x1p-24;

class DeltaCuda : public OnDevice {
 protected:
  /// Outputs and states of p as the device leaves them. An output is gated, p.out being the gates' input before; rows
  /// of no span keep theirs.
  void run(DeltaProblem& p, std::vector<DeltaSpan> spans, int shared_bytes = 0, int n_histories = 0) const {
    // Spans have their places from rows of the step.
    std::vector<StepRow> rows(3);  // of nobody
    for (DeltaSpan& span : spans) {
      span.row = int(rows.size());
      for (int i = 0; i < span.n; ++i) rows.push_back({.row = span.first + i, .position = span.n_past + i});
      span.n_past = 0;
    }
    const gpu::Buffer places = up(rows);
    const gpu::Buffer conv = up(p.conv), decay = up(p.decay), dt_bias = up(p.dt_bias), list = up(spans),
                      states = up(p.states), qkv = up(p.qkv), a = up(p.a), b = up(p.b), z = up(p.out),
                      norm = up(norm_of(p.shape)), mixed(4 * ssize(p.qkv)), out(4 * ssize(p.out));
    const SpanCounts counts(spans);
    const gpu::Buffer chunks(4 * kDeltaChunkFloats * counts.n_chunks * p.shape.n_value_heads + 1);
    if (n_histories > 0) device_place_spans(stream(), list.as<DeltaSpan>(), int(spans.size()), places.as<StepRow>());
    device_gated_delta(stream(), {.shape = p.shape,
                                  .conv = conv.as<float>(),
                                  .decay = decay.as<float>(),
                                  .dt_bias = dt_bias.as<float>(),
                                  .norm = norm.as<float>(),
                                  .norm_eps = kEps,
                                  .spans = list.as<DeltaSpan>(),
                                  .n_spans = int(spans.size()),
                                  .most = counts.most,
                                  .states = {states.as<float>(), p.shape.state_values(), n_histories},
                                  .qkv = qkv.as<float>(),
                                  .z = z.as<float>(),
                                  .a = a.as<float>(),
                                  .b = b.as<float>(),
                                  .overlap = true,
                                  .n_chunked = counts.n_chunked,
                                  .shared_bytes = shared_bytes,
                                  .mixed = mixed.as<float>(),
                                  .out = out.as<float>(),
                                  .chunks = chunks.as<float>()});
    p.out = down(z.as<float>(), ssize(p.out));
    p.states = down(states.as<float>(), ssize(p.states));
  }
  /// The same on the CPU.
  static void run_on_host(DeltaProblem& p, const std::vector<DeltaSpan>& spans, int n_histories = 0) {
    std::vector<KvSpan> of_host;
    for (const DeltaSpan& span : spans)
      if (span.n > 0) of_host.push_back(DeltaProblem::span(span.first, span.n, span.slot, span.n_past));
    const std::vector<float> norm = norm_of(p.shape);
    std::vector<float> gates = p.out;
    CpuContext context(1, Isa::scalar);
    p.run(context, of_host, n_histories);
    for (const KvSpan& span : of_host) {
      const auto heads = [&](std::vector<float>& of) {
        return View2<float>(&of[size_t(span.first_row * p.shape.values())], span.n_rows * p.shape.n_value_heads,
                            p.shape.value_dim);
      };
      rms_norm(context, heads(p.out), norm.data(), kEps, heads(p.out));
      swiglu(context, heads(gates), heads(p.out));
    }
    p.out = gates;
  }
  static std::vector<float> norm_of(const DeltaShape& shape) { return normal_floats(77, shape.value_dim); }
  static constexpr float kEps = 1e-6f;
};

/// The tails of the convolution of a slot.
std::vector<float> tail_of(const DeltaProblem& p, int slot) {
  const auto end = p.states.begin() + (slot + 1) * p.shape.state_values();
  return {end - (p.shape.kernel - 1) * p.shape.channels(), end};
}

/// Ragged sequences in any order of slots, an empty span, and rows and a slot of nobody.
TEST_F(DeltaCuda, StepsAreTheReferences) {
  std::vector<DeltaShape> shapes(std::begin(kDeltaShapes), std::end(kDeltaShapes));
  shapes.push_back({.n_key_heads = 1, .n_value_heads = 2, .key_dim = 200, .value_dim = 33, .kernel = 4});
  shapes.push_back({.n_key_heads = 1, .n_value_heads = 2, .key_dim = 33, .value_dim = 65, .kernel = 5});
  shapes.push_back({.n_key_heads = 1, .n_value_heads = 2, .key_dim = 128, .value_dim = 128, .kernel = 4});
  for (const DeltaShape& shape : shapes) {
    const std::vector<DeltaSpan> spans = {{5, 34, 3}, {0, 1, 0}, {2, 3, 1}, {}};
    DeltaProblem ours(shape, 40, 11, 4);
    ours.out = normal_floats(5, ssize(ours.out));
    const DeltaProblem before = ours;
    DeltaProblem theirs = ours;
    run(ours, spans);
    run_on_host(theirs, spans);
    // An input behind the convolution is off by some 8 roundings, a unit key by as many and those of its length, a
    // token's change by those of a sum over keys, sqrt(200) at most: 30 in all. The rule never lengthens an error,
    // those of 34 tokens add up as a random walk: 175 roundings, 1e-5. A length, a decay and beta have some
    // roundings of floats more, and an output is the sum of two products: 10 more.
    const double of_out = compare(ours.out, theirs.out).nmse, of_states = compare(ours.states, theirs.states).nmse;
    EXPECT_LT(of_out, 1e-10) << "key_dim " << shape.key_dim;
    EXPECT_LT(of_states, 1e-10) << "key_dim " << shape.key_dim;
    RecordProperty(fmt::format("nmse_{}", shape.key_dim), fmt::format("{:.1e} {:.1e}", of_out, of_states));
    for (int slot = 0; slot < 4; ++slot)
      EXPECT_EQ(tail_of(ours, slot), tail_of(theirs, slot)) << "tail of slot " << slot;
    const auto of_slot_2 = [&](const DeltaProblem& p) {
      return std::vector(p.states.begin() + 2 * shape.state_values(), p.states.begin() + 3 * shape.state_values());
    };
    EXPECT_EQ(of_slot_2(ours), of_slot_2(before)) << "a slot of nobody";
    EXPECT_EQ(ours.out[size_t(shape.values())], before.out[size_t(shape.values())]) << "a row of nobody";
  }
}

TEST_F(DeltaCuda, TheCutOfAPromptAndOtherSequencesChangeNoBit) {
  for (const DeltaShape& shape : kDeltaShapes) {
    DeltaProblem whole(shape, 40, 7);
    whole.out = normal_floats(5, ssize(whole.out));
    DeltaProblem cut = whole;
    run(whole, {{0, 35, 1}});
    for (const auto& [first, count] : {std::pair(0, 1), {1, 2}, {3, 20}, {23, 12}}) {
      DeltaProblem step = cut;
      run(step, {{35, 5, 0}, {}, {first, count, 1}});
      std::copy_n(step.states.begin() + shape.state_values(), shape.state_values(),
                  cut.states.begin() + shape.state_values());
      std::copy_n(step.out.begin() + first * shape.values(), count * shape.values(),
                  cut.out.begin() + first * shape.values());
    }
    EXPECT_EQ(whole.out, cut.out);
    EXPECT_EQ(whole.states, cut.states);
  }
}

/// Slots with a history and without, short steps, longer ones and chunks: all places of states.
TEST_F(DeltaCuda, HistoriesAreTheReferences) {
  for (const DeltaShape& shape : kDeltaShapes) {
    DeltaProblem ours(shape, 60, 11, int(SlotNumbers(5, 3).n_states()));
    ours.out = normal_floats(5, ssize(ours.out));
    DeltaProblem theirs = ours;
    const auto at = [](int first, int n, int slot, int n_past, int chunk = -1) {
      return DeltaSpan{.first = first, .n = n, .slot = slot, .chunk = chunk, .n_past = n_past};
    };
    const std::vector<DeltaSpan> spans = {at(0, 4, 1, 7), at(4, 3, 0, 2),      {},
                                          at(7, 2, 4, 9), at(9, 40, 2, 33, 0), at(49, 5, 3, 1)};
    run(ours, spans, 0, 3);
    run_on_host(theirs, spans, 3);
    EXPECT_LT(compare(ours.out, theirs.out).nmse, 5e-10) << "key_dim " << shape.key_dim;
    EXPECT_LT(compare(ours.states, theirs.states).nmse, 5e-10) << "key_dim " << shape.key_dim;
    for (const int slot : {0, 1, 2}) {
      const LayerStates left{ours.states.data(), shape.state_values(), 3};
      const int64_t n = shape.values() * shape.key_dim, end = shape.state_values();
      for (int past = 0; past < kStateHistory; ++past) {
        const float* const state = left.at(slot, past);
        const float* const expected = theirs.states.data() + (state - ours.states.data());
        EXPECT_TRUE(std::equal(state + n, state + end, expected + n)) << "tail " << past << " of slot " << slot;
      }
    }
  }
}

TEST_F(DeltaCuda, WrongTokensThatAreTakenBackChangeNoBit) {
  constexpr int kTokens = 11;
  for (const DeltaShape& shape : kDeltaShapes) {
    DeltaProblem whole(shape, kTokens, 7, int(SlotNumbers(2, 2).n_states()));
    whole.out = normal_floats(5, ssize(whole.out));
    const DeltaProblem before = whole;
    std::vector<float> states = before.states, out;
    run(whole, {{.first = 0, .n = kTokens, .slot = 1, .n_past = 5}}, 0, 2);
    for (const DraftedStep& drafted : kDraftedSteps) {
      DeltaProblem step = before;
      step.n = drafted.n_rows();
      step.qkv = drafted.rows(before.qkv, shape.channels());
      step.a = drafted.rows(before.a, shape.n_value_heads), step.b = drafted.rows(before.b, shape.n_value_heads);
      step.out = drafted.rows(before.out, shape.values());
      step.states = states;
      run(step, {{.first = 0, .n = int(step.n), .slot = 1, .n_past = 5 + drafted.first}}, 0, 2);
      states = step.states;
      out.insert(out.end(), step.out.begin(), step.out.begin() + drafted.right * shape.values());
    }
    EXPECT_EQ(out, whole.out);
    const int64_t n = shape.state_values(), end = LayerStates{nullptr, 0, 2}.number(1, 5 + kTokens) * n;
    EXPECT_TRUE(std::equal(states.begin() + end, states.begin() + end + n, whole.states.begin() + end));
  }
}

/// Whole chunks, tails of every kind, sequences of mixed lengths with and without chunks in one step, keys that are
/// padded, columns without a warp, and few bytes of shared memory.
TEST_F(DeltaCuda, ChunksAreTheReferences) {
  struct Case {
    DeltaShape shape;
    std::vector<DeltaSpan> spans;
    int shared_bytes = 0;
  };
  const DeltaShape small{2, 6, 16, 20, 4, true}, half{1, 2, 64, 72, 4}, full{1, 2, 128, 128, 4},
      padded{1, 2, 112, 36, 5}, wide{1, 1, 256, 64, 3};  // token by token
  const std::vector<DeltaSpan> mixed = {{70, 129, 3, 2}, {0, 1, 0}, {1, 64, 1, 0}, {66, 3, 2}, {}};
  const std::vector<Case> cases = {{small, mixed},
                                   {small, {{0, 33, 1, 0}, {33, 95, 0, 2}}},
                                   {half, mixed},
                                   {full, mixed},
                                   {full, {{2, 150, 1, 0}}, 48 << 10},
                                   {wide, mixed},
                                   {padded, {{5, 47, 3, 0}, {60, 32, 0, 2}}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [shape, spans, shared_bytes] = cases[i];
    DeltaProblem ours(shape, 200, 11 + i, 4);
    ours.out = normal_floats(5, ssize(ours.out));
    DeltaProblem theirs = ours;
    run(ours, spans, shared_bytes);
    run_on_host(theirs, spans);
    // A factor of a product is off by up to 2^-16, by less than half of that as a rule, and so is each of the products
    // that a change goes through, known values and the inverse; signs differ from token to token, as those of the
    // changes themselves, so that a state's relative error is that of a change: sqrt(2 4) 2^-17, 2.2e-5.
    const double of_out = compare(ours.out, theirs.out).nmse, of_states = compare(ours.states, theirs.states).nmse;
    EXPECT_LT(of_out, 5e-10) << "case " << i;
    EXPECT_LT(of_states, 5e-10) << "case " << i;
    RecordProperty(fmt::format("nmse_{}", i), fmt::format("{:.1e} {:.1e}", of_out, of_states));
    for (int slot = 0; slot < 4; ++slot)
      EXPECT_EQ(tail_of(ours, slot), tail_of(theirs, slot)) << "tail of slot " << slot;
    for (int row = 0; row < 200; ++row) {
      const auto has = [row](const DeltaSpan& span) { return row >= span.first && row < span.first + span.n; };
      const auto at = size_t(row * shape.values());
      if (!std::ranges::any_of(spans, has)) {
        ASSERT_EQ(ours.out[at], theirs.out[at]) << "row of nobody " << row;
      }
    }
  }
}

/// Decays from none to all at once, keys that repeat and gates that are open: the inverse has large entries, quotients
/// of decays go to 0.
TEST_F(DeltaCuda, ChunksOfHardGatesAreTheReferences) {
  const DeltaShape shape{1, 4, 64, 16, 2};
  DeltaProblem ours(shape, 130, 3, 1);
  ours.decay = {-1e-6f, -0.1f, -3, -300};
  for (float& b : ours.b) b += 6;
  for (int64_t t = 0; t < ours.n; ++t)
    for (int64_t i = 0; i < shape.channels(); ++i) {
      float& x = ours.qkv[size_t(t * shape.channels() + i)];
      if (i < 2 * shape.keys()) x = 0.1f * x + float(std::sin(double(i)));
    }
  ours.out = normal_floats(5, ssize(ours.out));
  DeltaProblem theirs = ours;
  run(ours, {{0, 130, 0, 0}});
  run_on_host(theirs, {{0, 130, 0}});
  for (const float x : ours.out) ASSERT_TRUE(std::isfinite(x));
  const double of_out = compare(ours.out, theirs.out).nmse, of_states = compare(ours.states, theirs.states).nmse;
  RecordProperty("nmse", fmt::format("{:.1e} {:.1e}", of_out, of_states));
  EXPECT_LT(of_out, 5e-10);
  EXPECT_LT(of_states, 5e-10);
}

/// Tokens go on from the state that chunks leave.
TEST_F(DeltaCuda, TokensFollowChunks) {
  const DeltaShape shape = kDeltaShapes[1];
  DeltaProblem chunked(shape, 110, 9);
  chunked.out = normal_floats(5, ssize(chunked.out));
  DeltaProblem single = chunked;
  run(chunked, {{0, 100, 1, 0}});
  DeltaProblem rest = chunked;
  run(rest, {{100, 10, 1}});
  run(single, {{0, 110, 1}});
  std::copy_n(rest.out.begin() + 100 * shape.values(), 10 * shape.values(), chunked.out.begin() + 100 * shape.values());
  EXPECT_LT(compare(chunked.out, single.out).nmse, 5e-10);
  EXPECT_LT(compare(rest.states, single.states).nmse, 5e-10);
  EXPECT_EQ(tail_of(rest, 1), tail_of(single, 1));
}

TEST_F(DeltaCuda, GatesOfHeadsAreTheReferences) {
  constexpr int kRows = 3, kN = 70, kPitch = 101;
  const std::vector<float> x = normal_floats(4, kRows * kN), gate = normal_floats(5, kRows * kPitch, 3);
  const gpu::Buffer dx = up(x), dg = up(gate);
  device_sigmoid_gate(stream(), kRows, kN, dg.as<float>(), kPitch, dx.as<float>());
  const std::vector<float> got = down(dx.as<float>(), ssize(x));
  for (int i = 0; i < kRows * kN; ++i) {
    const double expected = x[size_t(i)] / (1 + std::exp(-double(gate[size_t(i / kN * kPitch + i % kN)])));
    ASSERT_NEAR(got[size_t(i)], expected, 6 * kRounding * std::abs(expected)) << i;
  }
}

}  // namespace
}  // namespace ridge
