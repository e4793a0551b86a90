// Weights of every brick format with the products they must give, for the tests of kernels that read bricks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/list.h"
#include "format/q6_k.h"
#include "gpu/device_data.h"
#include "op/gemm/tensor_gemm_cuda.h"
#include "op/gemv/bricks_cuda.h"
#include "op/gemv/f16_gemv_cuda.h"

namespace ridge {

inline constexpr const char* kBrickFormats[] = {"nvfp4", "f16",  "bf16",  "fp8_g32", "q8_0",   "q4_0",
                                                "q4_1",  "q5_0", "q5_1",  "q2_k",    "q3_k",   "q4_k",
                                                "q5_k",  "q6_k", "mxfp4", "iq4_nl",  "iq4_xs", "int4_g128"};

/// Bytes of a block: its fp16 scale, its fp16 minimum and its codes [codes, end), which matter to formats with a
/// minimum.
struct BlockPlaces {
  int scale = 0, min = -1, codes = 0, end = 0;
};
inline BlockPlaces block_places(std::string_view format) {
  if (format == "q4_1") return {0, 2, 4, 20};
  if (format == "q5_1") return {0, 2, 4, 24};
  if (format == "q2_k") return {80, 82, 16, 80};
  if (format == "q3_k") return {108};
  if (format == "q4_k") return {0, 2, 16, 144};
  if (format == "q5_k") return {0, 2, 16, 176};
  if (format == "q6_k") return {208};
  return {};
}

/// Rows of random blocks: every code, scales of about 0.01 with either sign.
struct BrickRows {
  const WeightFormat& format;
  int64_t n_out, n_in;
  std::vector<std::byte> bytes;
  std::vector<float> weights;    ///< decoded
  std::vector<float> magnitude;  ///< |scale code| + |min| of each weight, at least |weight|
  float matrix_scale = 1;        ///< on top of what blocks decode to

  BrickRows(const char* name, int64_t outputs, int64_t inputs, uint64_t seed)
      : format(**find_weight_format(name)),
        n_out(outputs),
        n_in(inputs),
        bytes(size_t(outputs * format.row_bytes(inputs))),
        weights(size_t(outputs * inputs)) {
    Rng rng(seed);
    if (format.group == 1) {
      const std::vector<float> values = normal_floats(seed, n_out * n_in, 0.02);
      format.encode(values.data(), n_out * n_in, bytes.data());
    } else {
      for (std::byte& b : bytes) b = std::byte(rng.next());
      // Scales of k-quants and iq4_xs are multiplied with codes up to 63 or 128.
      const double step = format.group == 256 ? 2e-4 : 0.01;
      const BlockPlaces places = block_places(format.name);
      for (size_t block = 0; block < bytes.size(); block += size_t(format.block_bytes)) {
        if (format.name == "mxfp4") {
          bytes[block] = std::byte(118 + rng.next() % 4);
        } else if (format.name == "nvfp4") {
          for (size_t g = 0; g < 4; ++g) bytes[block + g] = std::byte((rng.next() & 0x80) | (0x30 + rng.next() % 0x18));
          matrix_scale = float(0.005 * double(1 + seed % 3));
        } else if (format.name == "fp8_g32") {
          const float scale = 1e-4f * float(1 + double(rng.next() % 1000) / 1000);
          std::memcpy(&bytes[block], &scale, sizeof scale);
        } else {
          for (const int at : {places.scale, places.min}) {
            const uint16_t scale = f32_to_f16(float(step * (1 + double(rng.next() % 1000) / 1000)));
            const auto bits = uint16_t(scale | (rng.next() % 2) << 15);
            if (at >= 0) std::memcpy(&bytes[block + size_t(at)], &bits, 2);
          }
        }
      }
    }
    format.decode(bytes.data(), n_out * n_in, weights.data());
    for (float& weight : weights) weight *= matrix_scale;
    magnitude = weights;
    if (const BlockPlaces places = block_places(format.name); places.min >= 0) {
      std::vector<std::byte> zeros = bytes;  // with all codes zero, a block decodes to its minima
      for (size_t block = 0; block < zeros.size(); block += size_t(format.block_bytes))
        std::memset(&zeros[block + size_t(places.codes)], 0, size_t(places.end - places.codes));
      std::vector<float> minima(magnitude.size());
      format.decode(zeros.data(), n_out * n_in, minima.data());
      for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] = std::abs(weights[i]) + 2 * std::abs(minima[i]);
    }
    for (float& m : magnitude) m = std::abs(m);
  }
};

