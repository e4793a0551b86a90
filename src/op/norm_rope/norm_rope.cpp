#include "op/norm_rope/norm_rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "op/norm_rope/kernels.h"
#include "op/trace.h"

namespace ridge {

void rms_norm_ref(const float* x, const float* weight, float eps, int64_t n, float* y) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]) * x[i];
  const double factor = 1.0 / std::sqrt(sum / double(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = float(x[i] * factor * weight[i]);
}

void swiglu_ref(float* gate, const float* up, int64_t n) {
  for (int64_t i = 0; i < n; ++i) gate[i] = float(gate[i] / (1.0 + std::exp(-double(gate[i]))) * up[i]);
}

void gelu_glu_ref(float* gate, const float* up, int64_t n) {
  const double root = std::sqrt(2 / std::numbers::pi);
  for (int64_t i = 0; i < n; ++i) {
    const double g = gate[i];
    gate[i] = float(0.5 * g * (1 + std::tanh(root * (g + 0.044715 * g * g * g))) * up[i]);
  }
}

namespace {

Support always() { return {}; }

/// Rows in parallel when there is more than one.
template <class Body>
void for_rows(CpuContext& context, int64_t n_rows, const Body& body) {
  if (n_rows == 1) body(0, 0);
  else context.pool.for_each(n_rows, body);
}

/// Rows read and written once, as float32.
Work rows_work(View2<const float> x, int n_read, int64_t flops_per_value) {
  const int64_t values = x.rows * x.cols;
  return {4 * n_read * values, 4 * values, flops_per_value * values};
}

const NormRopeVariant& select(const CpuContext& context) {
  return select_variant(context, "norm_rope", norm_rope_variants());
}

}  // namespace

std::span<const NormRopeVariant> norm_rope_variants() {
  static constexpr NormRopeVariant kVariants[] = {
    {"ref", Isa::scalar, always, rms_norm_ref, swiglu_ref, gelu_glu_ref},
#if defined(__x86_64__)
    {"rows-avx2", Isa::avx2, always, rms_norm_avx2, swiglu_avx2, gelu_glu_avx2},
    {"rows-avx512", Isa::avx512, always, rms_norm_avx512, swiglu_avx512, gelu_glu_avx512},
#elif defined(__aarch64__)
    {"rows-neon", Isa::neon, always, rms_norm_neon, swiglu_neon, gelu_glu_neon},
#endif
  };
  return kVariants;
}

void rms_norm(CpuContext& context, View2<const float> x, const float* weight, float eps, View2<float> y) {
  const NormRopeVariant& variant = select(context);
  const TracedOp traced(context, "norm", variant.name, rows_work(x, 1, 4));
  const auto kernel = variant.rms_norm;
  for_rows(context, x.rows, [&](int64_t t, int) { kernel(&x(t, 0), weight, eps, x.cols, &y(t, 0)); });
}

RopeAngles::RopeAngles(CpuContext& context, const Rope& rope, std::span<const int32_t> positions)
    : pairs(rope.pairs),
      n_pairs(int(rope.frequency.size())),
      cosines(positions.size() * rope.frequency.size()),
      sines(cosines.size()) {
  for_rows(context, ssize(positions), [&](int64_t t, int) {
    for (int i = 0; i < n_pairs; ++i) {
      // All in double: at position 128k a float angle would be off by up to 0.008 rad.
      const double angle = double(positions[size_t(t)]) * rope.frequency[size_t(i)];
      cosines[size_t(t * n_pairs + i)] = float(std::cos(angle)) * rope.magnitude;
      sines[size_t(t * n_pairs + i)] = float(std::sin(angle)) * rope.magnitude;
    }
  });
}

void apply_rope(CpuContext& context, const RopeAngles& angles, int head_dim, View2<float> x) {
  const TracedOp traced(context, "rope", {}, rows_work(x, 1, 3));
  const int n_pairs = angles.n_pairs;
  const bool halves = angles.pairs == RopePairs::halves;
  const int step = halves ? 1 : 2, apart = halves ? n_pairs : 1;
  for_rows(context, x.rows, [&](int64_t t, int) {
    const float* const cosines = angles.cosines.data() + t * n_pairs;
    const float* const sines = angles.sines.data() + t * n_pairs;
    for (int64_t first = 0; first < x.cols; first += head_dim) {
      float* head = &x(t, first);
      for (int i = 0; i < n_pairs; ++i) {
        float& a = head[i * step];
        float& b = head[i * step + apart];
        const float turned = a * cosines[i] - b * sines[i];
        b = a * sines[i] + b * cosines[i];
        a = turned;
      }
    }
  });
}

void swiglu(CpuContext& context, View2<float> gate, View2<const float> up) {
  const NormRopeVariant& variant = select(context);
  const TracedOp traced(context, "activation", variant.name, rows_work(gate, 2, 4));
  const auto kernel = variant.swiglu;
  for_rows(context, gate.rows, [&](int64_t t, int) { kernel(&gate(t, 0), &up(t, 0), gate.cols); });
}

void relu2_glu(CpuContext& context, View2<float> gate, View2<const float> up) {
  const TracedOp traced(context, "activation", {}, rows_work(gate, 2, 3));
  for_rows(context, gate.rows, [&](int64_t t, int) {
    float* const g = &gate(t, 0);  // plain pointers: the compiler vectorises
    const float* const u = &up(t, 0);
    for (int64_t i = 0; i < gate.cols; ++i) {
      const float positive = g[i] < 0 ? 0 : g[i];  // keeps NaN
      g[i] = positive * positive * u[i];
    }
  });
}

void relu2(CpuContext& context, View2<float> x) {
  const TracedOp traced(context, "activation", {}, rows_work(x, 1, 2));
  for_rows(context, x.rows, [&](int64_t t, int) {
    for (float& value : x.row(t)) {
      const float positive = value < 0 ? 0 : value;  // keeps NaN
      value = positive * positive;
    }
  });
}

void gelu_glu(CpuContext& context, View2<float> gate, View2<const float> up) {
  const NormRopeVariant& variant = select(context);
  const TracedOp traced(context, "activation", variant.name, rows_work(gate, 2, 8));
  const auto kernel = variant.gelu_glu;
  for_rows(context, gate.rows, [&](int64_t t, int) { kernel(&gate(t, 0), &up(t, 0), gate.cols); });
}

void clamped_swiglu(CpuContext& context, View2<float> gate, View2<const float> up) {
  const TracedOp traced(context, "activation", {}, rows_work(gate, 2, 8));
  constexpr float kLimit = 7, kGain = 1.702f;
  for_rows(context, gate.rows, [&](int64_t t, int) {
    for (int64_t i = 0; i < gate.cols; ++i) {
      const float g = std::min(gate(t, i), kLimit), u = std::clamp(up(t, i), -kLimit, kLimit);
      gate(t, i) = g / (1 + std::exp(-kGain * g)) * (u + 1);
    }
  });
}

void take_mean_off(CpuContext& context, View2<const float> x, View2<float> y) {
  const TracedOp traced(context, "norm", {}, rows_work(y, 1, 2));
  for_rows(context, x.rows, [&](int64_t t, int) {
    double sum = 0;
    for (int64_t i = 0; i < x.cols; ++i) sum += x(t, i);
    const auto mean = float(sum / double(x.cols));
    for (int64_t i = 0; i < x.cols; ++i) y(t, i) = x(t, i) - mean;
  });
}

void layer_norm(CpuContext& context, View2<const float> x, const float* weight, float eps, View2<float> y) {
  take_mean_off(context, x, y);
  rms_norm(context, y, weight, eps, y);
}

void scale(CpuContext& context, View2<float> x, float factor) {
  const TracedOp traced(context, "scale", {}, rows_work(x, 1, 1));
  for_rows(context, x.rows, [&](int64_t t, int) {
    for (int64_t i = 0; i < x.cols; ++i) x(t, i) *= factor;
  });
}

void soft_cap(CpuContext& context, View2<float> x, float cap) {
  const TracedOp traced(context, "soft_cap", {}, rows_work(x, 1, 3));
  constexpr int64_t kColumns = 4096;  // that a thread takes at once: one row may be a vocabulary
  const int64_t blocks = (x.cols + kColumns - 1) / kColumns;
  context.pool.for_each(x.rows * blocks, [&](int64_t i, int) {
    const int64_t first = i % blocks * kColumns;
    for (float& value : x.row(i / blocks).subspan(size_t(first), size_t(std::min(kColumns, x.cols - first))))
      value = cap * std::tanh(value / cap);
  });
}

void add(CpuContext& context, View2<float> x, View2<const float> y, float factor) {
  const TracedOp traced(context, "residual", {}, rows_work(x, 2, factor == 1 ? 1 : 2));
  for_rows(context, x.rows, [&](int64_t t, int) {
    if (factor == 1)
      for (int64_t i = 0; i < x.cols; ++i) x(t, i) += y(t, i);
    else
      for (int64_t i = 0; i < x.cols; ++i) x(t, i) += factor * y(t, i);
  });
}

void add_bias(CpuContext& context, View2<float> x, const float* bias) {
  const TracedOp traced(context, "bias", {}, rows_work(x, 1, 1));
  for_rows(context, x.rows, [&](int64_t t, int) {
    for (int64_t i = 0; i < x.cols; ++i) x(t, i) += bias[i];
  });
}

}  // namespace ridge
