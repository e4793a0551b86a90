// The table of products, worst to best.
#include "op/gemv/panels.h"
#include "op/kernels.h"
#include "op/trace.h"

namespace ridge {

Support needs_rows(const Linear& w) {
  if (w.int8_activations) return {false, "the matrix takes int8 activations"};
  if (!w.rows) return {false, "the row-major weights were not kept"};
  return {};
}

Support needs_panels(const Linear& w) {
  if (!has_panels(*w.format)) return {false, fmt::format("{} has no panel layout", w.format->name)};
  if (!w.panels) return {false, "the weights were not packed into panels"};
  return {};
}

std::span<const LinearVariant> gemv_variants() {
  static constexpr LinearVariant kVariants[] = {
      {"ref", Isa::scalar, needs_rows, linear_ref},
      {"rows-avx2", Isa::avx2, needs_rows, rows_avx2},
      {"rows-avx512", Isa::avx512, needs_rows, rows_avx512},
      {"panel-avx2", Isa::avx2, needs_panels, panel_avx2},
      {"panel-avx512", Isa::avx512, needs_panels, panel_avx512},
      {"ternary-ref", Isa::scalar, needs_ternary_rows, ternary_ref},
      {"ternary-avx2", Isa::avx2, needs_ternary_panels, ternary_avx2},
      {"ternary-avx512", Isa::avx512, needs_ternary_panels, ternary_avx512},
  };
  return kVariants;
}

std::span<const LinearVariant> gemm_variants() { return gemv_variants(); }

void linear(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  RIDGE_CHECK(x.cols == w.n_in && y.cols == w.n_out && x.rows == y.rows, "x [{}, {}], w [{}, {}], y [{}, {}]", x.rows,
              x.cols, w.n_out, w.n_in, y.rows, y.cols);
  if (x.rows == 0) return;
  const std::string_view op = x.rows == 1 ? "gemv" : "gemm";
  const LinearVariant& variant = select_variant(context, op, x.rows == 1 ? gemv_variants() : gemm_variants(), w);
  const TracedOp traced(context, op, variant.name, linear_work(w, x.rows),
                        [&] { return fmt::format("{}x{} {}", w.n_out, w.n_in, w.format->name); });
  variant.run(context, w, x, y);
  if (w.scale == 1 || w.int8_activations) return;  // the ternary kernels have multiplied
  for (int64_t t = 0; t < y.rows; ++t)
    for (float& value : y.row(t)) value *= w.scale;
}

bool wants_panels(const WeightFormat& format, int64_t n_in, Isa isa) {
  return isa >= Isa::avx2 && has_panels(format) && n_in % format.group == 0;
}

}  // namespace ridge
