// The chunked form of the gated delta rule (op/delta/chunks_cuda.h) in plain loops, for one value head.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace ridge {

/// What a value head reads of its tokens: q, k [n, keys] with their lengths, v [n, values], and the state [keys,
/// values].
template <class Real>
struct DeltaHead {
  int n, keys, values;
  std::vector<Real> q, k, v, keep, beta, state;
};

/// Moves the state on by all tokens, `chunk` of them at a time, and returns out [n, values].
template <class Real>
std::vector<Real> delta_by_chunks(DeltaHead<Real>& h, int chunk) {
  const auto key = [&](int t, int i) { return h.k[size_t(t * h.keys + i)]; };
  const auto query = [&](int t, int i) { return h.q[size_t(t * h.keys + i)]; };
  const auto state = [&](int i, int j) -> Real& { return h.state[size_t(i * h.values + j)]; };
  std::vector<Real> out(size_t(h.n * h.values));
  for (int first = 0; first < h.n; first += chunk) {
    const int n = std::min(chunk, h.n - first);
    std::vector<double> log{0};  // of c_t
    for (int t = 0; t < n; ++t) log.push_back(log.back() + std::log(double(h.keep[size_t(first + t)])));
    const auto decay = [&](int from, int to) { return Real(std::exp(log[size_t(to)] - log[size_t(from)])); };
    // Rows and columns from 0; c_t is log[t + 1].
    const auto decayed = [&](const auto& left, int t, int i) {
      Real sum = 0;
      for (int e = 0; e < h.keys; ++e) sum += left(first + t, e) * key(first + i, e);
      return decay(i + 1, t + 1) * sum;
    };
    std::vector<Real> inverse(size_t(n * n));
    for (int t = 0; t < n; ++t) {
      inverse[size_t(t * n + t)] = 1;
      for (int i = 0; i < t; ++i) {
        const Real a = h.beta[size_t(first + t)] * decayed(key, t, i);
        for (int j = 0; j <= i; ++j) inverse[size_t(t * n + j)] -= a * inverse[size_t(i * n + j)];
      }
    }
    std::vector<Real> right(size_t(n * h.values)), change(right.size());
    for (int t = 0; t < n; ++t)
      for (int j = 0; j < h.values; ++j) {
        Real known = 0, seen = 0;
        for (int e = 0; e < h.keys; ++e)
          known += state(e, j) * key(first + t, e), seen += state(e, j) * query(first + t, e);
        const size_t at = size_t((first + t) * h.values + j);
        right[size_t(t * h.values + j)] = h.beta[size_t(first + t)] * (h.v[at] - decay(0, t + 1) * known);
        out[at] = decay(0, t + 1) * seen;
      }
    for (int t = 0; t < n; ++t)
      for (int i = 0; i <= t; ++i)
        for (int j = 0; j < h.values; ++j)
          change[size_t(t * h.values + j)] += inverse[size_t(t * n + i)] * right[size_t(i * h.values + j)];
    for (int t = 0; t < n; ++t)
      for (int i = 0; i <= t; ++i) {
        const Real score = decayed(query, t, i);
        for (int j = 0; j < h.values; ++j)
          out[size_t((first + t) * h.values + j)] += score * change[size_t(i * h.values + j)];
      }
    for (Real& entry : h.state) entry *= decay(0, n);
    for (int t = 0; t < n; ++t)
      for (int e = 0; e < h.keys; ++e)
        for (int j = 0; j < h.values; ++j)
          state(e, j) += decay(t + 1, n) * key(first + t, e) * change[size_t(t * h.values + j)];
  }
  return out;
}

}  // namespace ridge
