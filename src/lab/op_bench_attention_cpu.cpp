// Decode attention on the CPU: every row of attn_decode_variants() over caches that the ordinary append has filled. A
// call is what a decode step does with a layer's cache: the queries are rotated, attention reads the coded rows, and
// the output is turned back, one sequence after another.
//
// Rows are rounded to nearest here, also where a policy rounds weighted: which codes they got changes no time.
#include <cmath>
#include <cstring>
#include <numeric>

#include "lab/op_data.h"
#include "lab/op_kernels.h"
#include "op/attn/attn.h"

namespace ridge::lab {
namespace {

int64_t query_values(const OpProblem& p) { return int64_t(p.n_seq) * p.n_heads * p.head_dim; }

KvSideConfig rounded_to_nearest(KvSideConfig config) {
  config.policy.rounding = KvRounding::nearest;
  return config;
}

/// The cache of one sequence, one layer.
std::unique_ptr<KvCache> make_cache(const OpProblem& p) {
  const KvSideConfig k = rounded_to_nearest(p.k), v = rounded_to_nearest(p.v);
  return std::make_unique<KvCache>(std::span(&k, 1), std::span(&v, 1), p.n_kv_heads, p.head_dim, p.n_keys);
}

/// Rows of the pools at their positions: head h's row at a position is RowPool::index(h, position).
void fill_cache(CpuContext& context, const OpProblem& p, const RowPool& k, const RowPool& v, KvCache& cache) {
  constexpr int kBatch = 256;
  const int64_t width = int64_t(p.n_kv_heads) * p.head_dim;
  std::vector<float> rows(size_t(kBatch * width));
  for (int past = 0; past < p.n_keys; past += kBatch) {
    const int n = std::min(kBatch, p.n_keys - past);
    for (const bool is_k : {true, false}) {
      for (int i = 0; i < n; ++i)
        for (int head = 0; head < p.n_kv_heads; ++head)
          std::memcpy(rows.data() + i * width + int64_t(head) * p.head_dim,
                      (is_k ? k : v).row(RowPool::index(head, past + i)).data(), sizeof(float) * size_t(p.head_dim));
      (is_k ? cache.k(0) : cache.v(0))
          .append(context, past, View2<float>(rows.data(), n, width), is_k ? cache.k_scratch : cache.v_scratch);
    }
    cache.n_past = past + n;
  }
}

/// What a KV head's positions of one side read as: each row of the pool once for every segment that it is in.
struct HeadRows {
  HeadRows(const KvSide& side, int head, int head_dim, int n_keys) : slot(size_t(n_keys), 0) {
    std::vector<float> rows(size_t(side.n_segments) * RowPool::kRows * size_t(head_dim), 0.0f);
    std::vector<bool> known(size_t(side.n_segments) * RowPool::kRows, false);
    for (int s = 0; s < side.n_segments; ++s) {
      const KvSegment& segment = side.segments[size_t(s)];
      for (int i = 0; i < segment.count; ++i) {
        const int at = s * RowPool::kRows + RowPool::index(head, segment.first + i);
        slot[size_t(segment.first + i)] = at;
        if (known[size_t(at)]) continue;
        known[size_t(at)] = true;
        segment.format->decode(segment.rows + head * segment.head_stride + i * segment.row_bytes, head_dim,
                               segment.coding(head), rows.data() + int64_t(at) * head_dim);
      }
    }
    pool = RowPool(head_dim, std::move(rows));
  }
  RowPool pool{0, std::vector<float>()};
  std::vector<int> slot;  ///< row of the pool, by position
};

class AttentionCpu : public CpuOpRun {
 public:
  AttentionCpu(const OpProblem& p, CpuContext& context, const AttnDecodeVariant& variant, int n_sets, uint64_t seed)
      : p_(p), context_(context), variant_(variant), q_host_(random_values(seed, query_values(p), 2)) {
    const RowPool k(p.head_dim, seed + 1), v(p.head_dim, seed + 2);
    for (int set = 0; set < n_sets; ++set) {
      Set& s = sets_.emplace_back();
      for (int seq = 0; seq < p.n_seq; ++seq) {
        s.caches.push_back(make_cache(p));
        KvCache& cache = *s.caches.back();
        const KvCache& first = *sets_[0].caches[0];
        if (&cache == &first) fill_cache(context, p, k, v, cache);
        else cache.copy_from(first).or_throw();
      }
      s.q.resize(q_host_.size());
      s.out.assign(q_host_.size(), NAN);  // what a kernel does not write fails its check
    }
  }

