// Experts on the device: the choice against the CPU's, products against double arithmetic.
#include "op/experts/int_experts_cuda.h"

#include <cmath>

#include "base/metrics.h"
#include "gpu/brick_data.h"
#include "gpu/device_data.h"
#include "op/experts/route.h"
#include "op/linear.h"
#include "op/norm_rope/norm_rope.h"

namespace ridge {
namespace {

class ExpertsCuda : public OnDevice {
 protected:
  struct Choice {
    gpu::Buffer scores, weights, experts, packs;
    ExpertChoice of;
  };
  Choice buffers_for(int64_t n_tokens, int n_experts, int n_used, bool shared = false) const {
    Choice c;
    c.of = {.n_tokens = n_tokens, .n_experts = n_experts, .n_used = n_used, .shared = shared};
    c.scores = gpu::Buffer(4 * n_tokens * c.of.n_scores());
    c.weights = gpu::Buffer(4 * c.of.n_slots());
    c.experts = gpu::Buffer(4 * c.of.n_slots());
    c.packs = gpu::Buffer(c.of.n_packs() * int64_t(sizeof(ExpertPack)));
    c.of.scores = c.scores.as<float>();
    c.of.weights = c.weights.as<float>();
    c.of.experts = c.experts.as<int32_t>();
    c.of.packs = c.packs.as<ExpertPack>();
    return c;
  }
  struct Groups {
    gpu::Buffer counts, n_areas, experts, columns, column_of;
    ExpertGroups of;
  };
  /// The groups of a choice, made on the device.
  Groups groups_of(const ExpertChoice& c) const {
    Groups g{.counts = gpu::Buffer(4 * c.n_scores()),
             .n_areas = gpu::Buffer(4),
             .experts = gpu::Buffer(4 * c.n_areas()),
             .columns = gpu::Buffer(4 * group_columns() * c.n_areas()),
             .column_of = gpu::Buffer(4 * c.n_slots())};
    g.of = {.width = group_columns(),
            .n_slots = c.n_slots(),
            .most_areas = c.n_areas(),
            .n_areas = g.n_areas.as<int32_t>(),
            .experts = g.experts.as<int32_t>(),
            .columns = g.columns.as<int32_t>(),
            .column_of = g.column_of.as<int32_t>()};
    device_group_experts(stream(), c, g.counts.as<int32_t>(), g.of);
    return g;
  }
  void set_scores(const Choice& c, const std::vector<float>& scores) const {
    gpu::upload(stream(), c.of.scores, scores.data(), 4 * ssize(scores));
    stream().synchronize();
  }
};

TEST_F(ExpertsCuda, ScoresAreTheRouters) {
  for (const int n_tokens : {1, 3, 24, 25, 70})
    for (const auto& [n_experts, n_in] : {std::pair{6, 64}, {33, 100}, {128, 97}, {5, 5000}})
      for (const int rows : {0, 1, 2, 4, 8}) {  // of a block
        if (n_tokens > kFewRoutedTokens && rows != 0) continue;
        const auto x = normal_floats(1, n_tokens * n_in), w = normal_floats(2, n_experts * n_in),
                   bias = normal_floats(3, n_experts);
        const Choice c = buffers_for(n_tokens, n_experts, 2);
        const gpu::Buffer dx = up(x), dw = up(w), db = up(bias);
        device_route(stream(), c.of,
                     {.rule = {.n_used = 2, .renormalised = true},
                      .n_in = n_in,
                      .x = dx.as<float>(),
                      .w = dw.as<float>(),
                      .bias = db.as<float>(),
                      .rows = rows});
        const auto got = down(c.of.scores, n_tokens * n_experts);
        std::vector<Route> routes(size_t(n_tokens * 2));
        CpuContext context(1);
        choose_experts(context, {const_cast<float*>(got.data()), n_tokens, n_experts},
                       {.n_used = 2, .renormalised = true}, nullptr, routes);
        const auto experts = down(c.of.experts, c.of.n_slots());
        for (size_t i = 0; i < routes.size(); ++i) ASSERT_EQ(experts[i], routes[i].expert) << n_tokens << " slot " << i;
        for (int t = 0; t < n_tokens; ++t)
          for (int e = 0; e < n_experts; ++e) {
            double sum = bias[size_t(e)], size = std::abs(sum);
            for (int i = 0; i < n_in; ++i) {
              const double product = double(x[size_t(t * n_in + i)]) * w[size_t(e * n_in + i)];
              sum += product, size += std::abs(product);
            }
            // n_in fused steps and a bias, each off by half an ulp of a partial sum.
            ASSERT_NEAR(got[size_t(t * n_experts + e)], sum, (n_in + 1) * 0x1p-24 * size) << n_tokens << " " << e;
          }
      }
}

/// A norm in front, and a shared expert behind the others, with the sigmoid of its gate as weight or with weight 1.
TEST_F(ExpertsCuda, NormsAndSharedExpertsAreTheReferences) {
  constexpr int kExperts = 37, kUsed = 3, kIn = 130;
  constexpr float kEps = 1e-6f;
  for (const int n_tokens : {1, 5, 24, 70})
    for (const auto& [gates, of_block] :
         {std::pair{true, 0}, {false, 0}, {true, 1}, {true, 2}, {false, 4}, {true, 8}}) {
      std::vector<float> x = normal_floats(1, n_tokens * kIn, 3);
      const auto norm = normal_floats(2, kIn), w = normal_floats(3, (kExperts + 1) * kIn);
      const Choice c = buffers_for(n_tokens, kExperts, kUsed, true);
      const gpu::Buffer dx = up(x), dn = up(norm), dw = up(w), h(4 * ssize(x));
      device_route(stream(), c.of,
                   {.rule = {.n_used = kUsed, .renormalised = true},
                    .n_in = kIn,
                    .x = dx.as<float>(),
                    .norm_weight = dn.as<float>(),
                    .norm_eps = kEps,
                    .h = h.as<float>(),
                    .w = dw.as<float>(),
                    .gates_shared = gates,
                    .overlap = true,
                    .rows = of_block});
      CpuContext context(1);
      const View2<float> rows(x.data(), n_tokens, kIn);
      rms_norm(context, rows, norm.data(), kEps, rows);
      const auto normed = down(h.as<float>(), ssize(x));
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(normed[i], x[i], 4 * 0x1p-24 * std::abs(x[i]));
      const auto scores = down(c.of.scores, n_tokens * (kExperts + 1));
      const auto weights = down(c.of.weights, c.of.n_slots());
      const auto experts = down(c.of.experts, c.of.n_slots());
      std::vector<float> of_token;
      for (int t = 0; t < n_tokens; ++t) {
        for (int e = 0; e < kExperts + gates; ++e) {
          double sum = 0, size = 0;
          for (int i = 0; i < kIn; ++i) {
            const double product = double(normed[size_t(t * kIn + i)]) * w[size_t(e * kIn + i)];
            sum += product, size += std::abs(product);
          }
          ASSERT_NEAR(scores[size_t(t * (kExperts + 1) + e)], sum, (kIn + 1) * 0x1p-24 * size);
        }
        of_token.assign(&scores[size_t(t * (kExperts + 1))], &scores[size_t(t * (kExperts + 1) + kExperts)]);
        std::vector<Route> routes(kUsed);
        choose_experts(context, {of_token.data(), 1, kExperts}, {.n_used = kUsed, .renormalised = true}, nullptr,
                       routes);
        const auto slot = size_t(t * (kUsed + 1));
        for (size_t i = 0; i < kUsed; ++i) {
          ASSERT_EQ(experts[slot + i], routes[i].expert);
          ASSERT_NEAR(weights[slot + i], routes[i].weight, 12 * 0x1p-24 * routes[i].weight);
        }
        ASSERT_EQ(experts[slot + kUsed], kExperts);
        const double gate = scores[size_t(t * (kExperts + 1) + kExperts)],
                     weight = gates ? 1 / (1 + std::exp(-gate)) : 1;
        ASSERT_NEAR(weights[slot + kUsed], weight, 6 * 0x1p-24 * weight);
      }
      int seen = 0;
      for (const ExpertPack& pack : down(c.of.packs, c.of.n_packs())) seen += pack.n;
      ASSERT_EQ(seen, n_tokens * (kUsed + 1));
    }
}

/// Rules of softmax routers and of sigmoid ones, and both with groups, some of one expert, and a scale.
std::vector<std::pair<int, ExpertRule>> choice_rules() {
  std::vector<std::pair<int, ExpertRule>> rules;
  for (const auto& [n_experts, n_used] : {std::pair{1, 1}, {6, 2}, {32, 32}, {40, 3}, {128, 8}, {1000, 10}})
    for (const bool renormalised : {false, true})
      for (const bool sigmoid : {false, true})
        rules.push_back({n_experts, {.n_used = n_used, .renormalised = renormalised, .sigmoid = sigmoid}});
  for (const auto& [n_experts, n_groups, n_groups_used] :
       {std::tuple{8, 4, 2}, {256, 8, 4}, {40, 40, 5}, {99, 33, 2}, {1024, 512, 4}})
    for (const bool sigmoid : {false, true})
      rules.push_back({n_experts,
                       {.n_used = std::min(8, n_experts / n_groups * n_groups_used),
                        .renormalised = n_experts % 2 == 0,
                        .sigmoid = sigmoid,
                        .n_groups = n_groups,
                        .n_groups_used = n_groups_used,
                        .scale = 2.5f}});
  return rules;
}

/// Ties go to the lower number; packs have every slot once, of one expert each.
TEST_F(ExpertsCuda, ChoicesAreTheReferences) {
  for (const int n_tokens : {1, 2, 9, 32, 33, 150})
    for (const auto& [n_experts, rule] : choice_rules()) {
      const int n_used = rule.n_used;
      std::vector<float> scores = normal_floats(7, n_tokens * n_experts, 2), bias = normal_floats(8, n_experts, 0.3);
      for (size_t i = 0; i < scores.size(); i += 3) scores[i] = std::round(scores[i]);  // ties
      for (size_t i = 0; i < bias.size(); i += 2) bias[i] = 0;
      const gpu::Buffer device_bias = up(bias);
      std::vector<Route> routes(size_t(n_tokens * n_used));
      CpuContext context(1);
      choose_experts(context, {scores.data(), n_tokens, n_experts}, rule, rule.sigmoid ? bias.data() : nullptr, routes);
      const Choice c = buffers_for(n_tokens, n_experts, n_used);
      set_scores(c, scores);
      device_choose_experts(stream(), c.of,
                            {.rule = rule, .choice_bias = rule.sigmoid ? device_bias.as<float>() : nullptr});
      const auto experts = down(c.of.experts, c.of.n_slots());
      const auto weights = down(c.of.weights, c.of.n_slots());
      for (size_t i = 0; i < routes.size(); ++i) {
        ASSERT_EQ(experts[i], routes[i].expert)
            << n_tokens << " tokens, " << n_experts << " experts, " << rule.n_groups << " groups, slot " << i;
        // exp by 2 ulp on each side, of the weight and of what it is divided by; 1 + exp and the division of a sigmoid.
        ASSERT_NEAR(weights[i], routes[i].weight, (rule.sigmoid ? 20 : 12) * 0x1p-24 * routes[i].weight);
      }
      std::vector<int> seen(routes.size());
      for (const ExpertPack& pack : down(c.of.packs, c.of.n_packs())) {
        ASSERT_TRUE(pack.n >= 0 && pack.n <= (n_tokens == 1 ? 1 : ExpertPack::kMost));
        for (int i = 0; i < pack.n; ++i) {
          seen.at(size_t(pack.slots[i])) += 1;
          ASSERT_EQ(experts[size_t(pack.slots[i])], pack.expert);
        }
      }
      ASSERT_EQ(std::ranges::count(seen, 1), ssize(seen)) << n_tokens << " tokens, " << n_experts << " experts";
    }
}

/// Sigmoids that are all 0 leave weights of 0.
TEST_F(ExpertsCuda, VeryLowScoresHaveNoWeight) {
  const Choice c = buffers_for(1, 6, 2);
  set_scores(c, std::vector<float>(6, -200.0f));
  device_choose_experts(stream(), c.of, {.rule = {.n_used = 2, .renormalised = true, .sigmoid = true}});
  EXPECT_EQ(down(c.of.weights, 2), std::vector<float>(2, 0.0f));
  EXPECT_EQ(down(c.of.experts, 2), (std::vector<int32_t>{0, 1}));
}

/// Scores that are no numbers, as rows of nobody may have them, choose some experts.
TEST_F(ExpertsCuda, AnyScoresChooseExperts) {
  const Choice c = buffers_for(2, 6, 3);
  std::vector<float> scores(12, NAN);
  scores[7] = INFINITY;
  set_scores(c, scores);
  device_choose_experts(stream(), c.of, {.rule = {.n_used = 3, .renormalised = true}});
  for (const int32_t expert : down(c.of.experts, c.of.n_slots())) EXPECT_TRUE(expert >= 0 && expert < 6) << expert;
}

/// Every format, odd widths and heights, one token and many; outputs of a token are the same bits in any pack.
TEST_F(ExpertsCuda, ProductsAreWithinTheirRounding) {
  constexpr int kExperts = 5, kUsed = 2;
  for (const WeightFormat& format : weight_formats()) {
    if (format.tail_bytes > 0) continue;  // ternary, with activations of its own
    const auto group = int64_t(format.group);
    for (const int64_t n_out : {int64_t(16), int64_t(37)}) {
      const int64_t n_in = group == 1 ? 67 : group == 256 ? 512 : 3 * group;
      Rng rng(uint64_t(n_out) + 3);
      std::vector<std::vector<std::byte>> rows;
      std::vector<Linear> matrices[2];
      std::vector<std::vector<float>> biases;
      std::vector<const Linear*> of_role[2];
      std::vector<const std::vector<float>*> biases_of_role[2];
      for (int role = 0; role < 2; ++role)
        for (int e = 0; e < kExperts; ++e) {
          const auto blocks = random_blocks(format, rng, 1, n_out * n_in);
          rows.emplace_back(blocks.begin(), blocks.end());
          const float scale = format.name == "nvfp4" ? 1 + 0.25f * float(e) : 1;
          matrices[role].push_back({.format = &format, .n_out = n_out, .n_in = n_in, .scale = scale});
          biases.push_back(normal_floats(uint64_t(e), n_out));
        }
      for (size_t i = 0; i < rows.size(); ++i) {
        Linear& m = matrices[i / kExperts][i % kExperts];
        m.rows = rows[i].data();
        of_role[i / kExperts].push_back(&m);
        biases_of_role[i / kExperts].push_back(i < kExperts ? &biases[i] : nullptr);
      }
      const DeviceExpertMatmul product(stream(), of_role, biases_of_role);
      const auto [kept, packing] = DeviceExpertMatmul::bytes_of(of_role, biases_of_role);
      EXPECT_EQ(product.bytes(), kept);
      EXPECT_GE(packing, 0);
      for (const int n_tokens : {1, 7})
        for (const bool shares : {true, false}) {
          const Choice c = buffers_for(n_tokens, kExperts, kUsed);
          set_scores(c, normal_floats(5, n_tokens * kExperts));
          device_choose_experts(stream(), c.of, {.rule = {.n_used = kUsed, .renormalised = true}});
          const auto experts = down(c.of.experts, c.of.n_slots());
          const auto x = normal_floats(4, (shares ? n_tokens : c.of.n_slots()) * n_in);
          const gpu::Buffer dx = up(x), guarded[2] = {up(std::vector<float>(size_t(c.of.n_slots() * n_out + 1), 7.0f)),
                                                      up(std::vector<float>(size_t(c.of.n_slots() * n_out + 1), 7.0f))};
          product.run(stream(), {.packs = c.of.packs,
                                 .n_packs = c.of.n_packs(),
                                 .most = n_tokens == 1 ? 1 : ExpertPack::kMost,
                                 .x = dx.as<float>(),
                                 .share = shares ? kUsed : 1,
                                 .y = {guarded[0].as<float>(), guarded[1].as<float>()}});
          std::vector<float> w(size_t(n_out * n_in));
          for (int role = 0; role < 2; ++role) {
            const auto y = down(guarded[role].as<float>(), c.of.n_slots() * n_out + 1);
            EXPECT_EQ(y.back(), 7.0f) << format.name << " wrote past its end";
            for (int64_t slot = 0; slot < c.of.n_slots(); ++slot) {
              const auto expert = size_t(experts[size_t(slot)]);
              const float* const from = &x[size_t((shares ? slot / kUsed : slot) * n_in)];
              format.decode(matrices[role][expert].rows, n_out * n_in, w.data());
              for (float& weight : w) weight *= matrices[role][expert].scale;
              double top = 0;
              for (int64_t i = 0; i < n_in; ++i) top = std::max(top, double(std::abs(from[i])));
              for (int64_t o = 0; o < n_out; ++o) {
                double sum = role == 0 ? biases[expert][size_t(o)] : 0, size = std::abs(sum), w_size = 0;
                for (int64_t i = 0; i < n_in; ++i) {
                  const double weight = w[size_t(o * n_in + i)], product_of = weight * from[i];
                  sum += product_of, size += std::abs(product_of), w_size += std::abs(weight);
                }
                // Floats' sums; x in two planes: 2^-21 of it in f16, 2^-15 in bf16, 2^-24 of the largest at least.
                const double planes = format.name == "bf16" ? 0x1p-15 : 0x1p-21;
                const double bound = (2 * double(n_in) * 0x1p-24 + planes) * size + 0x1p-23 * w_size * top;
                ASSERT_NEAR(y[size_t(slot * n_out + o)], sum, bound)
                    << format.name << " " << n_out << "x" << n_in << ", slot " << slot << ", row " << o;
              }
            }
          }
        }
    }
  }
}

double activated(BrickGlu glu, double g, double u) {
  switch (glu) {
    case BrickGlu::silu: return g / (1 + std::exp(-g)) * u;
    case BrickGlu::relu2: return g < 0 ? 0 : g * g * u;
    case BrickGlu::gelu_tanh: return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    case BrickGlu::clamped_swiglu: break;
  }
  g = std::min(g, 7.0), u = std::clamp(u, -7.0, 7.0);
  return g / (1 + std::exp(-1.702 * g)) * (u + 1);
}

/// Gate and up in one launch, with biases and every activation; then the sum over a token's experts as one row, with
/// biases, which equals weighted products of the experts one by one. Whole and odd widths.
TEST_F(ExpertsCuda, GatedProductsAndSumsAreThoseOfSingleExperts) {
  constexpr int kExperts = 5, kUsed = 2;
  for (const char* name : {"int4_g128", "q8_0", "mxfp4", "q4_k", "bf16"})
    for (const auto& [d_model, d_ff] : {std::pair{256, 512}, {512, 256}, {256, 768}}) {
      const WeightFormat& format = *find_weight_format(name).or_throw();
      Rng rng(3);
      std::vector<std::vector<std::byte>> rows;
      std::vector<std::vector<float>> biases;
      std::vector<Linear> matrices[3];
      std::vector<const Linear*> of_role[3];
      std::vector<const std::vector<float>*> biases_of_role[3];
      for (int role = 0; role < 3; ++role)
        for (int e = 0; e < kExperts; ++e) {
          const int64_t n_out = role < 2 ? d_ff : d_model, n_in = role < 2 ? d_model : d_ff;
          const auto blocks = random_blocks(format, rng, 1 / std::sqrt(double(n_in)), n_out * n_in);
          rows.emplace_back(blocks.begin(), blocks.end());
          biases.push_back(normal_floats(uint64_t(role * 10 + e), n_out));
          matrices[role].push_back({.format = &format, .n_out = n_out, .n_in = n_in});
        }
      for (size_t i = 0; i < rows.size(); ++i) {
        Linear& m = matrices[i / kExperts][i % kExperts];
        m.rows = rows[i].data();
        of_role[i / kExperts].push_back(&m);
        biases_of_role[i / kExperts].push_back(&biases[i]);
      }
      const std::span all(of_role);
      const std::span all_biases(biases_of_role);
      const DeviceExpertMatmul apart(stream(), all.first(2), all_biases.first(2)),
          gated(stream(), all.first(2), all_biases.first(2), true), last(stream(), all.last(1), all_biases.last(1));
      EXPECT_EQ(gated.bytes(), DeviceExpertMatmul::bytes_of(all.first(2), all_biases.first(2), true)[0]);
      EXPECT_FALSE(apart.is_gated());
      ASSERT_TRUE(gated.is_gated() && last.can_sum());
      for (const int n_tokens : {1, 3}) {
        const Choice c = buffers_for(n_tokens, kExperts, kUsed);
        set_scores(c, normal_floats(5, n_tokens * kExperts));
        device_choose_experts(stream(), c.of, {.rule = {.n_used = kUsed, .renormalised = true}});
        const gpu::Buffer dx = up(normal_floats(4, n_tokens * d_model)), gate(4 * c.of.n_slots() * d_ff),
                          of_up(4 * c.of.n_slots() * d_ff), of_both(4 * c.of.n_slots() * d_ff),
                          single(4 * c.of.n_slots() * d_model);
        ExpertCall call{.packs = c.of.packs,
                        .n_packs = c.of.n_packs(),
                        .most = n_tokens == 1 ? 1 : ExpertPack::kMost,
                        .x = dx.as<float>(),
                        .share = kUsed,
                        .y = {gate.as<float>(), of_up.as<float>()}};
        apart.run(stream(), call);
        const auto g = down(gate.as<float>(), c.of.n_slots() * d_ff),
                   u = down(of_up.as<float>(), c.of.n_slots() * d_ff);
        call.y[0] = of_both.as<float>(), call.y[1] = nullptr;
        call.overlap = true;
        for (const BrickGlu glu : {BrickGlu::relu2, BrickGlu::gelu_tanh, BrickGlu::clamped_swiglu, BrickGlu::silu}) {
          call.glu = glu;
          gated.run(stream(), call);
          const auto got = down(of_both.as<float>(), c.of.n_slots() * d_ff);
          for (size_t i = 0; i < got.size(); ++i) {
            const double expected = activated(glu, g[i], u[i]);
            // Sums of other warps' shares, to some 2^-20 of rows of size 1 or so: slopes of the activations are below
            // 8.
            ASSERT_NEAR(got[i], expected, 1e-4 * (1 + std::abs(expected))) << name << " " << i;
          }
        }
        call.x = of_both.as<float>();
        call.share = 1;
        call.y[0] = single.as<float>();
        last.run(stream(), call);
        const auto y = down(single.as<float>(), c.of.n_slots() * d_model);
        const auto weights = down(c.of.weights, c.of.n_slots()), act = down(of_both.as<float>(), c.of.n_slots() * d_ff);
        const auto experts = down(c.of.experts, c.of.n_slots());
        std::vector<std::vector<float>> decoded;
        for (const Linear& m : matrices[2])
          format.decode(m.rows, d_model * d_ff, decoded.emplace_back(size_t(d_model * d_ff)).data());
        for (const bool add : {false, true}) {
          const gpu::Buffer out = up(std::vector<float>(size_t(n_tokens * d_model + 1), 0.5f));
          last.run_sum(stream(), {.n_tokens = n_tokens,
                                  .n_slots = kUsed,
                                  .experts = c.of.experts,
                                  .weights = c.of.weights,
                                  .x = of_both.as<float>(),
                                  .add = add,
                                  .y = out.as<float>(),
                                  .overlap = true});
          const auto got = down(out.as<float>(), n_tokens * d_model + 1);
          EXPECT_EQ(got.back(), 0.5f) << name << " wrote past its end";
          for (int t = 0; t < n_tokens; ++t)
            for (int i = 0; i < d_model; ++i) {
              double sum = add ? 0.5 : 0, size = sum, top = 0, w_size = 0;
              for (int k = 0; k < kUsed; ++k) {
                const auto slot = size_t(t * kUsed + k);
                sum += double(weights[slot]) * y[slot * size_t(d_model) + size_t(i)];
                const float* const row = &decoded[size_t(experts[slot])][size_t(i * d_ff)];
                for (int j = 0; j < d_ff; ++j) {
                  const double of_x = std::abs(double(weights[slot]) * act[slot * size_t(d_ff) + size_t(j)]);
                  size += std::abs(row[j]) * of_x, w_size += std::abs(row[j]), top = std::max(top, of_x);
                }
              }
              // Of both ways, as of single products.
              const double planes = format.name == "bf16" ? 0x1p-15 : 0x1p-21;
              const double bound = 2 * ((2 * kUsed * d_ff * 0x1p-24 + planes) * size + 0x1p-23 * w_size * top);
              ASSERT_NEAR(got[size_t(t * d_model + i)], sum, bound)
                  << name << " " << d_ff << " token " << t << " row " << i;
            }
        }
      }
    }
}

/// Integers of one token: gate and up choose, norm and multiply; the sum has their choice, or chooses too. Rows of
/// several groups a warp, more tiles than a batch has, heights that are no whole tiles, every rule of a choice.
TEST_F(ExpertsCuda, IntegerProductsChooseAndAreWithinTheirRounding) {
  struct Case {
    const char* name;
    int n_experts;
    ExpertRule rule;
    bool shared, normed;
    int d_model, d_ff;
  };
  const ExpertRule softmax{.n_used = 2, .renormalised = true}, whole{.n_used = 3, .scale = 2},
      groups{.n_used = 4, .renormalised = true, .sigmoid = true, .n_groups = 4, .n_groups_used = 2, .scale = 2.5f};
  const Case cases[] = {{"int4_g128", 5, softmax, false, true, 128, 128},
                        {"int4_g128", 6, whole, true, true, 384, 256},
                        {"int4_g128", 40, groups, true, false, 256, 384},
                        {"int4_g128", 3, softmax, true, true, 2304, 128},
                        {"int4_g128", 2, {.n_used = 1, .renormalised = true}, true, true, 1280, 640},
                        {"int4_g128", 290, {.n_used = 12, .renormalised = true}, true, true, 128, 128},
                        {"q4_k", 6, whole, true, true, 768, 512},
                        {"q4_k", 290, {.n_used = 12, .renormalised = true}, true, true, 256, 256},
                        {"q5_k", 5, softmax, false, true, 512, 256},
                        {"q6_k", 3, softmax, true, true, 4608, 256},
                        {"q6_k", 40, groups, true, false, 256, 512},
                        {"q8_0", 2, {.n_used = 1, .renormalised = true}, true, true, 1280, 640},
                        {"q4_0", 6, whole, true, true, 384, 256},
                        {"q4_0", 3, softmax, true, true, 2304, 128}};
  for (const auto& [name, n_experts, rule, shared, normed, d_model, d_ff] : cases) {
    SCOPED_TRACE(name);
    const int n_all = n_experts + shared, n_chosen = rule.n_used + shared;
    std::vector<BrickRows> rows;
    std::vector<std::vector<double>> sizes;  // of their products
    std::vector<Linear> matrices[3];
    std::vector<const Linear*> of_role[3];
    const std::vector<std::vector<const std::vector<float>*>> no_biases(
        3, std::vector<const std::vector<float>*>(size_t(n_all)));
    for (int role = 0; role < 3; ++role)
      for (int e = 0; e < n_all; ++e) {
        const int64_t n_out = role < 2 ? d_ff : d_model, n_in = role < 2 ? d_model : d_ff;
        sizes.push_back(product_sizes(rows.emplace_back(name, n_out, n_in, uint64_t(d_model + n_all * role + e))));
        matrices[role].push_back({.format = &rows.back().format, .n_out = n_out, .n_in = n_in});
      }
    for (size_t i = 0; i < rows.size(); ++i) {
      Linear& m = matrices[i / size_t(n_all)][i % size_t(n_all)];
      m.rows = rows[i].bytes.data();
      of_role[i / size_t(n_all)].push_back(&m);
    }
    const std::span all(of_role);
    const DeviceExpertMatmul gated(stream(), all.first(2), std::span(no_biases).first(2), true),
        last(stream(), all.last(1), std::span(no_biases).last(1));

    const Choice c = buffers_for(1, n_experts, rule.n_used, shared);
    const auto scores = normal_floats(7, n_all, 2), bias = normal_floats(8, n_experts, 0.3),
               norm = normal_floats(9, d_model);
    set_scores(c, scores);
    std::vector<float> copy = scores;
    std::vector<Route> routes(size_t(rule.n_used));
    CpuContext context(1);
    choose_experts(context, {copy.data(), 1, n_experts}, rule, rule.sigmoid ? bias.data() : nullptr, routes);
    if (shared) routes.push_back({n_experts, 1 / (1 + std::exp(-scores.back()))});
    const gpu::Buffer db = up(bias), dn = up(norm), dx = up(normal_floats(4, d_model)),
                      act = up(std::vector<float>(size_t(n_chosen * d_ff + 1), 7.0f));
    const ExpertRouter router{.rule = rule, .choice_bias = rule.sigmoid ? db.as<float>() : nullptr};
    if (gpu::most_shared_bytes() < gpu::kAmpereSharedBytes && !last.can_choose(c.of, rule)) continue;  // AMD's
    ASSERT_TRUE(gated.can_choose(c.of, rule) && last.can_choose(c.of, rule));
    const auto x = down(dx.as<float>(), d_model);
    // Of a group an activation is off by half a step, its largest value / 127 / 254, and by the roundings that make it
    // (x, inverse, step: 3); sums of integers are exact, groups are added in floats. Of a group up to 8 minima are
    // added and 12 factors and sums rounded, then 4 lanes are added.
    const auto product = [&](int role, int expert, int64_t row, const std::vector<float>& values, double& error) {
      const int64_t n_in = role < 2 ? d_model : d_ff;
      const auto of = size_t(role * n_all + expert), first = size_t(row * n_in);
      const float* const w = &rows[of].weights[first];
      const int64_t columns = rows[of].format.group == 256 ? 256 : 128;
      const int roundings = rows[of].format.name == "int4_g128" ? 8 : 24;
      double sum = 0;
      for (int64_t group = 0; group < n_in / columns; ++group) {
        double top = 0, size = 0, of_weights = 0;
        for (int64_t k = columns * group; k < columns * (group + 1); ++k) {
          sum += double(w[k]) * values[size_t(k)];
          size += sizes[of][first + size_t(k)] * std::abs(values[size_t(k)]), of_weights += std::abs(w[k]);
          top = std::max(top, double(std::abs(values[size_t(k)])));
        }
        error +=
            of_weights * top * (0.5 / 127 / 254 + 3 * 0x1p-24) + size * double(n_in / columns + roundings) * 0x1p-24;
      }
      return sum;
    };
    for (const BrickGlu glu : {BrickGlu::silu, BrickGlu::clamped_swiglu}) {
      gpu::upload(stream(), c.of.experts, std::vector<int32_t>(size_t(n_chosen), -1).data(), 4 * n_chosen);
      gated.run_chosen(stream(), {.choice = c.of,
                                  .router = router,
                                  .x = dx.as<float>(),
                                  .norm_weight = normed ? dn.as<float>() : nullptr,
                                  .norm_eps = 1e-6f,
                                  .glu = glu,
                                  .y = act.as<float>(),
                                  .overlap = true});
      const auto got = down(act.as<float>(), n_chosen * d_ff + 1);
      const auto left = down(c.of.experts, n_chosen);
      for (size_t i = 0; i < routes.size(); ++i) ASSERT_EQ(left[i], routes[i].expert) << "slot " << i;
      EXPECT_EQ(got.back(), 7.0f) << "wrote past its end";
      std::vector<float> values(x);
      double squares = 0;
      for (const float v : x) squares += double(v) * v;
      const double factor = normed ? 1 / std::sqrt(squares / d_model + 1e-6) : 1;
      for (int i = 0; normed && i < d_model; ++i) values[size_t(i)] *= norm[size_t(i)];
      for (int slot = 0; slot < n_chosen; ++slot)
        for (int row = 0; row < d_ff; ++row) {
          double errors[2] = {}, sums[2];
          for (int role = 0; role < 2; ++role) {
            sums[role] = factor * product(role, routes[size_t(slot)].expert, row, values, errors[role]);
            // The weight's product and a factor of squares in float.
            errors[role] = factor * errors[role] + 40 * 0x1p-24 * std::abs(sums[role]);
          }
          // Slopes: of silu below 1.1, of the clamped form below 1.1 and 1; both times the other one.
          const double expected = activated(glu, sums[0], sums[1]), bound = 1.1 * errors[0] * (1 + std::abs(sums[1])) +
                                                                            errors[1] * (1 + std::abs(sums[0])) +
                                                                            8 * 0x1p-24 * std::abs(expected);
          ASSERT_NEAR(got[size_t(slot * d_ff + row)], expected, bound)
              << d_model << "x" << d_ff << " slot " << slot << " row " << row;
        }
    }
    const auto of_down = down(act.as<float>(), n_chosen * d_ff);
    std::vector<int32_t> experts;
    for (const Route& route : routes) experts.push_back(route.expert);
    gpu::upload(stream(), c.of.experts, experts.data(), 4 * n_chosen);
    for (const bool add : {false, true}) {
      const gpu::Buffer out = up(std::vector<float>(size_t(d_model + 1), 0.5f));
      last.run_chosen(
          stream(),
          {.choice = c.of, .router = router, .x = act.as<float>(), .add = add, .y = out.as<float>(), .overlap = true});
      const auto got = down(out.as<float>(), d_model + 1);
      EXPECT_EQ(got.back(), 0.5f) << "wrote past its end";
      for (int row = 0; row < d_model; ++row) {
        double sum = add ? 0.5 : 0, bound = 0x1p-24 * sum;
        for (int slot = 0; slot < n_chosen; ++slot) {
          const std::vector<float> values(of_down.begin() + slot * d_ff, of_down.begin() + (slot + 1) * d_ff);
          const Route& route = routes[size_t(slot)];
          double error = 0;
          const double p = product(2, route.expert, row, values, error);
          sum += route.weight * p;
          bound += route.weight * (error + (20 + n_chosen) * 0x1p-24 * std::abs(p));  // the weight, as for choices
        }
        ASSERT_NEAR(got[size_t(row)], sum, bound) << d_model << "x" << d_ff << " row " << row;
      }
    }

    // Tokens of one launch have the bits that they have alone.
    constexpr int kTokens = 3;
    const Choice several = buffers_for(kTokens, n_experts, rule.n_used, shared);
    const auto of_tokens = normal_floats(17, kTokens * n_all, 2);
    set_scores(several, of_tokens);
    const gpu::Buffer xs = up(normal_floats(14, kTokens * d_model)),
                      acts = up(std::vector<float>(size_t(kTokens * n_chosen * d_ff))),
                      outs = up(std::vector<float>(size_t(kTokens * d_model + 1), 0.5f));
    const auto run = [&](const Choice& of, const float* token_x, float* token_act, float* out) {
      gated.run_chosen(stream(), {.choice = of.of,
                                  .router = router,
                                  .x = token_x,
                                  .norm_weight = normed ? dn.as<float>() : nullptr,
                                  .norm_eps = 1e-6f,
                                  .y = token_act,
                                  .overlap = true});
      last.run_chosen(stream(),
                      {.choice = of.of, .router = router, .x = token_act, .add = true, .y = out, .overlap = true});
    };
    run(several, xs.as<float>(), acts.as<float>(), outs.as<float>());
    const auto together = down(outs.as<float>(), kTokens * d_model + 1);
    EXPECT_EQ(together.back(), 0.5f) << "wrote past its end";
    for (int token = 0; token < kTokens; ++token) {
      set_scores(c, {of_tokens.begin() + token * n_all, of_tokens.begin() + (token + 1) * n_all});
      const gpu::Buffer out = up(std::vector<float>(size_t(d_model), 0.5f));
      run(c, xs.as<float>() + token * d_model, act.as<float>(), out.as<float>());
      const auto alone = down(out.as<float>(), d_model);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + token * d_model))
          << d_model << "x" << d_ff << " token " << token;
    }
  }
}

