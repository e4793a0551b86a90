#include "gpu/graph.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "device_data.h"
#include "gpu/launch.h"
#include "ridge/error.h"

namespace ridge {
namespace {

/// values[step] = 3 values[step - 1] + add; the step is counted in device memory, as a replay needs it.
__global__ void next_value(int* step, int* values, int add) {
  values[*step + 1] = 3 * values[*step] + add;
  ++*step;
}

class GraphCuda : public OnDevice {
 protected:
  gpu::Graph record(int add) {
    return gpu::Graph(stream(), [&] {
      for (int i = 0; i < 2; ++i)
        gpu::launch("next_value", next_value, {1, 1, 0, stream()}, step_.as<int>(), values_.as<int>(), add + i);
    });
  }

  gpu::Buffer step_{4}, values_{4 * 16};
};

TEST_F(GraphCuda, ReplaysInOrderAndRecordingRunsNothing) {
  gpu::Graph odd = record(1);
  EXPECT_EQ(down(step_.as<int>(), 1)[0], 0);
  gpu::Graph even = record(10);
  odd.launch(stream());
  even.launch(stream());
  odd.launch(stream());
  EXPECT_EQ(down(step_.as<int>(), 1)[0], 6);
  std::vector<int> expected = {0};
  for (const int add : {1, 2, 10, 11, 1, 2}) expected.push_back(3 * expected.back() + add);
  EXPECT_EQ(down(values_.as<int>(), 7), expected);
}

TEST_F(GraphCuda, WeightsOfALaunchAreAStreamingWindow) {
  const int most = gpu::device_attribute(cudaDevAttrMaxAccessPolicyWindowSize);
  ASSERT_GT(most, 0);
  const gpu::Buffer weights(1 << 16);
  const std::span<const std::byte> all(weights.as<std::byte>(), size_t(weights.bytes()));
  EXPECT_EQ(gpu::LaunchAttributes({1, 1, 0, stream()}).size(), 0u);
  for (const size_t bytes : {all.size(), size_t(most) + 1}) {
    gpu::LaunchAttributes attributes({1, 1, 0, stream(), false, {all.data(), bytes}});
    ASSERT_EQ(attributes.size(), 1u);
    ASSERT_EQ(attributes.data()->id, cudaLaunchAttributeAccessPolicyWindow);
    const auto& window = attributes.data()->val.accessPolicyWindow;
    EXPECT_EQ(window.base_ptr, all.data());
    EXPECT_EQ(window.num_bytes, std::min(bytes, size_t(most)));
    EXPECT_EQ(window.hitProp, cudaAccessPropertyStreaming);
    EXPECT_EQ(window.missProp, cudaAccessPropertyNormal);
  }
  gpu::launch("next_value", next_value, {1, 1, 0, stream(), false, all}, step_.as<int>(), values_.as<int>(), 5);
  EXPECT_EQ(down(values_.as<int>(), 2)[1], 5);
#ifdef __CUDA_EMULATED__  // it knows where memory ends
  const gpu::Grid beyond{1, 1, 0, stream(), false, {all.data(), all.size() + 4096}};
  EXPECT_THROW(gpu::launch("next_value", next_value, beyond, step_.as<int>(), values_.as<int>(), 5), Error);
#endif
}

TEST_F(GraphCuda, MovesAndIsEmptyBefore) {
  gpu::Graph graph;
  EXPECT_FALSE(graph);
  EXPECT_THROW(graph.launch(stream()), Error);
  graph = record(1);
  EXPECT_TRUE(graph);
  gpu::Graph moved = std::move(graph);
  moved.launch(stream());
  EXPECT_EQ(down(values_.as<int>(), 3), (std::vector<int>{0, 1, 5}));
}

TEST_F(GraphCuda, AStreamWorksOnAfterARecordingThatThrew) {
  EXPECT_THROW(gpu::Graph(stream(), [] { throw Error(ErrorKind::usage, "no"); }), Error);
  gpu::launch("next_value", next_value, {1, 1, 0, stream()}, step_.as<int>(), values_.as<int>(), 7);
  EXPECT_EQ(down(values_.as<int>(), 2), (std::vector<int>{0, 7}));
}

TEST_F(GraphCuda, EventsOrderAndMeasure) {
  gpu::Event before, after;
  EXPECT_TRUE(before.done()) << "nothing was recorded";
  const gpu::Graph graph = record(1);
  before.record(stream());
  graph.launch(stream());
  after.record(stream());
  after.synchronize();
  EXPECT_TRUE(before.done());
  EXPECT_TRUE(after.done());
  const double us = after.microseconds_since(before);
  EXPECT_GE(us, 0);
  EXPECT_LT(us, 1e6);
  gpu::Event untimed(false);
  untimed.record(stream());
  untimed.synchronize();
  EXPECT_TRUE(untimed.done());
}

}  // namespace
}  // namespace ridge
