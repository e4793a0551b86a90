// Matmuls with integer weights on tensor cores. Names are those of op/device_linear.cpp. Up to kFewTokens tokens
// (device_int_gemv): int-2planes is what models run int4_g128 with (activations of about 15 bits), int-1plane has 7
// bits, ternary is for i2_s. More tokens (device_int_gemm): int4-f16 and ternary-int8.
// -overlap: with programmatic dependent launch, each call's weights fetched while the one before it ends.

#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/device_linear.h"
#include "op/gemm/int_gemm_cuda.h"

namespace ridge::lab {
namespace {

constexpr float kMatrixScale = 0.0677f;  // of ternary matrices

IntKind kind_of(const OpProblem& p) { return p.weights->name == "i2_s" ? IntKind::ternary : IntKind::int4_g128; }

/// planes: of an activation in int8; 0: device_int_gemm, whose activations are f16 beside int4_g128.
class GemvInt : public OpRun {
 public:
  GemvInt(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed, int planes, bool overlap)
      : p_(p),
        planes_(planes),
        overlap_(overlap),
        x_host_(random_values(seed, x_values(p))),
        codes_(kind_of(p) == IntKind::ternary ? random_codes(p.n_in, seed + 1) : std::vector<int8_t>()),
        pool_(kind_of(p) == IntKind::ternary ? coded_pool(*p.weights, p.n_in, {codes_.begin(), codes_.end()})
                                             : coded_pool(*p.weights, p.n_in, seed + 1)),
        x_(device_sets(stream, x_host_, n_sets)),
        y_(DeviceSets::of_nan(stream, y_values(p), n_sets)) {
    const auto rows = lay_out_rows(pool_.bytes, p.weights->row_bytes(p.n_in), 1, p.n_out);
    const gpu::Buffer rows_there = gpu::to_device(stream, std::span(rows));
    const IntRows matrix{rows_there.as<void>(), p.n_out, kMatrixScale};
    for (int set = 0; set < n_sets; ++set)
      weights_.push_back(pack_int_weights(stream, kind_of(p), p.n_in, {&matrix, 1}));
    stream.synchronize();
  }

  void queue(gpu::StreamHandle stream, int set) override {
    if (planes_ == 0)
      return device_int_gemm(
          stream, weights_[size_t(set)],
          {.n_tokens = p_.n_tokens, .x = x_.at(set), .n_out = {p_.n_out}, .y = {y_.at(set)}, .overlap = overlap_},
          scratch_);
    device_int_gemv(stream, weights_[size_t(set)],
                    {.n_tokens = p_.n_tokens,
                     .x = x_.at(set),
                     .planes = planes_,
                     .n_out = {p_.n_out},
                     .y = {y_.at(set)},
                     .overlap = overlap_},
                    scratch_);
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    const std::vector<float> y = values_of(stream, y_.at(set), y_values(p_));
    if (kind_of(p_) == IntKind::ternary) {
      if (reference_.empty()) reference_ = ternary_reference(p_, x_host_, codes_, kMatrixScale);
      return check_same_bits(y, reference_, "all outputs, bit for bit, against the definition on the host");
    }
    if (reference_.empty()) reference_ = matmul_reference(p_, x_host_, pool_.rows);
    return check_nmse(y, reference_, activation_bound(), "all outputs against sums in double");
  }

 private:
  /// Rounding the activations (and to f16 the weights), and float sums over groups.
  double activation_bound() const {
    if (planes_ == 0) return 0x1p-20 + double(p_.n_in) * 0x1p-48;
    return int8_bound(x_host_, kIntGroup, planes_ == 2 ? 127.0 * 254 : 127.0) + p_.n_in * 0x1p-48;
  }

  OpProblem p_;
  int planes_;
  bool overlap_;
  std::vector<float> x_host_;
  std::vector<int8_t> codes_;
  CodedPool pool_;
  DeviceSets x_, y_;
  std::vector<IntWeights> weights_;
  IntScratch scratch_;
  std::vector<float> reference_;
};

int64_t set_bytes(const OpProblem& p) {
  const int64_t tiles = (p.n_out + kIntTileRows - 1) / kIntTileRows;
  return set_stride(tiles * (p.n_in / kIntGroup) * int_tile_bytes(kind_of(p))) + set_stride(64 * tiles) + set_of_xy(p);
}

template <IntKind kKind, bool kMany>
Support supports(const OpProblem& p, const OpDevice&) {
  const std::string_view format = kKind == IntKind::ternary ? "i2_s" : "int4_g128";
  if (p.weights->name != format) return {false, fmt::format("reads {} only", format)};
  if (kMany == (p.n_tokens > kFewTokens)) return {};
  return {false, fmt::format("serves {} {} tokens", kMany ? "more than" : "up to", kFewTokens)};
}

template <int kPlanes, bool kOverlap>
std::unique_ptr<OpRun> open(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) {
  return std::make_unique<GemvInt>(p, stream, n_sets, seed, kPlanes, kOverlap);
}

}  // namespace

constexpr auto kInt4 = supports<IntKind::int4_g128, false>, kTernary = supports<IntKind::ternary, false>;
constexpr auto kManyInt4 = supports<IntKind::int4_g128, true>, kManyTernary = supports<IntKind::ternary, true>;

const OpKernel kGemvInt1Plane = {Op::gemv, "int-1plane", kInt4, set_bytes, open<1, false>};
const OpKernel kGemvIntOverlap = {Op::gemv, "int-2planes-overlap", kInt4, set_bytes, open<2, true>};
const OpKernel kGemvInt2Planes = {Op::gemv, "int-2planes", kInt4, set_bytes, open<2, false>};
const OpKernel kGemvTernaryOverlap = {Op::gemv, "ternary-overlap", kTernary, set_bytes, open<1, true>};
const OpKernel kGemvTernary = {Op::gemv, "ternary", kTernary, set_bytes, open<1, false>};
const OpKernel kGemmInt4 = {Op::gemv, "int4-f16", kManyInt4, set_bytes, open<0, false>};
const OpKernel kGemmTernary = {Op::gemv, "ternary-int8", kManyTernary, set_bytes, open<0, false>};

}  // namespace ridge::lab