/// Every slot once, in areas of its expert, whatever the experts' shares.
TEST_F(ExpertsCuda, GroupsHaveEverySlotOnce) {
  for (const int n_tokens : {25, 150})
    for (const auto& [n_experts, n_used] : {std::pair{3, 2}, {40, 3}, {256, 8}}) {
      const Choice c = buffers_for(n_tokens, n_experts, n_used);
      std::vector<float> scores = normal_floats(7, n_tokens * n_experts, 2);
      for (int t = 0; t < n_tokens; ++t) scores[size_t(t * n_experts + 1)] = 9;  // everybody's
      set_scores(c, scores);
      device_choose_experts(stream(), c.of, {.rule = {.n_used = n_used, .renormalised = true}});
      const Groups groups = groups_of(c.of);
      const int width = groups.of.width;
      const auto experts = down(c.of.experts, c.of.n_slots());
      const int n = down(groups.of.n_areas, 1)[0];
      ASSERT_LE(n, c.of.n_areas());
      const auto of_area = down(groups.of.experts, n), slots = down(groups.of.columns, n * width),
                 column_of_slot = down(groups.of.column_of, c.of.n_slots());
      std::vector<int> seen(experts.size());
      for (size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] < 0) continue;
        ASSERT_EQ(column_of_slot.at(size_t(slots[i])), int(i));
        ASSERT_EQ(experts.at(size_t(slots[i])), of_area[i / size_t(width)]);
        seen[size_t(slots[i])] += 1;
      }
      ASSERT_EQ(std::ranges::count(seen, 1), ssize(seen));
    }
}

