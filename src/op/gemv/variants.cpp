// The table of matmul kernels, worst to best.
#include <algorithm>

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

namespace {

Support needs_integer_panels(const Linear& w) {
  if (has_float_panels(*w.format)) return {false, fmt::format("codes of {} are no integers", w.format->name)};
  return needs_panels(w);
}
Support needs_float_panels(const Linear& w) {
  if (!has_float_panels(*w.format)) return {false, fmt::format("panels of {} are no floats", w.format->name)};
  return needs_panels(w);
}
Support needs_panels_and(const Linear& w, std::string_view ability) {
  return has_ability(ability) ? needs_integer_panels(w)
                              : Support{false, fmt::format("this processor has no {}", ability)};
}
[[maybe_unused]] Support needs_avxvnni(const Linear& w) { return needs_panels_and(w, "avx_vnni"); }
[[maybe_unused]] Support needs_i8mm(const Linear& w) { return needs_panels_and(w, "i8mm"); }

template <LinearsKernel kKernel>
void run_alone(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  const LinearOutput one{&w, y};
  kKernel(context, x, {&one, 1});
}

/// A row of panels with 1 or 2 planes of activations.
template <int kPlanes, LinearsKernel kKernel>
constexpr LinearVariant panels(std::string_view name, Isa isa,
                               Support (*supports)(const Linear&) = needs_integer_panels) {
  constexpr auto kScratch = [](const Linear& w, int64_t n_tokens, int) {
    return quantized_bytes(kPlanes, n_tokens, w.n_in);
  };
  return {name, isa, supports, run_alone<kKernel>, kScratch, kPlanes, kKernel};
}
template <LinearsKernel kKernel>
constexpr LinearVariant float_panels(std::string_view name, Isa isa) {
  constexpr auto kScratch = [](const Linear& w, int64_t n_tokens, int) { return float_tokens_bytes(n_tokens, w.n_in); };
  return {name, isa, needs_float_panels, run_alone<kKernel>, kScratch, 0, kKernel};
}

constexpr LinearVariant kVariants[] = {
    {"ref", Isa::scalar, needs_rows, linear_ref, linear_ref_scratch},
    {"ternary-ref", Isa::scalar, needs_ternary_rows, ternary_ref, ternary_ref_scratch},
#if defined(__x86_64__)
    {"rows-avx2", Isa::avx2, needs_rows, rows_avx2, rows_avx2_scratch},
    {"rows-avx512", Isa::avx512, needs_rows, rows_avx512, rows_avx512_scratch},
    panels<1, panel_1plane_avx2>("panel-1plane-avx2", Isa::avx2),
    panels<1, panel_1plane_avxvnni>("panel-1plane-avxvnni", Isa::avx2, needs_avxvnni),
    panels<1, panel_1plane_avx512>("panel-1plane-avx512", Isa::avx512),
    panels<2, panel_2planes_avx2>("panel-2planes-avx2", Isa::avx2),
    panels<2, panel_2planes_avxvnni>("panel-2planes-avxvnni", Isa::avx2, needs_avxvnni),
    panels<2, panel_2planes_avx512>("panel-2planes-avx512", Isa::avx512),
    float_panels<panel_float_avx2>("panel-float-avx2", Isa::avx2),
    float_panels<panel_float_avx512>("panel-float-avx512", Isa::avx512),
    {"ternary-avx2", Isa::avx2, needs_ternary_panels, ternary_avx2, ternary_scratch},
    {"ternary-avx512", Isa::avx512, needs_ternary_panels, ternary_avx512, ternary_scratch},
#elif defined(__aarch64__)
    {"rows-neon", Isa::neon, needs_rows, rows_neon, rows_neon_scratch},
    panels<1, panel_1plane_neon>("panel-1plane-neon", Isa::neon),
    panels<2, panel_2planes_neon>("panel-2planes-neon", Isa::neon),
    float_panels<panel_float_neon>("panel-float-neon", Isa::neon),
    {"ternary-neon", Isa::neon, needs_ternary_panels, ternary_neon, ternary_scratch},
    panels<1, panel_1plane_i8mm>("panel-1plane-i8mm", Isa::neon, needs_i8mm),
    panels<2, panel_2planes_i8mm>("panel-2planes-i8mm", Isa::neon, needs_i8mm),
#endif
};
/// Rows at the table's end whose instructions multiply matrices: those of i8mm.
#if defined(__aarch64__)
constexpr size_t kMatrixRows = 2;
#else
constexpr size_t kMatrixRows = 0;
#endif

}  // namespace

