// rows: device_encode of the K and V rows of new tokens, rounded to nearest, a thread a row.
#include <algorithm>

#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/cache/kv_rows_cuda.h"

namespace ridge::lab {
namespace {

int64_t n_rows(const OpProblem& p) { return int64_t(p.n_seq) * p.n_new * p.n_kv_heads; }
int64_t n_stored(const OpProblem& p) { return int64_t(p.n_seq) * p.n_kv_heads * p.n_new; }

/// Number of a format in KvFormatTypes.
int format_number(const KvFormat& format) { return int(&format - kv_formats().data()); }

/// One side: rows [n_seq, n_new, n_kv_heads, head_dim] into a store that holds just them.
class AppendSide {
 public:
  AppendSide(const OpProblem& problem, const KvSideConfig& config, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : p_(problem),
        format_(*config.format),
        scale_(config.policy.scale),
        values_(random_values(seed, n_rows(problem) * problem.head_dim)),
        rows_(device_sets(stream, values_, n_sets)),
        stored_(stream, std::vector<std::byte>(size_t(n_stored(p_) * row_bytes()), std::byte{0xA5}), n_sets),
        head_scales_(size_t(p_.n_seq) * size_t(p_.n_kv_heads), 1.0f),
        scales_(device_sets(stream, head_scales_, 1)),
        saturated_(sizeof(unsigned long long)) {}

  void queue(gpu::StreamHandle stream, int set) const {
    const KvRowBatch batch{.n_seq = p_.n_seq,
                           .n_new = p_.n_new,
                           .n_past = 0,
                           .n_kv_heads = p_.n_kv_heads,
                           .head_dim = p_.head_dim,
                           .rows = rows_.at(set)};
    device_encode(stream, format_number(format_), batch,
                  {.scale = scale_, .head_scale = format_.head_scale ? scales_.at(0) : nullptr, .metric = nullptr},
                  {.n_ctx = p_.n_new, .row_bytes = row_bytes(), .rows = stored_.at<std::byte>(set)},
                  saturated_.as<unsigned long long>());
  }

  /// Bytes that differ from what the format's encoder gives on the host.
  int64_t different_bytes(const gpu::Stream& stream, int set) const {
    const auto found = values_of(stream, stored_.at<std::byte>(set), n_stored(p_) * row_bytes());
    std::vector<std::byte> row(static_cast<size_t>(row_bytes()));
    int64_t different = 0;
    for (int seq = 0; seq < p_.n_seq; ++seq)
      for (int token = 0; token < p_.n_new; ++token)
        for (int head = 0; head < p_.n_kv_heads; ++head) {
          const int64_t from = (int64_t(seq) * p_.n_new + token) * p_.n_kv_heads + head,
                        to = (int64_t(seq) * p_.n_kv_heads + head) * p_.n_new + token;
          format_.encode(values_.data() + from * p_.head_dim, p_.head_dim,
                         {.scale = scale_, .fixed = format_.head_scale ? 1.0f : 0.0f}, row.data());
          for (int64_t i = 0; i < row_bytes(); ++i) different += row[size_t(i)] != found[size_t(to * row_bytes() + i)];
        }
    return different;
  }

 private:
  int64_t row_bytes() const { return format_.row_bytes(p_.head_dim); }
  OpProblem p_;
  const KvFormat& format_;
  KvScale scale_;
  std::vector<float> values_;
  DeviceSets rows_, stored_;
  std::vector<float> head_scales_;
  DeviceSets scales_;
  gpu::Buffer saturated_;
};

class AppendRows : public OpRun {
 public:
  AppendRows(const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : k_(p, p.k, stream, n_sets, seed), v_(p, p.v, stream, n_sets, seed + 1) {}

  void queue(gpu::StreamHandle stream, int set) override {
    k_.queue(stream, set);
    v_.queue(stream, set);
  }
  OpCheck check(const gpu::Stream& stream, int set) override {
    return {.metric = "different bytes",
            .error = double(k_.different_bytes(stream, set) + v_.different_bytes(stream, set)),
            .bound = 0,
            .what = "all rows, byte for byte, against the formats' encoders, rounded to nearest"};
  }

 private:
  AppendSide k_, v_;
};

int64_t side_bytes(const OpProblem& p, const KvSideConfig& side) {
  return set_stride(4 * n_rows(p) * p.head_dim) + set_stride(n_stored(p) * side.format->row_bytes(p.head_dim));
}

}  // namespace

const OpKernel kAppendRows = {
    Op::append, "rows",
    [](const OpProblem& p, const OpDevice&) {
      if (p.head_dim > kMaxDeviceHeadDim)
        return Support{false, fmt::format("head_dim {} is above {}", p.head_dim, kMaxDeviceHeadDim)};
      return Support{};
    },
    [](const OpProblem& p) { return side_bytes(p, p.k) + side_bytes(p, p.v); },
    [](const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) -> std::unique_ptr<OpRun> {
      return std::make_unique<AppendRows>(p, stream, n_sets, seed);
    }};

}  // namespace ridge::lab