/// One matrix, and gate and up with biases and activation, of many tokens.
TEST_F(ExpertsCuda, ProductsOfGroupsAreWithinTheirRounding) {
  constexpr int kExperts = 5, kUsed = 2, kModel = 512, kFf = 144;
  for (const auto& [name, kTokens] : {std::pair{"int4_g128", 50},
                                      {"int4_g128", 190},
                                      {"q8_0", 50},
                                      {"mxfp4", 50},
                                      {"q4_k", 50},
                                      {"q6_k", 66},
                                      {"f16", 50}}) {
    std::vector<BrickRows> rows;
    std::vector<std::vector<float>> biases;
    std::vector<Linear> matrices[2];
    std::vector<const Linear*> of_role[2];
    std::vector<const std::vector<float>*> biases_of_role[2];
    for (int i = 0; i < 2 * kExperts; ++i) {
      rows.emplace_back(name, kFf, kModel, uint64_t(i + 3));
      biases.push_back(normal_floats(uint64_t(i), kFf));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      matrices[i / kExperts].push_back({.format = &rows[i].format, .n_out = kFf, .n_in = kModel});
      matrices[i / kExperts].back().rows = rows[i].bytes.data();
      biases_of_role[i / kExperts].push_back(&biases[i]);
    }
    for (int role = 0; role < 2; ++role)
      for (const Linear& m : matrices[role]) of_role[role].push_back(&m);
    const std::span all(of_role);
    const std::span all_biases(biases_of_role);
    const DeviceExpertMatmul gated(stream(), all, all_biases, true), plain(stream(), all.first(1), all_biases.first(1)),
        apart(stream(), all, all_biases);
    ASSERT_TRUE(gated.can_group() && plain.can_group() && !apart.can_group());
    const Choice c = buffers_for(kTokens, kExperts, kUsed);
    set_scores(c, normal_floats(5, kTokens * kExperts));
    device_choose_experts(stream(), c.of, {.rule = {.n_used = kUsed, .renormalised = true}});
    const Groups groups = groups_of(c.of);
    const auto x = normal_floats(4, kTokens * kModel);
    const gpu::Buffer dx = up(x), y(4 * c.of.n_slots() * kFf);
    gpu::Buffer scratch;
    const auto experts = down(c.of.experts, c.of.n_slots());
    std::vector<BrickReference> references;
    const bool wide = gpu::device_has_warpgroups();
    for (const BrickRows& of_rows : rows)
      references.emplace_back(of_rows, x, wide ? kWideError : plane_error(name, 1), wide ? kWideSmallWeights : 0);
    for (const DeviceExpertMatmul* product : {&plain, &gated})
      for (const BrickGlu glu : {BrickGlu::clamped_swiglu, BrickGlu::silu}) {
        product->run_groups(stream(),
                            {.groups = groups.of, .x = dx.as<float>(), .share = kUsed, .glu = glu, .y = y.as<float>()},
                            scratch);
        const auto got = down(y.as<float>(), c.of.n_slots() * kFf);
        for (size_t i = 0; i < got.size(); ++i) {
          const size_t slot = i / kFf, row = i % kFf, expert = size_t(experts[slot]);
          double sums[2], bounds[2];
          for (size_t role = 0; role < 2; ++role) {
            const BrickReference& r = references[role * kExperts + expert];
            sums[role] = r.y[slot / kUsed * kFf + row] + biases[role * kExperts + expert][row];
            bounds[role] = r.bound[slot / kUsed * kFf + row] + 0x1p-23 * std::abs(sums[role]);
          }
          double expected = sums[0], bound = bounds[0];
          if (product == &gated) {  // slopes as above
            expected = activated(glu, sums[0], sums[1]);
            bound = 1.1 * bounds[0] * (1 + std::abs(sums[1]) + bounds[1]) + bounds[1] * (1 + std::abs(sums[0])) +
                    0x1p-19 * std::abs(expected);
          }
          ASSERT_NEAR(got[i], expected, bound) << name << " slot " << slot << " row " << row;
        }
      }
  }
}