  void call(int set) override {
    Set& s = sets_[size_t(set)];
    const int64_t width = int64_t(p_.n_heads) * p_.head_dim;
    std::memcpy(s.q.data(), q_host_.data(), 4 * q_host_.size());
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      const KvCache& cache = *s.caches[size_t(seq)];
      float *q = s.q.data() + seq * width, *out = s.out.data() + seq * width;
      cache.k(0).rotate_queries(context_, View2<float>(q, 1, width));
      variant_.run(context_, attention(cache, q, out));
      cache.v(0).restore_output(context_, p_.n_heads, View2<float>(out, 1, width));
    }
  }

  OpCheck check(int set) override {
    if (reference_.empty()) make_reference();
    return check_nmse(sets_[size_t(set)].out, reference_, bound_,
                      "all heads of all sequences against softmax in double over what the cache holds");
  }

  AttnDecode attention(const KvCache& cache, const float* q, float* out) const {
    return {.n_heads = p_.n_heads,
            .n_kv_heads = p_.n_kv_heads,
            .head_dim = p_.head_dim,
            .n_keys = p_.n_keys,
            .scale = 1 / std::sqrt(float(p_.head_dim)),
            .q = q,
            .k = cache.k(0).decode_side(p_.n_keys),
            .v = cache.v(0).decode_side(p_.n_keys),
            .out = out};
  }

 private:
  struct Set {
    std::vector<std::unique_ptr<KvCache>> caches;  ///< one a sequence
    std::vector<float> q, out;                     ///< [n_seq, n_heads, head_dim]
  };

  void make_reference() {
    const KvCache& cache = *sets_[0].caches[0];  // all hold the same rows
    const int64_t width = int64_t(p_.n_heads) * p_.head_dim;
    const int per_kv_head = p_.n_heads / p_.n_kv_heads;
    const size_t group = size_t(per_kv_head) * size_t(p_.head_dim);
    std::vector<float> q = q_host_;
    cache.k(0).rotate_queries(context_, View2<float>(q.data(), p_.n_seq, width));
    OpProblem one = p_;
    one.n_seq = one.n_kv_heads = 1;
    one.n_heads = per_kv_head;
    reference_.resize(q.size());
    double error = 0;
    for (int head = 0; head < p_.n_kv_heads; ++head) {
      const HeadRows k(cache.k(0).decode_side(p_.n_keys), head, p_.head_dim, p_.n_keys),
          v(cache.v(0).decode_side(p_.n_keys), head, p_.head_dim, p_.n_keys);
      for (int seq = 0; seq < p_.n_seq; ++seq) {
        const size_t at = size_t(seq * width) + size_t(head) * group;
        const AttentionReference r = attention_reference(
            one, std::span(q).subspan(at, group), k.pool, v.pool,
            [&](int64_t, int64_t position) { return k.slot[size_t(position)]; },
            [&](int64_t, int64_t position) { return v.slot[size_t(position)]; });
        std::ranges::copy(r.out, reference_.begin() + std::ptrdiff_t(at));
        // A kernel may scale a decoded value in another order: two roundings of each key and value.
        const double e = float_attention_error(3 * r.score_error, p_.n_keys) + 0x1p-22;
        error = std::max(error, e * e * r.amplification);
      }
    }
    if (variant_.rounds) error = std::pow(std::sqrt(error) + std::sqrt(rounding_bound(cache, q)), 2);
    cache.v(0).restore_output(context_, p_.n_heads, View2<float>(reference_.data(), p_.n_seq, width));
    // The rotation back and the centre are the same code here and there.
    bound_ = error;
  }

