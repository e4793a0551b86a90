#include "model/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "model/delta_part.h"

namespace ridge {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> decoded_rows(const Linear& m) {
  std::vector<float> values(size_t(m.n_out * m.n_in), 0.0f);
  for (int64_t row = 0; row < m.n_out; ++row)
    m.format->decode(m.rows + row * m.format->row_bytes(m.n_in), m.n_in, values.data() + row * m.n_in);
  return values;
}

/// A random matrix [n_out, n_in] of a format.
struct RandomMatrix {
  RandomMatrix(const WeightFormat& format, int64_t n_out, int64_t n_in) {
    Rng rng(7);
    blocks = random_blocks(format, rng, 0.5, n_out * n_in);
    m = {.format = &format, .n_out = n_out, .n_in = n_in, .rows = blocks.data(), .scale = 0.75f};
    m.int8_activations = format.tail_bytes > 0;
  }
  std::vector<std::byte> blocks;
  Linear m;
};

TEST(Slice, BordersCoverEverythingInOrder) {
  EXPECT_THAT(slice_borders(10, 1, 4), ElementsAre(0, 2, 5, 7, 10));
  EXPECT_THAT(slice_borders(96, 32, 2), ElementsAre(0, 32, 96));
  EXPECT_THAT(slice_borders(100, 16, 2), ElementsAre(0, 48, 100));
  EXPECT_THAT(slice_borders(16, 16, 3), ElementsAre(0, 0, 0, 16));
}

TEST(Slice, StagesHaveLayersInOrderAndCachesOfTheirOwn) {
  ModelSlice slice{.rank = 1, .size = 2, .stage = 1, .n_stages = 2};
  slice.whole.n_layers = 5;
  slice.whole.n_kv_heads = 4;
  slice.layers = slice_borders(5, 1, 2);
  std::vector<int> stages;
  for (int layer = 0; layer < 5; ++layer) stages.push_back(slice.stage_of(layer));
  EXPECT_THAT(stages, ElementsAre(0, 0, 1, 1, 1));
  EXPECT_EQ(slice.n_ranks(), 4);
  EXPECT_EQ(slice.rank_in(0), 1);
  EXPECT_EQ(slice.rank_in(1), 3);
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<SidePart> parts = side_parts(slice, rank);
    ASSERT_EQ(parts.size(), 10u);
    for (int side = 0; side < 10; ++side) {
      const bool is_there = (side / 2 < 2) == (rank < 2);
      EXPECT_EQ(parts[size_t(side)].heads.first, is_there ? rank % 2 * 2 : 0) << rank << " " << side;
      EXPECT_EQ(parts[size_t(side)].heads.count, is_there ? 2 : 0) << rank << " " << side;
    }
  }
}

TEST(Slice, RowsAndColumnsOfEveryFormatAreThoseOfTheWhole) {
  for (const WeightFormat& format : weight_formats()) {
    const int64_t group = format.group, n_in = 4 * group, n_out = 24;
    const RandomMatrix random(format, n_out, n_in);
    const std::vector<float> whole = decoded_rows(random.m);
    const Linear rows = row_slice(random.m, 5, 16);
    EXPECT_EQ(decoded_rows(rows), std::vector<float>(whole.begin() + 5 * n_in, whole.begin() + 21 * n_in))
        << format.name;
    std::vector<AlignedBuffer> buffers;
    const Linear columns = column_slice(random.m, group, 2 * group, buffers);
    const std::vector<float> part = decoded_rows(columns);
    EXPECT_EQ(columns.n_in, 2 * group);
    EXPECT_EQ(columns.scale, random.m.scale);
    for (int64_t row = 0; row < n_out; ++row)
      for (int64_t i = 0; i < 2 * group; ++i)
        ASSERT_EQ(part[size_t(row * 2 * group + i)], whole[size_t(row * n_in + group + i)]) << format.name;
    const std::vector<Extent> extents = {{3 * group, group}, {0, group}}, swapped = {{20, 4}, {1, 2}};
    const std::vector<float> picked = decoded_rows(column_slice(random.m, extents, buffers));
    for (int64_t row = 0; row < n_out; ++row)
      for (int64_t i = 0; i < group; ++i) {
        ASSERT_EQ(picked[size_t(row * 2 * group + i)], whole[size_t(row * n_in + 3 * group + i)]) << format.name;
        ASSERT_EQ(picked[size_t(row * 2 * group + group + i)], whole[size_t(row * n_in + i)]) << format.name;
      }
    std::vector<float> some(whole.begin() + 20 * n_in, whole.end());
    some.insert(some.end(), whole.begin() + n_in, whole.begin() + 3 * n_in);
    EXPECT_EQ(decoded_rows(row_slice(random.m, swapped, buffers)), some) << format.name;
    EXPECT_THROW(column_slice(random.m, 0, n_in + group, buffers), Error) << format.name;
    if (group > 1) {
      EXPECT_THROW(column_slice(random.m, 1, group, buffers), Error) << format.name;
    }
  }
}

