// Device attention against softmax in double, over every mix of coded and exact rows.
#include "op/attn/attn_cuda.h"
#include "cases/attn_data.h"
#include "gpu/device_data.h"

namespace ridge {
namespace {

class AttnCuda : public OnDevice {};

struct AttnCase {
  int n_heads, n_kv_heads, head_dim, n_past, n_tokens;
};

/// One side's rows: what is coded and what is exact differ everywhere, so a row taken from the wrong place shows.
struct Rows {
  Rows(uint64_t seed, const AttnCase& c, KvRetention r, int n_seq)
      : retention(r), n_keys(c.n_past + c.n_tokens), dim(c.head_dim) {
    n_coded = r.coded_end(n_keys);
    exact_first = std::min(n_keys, r.coded_end(c.n_past));
    coded = normal_floats(seed, int64_t(n_seq) * c.n_kv_heads * n_coded * dim);
    exact = normal_floats(seed + 1, int64_t(n_seq) * c.n_kv_heads * (n_keys - exact_first) * dim);
  }
  const float* row(int seq_head, int position, int n_visible) const {
    if (position < retention.coded_end(n_visible)) return &coded[size_t((seq_head * n_coded + position) * dim)];
    return &exact[size_t((seq_head * (n_keys - exact_first) + position - exact_first) * dim)];
  }
  DeviceKvSide view(const gpu::Buffer& on_device_coded, const gpu::Buffer& on_device_exact) const {
    return {.coded = on_device_coded.as<float>(),
            .n_coded = n_coded,
            .exact = on_device_exact.as<float>(),
            .exact_first = exact_first,
            .retention = retention};
  }
  KvRetention retention;
  int n_keys, dim, n_coded, exact_first;
  std::vector<float> coded, exact;
};

TEST_F(AttnCuda, IsSoftmaxOverTheRowsEachQuerySees) {
  constexpr int kSeq = 2;
  const KvRetention plain, window{32, 32, 0}, centred{0, 1, 64}, both{64, 32, 64};
  const std::pair<KvRetention, KvRetention> mixes[] = {
      {plain, plain}, {window, plain}, {plain, both}, {centred, window}, {both, centred}};
  std::vector<AttnCase> cases;
  for (const int head_dim : {8, 32, 96, 128, 256}) cases.push_back({4, 2, head_dim, 37, 50});
  for (const int n_past : {0, 31, 63, 64, 200})
    for (const int n_tokens : {1, 2, 32, 33, 70}) cases.push_back({6, 2, 64, n_past, n_tokens});
  for (const AttnCase& c : cases)
    for (const auto& [k_retention, v_retention] : mixes) {
      const Rows k(20, c, k_retention, kSeq), v(30, c, v_retention, kSeq);
      const auto q = normal_floats(40, int64_t(kSeq) * c.n_tokens * c.n_heads * c.head_dim);
      const gpu::Buffer kc = up(k.coded), ke = up(k.exact), vc = up(v.coded), ve = up(v.exact), dq = up(q);
      gpu::Buffer out(4 * int64_t(q.size()));
      const float scale = 1 / std::sqrt(float(c.head_dim));
      device_attn(stream(), {.n_seq = kSeq,
                             .n_heads = c.n_heads,
                             .n_kv_heads = c.n_kv_heads,
                             .head_dim = c.head_dim,
                             .n_tokens = c.n_tokens,
                             .n_keys = k.n_keys,
                             .scale = scale,
                             .q = dq.as<float>(),
                             .k = k.view(kc, ke),
                             .v = v.view(vc, ve),
                             .out = out.as<float>()});
      const auto got = down(out.as<float>(), int64_t(q.size()));
      for (int s = 0; s < kSeq; ++s)
        for (int t = 0; t<c.n_tokens; t += c.n_tokens> 40 ? 7 : 1)
          for (int h = 0; h < c.n_heads; ++h) {
            const int n = c.n_past + t + 1, seq_head = s * c.n_kv_heads + h / (c.n_heads / c.n_kv_heads);
            const size_t at = size_t(((s * c.n_tokens + t) * c.n_heads + h) * c.head_dim);
            const AttendOracle oracle(
                &q[at], n, c.head_dim, scale, [&](int i) { return k.row(seq_head, i, n); },
                [&](int i) { return v.row(seq_head, i, n); });
            for (int d = 0; d < c.head_dim; ++d)
              ASSERT_NEAR(got[at + size_t(d)], oracle.out[size_t(d)], oracle.bound[size_t(d)])
                  << "head_dim " << c.head_dim << ", " << c.n_past << " + " << c.n_tokens << ", sequence " << s
                  << ", token " << t << ", head " << h << ", element " << d;
          }
    }
}

}  // namespace
}  // namespace ridge