  /// Bound of the NMSE that int_rounding() adds: four times its mean, taken from head 0. A query off by d in every
  /// value moves a score by d |k| scale, levels off by e move it by e |q| |k| scale / sqrt(head_dim): that is the
  /// relative error of a weight and, since keys err each their own way, of the output. Weights are off by two roundings
  /// (their own and what a neighbour passed on) to steps of the largest of 64 keys.
  double rounding_bound(const KvCache& cache, std::span<const float> q) const {
    const HeadRows k(cache.k(0).decode_side(p_.n_keys), 0, p_.head_dim, p_.n_keys),
        v(cache.v(0).decode_side(p_.n_keys), 0, p_.head_dim, p_.n_keys);
    const auto product = [](std::span<const float> a, std::span<const float> b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    const double dim = p_.head_dim, scale = 1 / std::sqrt(dim);
    const auto head = q.first(size_t(p_.head_dim));
    double query_top = 0, top = -INFINITY, total = 0, k_square = 0, v_square = 0, steps = 0;
    for (const float x : head) query_top = std::max(query_top, std::abs(double(x)));
    std::vector<double> p;
    for (int i = 0; i < p_.n_keys; ++i) {
      const auto key = k.pool.row(k.slot[size_t(i)]), value = v.pool.row(v.slot[size_t(i)]);
      top = std::max(top, p.emplace_back(product(head, key) * scale));
      k_square += product(key, key) / p_.n_keys, v_square += product(value, value) / dim / p_.n_keys;
    }
    for (double& x : p) total += x = std::exp(x - top);
    for (size_t i = 0; i < p.size(); i += 64) {
      const size_t n = std::min<size_t>(64, p.size() - i);
      steps += double(n) * std::pow(*std::max_element(&p[i], &p[i] + n) / total, 2);
    }
    const IntRounding exact{INFINITY, INFINITY, 0};
    const IntRounding rk = int_rounding(*p_.k.format, p_.head_dim).value_or(exact),
                      rv = int_rounding(*p_.v.format, p_.head_dim).value_or(exact);
    const double scores =
        k_square * scale * scale *
        (std::pow(query_top / rk.query_steps, 2) / 12 + std::pow(rk.level_error, 2) * product(head, head) / dim);
    const double values = steps / 6 / std::pow(rv.weight_steps, 2) * v_square / product(reference_, reference_) *
                          double(reference_.size()) *
                          // Rows repeat: after a pool's worth of tiles the same weights meet the same places again, and
                          // what they err by no longer averages out.
                          std::max(1.0, double(p_.n_keys) / (64.0 * RowPool::kRows));
    return 4 * (scores + std::pow(rv.level_error, 2) + values);
  }

  OpProblem p_;
  CpuContext& context_;
  const AttnDecodeVariant& variant_;
  std::vector<float> q_host_;
  std::vector<Set> sets_;
  std::vector<float> reference_;
  double bound_ = 0;
};

int64_t set_bytes(const OpProblem& p) {
  return p.n_seq * (kv_bytes(p.k, p.n_kv_heads, p.head_dim).total(p.n_keys) +
                    kv_bytes(p.v, p.n_kv_heads, p.head_dim).total(p.n_keys)) +
         2 * 4 * query_values(p);
}

OpKernel kernel_row(const AttnDecodeVariant& variant) {
  return {.op = Op::attention,
          .name = variant.name,
          .supports = [&variant](const OpProblem& p, const OpDevice& device) -> Support {
            if (variant.isa > device.isa)
              return {false, fmt::format("needs {}, this processor or --isa allows {}", isa_name(variant.isa),
                                         isa_name(device.isa))};
            AttnDecode a;
            a.n_heads = p.n_heads, a.n_kv_heads = p.n_kv_heads, a.head_dim = p.head_dim, a.n_keys = p.n_keys;
            a.k = kv_side_without_rows(*p.k.format, p.head_dim, p.n_keys);
            a.v = kv_side_without_rows(*p.v.format, p.head_dim, p.n_keys);
            return variant.supports(a);
          },
          .set_bytes = set_bytes,
          .open_cpu = [&variant](const OpProblem& p, CpuContext& context, int n_sets,
                                 uint64_t seed) -> std::unique_ptr<CpuOpRun> {
            return std::make_unique<AttentionCpu>(p, context, variant, n_sets, seed);
          }};
}

}  // namespace

std::vector<OpKernel> cpu_attention_kernels() {
  std::vector<OpKernel> kernels;
  for (const AttnDecodeVariant& variant : attn_decode_variants()) kernels.push_back(kernel_row(variant));
  return kernels;
}

}  // namespace ridge::lab
