// The device's cache against the host's, bit for bit: rows, codes, centre, counts.
#include "model/device_kv.h"

#include <cmath>
#include <cstring>
#include <map>

#include "gpu/device_data.h"

namespace ridge {
namespace {

constexpr int kSeq = 2, kHeads = 2, kContext = 260;

/// The parameter is head_dim: rows of 32 stay rows, rows of 64 are held in tiles.
int kDim = 0;
int64_t kWidth = 0;
class KvStoreCuda : public OnDevice, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    kDim = GetParam();
    kWidth = kHeads * kDim;
  }
};
INSTANTIATE_TEST_SUITE_P(HeadDims, KvStoreCuda, testing::Values(32, 64), testing::PrintToStringParamName());

KvSideConfig side(const char* name, KvPolicy policy) { return {find_kv_format(name).or_throw(), policy}; }

/// Every format with its own policy and with every rotation, and the policies that stress the bookkeeping.
std::vector<std::pair<std::string, KvSideConfig>> all_sides() {
  std::vector<std::pair<std::string, KvSideConfig>> sides;
  for (const KvFormat& format : kv_formats()) {
    sides.emplace_back(format.name, KvSideConfig{&format, format.policy});
    for (const Rotation rotation : {Rotation::planar, Rotation::hadamard})
      sides.emplace_back(std::string(format.name) + " " + std::string(rotation_name(rotation)),
                         KvSideConfig{&format, {rotation, false, 0, 0}});
  }
  sides.emplace_back("rotor-3s bare", side("rotor-3s", {Rotation::hadamard, false, 0, 0}));
  sides.emplace_back("rotor-3s centred", side("rotor-3s", {Rotation::planar, true, 32, 4}));
  sides.emplace_back("rotor-4 lsq", side("rotor-4", {Rotation::hadamard, true, 32, 4, KvScale::lsq}));
  sides.emplace_back(
      "rotor-3 weighted, centred, window in i8r",
      side("rotor-3", {Rotation::hadamard, true, 64, 4, KvScale::unbiased, KvRounding::weighted, "i8r"}));
  sides.emplace_back("p8 lsq", side("p8", {Rotation::none, false, 0, 0, KvScale::lsq}));
  sides.emplace_back("rotor-3 centred, no window", side("rotor-3", {Rotation::hadamard, true, 0, 0}));
  sides.emplace_back("rotor-3 centred, no window, sinks", side("rotor-3", {Rotation::planar, true, 0, 4}));
  sides.emplace_back("rotor-3 no centre", side("rotor-3", {Rotation::hadamard, false, 32, 0}));
  sides.emplace_back("rotor-3 wide", side("rotor-3", {Rotation::none, true, 128, 7}));
  sides.emplace_back("q8_0 everything", side("q8_0", {Rotation::hadamard, true, 64, 32}));
  sides.emplace_back("q8_0 sinks only", side("q8_0", {Rotation::none, false, 0, 5}));
  return sides;
}

/// What weighted rounding needs, a form far from the identity; empty for configurations that round nearest.
std::span<const float> metric_of(const KvSideConfig& config) {
  static std::map<int, std::vector<float>> forms;
  std::vector<float>& form = forms[kDim];
  if (config.policy.rounding != KvRounding::weighted) return {};
  if (form.empty())
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<float> seen = normal_floats(uint64_t(77 + h), kDim);
      for (int i = 0; i < kDim; ++i)
        for (int j = 0; j < kDim; ++j) form.push_back(seen[size_t(i)] * seen[size_t(j)] + (i == j ? 0.2f : 0.0f));
    }
  return form;
}

/// Rows with an outlying channel, and now and then a value that has to be clamped.
std::vector<float> row_values(uint64_t seed) {
  std::vector<float> rows = normal_floats(seed, kContext * kWidth);
  for (size_t i = 0; i < rows.size(); ++i)
    if (i % kDim == 3) rows[i] += 6;
  rows[5 * kWidth + 1] = 1e6f;
  rows[100 * kWidth + 40] = -INFINITY;
  rows[200 * kWidth + 7] = NAN;
  return rows;
}

