// gpu/dot4.h on a CUDA device against its host version.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "gpu/device_query.h"
#include "gpu/launch.h"
#include "gpu/rotor3_levels.h"

namespace ridge::gpu {
namespace {

constexpr int kHeadDim = 128;
constexpr int kRowBytes = 3 * kHeadDim / 8;

__global__ void scores_kernel(const unsigned char* codes, const uint32_t* q, int n_rows, int32_t* scores) {
  const int row = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < n_rows) scores[row] = rotor3_dot(codes + size_t(row) * kRowBytes, q, kHeadDim);
}

TEST(Rotor3DotCuda, EqualsTheHostOnEveryRow) {
  if (const DeviceReport report = query_devices(); report.devices.empty()) GTEST_SKIP() << report.why_none;
  constexpr int kRows = 4096;
  Rng rng(11);
  std::vector<unsigned char> codes(size_t(kRows) * kRowBytes);
  std::vector<uint32_t> q(kHeadDim / 4);
  for (unsigned char& byte : codes) byte = static_cast<unsigned char>(rng.next());
  for (uint32_t& word : q) word = uint32_t(rng.next());

  unsigned char* device_codes = nullptr;
  uint32_t* device_q = nullptr;
  int32_t* device_scores = nullptr;
  ASSERT_EQ(cudaMalloc(&device_codes, codes.size()), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device_q, q.size() * sizeof(uint32_t)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device_scores, kRows * sizeof(int32_t)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device_codes, codes.data(), codes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device_q, q.data(), q.size() * sizeof(uint32_t), cudaMemcpyHostToDevice), cudaSuccess);
  launch("rotor3_dot", scores_kernel, {kRows / 256, 256, 0, nullptr}, device_codes, device_q, kRows, device_scores);
  std::vector<int32_t> scores(kRows);
  ASSERT_EQ(cudaMemcpy(scores.data(), device_scores, kRows * sizeof(int32_t), cudaMemcpyDeviceToHost), cudaSuccess);
  cudaFree(device_codes);
  cudaFree(device_q);
  cudaFree(device_scores);

  for (int row = 0; row < kRows; ++row)
    ASSERT_EQ(scores[size_t(row)], rotor3_dot(codes.data() + size_t(row) * kRowBytes, q.data(), kHeadDim)) << row;
}

}  // namespace
}  // namespace ridge::gpu