/// Products of column slices add up to the product of the whole. With u = 2^-24, any order of adding n rounded products
/// in float is within n u / (1 - n u) sum |w x| of the exact sum (Higham, Accuracy and Stability, 3.1): the two orders
/// are within twice that of each other. A kernel that rounds activations to int8 does so by groups of 32 columns, which
/// no slice cuts, and so to the same values.
TEST(Slice, ProductsOfColumnsAddUpToTheWholeProduct) {
  for (const Isa isa : isas()) {
    if (isa > detect_isa()) continue;
    CpuContext context(1, isa);
    for (const WeightFormat& format : weight_formats()) {
      if (format.tail_bytes > 0) continue;  // whole rows meet int8 activations: never cut between columns
      const int64_t unit = std::lcm<int64_t>(format.group, 16), n_in = 5 * unit, n_out = 33;
      RandomMatrix random(format, n_out, n_in);
      Weights weights;
      std::vector<float> x(size_t(n_in), 0.0f), y(size_t(n_out), 0.0f), sum(size_t(n_out), 0.0f);
      Rng rng(9);
      for (float& value : x) value = float(rng.normal());
      linear(context, random.m, View2<const float>(x.data(), 1, n_in), View2<float>(y.data(), 1, n_out));
      const std::vector<int64_t> borders = slice_borders(n_in, unit, 3);
      for (size_t r = 0; r < 3; ++r) {
        const int64_t first = borders[r], count = borders[r + 1] - first;
        const Linear part = column_slice(random.m, first, count, weights.buffers);
        std::vector<float> of_part(size_t(n_out), 0.0f);
        linear(context, part, View2<const float>(x.data() + first, 1, count), View2<float>(of_part.data(), 1, n_out));
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += of_part[i];
      }
      const std::vector<float> values = decoded_rows(random.m);
      const double nu = double(n_in + 3) * 0x1p-24, gamma = nu / (1 - nu);
      for (int64_t row = 0; row < n_out; ++row) {
        double magnitude = 0;
        for (int64_t i = 0; i < n_in; ++i) magnitude += std::abs(double(values[size_t(row * n_in + i)]) * x[size_t(i)]);
        magnitude *= random.m.scale;
        EXPECT_NEAR(sum[size_t(row)], y[size_t(row)], 2 * gamma * magnitude)
            << format.name << " " << isa_name(isa) << " row " << row;
      }
    }
  }
}

/// A model of one layer in which every number divides, by default.
LoadedModel one_layer(CpuContext& context, const std::string& spec) {
  return make_synth_model(context, spec).or_throw();
}

std::string refusal(const LoadedModel& model, int size) {
  const Result<ModelSlice> slice = plan_slice(model.config, model.weights, 0, size);
  if (slice) return "";
  EXPECT_EQ(slice.error().kind, ErrorKind::usage);
  return slice.error().message;
}

TEST(Slice, WhatCannotBeCutIsRefusedByName) {
  CpuContext context(1, Isa::scalar);
  LoadedModel model = one_layer(context, "llama-3.2-1b@layers=1@weights=q4_k");
  EXPECT_EQ(refusal(model, 2), "");
  EXPECT_THAT(refusal(model, 3), HasSubstr("32 heads and 8 KV heads, which 3 ranks do not share evenly"));
  EXPECT_THAT(refusal(model, 16), HasSubstr("the output projection has 128 columns a rank in blocks of 256"));
  model.config.n_experts = 1;
  EXPECT_THAT(refusal(model, 2), HasSubstr("1 experts: fewer than ranks"));
}

TEST(Slice, LayersOfTheDeltaRuleAreRefusedByName) {
  CpuContext context(1, Isa::scalar);
  EXPECT_THAT(refusal(one_layer(context, "tiny-delta@weights=f16"), 4),
              HasSubstr("the gated delta rule has 2 key heads, which 4 ranks do not share evenly"));
  // 64 values of 2 heads a rank, in pieces that the other rank's lie between or not.
  LoadedModel blocks = one_layer(context, "tiny-delta@weights=q8_0");
  blocks.config.d_ff_shared = 64;
  EXPECT_EQ(refusal(blocks, 2), "");
  blocks.config.delta.value_dim = 16;
  blocks.config.delta.keys_cycle = true;
  EXPECT_THAT(refusal(blocks, 2), HasSubstr("gated delta rule has 16 columns a rank in blocks of 32"));
}