/// Equal bits, or both NaN (whose bits no rule fixes).
bool same(const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (std::memcmp(a + i, b + i, 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

/// The host's store at n positions: [kHeads, n, kDim] as attention reads it, and the bytes of rows in the own format.
struct HostRows {
  std::vector<float> values;
  std::vector<const std::byte*> coded;  // [kHeads, n]; null where a row is exact
};
HostRows host_rows(const KvStore& store, int n) {
  HostRows rows{std::vector<float>(size_t(kHeads * n * kDim)), std::vector<const std::byte*>(size_t(kHeads * n))};
  const KvSide view = store.decode_side(n);
  for (int s = 0; s < view.n_segments; ++s) {
    const KvSegment& segment = view.segments[size_t(s)];
    const bool coded = segment.first == std::min(store.config().policy.sinks, n) &&
                       segment.format == store.config().format && segment.first < store.layout().retention.coded_end(n);
    for (int i = 0; i < segment.count; ++i)
      for (int h = 0; h < kHeads; ++h) {
        const std::byte* row = segment.rows + h * segment.head_stride + i * segment.row_bytes;
        const size_t at = size_t(h * n + segment.first + i);
        segment.format->decode(row, kDim, segment.coding(h), &rows.values[at * kDim]);
        if (coded) rows.coded[at] = row;
      }
  }
  return rows;
}

TEST_P(KvStoreCuda, HoldsTheHostsBitsHoweverTokensAreBatched) {
  CpuContext context(1);
  const std::vector<std::vector<float>> values = {row_values(1), row_values(2)};
  for (const auto& [name, config] : all_sides())
    for (const int step : {1, 33, 70, kContext}) {
      const bool is_k = step % 2 == 1;
      DeviceKvStore device(stream(), config, is_k, 3, kHeads, kDim, kContext, kSeq, metric_of(config));
      DeviceKvScratch device_scratch;
      std::vector<KvStore> host;
      KvScratch scratch;
      for (int s = 0; s < kSeq; ++s) host.emplace_back(config, 3, kHeads, kDim, kContext, metric_of(config));
      for (int past = 0; past < kContext; past += step) {
        const int n_new = std::min(step, kContext - past), n = past + n_new;
        std::vector<float> batch;
        for (int s = 0; s < kSeq; ++s)
          batch.insert(batch.end(), values[size_t(s)].begin() + past * kWidth, values[size_t(s)].begin() + n * kWidth);
        const gpu::Buffer rows = up(batch);
        const DeviceKvSide view = device.append(stream(), kSeq, past, n_new, rows.as<float>(), device_scratch);
        for (int s = 0; s < kSeq; ++s)
          host[size_t(s)].append(context, past, View2<float>(batch.data() + s * n_new * kWidth, n_new, kWidth),
                                 scratch);
        ASSERT_TRUE(same(down(rows.as<float>(), int64_t(batch.size())).data(), batch.data(), batch.size()))
            << name << ", rows in cache space at " << past << " by " << step;
        if (step == 1 && n % 13 != 0 && n != kContext && n != 64 && n != 96) continue;  // each look costs copies

        const int n_coded = view.n_coded, n_exact = n - view.exact_first;
        ASSERT_EQ(n_coded, device.layout().retention.coded_end(n)) << name;
        const auto coded = down(view.coded, int64_t(kSeq) * n_coded * kWidth);
        const auto exact = down(view.exact, int64_t(kSeq) * n_exact * kWidth);
        for (int s = 0; s < kSeq; ++s) {
          const HostRows expected = host_rows(host[size_t(s)], n);
          for (int h = 0; h < kHeads; ++h)
            for (int position = 0; position < n; ++position) {
              const float* got =
                  position < n_coded
                      ? &coded[size_t(((s * kHeads + h) * n_coded + position) * kDim)]
                      : &exact[size_t(((s * kHeads + h) * n_exact + position - view.exact_first) * kDim)];
              ASSERT_TRUE(same(got, &expected.values[size_t((h * n + position) * kDim)], kDim))
                  << name << ", step " << step << ", sequence " << s << ", head " << h << ", position " << position
                  << " of " << n;
            }
          if (n < kContext) continue;
          for (int h = 0; h < kHeads; ++h)
            for (const int position : {0, 5, 40, 100, 131, 259}) {
              const std::byte* row = expected.coded[size_t(h * n + position)];
              if (row == nullptr) continue;
              const auto got = device.coded_row(stream(), s, h, position);
              ASSERT_EQ(0, std::memcmp(got.data(), row, got.size())) << name << ", code bytes of " << position;
            }
        }
      }
      int64_t saturated = 0;
      for (const KvStore& store : host) saturated += store.saturated();
      EXPECT_EQ(device.saturated(stream()), saturated) << name << ", step " << step;
    }
}

TEST_P(KvStoreCuda, QueriesAndOutputsTurnAsOnTheHost) {
  CpuContext context(1);
  constexpr int kQueryHeads = 6, kTokens = 5;
  for (const Rotation rotation : {Rotation::none, Rotation::planar, Rotation::hadamard})
    for (const bool centre : {false, true}) {
      const KvSideConfig config = side("q8_0", {rotation, centre, 32, 4});
      DeviceKvStore device(stream(), config, true, 1, kHeads, kDim, kContext, kSeq, metric_of(config));
      DeviceKvScratch device_scratch;
      KvScratch scratch;
      std::vector<float> batch;
      for (const uint64_t seed : {1, 2}) {
        const auto rows = row_values(seed);
        batch.insert(batch.end(), rows.begin(), rows.begin() + 80 * kWidth);
      }
      const gpu::Buffer rows = up(batch);
      device.append(stream(), kSeq, 0, 80, rows.as<float>(), device_scratch);
      const auto q = normal_floats(9, int64_t(kSeq) * kTokens * kQueryHeads * kDim);
      const gpu::Buffer dq = up(q), out = up(q);
      device.rotate_queries(stream(), int64_t(kSeq) * kTokens * kQueryHeads, dq.as<float>());
      device.restore_output(stream(), kSeq, kTokens, kQueryHeads, out.as<float>());
      const auto got_q = down(dq.as<float>(), int64_t(q.size())), got_out = down(out.as<float>(), int64_t(q.size()));
      for (int s = 0; s < kSeq; ++s) {
        KvStore host(config, 1, kHeads, kDim, kContext);
        host.append(context, 0, View2<float>(batch.data() + s * 80 * kWidth, 80, kWidth), scratch);
        const auto part = q.begin() + s * kTokens * kQueryHeads * kDim;
        std::vector<float> expected_q(part, part + kTokens * kQueryHeads * kDim), expected_out = expected_q;
        host.rotate_queries(context, View2<float>(expected_q.data(), kTokens, kQueryHeads * kDim));
        host.restore_output(context, kQueryHeads, View2<float>(expected_out.data(), kTokens, kQueryHeads * kDim));
        const size_t at = size_t(s) * expected_q.size();
        EXPECT_TRUE(same(&got_q[at], expected_q.data(), expected_q.size())) << int(rotation);
        EXPECT_TRUE(same(&got_out[at], expected_out.data(), expected_out.size())) << int(rotation) << centre;
      }
    }
}

}  // namespace
}  // namespace ridge