TEST_F(ExpertsCuda, SumsAreTheReferences) {
  constexpr int kTokens = 3, kUsed = 4, kN = 301;
  const auto weights = normal_floats(1, kTokens * kUsed), y = normal_floats(2, kTokens * kUsed * kN),
             shared = normal_floats(3, kTokens * kN), h = normal_floats(4, kTokens * kN), gate = normal_floats(5, kN),
             before = normal_floats(6, kTokens * kN);
  const gpu::Buffer dw = up(weights), dy = up(y), ds = up(shared), dh = up(h), dg = up(gate);
  for (const bool add : {false, true})
    for (const auto& [with_shared, with_gate] : {std::pair{false, true}, {true, true}, {true, false}}) {
      const gpu::Buffer out = up(before);
      device_sum_experts(stream(), {.n_tokens = kTokens,
                                    .n = kN,
                                    .n_used = kUsed,
                                    .weights = dw.as<float>(),
                                    .y = dy.as<float>(),
                                    .shared = with_shared ? ds.as<float>() : nullptr,
                                    .h = dh.as<float>(),
                                    .gate = with_gate ? dg.as<float>() : nullptr,
                                    .add = add,
                                    .out = out.as<float>()});
      const auto got = down(out.as<float>(), kTokens * kN);
      for (int t = 0; t < kTokens; ++t) {
        double dot = 0;
        for (int i = 0; i < kN; ++i) dot += double(h[size_t(t * kN + i)]) * gate[size_t(i)];
        for (int i = 0; i < kN; ++i) {
          const auto at = size_t(t * kN + i);
          double sum = add ? before[at] : 0, size = std::abs(sum);
          const auto take = [&](double value) { sum += value, size += std::abs(value); };
          for (int k = 0; k < kUsed; ++k)
            take(double(weights[size_t(t * kUsed + k)]) * y[size_t((t * kUsed + k) * kN + i)]);
          if (with_shared) take(with_gate ? shared[at] / (1 + std::exp(-dot)) : shared[at]);
          ASSERT_NEAR(got[at], sum, (kUsed + 3) * 0x1p-24 * size) << t << " " << i;
        }
      }
    }
}

