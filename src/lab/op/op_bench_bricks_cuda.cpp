// Matmuls with weights in bricks. Names are those of op/device_linear.cpp. Up to kFewTokens tokens: bricks is
// device_f16_gemv, float activations on f16 tensor cores; bricks-int8 is device_int_gemv, activations of 15 bits on
// integer tensor cores. More tokens: bricks-f16, activations of f16. -overlap: with programmatic dependent launch, each
// call's weights read while the one before it ends.
#include <cmath>

#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/device_linear.h"
#include "op/gemm/tensor_gemm_cuda.h"
#include "op/gemv/int_gemv_cuda.h"

namespace ridge::lab {
namespace {

enum class Kernel : uint8_t { f16_gemv, int8_gemv, f16_gemm };
struct Which {
  Kernel kernel;
  bool overlap;
};

class GemvBricks : public OpRun {
 public:
  GemvBricks(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed, Which which)
      : p_(p),
        which_(which),
        x_host_(random_values(seed, x_values(p))),
        pool_(coded_pool(*p.weights, p.n_in, seed + 1)),
        x_(device_sets(stream, x_host_, n_sets)),
        y_(DeviceSets::of_nan(stream, y_values(p), n_sets)) {
    const auto rows = lay_out_rows(pool_.bytes, p.weights->row_bytes(p.n_in), 1, p.n_out);
    const gpu::Buffer rows_there = gpu::to_device(stream, std::span(rows));
    const int64_t n_out = p.n_out;
    for (int set = 0; set < n_sets; ++set) {
      weights_.push_back(make_brick_matrix(*find_brick_format(p.weights->name), p.n_in, {&n_out, 1}));
      device_fill_bricks(stream, weights_.back(), 0, 0, n_out, rows_there.as<void>());
    }
    stream.synchronize();
    const BrickMatrix& w = weights_[0];
    if (which_.kernel == Kernel::f16_gemv) scratch_ = gpu::Buffer(brick_scratch_bytes(w, call(0)));
    if (which_.kernel == Kernel::f16_gemm) scratch_ = gpu::Buffer(f16_gemm_scratch_bytes(w, call(0)));
  }

  void queue(gpu::StreamHandle stream, int set) override {
    const BrickMatrix& w = weights_[size_t(set)];
    if (which_.kernel == Kernel::f16_gemv) return device_f16_gemv(stream, w, call(set), scratch_);
    if (which_.kernel == Kernel::f16_gemm) return device_f16_gemm(stream, w, call(set), scratch_);
    device_int_gemv(stream, w,
                    {.n_tokens = p_.n_tokens,
                     .x = x_.at(set),
                     .planes = 2,
                     .n_out = {p_.n_out},
                     .y = {y_.at(set)},
                     .overlap = which_.overlap},
                    int_scratch_);
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    if (reference_.empty()) reference_ = matmul_reference(p_, x_host_, pool_.rows);
    const std::vector<float> y = values_of(stream, y_.at(set), y_values(p_));
    // Rounding the activations of a group, and sums in float over groups as below.
    if (which_.kernel == Kernel::int8_gemv)
      return check_nmse(y, reference_,
                        int8_bound(x_host_, p_.weights->group == 256 ? 256 : 128, 127.0 * 254) + 9 * p_.n_in * 0x1p-46,
                        "all outputs against sums in double");
    if (which_.kernel == Kernel::f16_gemm)  // x and weights rounded to f16, and float sums; of k-quants the minima too
      return check_nmse(y, reference_, 0x1p-18 + double(p_.n_in) * 0x1p-44, "all outputs against sums in double");
    // x is held to 22 bits (16 beside bf16 weights), and each of the n_in / 16 mmas that a sum goes through may
    // cut 2^-23 off it; sums of codes with a zero point pass through values about three times the result.
    const double x_error = p_.weights->name == "bf16" ? 0x1p-16 : 0x1p-21;
    return check_nmse(y, reference_, std::pow(x_error + 3 * p_.n_in / 16 * 0x1p-23, 2),
                      "all outputs against sums in double");
  }

 private:
  BrickCall call(int set) const {
    BrickCall c{.n_tokens = p_.n_tokens, .x = x_.at(set), .overlap = which_.overlap};
    c.y[0] = y_.at(set);
    return c;
  }

  OpProblem p_;
  Which which_;
  std::vector<float> x_host_;
  CodedPool pool_;
  DeviceSets x_, y_;
  std::vector<BrickMatrix> weights_;
  gpu::Buffer scratch_;
  IntScratch int_scratch_;
  std::vector<float> reference_;
};

Support supports(const OpProblem& p, const OpDevice&) {
  if (!find_brick_format(p.weights->name)) return {false, fmt::format("there are no bricks of {}", p.weights->name)};
  if (p.n_tokens > kFewTokens) return {false, fmt::format("serves up to {} tokens", kFewTokens)};
  return {};
}

Support supports_many(const OpProblem& p, const OpDevice&) {
  if (!find_brick_format(p.weights->name) || p.weights->name == "bf16") return {false, "reads bricks other than bf16"};
  if (p.n_tokens <= kFewTokens) return {false, fmt::format("serves more than {} tokens", kFewTokens)};
  return {};
}

Support supports_int8(const OpProblem& p, const OpDevice&) {
  const auto format = find_brick_format(p.weights->name);
  if (!format || !has_int_gemv(*format, p.n_in))
    return {false, "reads rows of whole bricks of the k-quants and of blocks of 32"};
  if (p.n_tokens > kFewTokens) return {false, fmt::format("serves up to {} tokens", kFewTokens)};
  return {};
}

int64_t set_bytes(const OpProblem& p) {
  // Columns are padded to whole bricks: of 256 at most.
  constexpr int kPadding = 256;
  const int64_t rows = (p.n_out + kBrickRows - 1) / kBrickRows * kBrickRows;
  const int64_t row_bytes = p.weights->row_bytes((p.n_in + kPadding - 1) / kPadding * kPadding);
  return set_stride(rows * row_bytes) + set_of_xy(p);
}

template <Kernel kKernel, bool kOverlap>
std::unique_ptr<OpRun> open(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) {
  return std::make_unique<GemvBricks>(p, stream, n_sets, seed, Which{kKernel, kOverlap});
}

}  // namespace

const OpKernel kGemvBricks = {Op::gemv, "bricks", supports, set_bytes, open<Kernel::f16_gemv, false>};
const OpKernel kGemvBricksOverlap = {Op::gemv, "bricks-overlap", supports, set_bytes, open<Kernel::f16_gemv, true>};
const OpKernel kGemvBricksInt8 = {Op::gemv, "bricks-int8", supports_int8, set_bytes, open<Kernel::int8_gemv, false>};
const OpKernel kGemvBricksInt8Overlap = {Op::gemv, "bricks-int8-overlap", supports_int8, set_bytes,
                                         open<Kernel::int8_gemv, true>};
const OpKernel kGemmBricks = {Op::gemv, "bricks-f16", supports_many, set_bytes, open<Kernel::f16_gemm, false>};

}  // namespace ridge::lab
