// Data and references of op benches: large enough for any shape, quick to make, cheap to have a reference of.
//
// Rows of a matrix or a cache come from a pool of few random rows, in an order that no power of two divides, so a
// kernel that takes a wrong row shows, and a reference in double over all outputs costs next to nothing.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "lab/op/op_bench.h"

namespace ridge::lab {

/// Values of x and y of a matmul.
inline int64_t x_values(const OpProblem& p) { return int64_t(p.n_tokens) * p.n_in; }
inline int64_t y_values(const OpProblem& p) { return int64_t(p.n_tokens) * p.n_out; }

/// Standard normal values times `spread`.
std::vector<float> random_values(uint64_t seed, int64_t n, double spread = 1);

/// A metric of weighted rounding like those that models have, [n_kv_heads, head_dim, head_dim], not rotated: the
/// identity and a few directions that matter more.
std::vector<float> make_metric(int n_kv_heads, int head_dim, uint64_t seed);

/// Rows that stand for all others.
class RowPool {
 public:
  static constexpr int kRows = 251;  ///< of a random pool: a prime, which no tile, page or head count divides
  /// kRows random rows.
  RowPool(int64_t width, uint64_t seed, double spread = 1);
  /// Given rows, [any number, width].
  RowPool(int64_t width, std::vector<float> rows) : width_(width), rows_(std::move(rows)) {}

  int64_t width() const { return width_; }
  int n_rows() const { return int(int64_t(rows_.size()) / width_); }
  std::span<const float> rows() const { return rows_; }
  std::span<const float> row(int i) const { return std::span(rows_).subspan(size_t(i * width_), size_t(width_)); }
  /// The row of a random pool that stands for row `row` of group `group` (a head of a sequence; 0 for a matrix).
  static int index(int64_t group, int64_t row) { return int((row * 619 + group * 101) % kRows); }

 private:
  int64_t width_;
  std::vector<float> rows_;
};

/// A pool in a weight format: its kRows coded rows, and the values these decode to.
struct CodedPool {
  std::vector<std::byte> bytes;
  RowPool rows;
};
CodedPool coded_pool(const WeightFormat& format, int64_t n_in, uint64_t seed);
/// Codes given values [kRows, n_in].
CodedPool coded_pool(const WeightFormat& format, int64_t n_in, std::vector<float> values);
/// kRows rows of n_in codes -1, 0 and 1, a third each.
std::vector<int8_t> random_codes(int64_t n_in, uint64_t seed);

/// n_rows rows of row_bytes each for n_groups groups, as RowPool::index() says, out of kRows coded rows.
std::vector<std::byte> lay_out_rows(std::span<const std::byte> coded, int64_t row_bytes, int64_t n_groups,
                                    int64_t n_rows);

/// Copies of the same bytes in device memory, n_sets of them, each set aligned to 256.
class DeviceSets {
 public:
  DeviceSets() = default;
  DeviceSets(const gpu::Stream& stream, std::span<const std::byte> bytes, int n_sets);
  /// Sets of NaN, for results: what a kernel does not write fails its check.
  static DeviceSets of_nan(const gpu::Stream& stream, int64_t n_floats, int n_sets);

  template <class T = float>
  T* at(int set) const {
    return reinterpret_cast<T*>(buffer_.as<std::byte>() + set * stride_);
  }

 private:
  gpu::Buffer buffer_;
  int64_t stride_ = 0;
};
template <class T>
DeviceSets device_sets(const gpu::Stream& stream, const std::vector<T>& values, int n_sets) {
  return {stream, std::as_bytes(std::span(values)), n_sets};
}
/// Bytes of one set of DeviceSets.
constexpr int64_t set_stride(int64_t bytes) { return (bytes + 255) / 256 * 256; }
/// Bytes of one set of x and y of a matmul.
inline int64_t set_of_xy(const OpProblem& p) { return set_stride(4 * x_values(p)) + set_stride(4 * y_values(p)); }

template <class T>
std::vector<T> values_of(const gpu::Stream& stream, const T* device, int64_t n) {
  std::vector<T> values(size_t(n), T{});
  gpu::download(stream, values.data(), device, n * int64_t(sizeof(T)));
  stream.synchronize();
  return values;
}

/// Attention of an OpProblem in double over rows out of pools, of all sequences and heads.
struct AttentionReference {
  std::vector<float> out;  ///< [n_seq, n_heads, head_dim]
  /// sum over outputs of (sum p |v|)^2 over sum of out^2: the NMSE of a kernel whose every term is off by e is at most
  /// e^2 times this.
  double amplification = 0;
  /// Largest (head_dim + 2) 2^-24 scale sum |q k|: how far a float32 score may be off.
  double score_error = 0;
  double mean_square = 0;  ///< of the outputs
};
/// q [n_seq, n_heads, head_dim]; k_index and v_index give the row of the pool for a sequence's KV head
/// (seq * n_kv_heads + head) and a position.
using PoolIndex = std::function<int(int64_t seq_head, int64_t position)>;
AttentionReference attention_reference(const OpProblem& problem, std::span<const float> q, const RowPool& k,
                                       const RowPool& v, const PoolIndex& k_index, const PoolIndex& v_index);

/// y [n_tokens, n_out] in double: x [n_tokens, n_in] times rows of the pool as RowPool::index(0, row) says.
std::vector<float> matmul_reference(const OpProblem& problem, std::span<const float> x, const RowPool& weights);
/// Computes the matmul as op/gemv/ternary.h does, to the bit, for codes [kRows, n_in] of a matrix of scale `scale`.
std::vector<float> ternary_reference(const OpProblem& problem, std::span<const float> x, std::span<const int8_t> codes,
                                     float scale);
/// Bound of a matmul's NMSE when x is rounded to integers up to `levels` in groups of `group` values: rounding to
/// steps of a group's max / levels adds step^2 / 12 to each square of x, random weights pass that share on, and the
/// bound is four times that.
double int8_bound(std::span<const float> x, int group, double levels);
/// Bound of the relative error of a float kernel's softmax weights and sums, for a reference of n_keys positions whose
/// scores may be off by score_error; its square times the amplification bounds the NMSE.
double float_attention_error(double score_error, int n_keys);
/// Counts values whose bits differ; the bound is 0.
OpCheck check_same_bits(std::span<const float> actual, std::span<const float> expected, std::string what);

}  // namespace ridge::lab