/// Experts without a place have no pack, and rows of padding choose nobody; also with fewer places than a token has
/// experts.
TEST_F(ExpertsCuda, PlacesArePacksOfWhatTheDeviceHas) {
  constexpr int kExperts = 9, kUsed = 4;
  for (const auto& [n_tokens, n_padding] : {std::pair{1, 0}, {1, 1}, {3, 0}, {8, 3}, {40, 8}})
    for (const int n_places : {1, 3, kExperts}) {
      const Choice c = buffers_for(n_tokens, kExperts, kUsed), kept_buffers = buffers_for(n_tokens, n_places, kUsed);
      set_scores(c, normal_floats(uint64_t(n_tokens), n_tokens * kExperts));
      device_choose_experts(stream(), c.of, {.rule = {.n_used = kUsed, .renormalised = true}});
      const auto chosen = down(c.of.experts, c.of.n_slots());
      std::vector<int32_t> places(kExperts, -1);
      for (int i = 0; i < n_places; ++i) places[size_t(kExperts - 1 - i)] = i;
      std::vector<StepRow> rows;
      for (int t = 0; t < n_tokens; ++t) rows.push_back({.row = t, .slot = t < n_tokens - n_padding ? 2 : -1});
      const gpu::Buffer of = up(places), on_device = up(rows);
      device_place_experts(stream(), c.of, of.as<int32_t>(), on_device.as<StepRow>(), kept_buffers.of);
      const auto numbers = down(c.of.experts, c.of.n_slots()), kept = down(kept_buffers.of.experts, c.of.n_slots());
      std::vector<int> seen(kept.size());
      for (const ExpertPack& pack : down(kept_buffers.of.packs, kept_buffers.of.n_packs()))
        for (int i = 0; i < pack.n; ++i) {
          ASSERT_EQ(kept.at(size_t(pack.slots[i])), pack.expert);
          seen[size_t(pack.slots[i])] += 1;
        }
      for (size_t i = 0; i < kept.size(); ++i) {
        const bool padding = rows[i / kUsed].slot < 0;
        ASSERT_EQ(numbers[i], padding ? -1 : chosen[i]);
        ASSERT_EQ(kept[i], padding ? -1 : places[size_t(chosen[i])]);
        ASSERT_EQ(seen[i], kept[i] >= 0) << n_tokens << " tokens, " << n_places << " places, slot " << i;
      }
    }
}

