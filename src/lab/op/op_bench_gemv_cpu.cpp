// Matmuls on the CPU: every row of gemv_variants() (one token) and gemm_variants() (several) by its name. two-op, a
// baseline: the whole matrix is made floats in memory first, then multiplied.
#include <cmath>
#include <cstring>

#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/gemv/dequantize.h"
#include "op/gemv/panels.h"
#include "op/gemv/ternary.h"
#include "op/linear.h"

namespace ridge::lab {
namespace {

constexpr float kMatrixScale = 0.0677f;  // of ternary matrices

/// Which bytes a kernel reads.
enum class Layout : uint8_t { rows, panels, ternary_panels };

/// How a kernel serves a problem; without one, why it cannot.
struct Service {
  const LinearVariant* variant = nullptr;
  bool int8_activations = false;
  Layout layout = Layout::rows;
  std::string why_not;
};

/// A matrix as models have it, with addresses that only say which layouts there are.
Linear described(const OpProblem& p, bool int8_activations, bool with_panels, Isa isa) {
  static const std::byte kSome{};
  Linear w{.format = p.weights,
           .n_out = p.n_out,
           .n_in = p.n_in,
           .rows = &kSome,
           .scale = int8_activations ? kMatrixScale : 1,
           .int8_activations = int8_activations};
  const bool packs = int8_activations ? wants_ternary_panels(w, isa) : wants_panels(*p.weights, p.n_in, isa);
  if (with_panels && packs) w.panels = &kSome;
  return w;
}

Service service_of(const LinearTables& tables, const OpProblem& p, std::string_view name, Isa isa) {
  Service service;
  const auto table = p.n_tokens == 1 ? tables.gemv : tables.gemm;
  const auto found = std::ranges::find(table, name, &LinearVariant::name);
  if (found == table.end()) {
    service.why_not = p.n_tokens == 1 ? "takes several tokens" : "takes one token";
    return service;
  }
  if (found->isa > isa) {
    service.why_not =
        fmt::format("needs {}, this processor, or the isa asked for, allows {}", isa_name(found->isa), isa_name(isa));
    return service;
  }
  for (const bool int8_activations : {p.weights->name == "i2_s", false})
    for (const bool with_panels : {false, true}) {
      const Support support = found->supports(described(p, int8_activations, with_panels, isa));
      if (support.ok) {
        service.variant = &*found;
        service.int8_activations = int8_activations;
        if (with_panels) service.layout = int8_activations ? Layout::ternary_panels : Layout::panels;
        return service;
      }
      service.why_not = support.why_not;
    }
  return service;
}

int64_t weight_bytes(const OpProblem& p, Layout layout) {
  switch (layout) {
    case Layout::rows: return p.n_out * p.weights->row_bytes(p.n_in);
    case Layout::panels: return panel_bytes(*p.weights, p.n_out, p.n_in);
    case Layout::ternary_panels: return ternary_panel_bytes(p.n_out, p.n_in);
  }
  return 0;
}

class GemvCpu : public CpuOpRun {
 public:
  GemvCpu(const OpProblem& p, CpuContext& context, const Service& service, int n_sets, uint64_t seed)
      : p_(p),
        context_(context),
        service_(service),
        x_host_(random_values(seed, x_values(p))),
        codes_(service.int8_activations ? random_codes(p.n_in, seed + 1) : std::vector<int8_t>()),
        pool_(service.int8_activations ? coded_pool(*p.weights, p.n_in, {codes_.begin(), codes_.end()})
                                       : coded_pool(*p.weights, p.n_in, seed + 1)) {
    const auto rows = lay_out_rows(pool_.bytes, p.weights->row_bytes(p.n_in), 1, p.n_out);
    for (int set = 0; set < n_sets; ++set) {
      Set& s = sets_.emplace_back(weight_bytes(p, service.layout), 4 * x_values(p), 4 * y_values(p));
      if (set > 0) std::memcpy(s.weights.data(), sets_[0].weights.data(), size_t(s.weights.bytes()));
      else if (service.layout == Layout::rows) std::memcpy(s.weights.data(), rows.data(), rows.size());
      else if (service.layout == Layout::panels)
        pack_panels(context, *p.weights, p.n_out, p.n_in, rows.data(), s.weights.data());
      else pack_ternary_panels(context, p.n_out, p.n_in, rows.data(), s.weights.data());
      std::memcpy(s.x.data(), x_host_.data(), size_t(s.x.bytes()));
      for (float& y : s.result(y_values(p))) y = NAN;  // what a kernel does not write fails its check
    }
  }

