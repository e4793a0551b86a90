// Products with bricks on a device: microseconds, percent of the read bandwidth, TFLOP/s.
//
//   half_gemv_bench [FORMAT ...] [N_OUTxN_IN ...] [-p planes ...] [-b tokens ...]
//
// Formats: f16 bf16 q8_0 q4_0 q4_k q6_k int4_g128. Without -p every batch runs as device_half_gemv runs it, with -p as
// device_tensor_gemm with so many planes. Weights are rotated through several copies, together four times the L2, in a
// graph of launches that overlap as they do in a decode step; a row is the median of repeated graphs, per launch.
// Percent is of the read bandwidth measured on an H200, 4563 GB/s. Correctness is tests/gpu's job.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "format/list.h"
#include "gpu/graph.h"
#include "op/gemm/tensor_gemm_cuda.h"
#include "op/gemv/half_gemv_cuda.h"
#include "program.h"

namespace ridge {
namespace {

constexpr double kReadBandwidth = 4563e9;

struct Shape {
  int64_t n_out, n_in;
};

struct Bench {
  gpu::Stream stream;
  int64_t l2_bytes = 0;
  std::vector<BrickMatrix> copies;
  gpu::Buffer x, y, scratch;

  void prepare(const WeightFormat& format, Shape shape, int64_t most_tokens);
  void run(const WeightFormat& format, Shape shape, int64_t n_tokens, int planes);
};

/// A few random rows over and over; their values decide nothing about the time.
void Bench::prepare(const WeightFormat& format, Shape shape, int64_t most_tokens) {
  constexpr int64_t kRows = 16;
  Rng rng(1);
  std::vector<float> values(size_t(std::max(kRows, most_tokens) * shape.n_in));
  for (float& v : values) v = float(rng.normal());
  std::vector<std::byte> rows(size_t(kRows * format.row_bytes(shape.n_in)));
  format.encode(values.data(), kRows * shape.n_in, rows.data());
  const gpu::Buffer on_device = gpu::to_device(stream, std::span<const std::byte>(rows));
  copies.clear();
  for (int64_t bytes = 0; bytes < 4 * l2_bytes; bytes += copies.back().bytes()) {
    const int64_t n_out[] = {shape.n_out};
    const BrickMatrix& w = copies.emplace_back(make_brick_matrix(*find_brick_format(format.name), shape.n_in, n_out));
    for (int64_t row = 0; row < shape.n_out; row += kRows)
      device_fill_bricks(stream, w, 0, row, std::min(kRows, shape.n_out - row), on_device.as<void>());
    stream.synchronize();
  }
  x = gpu::to_device(stream, std::span<const float>(values));
  y = gpu::Buffer(4 * most_tokens * shape.n_out);
  stream.synchronize();
}

/// planes: 0 as device_half_gemv chooses.
void Bench::run(const WeightFormat& format, Shape shape, int64_t n_tokens, int planes) {
  BrickCall call{.n_tokens = n_tokens, .x = x.as<float>(), .overlap = true};
  call.y[0] = y.as<float>();
  const BrickMatrix& first = copies[0];
  scratch.ensure<std::byte>(planes == 0 ? brick_scratch_bytes(first, call)
                                        : tensor_gemm_scratch_bytes(first, call, planes));
  const auto launch = [&](const BrickMatrix& w) {
    if (planes == 0) device_half_gemv(stream, w, call, scratch);
    else device_tensor_gemm(stream, w, call, planes, scratch);
  };
  launch(first);
  const int n_launches = std::max(int(copies.size()), 20);
  const gpu::Graph graph(stream, [&] {
    for (int i = 0; i < n_launches; ++i) launch(copies[size_t(i) % copies.size()]);
  });
  const double us = median_microseconds(stream, 8, [&] { graph.launch(stream); }) / n_launches;
  fmt::print("{:9} {:6} x {:5}  tokens {:4} planes {}  {:8.2f} us  {:5.1f} %  {:6.1f} TFLOP/s\n", format.name,
             shape.n_out, shape.n_in, n_tokens, planes == 0 ? 2 : planes, us,
             100 * double(first.bytes()) / kReadBandwidth / (us * 1e-6),
             2e-6 * double(n_tokens) * double(shape.n_out) * double(shape.n_in) / us);
  std::fflush(stdout);
}

int run(std::span<char*> arguments) {
  std::vector<const WeightFormat*> formats;
  std::vector<Shape> shapes;
  std::vector<int> planes, batches;
  std::vector<int>* numbers = nullptr;
  for (char* argument : arguments) {
    long long n_out = 0, n_in = 0;
    const auto format = find_weight_format(argument);
    if (std::strcmp(argument, "-p") == 0) numbers = &planes;
    else if (std::strcmp(argument, "-b") == 0) numbers = &batches;
    else if (std::sscanf(argument, "%lldx%lld", &n_out, &n_in) == 2) shapes.push_back({n_out, n_in});
    else if (format && find_brick_format(argument)) formats.push_back(*format);
    else if (numbers && std::atoi(argument) > 0) numbers->push_back(std::atoi(argument));
    else return fmt::print(stderr, "half_gemv_bench: {}?\n", argument), 2;
  }
  if (formats.empty())
    for (const char* name : {"f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k"})
      formats.push_back(*find_weight_format(name));
  if (shapes.empty())
    shapes = {{256, 1536},   {1536, 1536},  {8960, 1536},  {1536, 8960}, {151936, 1536},
              {28672, 4096}, {4096, 14336}, {57344, 8192}, {8192, 28672}};
  if (planes.empty()) planes = {0};
  if (batches.empty()) batches = {1, 2, 4, 8, 16, 32, 64};

  const gpu::Device device = use_first_device();
  Bench bench;
  bench.l2_bytes = int64_t(device.l2_bytes);
  for (const WeightFormat* format : formats)
    for (const Shape& shape : shapes) {
      if (shape.n_in % format->group != 0) continue;
      bench.prepare(*format, shape, *std::max_element(batches.begin(), batches.end()));
      for (const int p : planes)
        for (const int n_tokens : batches) bench.run(*format, shape, n_tokens, p);
    }
  return 0;
}

}  // namespace
}  // namespace ridge

int main(int argc, char** argv) { return ridge::run_program("half_gemv_bench", ridge::run, argc, argv); }
