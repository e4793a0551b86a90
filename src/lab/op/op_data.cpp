// The host's part of an op bench's data; op_data_sets_cuda.cpp has a GPU's.
#include "lab/op/op_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "format/list.h"
#include "op/gemv/ternary.h"

namespace ridge::lab {

std::vector<float> random_values(uint64_t seed, int64_t n, double spread) {
  Rng rng(seed);
  std::vector<float> values(size_t(n), 0.0f);
  for (float& x : values) x = float(spread * rng.normal());
  return values;
}

std::vector<float> make_metric(int n_kv_heads, int head_dim, uint64_t seed) {
  constexpr int kDirections = 8;
  const int64_t dim = head_dim;
  std::vector<float> metric(size_t(n_kv_heads * dim * dim), 0.0f);
  for (int head = 0; head < n_kv_heads; ++head) {
    const auto directions = random_values(seed + uint64_t(head), kDirections * dim, 0.5);
    float* form = metric.data() + head * dim * dim;
    for (int64_t i = 0; i < dim; ++i)
      for (int64_t j = 0; j < dim; ++j) {
        float sum = i == j ? 1.0f : 0.0f;
        for (int d = 0; d < kDirections; ++d) sum += directions[size_t(d * dim + i)] * directions[size_t(d * dim + j)];
        form[i * dim + j] = sum;
      }
  }
  return metric;
}

RowPool::RowPool(int64_t width, uint64_t seed, double spread)
    : width_(width), rows_(random_values(seed, kRows * width, spread)) {}

namespace {
CodedPool decoded_pool(const WeightFormat& format, int64_t n_in, std::vector<std::byte> bytes) {
  std::vector<float> values(size_t(RowPool::kRows * n_in));
  format.decode(bytes.data(), RowPool::kRows * n_in, values.data());
  return {std::move(bytes), RowPool(n_in, std::move(values))};
}
}  // namespace

CodedPool coded_pool(const WeightFormat& format, int64_t n_in, std::vector<float> values) {
  std::vector<std::byte> bytes(size_t(RowPool::kRows * format.row_bytes(n_in)));
  encode_rows(format, values, n_in, bytes).or_throw();
  return decoded_pool(format, n_in, std::move(bytes));
}

CodedPool coded_pool(const WeightFormat& format, int64_t n_in, uint64_t seed) {
  Rng rng(seed);
  return decoded_pool(format, n_in, random_blocks(format, rng, 1, RowPool::kRows * n_in));
}

std::vector<int8_t> random_codes(int64_t n_in, uint64_t seed) {
  Rng rng(seed);
  std::vector<int8_t> codes(size_t(RowPool::kRows * n_in));
  for (int8_t& code : codes) code = int8_t(int((rng.next() >> 32) % 3) - 1);
  return codes;
}

std::vector<std::byte> lay_out_rows(std::span<const std::byte> coded, int64_t row_bytes, int64_t n_groups,
                                    int64_t n_rows) {
  std::vector<std::byte> out(size_t(n_groups * n_rows * row_bytes));
  for (int64_t group = 0; group < n_groups; ++group)
    for (int64_t row = 0; row < n_rows; ++row)
      std::memcpy(out.data() + (group * n_rows + row) * row_bytes,
                  coded.data() + RowPool::index(group, row) * row_bytes, size_t(row_bytes));
  return out;
}

AttentionReference attention_reference(const OpProblem& p, std::span<const float> q, const RowPool& k, const RowPool& v,
                                       const PoolIndex& k_index, const PoolIndex& v_index) {
  constexpr double kUnit = 0x1p-24;
  const int dim = p.head_dim, per_kv_head = p.n_heads / p.n_kv_heads;
  const double scale = 1 / std::sqrt(double(dim));
  AttentionReference reference;
  reference.out.resize(q.size());
  double magnitudes = 0, squares = 0;
  std::vector<double> score(size_t(k.n_rows())), power(size_t(k.n_rows())), weight(size_t(v.n_rows())),
      out(size_t(dim), 0.0), magnitude(size_t(dim), 0.0);
  for (int seq = 0; seq < p.n_seq; ++seq)
    for (int head = 0; head < p.n_heads; ++head) {
      const int64_t seq_head = int64_t(seq) * p.n_kv_heads + head / per_kv_head;
      const size_t at = size_t((int64_t(seq) * p.n_heads + head) * dim);
      for (int i = 0; i < k.n_rows(); ++i) {
        const auto row = k.row(i);
        double dot = 0, size = 0;
        for (int d = 0; d < dim; ++d) {
          const double product = double(q[at + size_t(d)]) * row[size_t(d)];
          dot += product;
          size += std::abs(product);
        }
        score[size_t(i)] = dot * scale;
        reference.score_error = std::max(reference.score_error, (dim + 2) * kUnit * size * scale);
      }
      double top = -INFINITY, total = 0;
      for (int i = 0; i < p.n_keys; ++i) top = std::max(top, score[size_t(k_index(seq_head, i))]);
      for (int i = 0; i < k.n_rows(); ++i) power[size_t(i)] = std::exp(score[size_t(i)] - top);
      std::fill(weight.begin(), weight.end(), 0.0);
      for (int i = 0; i < p.n_keys; ++i) {
        const double w = power[size_t(k_index(seq_head, i))];
        total += w;
        weight[size_t(v_index(seq_head, i))] += w;
      }
      std::fill(out.begin(), out.end(), 0.0);
      std::fill(magnitude.begin(), magnitude.end(), 0.0);
      for (int i = 0; i < v.n_rows(); ++i) {
        if (weight[size_t(i)] == 0) continue;
        const auto row = v.row(i);
        for (size_t d = 0; d < size_t(dim); ++d) {
          out[d] += weight[size_t(i)] * row[d] / total;
          magnitude[d] += weight[size_t(i)] * std::abs(row[d]) / total;
        }
      }
      for (size_t d = 0; d < size_t(dim); ++d) {
        reference.out[at + d] = float(out[d]);
        squares += out[d] * out[d];
        magnitudes += magnitude[d] * magnitude[d];
      }
    }
  reference.amplification = squares > 0 ? magnitudes / squares : 0;
  reference.mean_square = squares / double(reference.out.size());
  return reference;
}

std::vector<float> matmul_reference(const OpProblem& p, std::span<const float> x, const RowPool& weights) {
  std::vector<float> y(size_t(p.n_tokens) * size_t(p.n_out), 0.0f), of_pool(RowPool::kRows);
  const int used = std::min(p.n_out, RowPool::kRows);
  for (int token = 0; token < p.n_tokens; ++token) {
    const auto row = x.subspan(size_t(token) * size_t(p.n_in), size_t(p.n_in));
    for (int i = 0; i < used; ++i) {
      const int index = RowPool::index(0, i);
      const auto w = weights.row(index);
      double parts[8] = {};  // apart, so that the sum needs no order
      size_t d = 0;
      for (; d + 8 <= size_t(p.n_in); d += 8)
        for (size_t j = 0; j < 8; ++j) parts[j] += double(row[d + j]) * w[d + j];
      double sum = 0;
      for (; d < size_t(p.n_in); ++d) sum += double(row[d]) * w[d];
      for (const double part : parts) sum += part;
      of_pool[size_t(index)] = float(sum);
    }
    for (int o = 0; o < p.n_out; ++o)
      y[size_t(token) * size_t(p.n_out) + size_t(o)] = of_pool[size_t(RowPool::index(0, o))];
  }
  return y;
}

std::vector<float> ternary_reference(const OpProblem& p, std::span<const float> x, std::span<const int8_t> codes,
                                     float scale) {
  std::vector<float> y(size_t(p.n_tokens) * size_t(p.n_out), 0.0f), of_pool(RowPool::kRows);
  std::vector<int8_t> q(static_cast<size_t>(p.n_in));
  for (int token = 0; token < p.n_tokens; ++token) {
    float of_token = 0;
    int32_t unused = 0;
    quantize_token_ref(x.data() + int64_t(token) * p.n_in, p.n_in, q.data(), of_token, unused);
    for (int i = 0; i < RowPool::kRows; ++i) {
      const int8_t* row = codes.data() + int64_t(i) * p.n_in;
      int32_t sum = 0;
      for (int d = 0; d < p.n_in; ++d) sum += q[size_t(d)] * row[d];
      of_pool[size_t(i)] = float(sum) * of_token * scale;
    }
    for (int o = 0; o < p.n_out; ++o)
      y[size_t(token) * size_t(p.n_out) + size_t(o)] = of_pool[size_t(RowPool::index(0, o))];
  }
  return y;
}

double int8_bound(std::span<const float> x, int group, double levels) {
  double squares = 0, rounding = 0;
  for (size_t at = 0; at < x.size(); at += size_t(group)) {
    double top = 0;
    for (const float value : x.subspan(at, size_t(group))) {
      top = std::max(top, double(std::abs(value)));
      squares += double(value) * value;
    }
    rounding += group * (top / levels) * (top / levels) / 12;
  }
  return 4 * rounding / squares;
}

double float_attention_error(double score_error, int n_keys) {
  // A weight is off by a factor within 1 +- e: twice the score's error, exp()'s own, its argument's rounding at a
  // distance of up to 87 from the top; and a sum of n float terms by some sqrt(n) roundings.
  constexpr double kUnit = 0x1p-24;
  return 2 * score_error + 6e-7 + 4 * 87 * kUnit + 4 * std::sqrt(double(n_keys)) * kUnit;
}

OpCheck check_same_bits(std::span<const float> actual, std::span<const float> expected, std::string what) {
  int64_t different = int64_t(actual.size() != expected.size());
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i)
    different += std::bit_cast<uint32_t>(actual[i]) != std::bit_cast<uint32_t>(expected[i]);
  return {.metric = "different values", .error = double(different), .what = std::move(what)};
}

}  // namespace ridge::lab