  void call(int set) override {
    Set& s = sets_[size_t(set)];
    const bool of_rows = service_.layout == Layout::rows;
    const Linear w{.format = p_.weights,
                   .n_out = p_.n_out,
                   .n_in = p_.n_in,
                   .rows = of_rows ? s.weights.data() : nullptr,
                   .panels = of_rows ? nullptr : s.weights.data(),
                   .scale = service_.int8_activations ? kMatrixScale : 1,
                   .int8_activations = service_.int8_activations};
    service_.variant->run(context_, w,
                          View2<const float>(reinterpret_cast<const float*>(s.x.data()), p_.n_tokens, p_.n_in),
                          View2<float>(s.result(y_values(p_)).data(), p_.n_tokens, p_.n_out));
  }

  OpCheck check(int set) override {
    const std::span<const float> y = sets_[size_t(set)].result(y_values(p_));
    if (service_.int8_activations) {
      if (reference_.empty()) reference_ = ternary_reference(p_, x_host_, codes_, kMatrixScale);
      return check_same_bits(y, reference_, "all outputs, bit for bit, against the definition");
    }
    if (reference_.empty()) reference_ = matmul_reference(p_, x_host_, pool_.rows);
    // Chains of at most n_in fused multiply-adds round a partial sum at each: for random data an NMSE of n_in 2^-48 /
    // 6; the output itself is rounded once.
    const double of_sums = (p_.n_in + 16) * 0x1p-48;
    const double of_activations =
        service_.layout == Layout::panels ? int8_bound(x_host_, kPanelGroup, panel_limit(service_.variant->planes)) : 0;
    return check_nmse(y, reference_, of_sums + of_activations, "all outputs against sums in double");
  }

 private:
  struct Set {
    Set(int64_t weight_bytes, int64_t x_bytes, int64_t y_bytes) : weights(weight_bytes + 64), x(x_bytes), y(y_bytes) {}
    std::span<float> result(int64_t n) { return {reinterpret_cast<float*>(y.data()), size_t(n)}; }
    AlignedBuffer weights, x, y;
  };

  OpProblem p_;
  CpuContext& context_;
  Service service_;
  std::vector<float> x_host_;
  std::vector<int8_t> codes_;
  CodedPool pool_;
  std::vector<Set> sets_;
  std::vector<float> reference_;
};

/// The literal two ops: rows to floats in memory, then the matmul of floats that models would use.
class GemvTwoOp : public CpuOpRun {
 public:
  GemvTwoOp(const OpProblem& p, CpuContext& context, int n_sets, uint64_t seed)
      : p_(p),
        context_(context),
        x_(random_values(seed, x_values(p))),
        pool_(coded_pool(*p.weights, p.n_in, seed + 1)) {
    const auto rows = lay_out_rows(pool_.bytes, p.weights->row_bytes(p.n_in), 1, p.n_out);
    for (int set = 0; set < n_sets; ++set) {
      Set& s = sets_.emplace_back();
      s.rows = AlignedBuffer(int64_t(rows.size()) + 64);
      std::memcpy(s.rows.data(), rows.data(), rows.size());
      s.floats = AlignedBuffer(float_bytes(p) + 64);
      s.y.assign(size_t(y_values(p)), NAN);
    }
  }

