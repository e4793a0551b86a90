// The rows of all tensors: what a model holds is what they say.
#include "model/tensors.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace ridge {
namespace {

const char* const kShapes[] = {
    "tiny",       "tiny-64",      "tiny-biases", "tiny-bitnet",     "tiny-gemma",    "tiny-latent",      "tiny-index",
    "tiny-delta", "tiny-experts", "tiny-oss",    "tiny-gemma4-moe", "tiny-gemma4-e", "tiny-nemotron-moe"};

TEST(Tensors, HaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (const TensorRow& row : layer_tensors()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(&tensor_row(row.member), &row) << row.name;
  }
}

TEST(Tensors, OfModelsAreThoseThatTheirRowsSay) {
  CpuContext context(1, Isa::scalar);
  for (const char* shape : kShapes) {
    const LoadedModel model = make_synth_model(context, shape, SynthMatrices::shapes).or_throw();
    const Config& c = model.config;
    for (int i = 0; i < c.n_layers; ++i) {
      std::map<const TensorRow*, int> n;
      for_each_tensor(model.weights.layers[size_t(i)], [&](const TensorRow& row, const auto& numbers) {
        const auto [n_out, n_in] = row.exists(c, i) ? row.shape(c, i) : TensorShape{0, 0};
        if constexpr (std::is_same_v<decltype(numbers), const Linear&>) {
          EXPECT_TRUE(row.is_matrix()) << row.name;
          EXPECT_EQ(std::pair(numbers.n_out, numbers.n_in), std::pair(n_out, n_in)) << shape << " " << row.name;
        } else {
          EXPECT_FALSE(row.is_matrix()) << row.name;
          EXPECT_EQ(ssize(numbers), n_out * n_in) << shape << " " << row.name;
        }
        ++n[&row];
      });
      for (const TensorRow& row : layer_tensors()) {
        const bool exists = row.exists(c, i), in_expert = row.is_in<ExpertWeights>();
        const int expected = in_expert        ? (c.has_experts(i) ? c.n_experts : 0)
                             : row.of_heads() ? (exists ? c.n_heads : 0)
                                              : 1;
        EXPECT_EQ(n[&row], expected) << shape << " " << row.name << " of layer " << i;
      }
    }
  }
}

/// Tensors of one name are parts of one tensor: fused projections, and rows by key head.
TEST(Tensors, ShareNamesOnlyWhereTheyAreParts) {
  CpuContext context(1, Isa::scalar);
  for (const char* shape : kShapes) {
    const Config c = synth_config(shape).or_throw();
    for (int i = 0; i < c.n_layers; ++i) {
      std::set<std::string> gguf, hf;
      for (const TensorRow& row : layer_tensors()) {
        if (!row.exists(c, i)) continue;
        const TensorSource from = tensor_source(row, c, i);
        EXPECT_TRUE(gguf.insert(gguf_name(row, from.name, i)).second) << shape << " " << row.name;
        const bool is_part = from.layout != TensorLayout::rows || from.name.hf.ends_with("experts.gate_up_proj");
        EXPECT_TRUE(hf.insert(hf_name(row, from.name, i)).second || is_part) << shape << " " << row.name;
      }
    }
  }
}

}  // namespace
}  // namespace ridge
