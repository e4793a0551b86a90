// The gated delta rule and what stands around it on the device, against the CPU's.
#include "op/delta/delta_cuda.h"

#include <cmath>

#include "base/metrics.h"
#include "cases/delta_problem.h"
#include "gpu/device_data.h"
#include "op/norm_rope/norm_rope.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {
namespace {

constexpr double kRounding = 0x1p-24;

class DeltaCuda : public OnDevice {
 protected:
  /// Outputs and states of p as the device leaves them. Rows of no span keep the output that they had.
  void run(DeltaProblem& p, const std::vector<DeltaSpan>& spans) const {
    const gpu::Buffer conv = up(p.conv), decay = up(p.decay), dt_bias = up(p.dt_bias), list = up(spans),
                      states = up(p.states), qkv = up(p.qkv), a = up(p.a), b = up(p.b), out = up(p.out);
    const gpu::Buffer mixed(4 * ssize(p.qkv));
    int most = 1;
    for (const DeltaSpan& span : spans) most = std::max(most, span.n);
    device_gated_delta(stream(), {.shape = p.shape,
                                  .conv = conv.as<float>(),
                                  .decay = decay.as<float>(),
                                  .dt_bias = dt_bias.as<float>(),
                                  .spans = list.as<DeltaSpan>(),
                                  .n_spans = int(spans.size()),
                                  .most = most,
                                  .states = states.as<float>(),
                                  .qkv = qkv.as<float>(),
                                  .a = a.as<float>(),
                                  .b = b.as<float>(),
                                  .mixed = mixed.as<float>(),
                                  .out = out.as<float>()});
    p.out = down(out.as<float>(), ssize(p.out));
    p.states = down(states.as<float>(), ssize(p.states));
  }
};

/// Ragged sequences in any order of slots, an empty span, and rows and a slot of nobody.
TEST_F(DeltaCuda, StepsAreTheReferences) {
  std::vector<DeltaShape> shapes(std::begin(kDeltaShapes), std::end(kDeltaShapes));
  shapes.push_back({.n_key_heads = 1, .n_value_heads = 2, .key_dim = 200, .value_dim = 33, .kernel = 4});
  shapes.push_back({.n_key_heads = 1, .n_value_heads = 2, .key_dim = 33, .value_dim = 65, .kernel = 5});
  for (const DeltaShape& shape : shapes) {
    const std::vector<DeltaSpan> spans = {{5, 34, 3}, {0, 1, 0}, {2, 3, 1}, {}};
    std::vector<KvSpan> of_host;
    for (const DeltaSpan& span : spans) of_host.push_back(DeltaProblem::span(span.first, span.n, span.slot));
    of_host.pop_back();
    DeltaProblem ours(shape, 40, 11, 4);
    std::fill(ours.out.begin(), ours.out.end(), 7.0f);
    const DeltaProblem before = ours;
    DeltaProblem theirs = ours;
    run(ours, spans);
    CpuContext context(1, Isa::scalar);
    theirs.run(context, of_host);
    // An input behind the convolution is off by some 8 roundings, a unit key by as many and those of its length, a token's
    // change by those of a sum over keys, sqrt(200) at most: 30 in all. The rule never lengthens an error, those of 34
    // tokens add up as a random walk: 175 roundings, 1e-5.
    EXPECT_LT(compare(ours.out, theirs.out).nmse, 1e-10) << "key_dim " << shape.key_dim;
    EXPECT_LT(compare(ours.states, theirs.states).nmse, 1e-10) << "key_dim " << shape.key_dim;
    const auto of_slot_2 = [&](const DeltaProblem& p) {
      return std::vector(p.states.begin() + 2 * shape.state_values(), p.states.begin() + 3 * shape.state_values());
    };
    EXPECT_EQ(of_slot_2(ours), of_slot_2(before)) << "a slot of nobody";
    EXPECT_EQ(ours.out[size_t(shape.values())], 7.0f) << "a row of nobody";
  }
}

TEST_F(DeltaCuda, TheCutOfAPromptAndOtherSequencesChangeNoBit) {
  for (const DeltaShape& shape : kDeltaShapes) {
    DeltaProblem whole(shape, 40, 7), cut = whole;
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

TEST_F(DeltaCuda, GatesAreTheReferences) {
  constexpr float kEps = 1e-6f;
  CpuContext context(1, Isa::scalar);
  for (const auto& [rows, n] : {std::pair{1, 3}, {7, 128}, {6, 33}}) {
    std::vector<float> x = normal_floats(1, rows * n), gate = normal_floats(2, rows * n, 3);
    const std::vector<float> weight = normal_floats(3, n);
    const gpu::Buffer dx = up(x), dw = up(weight), dg = up(gate);
    device_normed_gate(stream(), rows, n, dx.as<float>(), dw.as<float>(), kEps, dg.as<float>());
    const View2<float> normed(x.data(), rows, n), gated(gate.data(), rows, n);
    rms_norm(context, normed, weight.data(), kEps, normed);
    swiglu(context, gated, normed);
    const std::vector<float> got = down(dg.as<float>(), ssize(gate));
    // A rounded norm, expf by 2 ulp of at most itself, a quotient and a product, on each side.
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], gate[i], 20 * kRounding * std::abs(gate[i])) << i;
  }
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
