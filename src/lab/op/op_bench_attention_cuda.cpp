// plain-f32: device_attn over float rows, one block a head.
#include <cmath>

#include "lab/op/op_data.h"
#include "lab/op/op_kernels.h"
#include "op/attn/attn_cuda.h"

namespace ridge::lab {
namespace {

int64_t side_values(const OpProblem& p) { return int64_t(p.n_seq) * p.n_kv_heads * p.n_keys * p.head_dim; }
int64_t query_values(const OpProblem& p) { return int64_t(p.n_seq) * p.n_heads * p.head_dim; }

class AttentionPlain : public OpRun {
 public:
  AttentionPlain(const OpProblem& problem, const gpu::Stream& stream, int n_sets, uint64_t seed)
      : p_(problem),
        q_host_(random_values(seed, query_values(problem), 2)),
        q_(device_sets(stream, q_host_, n_sets)),
        out_(DeviceSets::of_nan(stream, query_values(problem), n_sets)),
        k_pool_(problem.head_dim, seed + 1),
        v_pool_(problem.head_dim, seed + 2),
        k_(rows(stream, k_pool_, n_sets)),
        v_(rows(stream, v_pool_, n_sets)) {}

  void queue(gpu::StreamHandle stream, int set) override {
    const auto side = [&](const DeviceSets& rows) {
      return DeviceKvSide{.coded = rows.at(set), .n_coded = p_.n_keys, .exact = nullptr, .exact_first = p_.n_keys};
    };
    device_attn(stream, {.n_seq = p_.n_seq,
                         .n_heads = p_.n_heads,
                         .n_kv_heads = p_.n_kv_heads,
                         .head_dim = p_.head_dim,
                         .n_tokens = 1,
                         .n_keys = p_.n_keys,
                         .scale = 1 / std::sqrt(float(p_.head_dim)),
                         .q = q_.at(set),
                         .k = side(k_),
                         .v = side(v_),
                         .out = out_.at(set)});
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    if (reference_.out.empty())
      reference_ = attention_reference(p_, q_host_, k_pool_, v_pool_, RowPool::index, RowPool::index);
    const double e = float_attention_error(reference_.score_error, p_.n_keys);
    return check_nmse(values_of(stream, out_.at(set), query_values(p_)), reference_.out,
                      e * e * reference_.amplification, "all heads of all sequences against softmax in double");
  }

 private:
  DeviceSets rows(const gpu::Stream& stream, const RowPool& pool, int n_sets) const {
    const int64_t row_bytes = 4 * p_.head_dim;
    return {stream, lay_out_rows(std::as_bytes(pool.rows()), row_bytes, int64_t(p_.n_seq) * p_.n_kv_heads, p_.n_keys),
            n_sets};
  }

  OpProblem p_;
  std::vector<float> q_host_;
  DeviceSets q_, out_;
  RowPool k_pool_, v_pool_;
  DeviceSets k_, v_;
  AttentionReference reference_;
};

}  // namespace

const OpKernel kAttentionPlain = {
    Op::attention, "plain-f32",
    [](const OpProblem& p, const OpDevice&) {
      if (p.k.format->name != "f32" || p.v.format->name != "f32") return Support{false, "reads float rows only"};
      if (p.head_dim % 4 != 0 || p.head_dim > 256)
        return Support{false, fmt::format("head_dim {} is not a multiple of 4 up to 256", p.head_dim)};
      return Support{};
    },
    [](const OpProblem& p) { return 2 * set_stride(4 * side_values(p)) + 2 * set_stride(4 * query_values(p)); },
    [](const OpProblem& p, const gpu::Stream& stream, int n_sets, uint64_t seed) -> std::unique_ptr<OpRun> {
      return std::make_unique<AttentionPlain>(p, stream, n_sets, seed);
    }};

}  // namespace ridge::lab
