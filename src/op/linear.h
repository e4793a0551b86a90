// Linear: y = W x for a weight matrix in any format, the op that moves most of a decode step's bytes.
//
// One token is the op gemv (bytes bound), more are the op gemm (compute bound): the same kernels, forced and reported
// apart. A token's results are the same bits whatever tokens come with it and however many threads there are: every
// kernel has one order of sums for all numbers of tokens (docs/decisions/0007-batch-invariance.md).
#pragma once

#include <initializer_list>

#include "base/view.h"
#include "format/list.h"
#include "op/cpu.h"

namespace ridge {

/// A weight matrix [n_out, n_in] as linear ops read it.
struct Linear {
  const WeightFormat* format = nullptr;
  int64_t n_out = 0;
  int64_t n_in = 0;
  const std::byte* rows = nullptr;    ///< row-major blocks as in the file; nullptr when only the panels exist
  const std::byte* panels = nullptr;  ///< 16-row panels (op/gemv/panels.h, ternary.h), nullptr when not packed
  const int32_t* order = nullptr;     ///< [n_in]: column i meets x[order[i]]; nullptr: x[i]
  float scale = 1;                    ///< of the whole matrix, on top of what the blocks decode to (i2_s)
  bool int8_activations = false;      ///< i2_s: the matmul is the one of op/gemv/ternary.h, else in float

  int64_t bytes() const { return n_out * format->row_bytes(n_in); }
};

/// Least traffic of matmuls of one x with weights of `bytes`, n_out rows in all: weights once, x and n_stored values
/// of y a token once.
inline Work linear_work(int64_t bytes, int64_t n_in, int64_t n_out, int64_t n_stored, int64_t n_tokens) {
  return {bytes + 4 * n_tokens * n_in, 4 * n_tokens * n_stored, 2 * n_tokens * n_in * n_out};
}
inline Work linear_work(const Linear& w, int64_t n_tokens) {
  return linear_work(w.bytes(), w.n_in, w.n_out, w.n_out, n_tokens);
}

/// A matrix and the place of its y, [n_tokens, n_out], for n_tokens rows of x from `first` on.
struct LinearOutput {
  const Linear* w;
  View2<float> y;
  int64_t first = 0;
};

/// One kernel. `x` is [n_tokens, n_in], `y` is [n_tokens, n_out]. The ternary kernels apply w.scale, for all others
/// linear() does.
struct LinearVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)(const Linear& w);
  void (*run)(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y);
  ScratchBytes (*scratch_bytes)(const Linear& w, int64_t n_tokens, int n_threads) = nullptr;  ///< of run(); null: none
  int planes = 0;  ///< of the activations: 1 rounds them to 8 bits, 2 to 15 bits; 0 elsewhere
  /// Several matrices, each times its rows of x, in one parallel region; null: `run` takes them one by one.
  void (*run_together)(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) = nullptr;
};
std::span<const LinearVariant> gemv_variants();
std::span<const LinearVariant> gemm_variants();  ///< the same, and behind them those of matrix instructions

/// y = W x with the selected kernel.
void linear(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y);
/// The matmuls of several matrices with rows of the same x, all of one n_in: the bits of single calls, in fewer
/// parallel regions.
void linear(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all);
inline void linear(CpuContext& context, View2<const float> x, std::initializer_list<LinearOutput> all) {
  linear(context, x, std::span(all.begin(), all.size()));
}

/// True when some kernel of this ISA wants the format in panels: the loader packs then.
bool wants_panels(const WeightFormat& format, int64_t n_in, Isa isa);

}  // namespace ridge
