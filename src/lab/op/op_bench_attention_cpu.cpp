// Attention on the CPU: every row of attention_variants() over caches that the ordinary append has filled, one or a few
// new queries of each sequence, all sequences in one call.
//
// Rows are rounded to nearest here, also where a policy rounds weighted: which codes they got changes no time.
#include <cmath>
#include <numeric>

#include "lab/op/host_caches.h"
#include "lab/op/op_kernels.h"
#include "op/attn/attn.h"
#include "op/cache/append.h"

namespace ridge::lab {
namespace {

int64_t query_values(const OpProblem& p) { return int64_t(p.n_seq) * p.n_new * p.n_heads * p.head_dim; }

/// Rows that the positions of a KV head read as, on one side: each row of the pool once for every form that it is held
/// in.
struct HeadRows {
  HeadRows(const KvTiles& tiles, const KvSpan& span, int head) : slot(size_t(span.n_keys()), 0) {
    constexpr int kForms = 3;  // sink, coded, recent
    std::vector<float> rows(size_t(kForms * RowPool::kRows * tiles.head_dim), 0.0f);
    std::vector<bool> known(size_t(kForms * RowPool::kRows), false);
    const int n = span.n_keys();
    for (int position = 0; position < n; ++position) {
      const int form = position < tiles.n_sinks ? 0 : position < tiles.retention.coded_end(n) ? 1 : 2;
      const int at = form * RowPool::kRows + RowPool::index(head, position);
      slot[size_t(position)] = at;
      if (known[size_t(at)]) continue;
      known[size_t(at)] = true;
      read_cached_row(tiles, span, head, position, n, rows.data() + int64_t(at) * tiles.head_dim);
    }
    pool = RowPool(tiles.head_dim, std::move(rows));
  }
  RowPool pool{0, std::vector<float>()};
  std::vector<int> slot;  ///< row of the pool, by position
};

class AttentionCpu : public CpuOpRun {
 public:
  AttentionCpu(const OpProblem& p, CpuContext& context, const AttentionVariant& variant, int n_sets, uint64_t seed)
      : p_(p),
        context_(context),
        variant_(variant),
        caches_(p.nearest_layer(), {}, nullptr, n_sets * p.n_seq, p.n_keys),
        q_(random_values(seed, query_values(p), 2)) {
    caches_.fill(context, RowPool(p.head_dim, seed + 1), RowPool(p.head_dim, seed + 2), p.n_keys);
    for (int set = 0; set < n_sets; ++set) {
      Set& s = sets_.emplace_back();
      for (int seq = 0; seq < p.n_seq; ++seq)
        s.spans.push_back(caches_.span(set * p.n_seq + seq, seq * p.n_new, p.n_new, p.n_keys - p.n_new));
      s.out.assign(q_.size(), NAN);  // what a kernel does not write fails its check
    }
  }

  void call(int set) override {
    Set& s = sets_[size_t(set)];
    const int64_t rows = int64_t(p_.n_seq) * p_.n_new, width = int64_t(p_.n_heads) * p_.head_dim;
    variant_.run(context_, {.n_heads = p_.n_heads,
                            .scale = 1 / std::sqrt(float(p_.head_dim)),
                            .k = caches_.tiles(KvSide::k),
                            .v = caches_.tiles(KvSide::v),
                            .spans = s.spans,
                            .q = {q_.data(), rows, width},
                            .out = {s.out.data(), rows, width}});
  }

  OpCheck check(int set) override {
    if (reference_.empty()) make_reference();
    // The last query of every sequence sees all keys.
    std::vector<float> last;
    const int64_t width = int64_t(p_.n_heads) * p_.head_dim;
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      const auto row = sets_[size_t(set)].out.begin() + (int64_t(seq + 1) * p_.n_new - 1) * width;
      last.insert(last.end(), row, row + width);
    }
    return check_nmse(last, reference_, bound_,
                      "all heads of all sequences' last queries against softmax in double over what the cache holds");
  }

 private:
  struct Set {
    std::vector<KvSpan> spans;  ///< one a sequence
    std::vector<float> out;     ///< [n_seq, n_new, n_heads, head_dim]
  };

  void make_reference() {
    const KvSpan all = caches_.span(0, 0, 0, p_.n_keys);  // all sequences hold the same rows
    const int64_t width = int64_t(p_.n_heads) * p_.head_dim;
    const int per_kv_head = p_.n_heads / p_.n_kv_heads;
    const size_t group = size_t(per_kv_head) * size_t(p_.head_dim);
    std::vector<float> q;
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      const auto row = q_.begin() + (int64_t(seq + 1) * p_.n_new - 1) * width;
      q.insert(q.end(), row, row + width);
    }
    for (int64_t at = 0; at < ssize(q); at += p_.head_dim) caches_.tiles(KvSide::k).rotation.forward(q.data() + at);
    OpProblem one = p_;
    one.n_seq = one.n_kv_heads = 1;
    one.n_heads = per_kv_head;
    reference_.resize(q.size());
    double error = 0;
    for (int head = 0; head < p_.n_kv_heads; ++head) {
      const HeadRows k(caches_.tiles(KvSide::k), all, head), v(caches_.tiles(KvSide::v), all, head);
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
    if (variant_.rounds) error = std::pow(std::sqrt(error) + std::sqrt(rounding_bound(all, q)), 2);
    // The centre and the rotation back are the same code here and there.
    const KvTiles& v = caches_.tiles(KvSide::v);
    for (int64_t at = 0; at < ssize(reference_); at += p_.head_dim) {
      float* const row = reference_.data() + at;
      const int kv_head = int(at / p_.head_dim % p_.n_heads) / per_kv_head;
      v.rotation.backward(row);
      v.add_still_centre(all.slot, kv_head, row);
    }
    bound_ = error;
  }