/// What a product passes through in place of each weight: |scale code| and |min|, or 32 |scale|.
inline std::vector<double> product_sizes(const BrickRows& w) {
  std::vector<double> sizes(w.magnitude.begin(), w.magnitude.end());
  if (w.format.name != "q6_k") return sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Q6_K::Block block;
    std::memcpy(&block, &w.bytes[i / 256 * sizeof block], sizeof block);
    sizes[i] += 64 * std::abs(double(f16_to_f32(block.d)) * block.scales[i % 256 / 16]);
  }
  return sizes;
}

/// Products in double, and what a kernel may be off by.
struct BrickReference {
  int64_t n_tokens, n_out;
  std::vector<double> y, bound;  // [n_tokens, n_out]

  /// x is split with a relative error of `of_x`; weights are off by so much more, whatever their size.
  BrickReference(const BrickRows& w, const std::vector<float>& x, double of_x, double of_small_weights = 0)
      : n_tokens(int64_t(x.size()) / w.n_in), n_out(w.n_out) {
    for (int64_t t = 0; t < n_tokens; ++t) {
      float largest = 0;
      for (int64_t k = 0; k < w.n_in; ++k) largest = std::max(largest, std::abs(x[size_t(t * w.n_in + k)]));
      for (int64_t o = 0; o < n_out; ++o) {
        double sum = 0, magnitude = 0, weights = 0, of_all_x = 0;
        for (int64_t k = 0; k < w.n_in; ++k) {
          const double value = x[size_t(t * w.n_in + k)];
          sum += w.weights[size_t(o * w.n_in + k)] * value;
          magnitude += w.magnitude[size_t(o * w.n_in + k)] * std::abs(value);
          weights += w.magnitude[size_t(o * w.n_in + k)];
          of_all_x += std::abs(value);
        }
        y.push_back(sum);
        // A float sum of products of 16, one tensor core's step, loses at most 2^-22 of what is summed (they truncate);
        // 64 more roundings are for scales, warps, blocks and the sums of x. F16 below 2^-14 are off by 2^-25, where
        // the largest value is scaled to at least 2^14.
        const double steps = double(w.n_in) / 16 + 64;
        bound.push_back((of_x + steps * 0x1p-22) * magnitude + of_small_weights * of_all_x +
                        0x1p-39 * largest * weights + 1e-37);
      }
    }
  }
};

/// What |x s - planes| is relative to x s: one plane or two, bfloat16 or f16.
inline double plane_error(const char* format, int planes) {
  if (std::string_view(format) == "bf16") return planes == 1 ? 0x1p-8 : 0x1p-16;
  return planes == 1 ? 0x1p-11 : 0x1p-22;
}

inline testing::AssertionResult within(std::span<const float> got, const std::vector<double>& expected,
                                       const std::vector<double>& bound) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << "sizes " << got.size();
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - expected[i]) <= bound[i]))
      return testing::AssertionFailure() << "value " << i << ": " << got[i] << ", expected " << expected[i]
                                         << ", off by " << got[i] - expected[i] << " of " << bound[i];
  return testing::AssertionSuccess();
}

/// Products by warpgroups: x and weights are f16.
inline constexpr int kWidePlanes = -1;
inline constexpr double kWideError = 0x1p-11 + 0x1p-11, kWideSmallWeights = 0x1p-25;
/// A product with everything on the host; planes is 0 for device_f16_gemv, kWidePlanes for device_wide_gemm, else of
/// device_tensor_gemm.
struct BrickRun {
  std::vector<float> x;
  std::vector<float> norm_weight;
  float norm_eps = 0;
  std::vector<std::vector<float>> bias;
  std::vector<std::vector<float>> residual;  ///< what y starts as
  BrickGlu glu = BrickGlu::silu;
  int n_blocks = 0;
  int planes = 0;
};

