// Cases of integer products, their operands, and what is expected of them: for int4, ternary and bricks alike.
#pragma once

#include <optional>

#include "gpu/device_data.h"
#include "op/gemv/int_shared.h"

namespace ridge {

struct IntCase {
  int64_t n_tokens = 1;
  int planes = 1;  ///< of bricks always 2
  bool norm = false, bias = false;
  IntOutput output = IntOutput::store;
  std::optional<IntPlan> plan = {};
};
inline constexpr float kIntCaseEps = 1e-5f;

/// Operands of a case for weights of n_out outputs.
struct IntOperands {
  std::vector<float> x, norm, bias, y;

  IntOperands(const IntCase& c, int64_t n_in, int64_t n_out, uint64_t seed)
      : x(normal_floats(seed, c.n_tokens * n_in)),
        norm(c.norm ? normal_floats(seed + 1, n_in) : std::vector<float>()),
        bias(c.bias ? normal_floats(seed + 2, n_out) : std::vector<float>()),
        y(normal_floats(seed + 3, c.n_tokens * n_out)) {
    for (int64_t t = 0; t < c.n_tokens; ++t)  // tokens of different sizes, with an outlier each
      for (int64_t i = 0; i < n_in; ++i)
        x[size_t(t * n_in + i)] *= float(1 + t) * (i == (37 * t + 5) % n_in ? 20.0f : 1.0f);
  }
};

/// A product, and how far a kernel's may be from it.
struct Bounded {
  double value, error;
};

}  // namespace ridge