  /// Bound of the NMSE that int_rounding() adds: four times its mean over the heads of the first sequence. A query off
  /// by d in every value moves a score by d |k| scale, levels off by e move it by e |q| |k| scale / sqrt(head_dim):
  /// that is the relative error of a weight and, since keys err each their own way, of the output. Weights are off by
  /// two roundings (their own and what a neighbour passed on) to steps of the largest of 64 keys.
  double rounding_bound(const KvSpan& all, std::span<const float> q) const {
    const auto product = [](std::span<const float> a, std::span<const float> b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    const size_t dim = size_t(p_.head_dim);
    const double scale = 1 / std::sqrt(double(dim));
    const IntRounding exact{INFINITY, INFINITY, 0};
    const IntRounding rk = int_rounding(*p_.k.format, p_.head_dim).value_or(exact),
                      rv = int_rounding(*p_.v.format, p_.head_dim).value_or(exact);
    double of_scores = 0, of_values = 0, squares = 0;  // squared errors of outputs, and the outputs
    std::vector<double> p(size_t(p_.n_keys));
    for (int head = 0; head < p_.n_heads; ++head) {
      const int kv_head = head / (p_.n_heads / p_.n_kv_heads);
      const HeadRows k(caches_.tiles(KvSide::k), all, kv_head), v(caches_.tiles(KvSide::v), all, kv_head);
      const auto query = q.subspan(size_t(head) * dim, dim),
                 out = std::span<const float>(reference_).subspan(size_t(head) * dim, dim);
      std::vector<double> score, k_squares, v_squares;  // of the pools' rows, which many positions share
      for (int row = 0; row < k.pool.n_rows(); ++row) {
        score.push_back(product(query, k.pool.row(row)) * scale);
        k_squares.push_back(product(k.pool.row(row), k.pool.row(row)));
      }
      for (int row = 0; row < v.pool.n_rows(); ++row) v_squares.push_back(product(v.pool.row(row), v.pool.row(row)));
      double query_top = 0, top = -INFINITY, total = 0, k_square = 0, v_square = 0, steps = 0;
      for (const float x : query) query_top = std::max(query_top, std::abs(double(x)));
      for (size_t i = 0; i < p.size(); ++i) {
        top = std::max(top, p[i] = score[size_t(k.slot[i])]);
        k_square += k_squares[size_t(k.slot[i])] / p_.n_keys, v_square += v_squares[size_t(v.slot[i])] / p_.n_keys;
      }
      for (double& x : p) total += x = std::exp(x - top);
      for (size_t i = 0; i < p.size(); i += 64) {
        const size_t n = std::min<size_t>(64, p.size() - i);
        steps += double(n) * std::pow(*std::max_element(&p[i], &p[i] + n) / total, 2);
      }
      const double square = product(out, out);
      of_scores += square * k_square * scale * scale *
                   (std::pow(query_top / rk.query_steps, 2) / 12 +
                    std::pow(rk.level_error, 2) * product(query, query) / double(dim));
      of_values += steps / 6 / std::pow(rv.weight_steps, 2) * v_square;
      squares += square;
    }
    // Rows repeat, and then the same weights err alike again, which no longer averages out: by 16 bits when a tile has
    // the same rows again, by 8 bits, where every 16th key passes its error on through all tiles, after a pool of such
    // keys.
    const double stride = rv.weight_steps > 255 ? 64 : 16;
    of_values *= std::max(1.0, double(p_.n_keys) / (stride * RowPool::kRows));
    return 4 * ((of_scores + of_values) / squares + std::pow(rv.level_error, 2));
  }

  OpProblem p_;
  CpuContext& context_;
  const AttentionVariant& variant_;
  HostCaches caches_;
  std::vector<float> q_;
  std::vector<Set> sets_;
  std::vector<float> reference_;
  double bound_ = 0;
};

int64_t set_bytes(const OpProblem& p) {
  return HostCaches::bytes(p.layer(), p.n_seq, p.n_keys) + 2 * 4 * query_values(p);
}

OpKernel kernel_row(const AttentionVariant& variant) {
  return {.op = Op::attention,
          .name = variant.name,
          .supports = [&variant](const OpProblem& p, const OpDevice& device) -> Support {
            if (variant.isa > device.isa)
              return {false, fmt::format("needs {}, this processor, or the isa asked for, allows {}",
                                         isa_name(variant.isa), isa_name(device.isa))};
            const AttentionProblem problem(p.layer(), p.n_heads, p.n_keys, p.n_new);
            if (p.n_new > most_rows_at_once(problem.get().k, problem.get().v))
              return {false, fmt::format("{} queries a sequence, a window has {} spare rows", p.n_new, kSpareRows)};
            return variant.supports(problem.get());
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
  for (const AttentionVariant& variant : attention_variants()) kernels.push_back(kernel_row(variant));
  return kernels;
}

}  // namespace ridge::lab