/// Numbers of `extents` in their order.
std::vector<int64_t> numbers(std::span<const Extent> extents) {
  std::vector<int64_t> all;
  for (const Extent& extent : extents)
    for (int64_t i = extent.first; i < extent.end(); ++i) all.push_back(i);
  return all;
}

/// A rank's head reads the key head of the rank that is the key head of the whole, and remembers its matrix and the
/// inputs of its channels; all ranks together have everything once.
TEST(Slice, PartsOfTheDeltaRuleReadTheirOwnKeyHeads) {
  for (const bool cycle : {false, true})
    for (const int size : {1, 2, 4}) {
      const DeltaShape whole{
          .n_key_heads = 4, .n_value_heads = 12, .key_dim = 3, .value_dim = 5, .kernel = 4, .keys_cycle = cycle};
      std::vector<int64_t> heads, channels, state;
      for (int rank = 0; rank < size; ++rank) {
        const DeltaPart part = delta_part(whole, rank, size);
        const std::vector<int64_t> own = numbers(part.heads), of_channels = numbers(part.channels);
        ASSERT_EQ(ssize(own), part.shape.n_value_heads);
        ASSERT_EQ(ssize(of_channels), part.shape.channels());
        ASSERT_EQ(ssize(numbers(part.state)), part.shape.state_values());
        for (int j = 0; j < part.shape.n_value_heads; ++j) {
          const int64_t key = whole.key_head(int(own[size_t(j)])), own_key = part.shape.key_head(j);
          EXPECT_EQ(key, rank * part.shape.n_key_heads + own_key) << cycle << size;
          EXPECT_EQ(of_channels[size_t(own_key * 3)], key * 3) << "its q";
          EXPECT_EQ(of_channels[size_t(part.shape.keys() + own_key * 3)], whole.keys() + key * 3) << "its k";
          EXPECT_EQ(of_channels[size_t(2 * part.shape.keys() + j * 5)], 2 * whole.keys() + own[size_t(j)] * 5);
          EXPECT_EQ(numbers(part.values)[size_t(j * 5)], own[size_t(j)] * 5);
          EXPECT_EQ(numbers(part.state)[size_t(j * 15)], own[size_t(j)] * 15) << "its matrix";
        }
        // The last of the three rows of inputs of the convolution.
        EXPECT_EQ(numbers(part.state).back(), 12 * 15 + 2 * whole.channels() + of_channels.back());
        for (const auto& [to, from] : {std::pair(&heads, own), {&channels, of_channels}, {&state, numbers(part.state)}})
          to->insert(to->end(), from.begin(), from.end());
      }
      for (auto* const all : {&heads, &channels, &state}) std::ranges::sort(*all);
      for (const auto& [all, n] :
           {std::pair(&heads, int64_t(12)), {&channels, whole.channels()}, {&state, whole.state_values()}}) {
        std::vector<int64_t> every(static_cast<size_t>(n));
        std::iota(every.begin(), every.end(), 0);
        EXPECT_EQ(*all, every) << cycle << size;
      }
    }
}

TEST(Slice, PartsOfCachesAreTheHeadsOfTheWeights) {
  CpuContext context(1, Isa::scalar);
  const LoadedModel model = one_layer(context, "llama-3.2-1b@layers=1@weights=q8_0");
  for (const int size : {2, 16}) {
    const ModelSlice slice = plan_slice(model.config, model.weights, 0, size).or_throw();
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<SidePart> parts = side_parts(slice, rank);
      ASSERT_EQ(parts.size(), 2u);
      for (const SidePart& part : parts) {
        EXPECT_EQ(part.heads.count, std::max(1, 8 / size));
        EXPECT_EQ(part.heads.first, size == 2 ? 4 * rank : rank / 2);
        EXPECT_TRUE(part.state.empty());
      }
    }
  }
  const LoadedModel latent = one_layer(context, "tiny-latent@weights=f16");
  const std::vector<SidePart> rows = side_parts(plan_slice(latent.config, latent.weights, 0, 2).or_throw(), 1);
  EXPECT_EQ(rows[0].heads.count, 1);
  EXPECT_EQ(rows[1].heads.count, 0) << "the rows of K serve as V";
  const LoadedModel delta = one_layer(context, "tiny-delta@weights=f16");
  const ModelSlice slice = plan_slice(delta.config, delta.weights, 0, 2).or_throw();
  const std::vector<SidePart> states = side_parts(slice, 1);
  EXPECT_EQ(states[0].heads.count, 0);
  EXPECT_EQ(ssize(numbers(states[0].state)), delta.config.delta.state_values() / 2);
  EXPECT_TRUE(states[1].state.empty());
  EXPECT_EQ(states[2].heads.count, 1) << "a layer that attends";
}