/// Rows that nobody wrote may hold anything.
TEST_F(ExpertsCuda, SumsLeaveOutWhatIsNotThere) {
  constexpr int kTokens = 3, kUsed = 4, kN = 70;
  const auto weights = normal_floats(1, kTokens * kUsed), rest = normal_floats(3, kTokens * kN);
  auto y = normal_floats(2, kTokens * kUsed * kN);
  const std::vector<int32_t> experts = {0, -1, 2, -1, -1, -1, -1, -1, 3, 2, 1, 0};
  for (size_t i = 0; i < y.size(); ++i)
    if (experts[i / kN] < 0) y[i] = NAN;
  const gpu::Buffer dw = up(weights), dy = up(y), de = up(experts), dr = up(rest), out(4 * kTokens * kN);
  device_sum_experts(stream(), {.n_tokens = kTokens,
                                .n = kN,
                                .n_used = kUsed,
                                .weights = dw.as<float>(),
                                .y = dy.as<float>(),
                                .experts = de.as<int32_t>(),
                                .rest = dr.as<float>(),
                                .out = out.as<float>()});
  const auto got = down(out.as<float>(), kTokens * kN);
  for (size_t at = 0; at < got.size(); ++at) {
    const size_t token = at / kN;
    double sum = rest[at], size = std::abs(sum);
    for (size_t slot = token * kUsed; slot < (token + 1) * kUsed; ++slot) {
      if (experts[slot] < 0) continue;
      const double value = double(weights[slot]) * y[slot * kN + at % kN];
      sum += value, size += std::abs(value);
    }
    ASSERT_NEAR(got[at], sum, (kUsed + 1) * 0x1p-24 * size);
  }
}

}  // namespace
}  // namespace ridge
