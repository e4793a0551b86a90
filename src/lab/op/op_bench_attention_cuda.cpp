// Attention on a GPU: every row of device_attention_variants() over caches of random codes, the newest tokens of each
// sequence as queries, all sequences in one call. tiles-overlap is tiles with programmatic dependent launch: a call
// starts while the one before it drains.
#include <algorithm>
#include <climits>
#include <cmath>

#include "lab/op/device_caches.h"
#include "lab/op/op_kernels.h"
#include "op/attn/device_attention.h"
#include "op/cache/rotation.h"

namespace ridge::lab {
namespace {

enum class Kernel : uint8_t { rows, rows_f16, prefill, tiles };

struct Launch {
  std::string_view name;
  const DeviceAttentionVariant* variant = nullptr;
  Kernel kernel = Kernel::rows;
  bool overlap = false;
};

int64_t query_count(const OpProblem& p) { return int64_t(p.n_seq) * p.n_new * p.n_heads * p.head_dim; }
int group_of(const OpProblem& p) { return p.n_heads / p.n_kv_heads; }

double power_sum(std::span<const float> row, int exponent) {
  double sum = 0;
  for (const float x : row) sum += std::pow(std::abs(double(x)), exponent);
  return sum;
}
float largest_of(std::span<const float> values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

class AttentionOnDevice : public OpRun {
 public:
  AttentionOnDevice(const OpProblem& p, const gpu::Stream& stream, const Launch& launch, int n_sets, uint64_t seed)
      : p_(p),
        launch_(launch),
        caches_(p, stream, n_sets, p.n_keys, seed + 1),
        q_host_(random_values(seed, query_count(p), 1.5)),
        q_(device_sets(stream, q_host_, n_sets)),
        out_(DeviceSets::of_nan(stream, query_count(p), n_sets)) {
    if (launch.kernel == Kernel::tiles) {
      scratch_ = gpu::Buffer(
          tile_attn_scratch_bytes(p.n_seq * p.n_new, p.n_heads, p.n_kv_heads, p.head_dim, tile_attn_blocks()));
      return;
    }
    std::vector<AttnBlock> blocks;
    if (launch.kernel == Kernel::rows) {
      blocks = caches_.blocks(group_of(p), rows_attn_queries(p.head_dim));
    } else {
      const bool is_long = launch.kernel == Kernel::prefill || p.n_new > kShortTokens;
      const PrefillPlan plan = launch.kernel == Kernel::prefill
                                   ? prefill_attn_plan(p.head_dim)
                                   : rows_f16_attn_plan(p.head_dim, is_long ? INT_MAX : group_of(p));
      const int n_rows = p.n_seq * p.n_new;
      for (int row = 0; row < n_rows; row += is_long ? p.n_new : 1)
        list_.part_rows =
            is_long
                ? add_prefill_blocks(plan, {.first = row, .n = p.n_new, .n_past = int(p.n_keys) - p.n_new}, group_of(p),
                                     p.n_kv_heads, list_.part_rows, blocks)
                : add_row_blocks(plan, row, group_of(p), rows_f16_attn_parts(plan, n_rows, group_of(p), p.n_kv_heads),
                                 list_.part_rows, blocks);
      list_.queries = plan.queries;
      list_.by_warpgroups = plan.by_warpgroups;
      list_.of_rows = !is_long;
      scratch_ = gpu::Buffer(prefill_attn_scratch_bytes(list_.part_rows, p.n_kv_heads, p.head_dim));
      list_.scratch = scratch_.as<std::byte>();
    }
    blocks_ = gpu::to_device(stream, std::span<const AttnBlock>(blocks));
    list_.blocks = blocks_.as<AttnBlock>();
    list_.n = int(blocks.size());
    stream.synchronize();
  }

  void queue(gpu::StreamHandle stream, int set) override {
    const DeviceAttention a{.rows = caches_.rows(set),
                            .n_heads = p_.n_heads,
                            .scale = 1 / std::sqrt(float(p_.head_dim)),
                            .k = caches_.tiles(KvSide::k),
                            .v = caches_.tiles(KvSide::v),
                            .q = q_.at(set),
                            .out = out_.at(set)};
    switch (launch_.kernel) {
      case Kernel::tiles: return tile_attn(stream, a, scratch_.as<std::byte>(), {.overlap = launch_.overlap});
      case Kernel::prefill: return prefill_attn(stream, a, list_);
      case Kernel::rows_f16: return rows_f16_attn(stream, a, list_, p_.head_dim);
      case Kernel::rows: return rows_attn(stream, a, {list_.blocks, list_.n, a.k.head_dim});
    }
  }

  OpCheck check(const gpu::Stream& stream, int set) override {
    if (reference_.empty()) make_reference();
    return check_nmse(last_queries(values_of(stream, out_.at(set), query_count(p_))), reference_, bound_,
                      "all heads of all sequences' last queries against softmax in double over what the cache holds");
  }

 private:
  /// The last query of every sequence, which sees all keys: [n_seq, n_heads, head_dim].
  std::vector<float> last_queries(std::span<const float> rows) const {
    const size_t width = size_t(p_.n_heads) * size_t(p_.head_dim);
    std::vector<float> last;
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      const auto row = rows.subspan((size_t(seq + 1) * size_t(p_.n_new) - 1) * width, width);
      last.insert(last.end(), row.begin(), row.end());
    }
    return last;
  }

  void make_reference() {
    const std::vector<float> q = last_queries(q_host_);  // in K's cache space, as it comes from an append
    const size_t width = size_t(p_.n_heads) * size_t(p_.head_dim), group = width / size_t(p_.n_kv_heads);
    OpProblem one = p_;
    one.n_kv_heads = 1;
    one.n_heads = group_of(p_);
    reference_.resize(q.size());
    bound_ = 0;
    for (int head = 0; head < p_.n_kv_heads; ++head) {
      const bool integers = launch_.kernel == Kernel::tiles;
      const RowPool k = caches_.pool(KvSide::k, head, integers), v = caches_.pool(KvSide::v, head, integers);
      std::vector<float> of_head;
      for (int seq = 0; seq < p_.n_seq; ++seq) {
        const auto row = q.begin() + std::ptrdiff_t(size_t(seq) * width + size_t(head) * group);
        of_head.insert(of_head.end(), row, row + std::ptrdiff_t(group));
      }
      const AttentionReference r = attention_reference(
          one, of_head, k, v,
          [&](int64_t seq, int64_t position) { return caches_.index(KvSide::k, int(seq), int(position)); },
          [&](int64_t seq, int64_t position) { return caches_.index(KvSide::v, int(seq), int(position)); });
      for (int seq = 0; seq < p_.n_seq; ++seq)
        std::copy_n(r.out.begin() + std::ptrdiff_t(size_t(seq) * group), group,
                    reference_.begin() + std::ptrdiff_t(size_t(seq) * width + size_t(head) * group));
      bound_ = std::max(bound_, bound(r, of_head, k, v));
    }
    const RowRotation rotation(p_.v.policy.rotation, 0, p_.head_dim);
    for (size_t at = 0; at < reference_.size(); at += size_t(p_.head_dim)) rotation.backward(reference_.data() + at);
  }

  /// Bound on the NMSE of one kv head's outputs.
  double bound(const AttentionReference& r, std::span<const float> q, const RowPool& k, const RowPool& v) const {
    const double of_floats = float_attention_error(r.score_error, p_.n_keys);
    switch (launch_.kernel) {
      case Kernel::rows: return of_floats * of_floats * r.amplification;
      case Kernel::rows_f16:
      case Kernel::prefill: {
        // q, k, weights and values are rounded to f16, each off by a relative u / sqrt(3) on the mean. A score is
        // off by sqrt(2/3) u times |(q_d k_d)_d|_2, at most |q|_4 |k|_4. Errors of different keys are random in sign,
        // as their terms are, so that the NMSE is what a score, a weight and a value err by, squared; four times that
        // is allowed.
        constexpr double u = 0x1p-11;
        double q4 = 0, k4 = 0;
        for (size_t at = 0; at < q.size(); at += size_t(p_.head_dim))
          q4 = std::max(q4, std::sqrt(power_sum(q.subspan(at, size_t(p_.head_dim)), 4)));
        for (int i = 0; i < k.n_rows(); ++i) k4 = std::max(k4, std::sqrt(power_sum(k.row(i), 4)));
        const double rounding = 2.0 / 3 * u * u * (q4 * k4 / p_.head_dim + 1);
        return std::pow(2 * std::sqrt(rounding) + of_floats * std::sqrt(r.amplification), 2);
      }
      case Kernel::tiles: {
        // Queries are rounded to steps of their largest value, in every channel by itself: a score is off by 0.3 |k|_2
        // steps on the mean, and four |k|_2 are never seen; a weight is off by as much. Weights of V are rounded to
        // steps of the largest of a tile; and float rounds as for float rows.
        double k2 = 0;
        for (int i = 0; i < k.n_rows(); ++i) k2 = std::max(k2, power_sum(k.row(i), 2));
        const double score = std::sqrt(k2) * largest_of(q) * step(KvSide::k) / std::sqrt(double(p_.head_dim));
        const double e = 4 * score + 2 * r.score_error + 1e-5, coarse = step(KvSide::v) * largest_of(v.rows());
        return std::pow(e * std::sqrt(r.amplification) + coarse / std::sqrt(r.mean_square), 2);
      }
    }
    return 0;
  }
  /// Step, as a share of the largest value, to which factors of rows are rounded: 22 bits where all rows are f16, else
  /// 15.
  double step(KvSide side) const {
    const KvTiles& t = caches_.tiles(side);
    const bool fine = t.kind == TileKind::f16 && (t.ring_tiles == 0 || t.recent_kind == TileKind::f16);
    return fine ? 0x1p-21 : 0x1p-14;
  }

  OpProblem p_;
  Launch launch_;
  DeviceCaches caches_;
  std::vector<float> q_host_;
  DeviceSets q_, out_;
  gpu::Buffer scratch_, blocks_;
  PrefillList list_;
  std::vector<float> reference_;  ///< [n_seq, n_heads, head_dim]
  double bound_ = 0;
};

OpKernel kernel_row(const Launch& launch) {
  return {.op = Op::attention,
          .name = launch.name,
          .supports = [launch](const OpProblem& p, const OpDevice&) -> Support {
            if (p.k.policy.centre || p.v.policy.centre) return {false, "a centre is not part of this bench"};
            const bool of_rows = launch.kernel == Kernel::rows || launch.kernel == Kernel::rows_f16;
            if (of_rows && device_tiles(p.layer()).ok)
              return {false, "the cache's tiles are in the order of tensor cores"};
            return launch.variant->supports({p.layer(), p.n_new});
          },
          .set_bytes =
              [](const OpProblem& p) { return DeviceCaches::bytes(p, p.n_keys) + 2 * set_stride(4 * query_count(p)); },
          .open = [launch](const OpProblem& p, const gpu::Stream& stream, int n_sets,
                           uint64_t seed) -> std::unique_ptr<OpRun> {
            return std::make_unique<AttentionOnDevice>(p, stream, launch, n_sets, seed);
          }};
}

}  // namespace

std::vector<OpKernel> gpu_attention_kernels() {
  std::vector<OpKernel> kernels;
  for (const DeviceAttentionVariant& variant : device_attention_variants()) {
    const Kernel kernel = variant.name == "tiles"      ? Kernel::tiles
                          : variant.name == "prefill"  ? Kernel::prefill
                          : variant.name == "rows-f16" ? Kernel::rows_f16
                                                       : Kernel::rows;
    if (kernel == Kernel::tiles) kernels.push_back(kernel_row({"tiles-overlap", &variant, kernel, true}));
    kernels.push_back(kernel_row({variant.name, &variant, kernel, false}));
  }
  return kernels;
}

}  // namespace ridge::lab