  void call(int set) override {
    Set& s = sets_[size_t(set)];
    const Linear coded{.format = p_.weights, .n_out = p_.n_out, .n_in = p_.n_in, .rows = s.rows.data()};
    dequantize(context_, coded, reinterpret_cast<float*>(s.floats.data()));
    static const WeightFormat* const f32 = find_weight_format("f32").or_throw();
    const Linear floats{.format = f32, .n_out = p_.n_out, .n_in = p_.n_in, .rows = s.floats.data()};
    linear(context_, floats, View2<const float>(x_.data(), p_.n_tokens, p_.n_in),
           View2<float>(s.y.data(), p_.n_tokens, p_.n_out));
  }

  OpCheck check(int set) override {
    if (reference_.empty()) reference_ = matmul_reference(p_, x_, pool_.rows);
    return check_nmse(sets_[size_t(set)].y, reference_, (p_.n_in + 16) * 0x1p-48, "all outputs against sums in double");
  }

  static int64_t float_bytes(const OpProblem& p) { return 4 * int64_t(p.n_out) * p.n_in; }

 private:
  struct Set {
    AlignedBuffer rows, floats;
    std::vector<float> y;
  };
  OpProblem p_;
  CpuContext& context_;
  std::vector<float> x_;
  CodedPool pool_;
  std::vector<Set> sets_;
  std::vector<float> reference_;
};

OpKernel two_op_row() {
  return {
      .op = Op::gemv,
      .name = "two-op",
      .supports = [](const OpProblem& p, const OpDevice&) -> Support {
        if (p.weights->group == 1) return {false, fmt::format("{} needs no dequantising", p.weights->name)};
        return {};
      },
      .set_bytes =
          [](const OpProblem& p) {
            return weight_bytes(p, Layout::rows) + GemvTwoOp::float_bytes(p) + 128 + 4 * y_values(p);
          },
      .open_cpu = [](const OpProblem& p, CpuContext& context, int n_sets, uint64_t seed) -> std::unique_ptr<CpuOpRun> {
        return std::make_unique<GemvTwoOp>(p, context, n_sets, seed);
      },
      // The floats are written and read on top.
      .moved_bytes =
          [](const OpProblem& p) {
            const Work work = op_work(p);
            return work.read_bytes + work.write_bytes + 2 * GemvTwoOp::float_bytes(p);
          },
      .is_baseline = true};
}

OpKernel kernel_row(const LinearTables& tables, std::string_view name) {
  return {.op = Op::gemv,
          .name = name,
          .supports = [tables, name](const OpProblem& p, const OpDevice& device) -> Support {
            const Service service = service_of(tables, p, name, device.isa);
            return {service.variant != nullptr, service.why_not};
          },
          .set_bytes =
              [tables, name](const OpProblem& p) {
                const Service service = service_of(tables, p, name, detect_isa());
                return weight_bytes(p, service.layout) + 64 + 4 * x_values(p) + 4 * y_values(p);
              },
          .open_cpu = [tables, name](const OpProblem& p, CpuContext& context, int n_sets,
                                     uint64_t seed) -> std::unique_ptr<CpuOpRun> {
            return std::make_unique<GemvCpu>(p, context, service_of(tables, p, name, context.isa), n_sets, seed);
          }};
}

}  // namespace

std::vector<OpKernel> cpu_gemv_kernels(const LinearTables& tables) {
  std::vector<std::string_view> names;
  for (const LinearVariant& variant : tables.gemv) names.push_back(variant.name);
  // The gemm table has most names too; the others go where they stand there.
  auto at = names.begin();
  for (const LinearVariant& variant : tables.gemm) {
    const auto found = std::ranges::find(names, variant.name);
    at = (found == names.end() ? names.insert(at, variant.name) : found) + 1;
  }
  std::vector<OpKernel> kernels{two_op_row()};
  for (const std::string_view name : names) kernels.push_back(kernel_row(tables, name));
  return kernels;
}

}  // namespace ridge::lab
