// Baselines of matmuls. cublaslt: resident f16 weights, by NVIDIA's library. two-op: int4_g128 made f16 in memory
// first, then the same matmul. Activations are made f16 in every call.
#include <cmath>

#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/gemm/cublaslt_cuda.h"

namespace ridge::lab {
namespace {

int64_t f16_bytes(const OpProblem& p) { return 2 * int64_t(p.n_out) * p.n_in; }
bool is_two_op(const OpProblem& p) { return p.weights->name == "int4_g128"; }

class GemvLibrary : public OpRun {
 public:
  GemvLibrary(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : p_(p),
        x_host_(random_values(seed, x_values(p))),
        pool_(coded_pool(*p.weights, p.n_in, seed + 1)),
        x_(device_sets(stream, x_host_, n_sets)),
        w_(stream, lay_out_rows(pool_.bytes, p.weights->row_bytes(p.n_in), 1, p.n_out), n_sets),
        y_(DeviceSets::of_nan(stream, y_values(p), n_sets)),
        x_f16_(2 * x_values(p)),
        w_f16_(is_two_op(p) ? n_sets * set_stride(f16_bytes(p)) : 0),
        gemm_(p.n_tokens, p.n_out, p.n_in) {}

  void queue(gpu::StreamHandle stream, int set) override {
    const uint16_t* w = w_.at<uint16_t>(set);
    if (is_two_op(p_)) {
      auto* const w_f16 = reinterpret_cast<uint16_t*>(w_f16_.as<std::byte>() + set * set_stride(f16_bytes(p_)));
      device_dequantize_int4(stream, w, int64_t(p_.n_out) * p_.n_in / p_.weights->group, w_f16);
      w = w_f16;
    }
    device_to_f16(stream, x_.at(set), x_values(p_), x_f16_.as<uint16_t>());
    gemm_.run(stream, x_f16_.as<uint16_t>(), w, y_.at(set));
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    if (reference_.empty()) reference_ = matmul_reference(p_, x_host_, pool_.rows);
    // x, and weights that were dequantised, are rounded to 11 bits; each of the n_in / 16 mmas that a sum goes
    // through may cut 2^-23 off it.
    const double rounding = (is_two_op(p_) ? 2 : 1) * 0x1p-11;
    return check_nmse(values_of(stream, y_.at(set), y_values(p_)), reference_,
                      std::pow(rounding + p_.n_in / 16 * 0x1p-23, 2), "all outputs against sums in double");
  }

 private:
  OpProblem p_;
  std::vector<float> x_host_;
  CodedPool pool_;
  DeviceSets x_, w_, y_;
  gpu::Buffer x_f16_, w_f16_;
  LibraryGemm gemm_;
  std::vector<float> reference_;
};

template <bool kTwoOp>
Support supports(const OpProblem& p, const OpDevice&) {
  const std::string_view wanted = kTwoOp ? "int4_g128" : "f16";
  if (p.weights->name != wanted) return {false, fmt::format("reads {} weights only", wanted)};
  const std::string why_not = LibraryGemm::why_not();
  return {why_not.empty(), why_not};
}

int64_t set_bytes(const OpProblem& p) {
  return set_stride(p.n_out * p.weights->row_bytes(p.n_in)) + set_of_xy(p) +
         (is_two_op(p) ? set_stride(f16_bytes(p)) : 0);
}

/// F16 of x, and of dequantised weights, are written and read on top.
int64_t moved_bytes(const OpProblem& p) {
  const Work work = op_work(p);
  return work.read_bytes + work.write_bytes + 4 * x_values(p) + (is_two_op(p) ? 2 * f16_bytes(p) : 0);
}

std::unique_ptr<OpRun> open(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) {
  return std::make_unique<GemvLibrary>(p, stream, n_sets, seed);
}

template <bool kTwoOp>
OpKernel row(std::string_view name) {
  return {.op = Op::gemv,
          .name = name,
          .supports = supports<kTwoOp>,
          .set_bytes = set_bytes,
          .open = open,
          .moved_bytes = moved_bytes,
          .is_baseline = true};
}

}  // namespace

const OpKernel kGemvLibrary = row<false>("cublaslt");
const OpKernel kGemvTwoOp = row<true>("two-op");

}  // namespace ridge::lab
