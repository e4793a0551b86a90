// tiles-ternary: device_ternary_gemm, codes of a byte each times int8 activations. It reads four times what the 2-bit
// format holds; percent of roof counts the format's bytes.
#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/gemm/ternary_cuda.h"

namespace ridge::lab {
namespace {

constexpr float kMatrixScale = 0.0677f;

int64_t x_values(const OpProblem& p) { return int64_t(p.n_tokens) * p.n_in; }
int64_t y_values(const OpProblem& p) { return int64_t(p.n_tokens) * p.n_out; }

class GemvTernary : public OpRun {
 public:
  GemvTernary(const OpProblem& problem, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : p_(problem),
        x_host_(random_values(seed, x_values(problem))),
        codes_(random_codes(problem.n_in, seed + 1)),
        x_(device_sets(stream, x_host_, n_sets)),
        w_(stream, lay_out_rows(std::as_bytes(std::span(codes_)), p_.n_in, 1, p_.n_out), n_sets),
        scratch_(stream, std::vector<std::byte>(size_t(device_ternary_scratch_bytes(p_.n_tokens, p_.n_in))), n_sets),
        y_(DeviceSets::of_nan(stream, y_values(problem), n_sets)) {}

  void queue(gpu::StreamHandle stream, int set) override {
    device_ternary_gemm(stream, p_.n_tokens, p_.n_out, p_.n_in, x_.at(set), w_.at<int8_t>(set), kMatrixScale,
                        scratch_.at<void>(set), y_.at(set));
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    if (reference_.empty()) reference_ = ternary_reference(p_, x_host_, codes_, kMatrixScale);
    return check_same_bits(values_of(stream, y_.at(set), y_values(p_)), reference_,
                           "all outputs, bit for bit, against the definition on the host");
  }

 private:
  OpProblem p_;
  std::vector<float> x_host_;
  std::vector<int8_t> codes_;
  DeviceSets x_, w_, scratch_, y_;
  std::vector<float> reference_;
};

}  // namespace

const OpKernel kGemvTernary = {
    Op::gemv, "tiles-ternary",
    [](const OpProblem& p, const OpDevice&) {
      return p.weights->name == "i2_s" ? Support{} : Support{false, "reads i2_s weights only"};
    },
    [](const OpProblem& p) {
      return set_stride(int64_t(p.n_out) * p.n_in) + set_stride(4 * x_values(p)) + set_stride(4 * y_values(p)) +
             set_stride(device_ternary_scratch_bytes(p.n_tokens, p.n_in));
    },
    [](const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) -> std::unique_ptr<OpRun> {
      return std::make_unique<GemvTernary>(p, stream, n_sets, seed);
    }};

}  // namespace ridge::lab
