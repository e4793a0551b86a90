#include "op/collective/collective_cuda.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "gpu/device_query.h"
#include "gpu/memory_use.h"
#include "gpu/peer.h"

namespace ridge {
namespace {

/// Blocks that run at once on the smallest of the devices.
int most_blocks(std::span<const int> devices) {
  const gpu::DeviceReport report = gpu::query_devices();
  int fewest = INT_MAX;
  for (const int device : devices) {
    if (device < 0 || size_t(device) >= report.devices.size())
      throw_error(ErrorKind::no_device, "device cuda:{} is not available: {}", device,
                  report.devices.empty() ? report.why_none : fmt::format("there are {}", report.devices.size()));
    fewest = std::min(fewest, report.devices[size_t(device)].n_processors);
  }
  return fewest * kOneShotBlocks;
}

/// How much longer the host waits than kernels that wait for packets, which say for whom they waited.
constexpr double kForKernelsS = 1;

uint32_t load(uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

}  // namespace

DeviceGroup::DeviceGroup(std::span<const int> devices, const DeviceGroupOptions& options)
    : devices_(devices.begin(), devices.end()), numbers_(devices.size()), options_(options), whole_(this) {
  std::vector<int> sorted = devices_;
  std::ranges::sort(sorted);
  if (size() < 2 || size() > kMostDeviceRanks || std::ranges::adjacent_find(sorted) != sorted.end())
    throw_error(ErrorKind::usage, "a model is held by 2 to {} different devices, not by cuda:{}", kMostDeviceRanks,
                fmt::join(devices_, ","));
  most_blocks(devices);  // that all are there
  std::iota(numbers_.begin(), numbers_.end(), 0);
  links_.why_no_peers = gpu::open_peer_access(devices);
  links_.why_no_nccl = gpu::why_no_nccl();
  end_words_ = gpu::PinnedBuffer(sizeof(OneShotEnd));
  std::memset(end_words_.as<void>(), 0, sizeof(OneShotEnd));
  open();
}

DeviceGroup::DeviceGroup(DeviceGroup& whole, std::span<const int> ranks, int64_t most_floats)
    : numbers_(ranks.begin(), ranks.end()), options_(whole.options_), whole_(&whole), links_(whole.links_) {
  RIDGE_CHECK(whole.whole_ == &whole && ranks.size() >= 2, "a part of {} ranks", ranks.size());
  for (const int r : ranks) devices_.push_back(whole.devices_.at(size_t(r)));
  options_.most_floats = most_floats;
  open();
}

DeviceGroup& DeviceGroup::part(std::span<const int> ranks, int64_t most_floats) {
  return *parts_.emplace_back(new DeviceGroup(*this, ranks, most_floats));
}

/// Makes the ranks and their links.
void DeviceGroup::open() {
  const int n_blocks = most_blocks(devices_);
  const auto is_nccl = [](const CollectiveVariant& row) { return row.name == "nccl"; };
  if (is_nccl(all_reduce_row(1)) || is_nccl(all_reduce_row(options_.most_floats)) || is_nccl(gather_row()))
    nccl_ = std::make_unique<gpu::Nccl>(devices_);

  const gpu::MemoryLabel label(gpu::MemoryOf::scratch);
  const int64_t inbox_bytes = links_.why_no_peers.empty() ? one_shot_inbox_bytes(n_blocks) : 0;
  for (int r = 0; r < size(); ++r) {
    const gpu::OnDeviceScope scope(devices_[size_t(r)]);
    DeviceRank& rank = *ranks_.emplace_back(new DeviceRank);
    rank.group_ = this;
    rank.device_ = devices_[size_t(r)];
    rank.state_ = gpu::Buffer(one_shot_state_bytes(n_blocks));
    rank.inbox_ = gpu::Buffer(inbox_bytes * size());
    rank.one_shot_ = {.rank = r,
                      .n_ranks = size(),
                      .n_blocks = n_blocks,
                      .state = rank.state_.as<uint32_t>(),
                      .end = whole_->end_words_.as<OneShotEnd>(),
                      .timeout_ns = uint64_t(options_.timeout_s * 1e9)};
    std::ranges::copy(numbers_, rank.one_shot_.number);
  }
  if (inbox_bytes == 0) return;
  for (int to = 0; to < size(); ++to)
    for (int from = 0; from < size(); ++from) {
      std::byte* const inbox = ranks_[size_t(to)]->inbox_.as<std::byte>() + from * inbox_bytes;
      ranks_[size_t(to)]->one_shot_.inbox[from] = inbox;
      ranks_[size_t(from)]->one_shot_.outbox[to] = inbox;
    }
}

DeviceGroup::~DeviceGroup() = default;

std::string DeviceGroup::name(int r) const {
  return fmt::format("rank {} (cuda:{})", numbers_.at(size_t(r)), devices_.at(size_t(r)));
}

const CollectiveVariant& DeviceGroup::all_reduce_row(int64_t n_floats) const {
  return select_row(options_.forced, "all_reduce", all_reduce_variants(n_floats, size()),
                    [&](const CollectiveVariant& row) { return row.supports(links_); });
}
const CollectiveVariant& DeviceGroup::gather_row() const {
  return select_row(options_.forced, "gather_columns", gather_columns_variants(),
                    [&](const CollectiveVariant& row) { return row.supports(links_); });
}

void DeviceGroup::end() {
  std::atomic_ref(whole_->end_words_.as<OneShotEnd>()->all).store(1, std::memory_order_release);
  if (whole_->nccl_) whole_->nccl_->abort();
  for (const auto& part : whole_->parts_)
    if (part->nccl_) part->nccl_->abort();
}

void DeviceGroup::check() const {
  OneShotEnd& end = *whole_->end_words_.as<OneShotEnd>();
  if (load(end.all) == 0) return;
  uint32_t waiting = load(end.waiting), missing = load(end.missing);
  if (waiting == 0 || missing == 0) throw_error(ErrorKind::failure, "the ranks were ended: one of them failed");
  // Whom it waited for may be a rank of another part that waits itself: the last one of such a row is the one to name.
  for (int i = 0; i < whole_->size() && load(end.waits_for[missing - 1]) != 0; ++i)
    waiting = std::exchange(missing, load(end.waits_for[missing - 1]));
  throw_error(ErrorKind::failure, "{}: no answer from {} within {:g} s: a sum or gather (did it fail before?)",
              whole_->name(int(waiting) - 1), whole_->name(int(missing) - 1), options_.timeout_s);
}

void DeviceRank::all_reduce(gpu::StreamHandle stream, float* values, int64_t n, bool overlap) {
  RIDGE_CHECK(n >= 0 && n <= group_->options_.most_floats, "a sum of {} floats in a group made for {}", n,
              group_->options_.most_floats);
  if (n == 0) return;
  const std::string_view kernel = all_reduce_kernel(n);
  if (kernel == "nccl") group_->nccl_->all_reduce(rank(), stream, values, n);
  else (kernel == "one-shot" ? one_shot_sum : two_shot_sum)(stream, one_shot_, values, n, overlap);
}

void DeviceRank::gather_columns(gpu::StreamHandle stream, const float* own, int64_t n_rows,
                                std::span<const int64_t> borders, float* whole, bool overlap) {
  const ColumnBorders columns = column_borders(size(), n_rows, borders);
  if (n_rows * borders.back() == 0) return;
  if (gather_columns_kernel() == "one-shot") return one_shot_gather(stream, one_shot_, own, columns, whole, overlap);
  nccl_gather_.run(*group_->nccl_, rank(), stream, own, n_rows, borders, whole);
}

std::string_view DeviceRank::all_reduce_kernel(int64_t n) const { return group_->all_reduce_row(n).name; }
std::string_view DeviceRank::gather_columns_kernel() const { return group_->gather_row().name; }

void DeviceRank::check() const {
  group_->check();
  if (group_->nccl_) group_->nccl_->check(rank());
  for (const auto& part : group_->parts_)
    if (part->nccl_) part->nccl_->check(0);
}

void DeviceRank::synchronize(const gpu::Stream& stream) const {
  using Clock = std::chrono::steady_clock;
  if (!group_->nccl_) {
    stream.synchronize();
    return check();
  }
  const Clock::time_point start = Clock::now();
  const double limit_s = group_->options_.timeout_s + kForKernelsS;
  while (!stream.idle()) {
    check();
    if (std::chrono::duration<double>(Clock::now() - start).count() > limit_s) {
      group_->end();
      throw_error(ErrorKind::failure,
                  "{}: another rank did not come to a sum of NCCL within {:g} s (did it fail before?)",
                  group_->name(rank()), group_->options_.timeout_s);
    }
    std::this_thread::yield();
  }
  check();
}

}  // namespace ridge