class OnBricks : public OnDevice {
 protected:
  /// The parts side by side; of a pair, all gates come first, then all ups.
  BrickMatrix bricks(const std::vector<const BrickRows*>& rows, bool paired = false) const {
    const size_t n_parts = paired ? rows.size() / 2 : rows.size();
    std::vector<int64_t> n_out;
    for (size_t i = 0; i < n_parts; ++i) n_out.push_back(rows[i]->n_out);
    BrickMatrix matrix = make_brick_matrix(*find_brick_format(rows[0]->format.name), rows[0]->n_in, n_out, paired);
    for (size_t i = 0; i < n_parts; ++i) {  // in two calls, as a loader would that uploads rows in portions
      const int64_t cut = n_out[i] / 2 / kBrickRows * kBrickRows,
                    bytes_of_row = rows[i]->format.row_bytes(rows[i]->n_in);
      const gpu::Buffer first = up(rows[i]->bytes), second = paired ? up(rows[n_parts + i]->bytes) : gpu::Buffer();
      for (const auto& [from, to] : {std::pair(int64_t(0), cut), std::pair(cut, n_out[i])})
        if (from < to)
          device_fill_bricks(stream(), matrix, int(i), from, to - from,
                             {first.as<std::byte>() + from * bytes_of_row, rows[i]->matrix_scale},
                             {paired ? second.as<std::byte>() + from * bytes_of_row : nullptr,
                              paired ? rows[n_parts + i]->matrix_scale : 1});
      stream().synchronize();
    }
    return matrix;
  }

  /// y of every part; checks that nothing around it changed and that the counters are zero again.
  std::vector<std::vector<float>> product(const BrickMatrix& w, const BrickRun& run) {
    constexpr int64_t kMargin = 64;
    constexpr float kPoison = -7.25e30f;
    const gpu::Buffer x = up(run.x), norm = up(run.norm_weight);
    BrickCall call{.n_tokens = int64_t(run.x.size()) / w.n_in, .x = x.as<float>(), .norm_eps = run.norm_eps};
    call.glu = run.glu;
    call.n_blocks = run.n_blocks;
    call.residual = !run.residual.empty();
    if (!run.norm_weight.empty()) call.norm_weight = norm.as<float>();
    std::vector<gpu::Buffer> buffers;
    for (int i = 0; i < w.n_parts; ++i) {
      std::vector<float> start(size_t(call.n_tokens * w.n_out[i] + 2 * kMargin), kPoison);
      for (int64_t j = 0; j < call.n_tokens * w.n_out[i]; ++j)
        start[size_t(kMargin + j)] = call.residual ? run.residual[size_t(i)][size_t(j)] : NAN;
      buffers.push_back(up(start));
      call.y[i] = buffers.back().as<float>() + kMargin;
    }
    std::vector<gpu::Buffer> biases;
    for (size_t i = 0; i < run.bias.size(); ++i) {
      biases.push_back(up(run.bias[i]));
      call.bias[i] = biases.back().as<float>();
    }
    const int64_t needed = run.planes == 0             ? brick_scratch_bytes(w, call)
                           : run.planes == kWidePlanes ? wide_gemm_scratch_bytes(w, call)
                                                       : tensor_gemm_scratch_bytes(w, call, run.planes);
    if (scratch_.bytes() < needed) scratch_ = gpu::Buffer(needed);
    if (run.planes == 0) device_f16_gemv(stream(), w, call, scratch_);
    else if (run.planes == kWidePlanes) device_wide_gemm(stream(), w, call, scratch_);
    else device_tensor_gemm(stream(), w, call, run.planes, scratch_);
    std::vector<std::vector<float>> results;
    for (int i = 0; i < w.n_parts; ++i) {
      const int64_t n = call.n_tokens * w.n_out[i];
      std::vector<float> all = down(buffers[size_t(i)].as<float>(), n + 2 * kMargin);
      for (int64_t j = 0; j < kMargin; ++j) {
        EXPECT_EQ(all[size_t(j)], kPoison) << "wrote in front of y";
        EXPECT_EQ(all[size_t(kMargin + n + j)], kPoison) << "wrote past y";
      }
      results.emplace_back(all.begin() + kMargin, all.begin() + kMargin + n);
    }
    if (needed > 0) {
      EXPECT_EQ(down(scratch_.as<uint32_t>(), 4096), std::vector<uint32_t>(4096, 0)) << "counters are left over";
    }
    return results;
  }

 private:
  gpu::Buffer scratch_;
};

}  // namespace ridge
