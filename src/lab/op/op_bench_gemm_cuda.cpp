// tiles-f32: device_gemm, the matmul of float matrices in 64 x 64 tiles.
#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/gemm/gemm_cuda.h"

namespace ridge::lab {
namespace {

class GemvTiles : public OpRun {
 public:
  GemvTiles(const OpProblem& problem, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : p_(problem),
        x_host_(random_values(seed, x_values(problem))),
        pool_(problem.n_in, seed + 1),
        x_(device_sets(stream, x_host_, n_sets)),
        w_(stream, lay_out_rows(std::as_bytes(pool_.rows()), 4 * int64_t(p_.n_in), 1, p_.n_out), n_sets),
        y_(DeviceSets::of_nan(stream, y_values(problem), n_sets)) {}

  void queue(gpu::StreamHandle stream, int set) override {
    device_gemm(stream, p_.n_tokens, p_.n_out, p_.n_in, x_.at(set), w_.at(set), y_.at(set));
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    if (reference_.empty()) reference_ = matmul_reference(p_, x_host_, pool_);
    // A chain of n_in fused multiply-adds rounds a partial sum at each: for random data an NMSE of n_in 2^-48 / 6.
    return check_nmse(values_of(stream, y_.at(set), y_values(p_)), reference_, p_.n_in * 0x1p-48,
                      "all outputs against sums in double");
  }

 private:
  OpProblem p_;
  std::vector<float> x_host_;
  RowPool pool_;
  DeviceSets x_, w_, y_;
  std::vector<float> reference_;
};

}  // namespace

const OpKernel kGemvTiles = {
    Op::gemv, "tiles-f32",
    [](const OpProblem& p, const OpDevice&) {
      return p.weights->name == "f32" ? Support{} : Support{false, "reads float weights only"};
    },
    [](const OpProblem& p) { return set_stride(4 * int64_t(p.n_out) * p.n_in) + set_of_xy(p); },
    [](const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) -> std::unique_ptr<OpRun> {
      return std::make_unique<GemvTiles>(p, stream, n_sets, seed);
    }};

}  // namespace ridge::lab