std::span<const LinearVariant> gemv_variants() { return gemm_variants().first(std::size(kVariants) - kMatrixRows); }

std::span<const LinearVariant> gemm_variants() { return kVariants; }

namespace {

void check_shapes(const Linear& w, View2<const float> x, View2<const float> y) {
  RIDGE_CHECK(x.cols == w.n_in && y.cols == w.n_out && x.rows == y.rows, "x [{}, {}], w [{}, {}], y [{}, {}]", x.rows,
              x.cols, w.n_out, w.n_in, y.rows, y.cols);
}

std::string_view linear_op(int64_t n_tokens) { return n_tokens == 1 ? "gemv" : "gemm"; }

const LinearVariant& choose(const CpuContext& context, const Linear& w, int64_t n_tokens) {
  return select_variant(context, linear_op(n_tokens), n_tokens == 1 ? gemv_variants() : gemm_variants(), w);
}

void apply_scale(const Linear& w, View2<float> y) {
  if (w.scale == 1 || w.int8_activations) return;  // the ternary kernels have multiplied
  for (int64_t t = 0; t < y.rows; ++t)
    for (float& value : y.row(t)) value *= w.scale;
}

/// x in the order of the matrix's columns.
View2<const float> sorted(CpuContext& context, const Linear& w, View2<const float> x) {
  if (!w.order) return x;
  const View2<float> to(context.sorted.ensure<float>(x.rows * x.cols), x.rows, x.cols);
  for (int64_t t = 0; t < x.rows; ++t)
    for (int64_t i = 0; i < x.cols; ++i) to(t, i) = x(t, w.order[i]);
  return to;
}

/// "576+192+192x576 q4_1"; formats that differ are joined likewise.
std::string shapes_of(std::span<const LinearOutput> all) {
  std::string rows, formats;
  for (const LinearOutput& one : all) {
    rows += fmt::format("{}{}", rows.empty() ? "" : "+", one.w->n_out);
    if (!formats.ends_with(one.w->format->name))
      formats += fmt::format("{}{}", formats.empty() ? "" : "+", one.w->format->name);
  }
  return fmt::format("{}x{} {}", rows, all.front().w->n_in, formats);
}

}  // namespace

void linear(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  check_shapes(w, x, y);
  if (x.rows == 0) return;
  const LinearVariant& variant = choose(context, w, x.rows);
  const TracedOp traced(context, linear_op(x.rows), variant.name, linear_work(w, x.rows),
                        [&] { return fmt::format("{}x{} {}", w.n_out, w.n_in, w.format->name); });
  variant.run(context, w, sorted(context, w, x), y);
  apply_scale(w, y);
}

void linear(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  if (x.rows == 0 || all.empty()) return;
  const auto rows_of = [&](const LinearOutput& one) { return x.slice(one.first, one.y.rows); };
  const LinearVariant& variant = choose(context, *all[0].w, all[0].y.rows);
  const auto is_alike = [&](const LinearOutput& one) {
    return !one.w->order && &choose(context, *one.w, one.y.rows) == &variant;
  };
  if (!variant.run_together || !std::ranges::all_of(all, is_alike)) {
    for (const LinearOutput& one : all) linear(context, *one.w, rows_of(one), one.y);
    return;
  }
  Work work{4 * x.rows * x.cols, 0, 0};  // x is read once
  for (const LinearOutput& one : all) {
    check_shapes(*one.w, rows_of(one), one.y);
    Work of_one = linear_work(*one.w, one.y.rows);
    of_one.read_bytes -= 4 * one.y.rows * x.cols;
    work += of_one;
  }
  const TracedOp traced(context, linear_op(all[0].y.rows), variant.name, work, [&] { return shapes_of(all); });
  variant.run_together(context, x, all);
  for (const LinearOutput& one : all) apply_scale(*one.w, one.y);
}

bool wants_panels(const WeightFormat& format, int64_t n_in, Isa isa) {
  return isa > Isa::scalar && has_panels(format) && n_in % format.group == 0;
}

}  // namespace ridge