/// What the last stage makes of the output, its ranks make without stages.
TEST(Slice, EndsInStagesAreOnTheFirstAndTheLastOne) {
  CpuContext context(1, Isa::scalar);
  const LoadedModel model = one_layer(context, "tiny@layers=2@weights=f16");
  const auto slice_of = [&](int rank, ModelEnds ends) {
    return plan_slice(model.config, model.weights, rank, 4, 2, ends).or_throw();
  };
  const auto alone = plan_slice(model.config, model.weights, 0, 2).or_throw();
  EXPECT_THAT(slice_of(0, ModelEnds::everywhere).vocab, ElementsAre(0, 128, 256, 384, 512));
  EXPECT_THAT(slice_of(0, ModelEnds::in_stages).vocab, ElementsAre(0, 0, 0, 256, 512));
  EXPECT_THAT(alone.vocab, ElementsAre(0, 256, 512));
  for (int rank = 0; rank < 4; ++rank) {
    Config config = model.config;
    Weights weights = view_of(model.weights);
    apply_slice(slice_of(rank, ModelEnds::in_stages), config, weights);
    EXPECT_EQ(weights.embedding.n_out, rank < 2 ? 512 : 0);
    EXPECT_EQ(weights.output.n_out, rank < 2 ? 0 : 256);
    EXPECT_EQ(weights.layers[0].o.format != nullptr, rank < 2);
  }
}

/// Layers of a shape that are one in memory stay one when they are cut.
TEST(Slice, LayersThatShareRowsShareTheirSlices) {
  CpuContext context(1, Isa::scalar);
  for (const std::string shape : {"tiny", "tiny-delta"}) {
    LoadedModel model = one_layer(context, shape + "@layers=8@weights=f16@shared=1");
    const size_t n_buffers = model.weights.buffers.size();
    const ModelSlice slice = plan_slice(model.config, model.weights, 1, 2).or_throw();
    apply_slice(slice, model.config, model.weights);
    // Every other layer has the delta rule: a copy of qkv; of both kinds o, the shared expert's down and all experts'.
    const bool delta = shape == "tiny-delta";
    const size_t n_experts = size_t(model.config.n_experts);
    EXPECT_EQ(model.weights.buffers.size(), n_buffers + (delta ? 1 + 2 * (2 + n_experts) : 2)) << shape;
    const auto& layers = model.weights.layers;
    const size_t period = delta ? 2 : 1;
    for (size_t i = period; i < layers.size(); ++i) {
      EXPECT_EQ(layers[i].o.rows, layers[i - period].o.rows);
      EXPECT_EQ(layers[i].down.rows, layers[i - period].down.rows);
      EXPECT_EQ(layers[i].delta.qkv.rows, layers[i - period].delta.qkv.rows);
    }
  }
}

TEST(Slice, AllSlicesTogetherAreTheModel) {
  CpuContext context(1, Isa::scalar);
  for (const int size : {2, 4, 16}) {
    int64_t heads = 0, ff = 0, vocab = 0, bytes = 0;
    int64_t shared = 0;  // bytes that every rank reads
    for (int rank = 0; rank < size; ++rank) {
      LoadedModel model = one_layer(context, "llama-3.2-1b@layers=1@weights=q8_0");
      if (rank == 0) shared = decode_matrix_bytes(model.weights, 0);
      const ModelSlice slice = plan_slice(model.config, model.weights, rank, size).or_throw();
      apply_slice(slice, model.config, model.weights);
      heads += model.config.n_heads;
      ff += model.config.d_ff;
      vocab += model.weights.output.n_out;
      bytes += decode_matrix_bytes(model.weights, 0);
      EXPECT_EQ(model.config.n_kv_heads, std::max(1, 8 / size));
      EXPECT_EQ(model.config.vocab_size, 128256);
      EXPECT_EQ(slice.kv_copies, std::max(1, size / 8));
      EXPECT_EQ(model.weights.layers[0].o.n_in, 2048 / size);
      EXPECT_EQ(model.weights.layers[0].down.n_in, model.config.d_ff);
    }
    EXPECT_EQ(heads, 32);
    EXPECT_EQ(ff, 8192);
    EXPECT_EQ(vocab, 128256);
    // K and V of 8 heads are on 16 ranks twice: 1/2 of 2 * 512 rows of 2048 in q8_0.
    const int64_t twice = size == 16 ? 2 * 512 * (2048 / 32 * 34) : 0;
    EXPECT_EQ(bytes, shared + twice) << size;
  }
}

}  // namespace
}  // namespace ridge
