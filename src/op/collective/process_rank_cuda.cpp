#include "op/collective/process_rank_cuda.h"

#include <algorithm>
#include <exception>

#include "op/collective/one_shot_cuda.h"

namespace ridge {
namespace {

constexpr const char* kStep = "a step that GPUs share";

}  // namespace

ProcessRank::ProcessRank(const gpu::NcclId& id, ProcessRankOptions options)
    : options_(std::move(options)),
      links_{.why_no_peers = "the GPUs belong to several processes", .why_no_nccl = gpu::why_no_nccl()} {
  if (!links_.why_no_nccl.empty()) throw Error(ErrorKind::no_device, links_.why_no_nccl);
  if (size() > kMostDeviceRanks)
    throw_error(ErrorKind::usage, "--tp {}: up to {} GPUs hold a model together", size(), kMostDeviceRanks);
  all_reduce_kernel(options_.most_floats), gather_columns_kernel();  // refused here, if at all
  watch_ = std::make_unique<StepWatch>(
      StepWatchOptions{.device = options_.device,
                       .timeout_s = options_.timeout_s,
                       .trouble = [this] { return trouble(); },
                       .late = [this](std::string_view what, double seconds) { return late(what, seconds); },
                       .end = [this] { end(); }});
  try {
    start(id);
  } catch (...) {
    end();
    throw;
  }
}

/// Starts NCCL, and lets it connect the ranks, which it does in its first sums: for few floats and for many.
void ProcessRank::start(const gpu::NcclId& id) {
  const StepWatch::Part part(*watch_, "the start of NCCL", options_.start_s);
  const gpu::Stream stream;
  const int64_t many = std::min(options_.most_floats, kPacketFloats);
  gpu::Buffer values(4 * std::max<int64_t>(many, 2 * size()));
  call([&] { nccl_ = std::make_unique<gpu::Nccl>(id, rank(), size()); });
  std::vector<int64_t> borders;
  for (int r = 0; r <= size(); ++r) borders.push_back(r);
  for (const int64_t n : {int64_t(1), many}) all_reduce(stream, values.as<float>(), n, false);
  gather_columns(stream, values.as<float>(), 1, borders, values.as<float>() + size(), false);
  stream.synchronize();
  check();
  stream_ = nullptr;
}

ProcessRank::~ProcessRank() {
  if (std::uncaught_exceptions() > 0 || ended_) {
    end();
    return;
  }
  if (!options_.ends_together) {
    nccl_->leave();
    return;
  }
  const StepWatch::Part part(*watch_, "the end of NCCL", options_.timeout_s);
  const std::scoped_lock lock(in_call_);
  nccl_.reset();
}

std::string ProcessRank::trouble() {
  if (const int gone = options_.ended(); gone >= 0)
    return fmt::format("{}: {} has ended: {} (look at what that process said last)", options_.name(rank()),
                       options_.name(gone), kStep);
  const std::unique_lock lock(in_call_, std::try_to_lock);
  if (!lock || !nccl_ || ended_) return {};
  try {
    nccl_->check(rank());
  } catch (const Error& error) {
    return fmt::format("{}: {}", options_.name(rank()), error.what());
  }
  return {};
}

std::string ProcessRank::late(std::string_view what, double seconds) const {
  std::string others;
  for (int r = 0; r < size(); ++r)
    if (r != rank()) others += (others.empty() ? "" : " or ") + options_.name(r);
  return fmt::format("{}: no answer from {} within {:g} s: {} (look at that process; --rank-timeout waits longer)",
                     options_.name(rank()), others, seconds, what);
}

void ProcessRank::call(const std::function<void()>& of_nccl) {
  const std::scoped_lock lock(in_call_);
  check();
  try {
    of_nccl();
  } catch (const Error& error) {
    const int gone = options_.ended();
    throw_error(error.kind(), "{}: {}{}", options_.name(rank()), error.what(),
                gone < 0 ? "" : fmt::format("; {} has ended", options_.name(gone)));
  }
}

void ProcessRank::all_reduce(gpu::StreamHandle stream, float* values, int64_t n, bool) {
  RIDGE_CHECK(n >= 0 && n <= options_.most_floats, "a sum of {} floats of ranks made for {}", n, options_.most_floats);
  if (n == 0) return;
  stream_ = stream;
  call([&] { nccl_->all_reduce(rank(), stream, values, n); });
}

void ProcessRank::gather_columns(gpu::StreamHandle stream, const float* own, int64_t n_rows,
                                 std::span<const int64_t> borders, float* whole, bool) {
  stream_ = stream;
  call([&] { gather_.run(*nccl_, rank(), stream, own, n_rows, borders, whole); });
}

std::string_view ProcessRank::all_reduce_kernel(int64_t n) const {
  return select_row(options_.forced, "all_reduce", all_reduce_variants(n, size()),
                    [&](const CollectiveVariant& row) { return row.supports(links_); })
      .name;
}
std::string_view ProcessRank::gather_columns_kernel() const {
  return select_row(options_.forced, "gather_columns", gather_columns_variants(),
                    [&](const CollectiveVariant& row) { return row.supports(links_); })
      .name;
}

void ProcessRank::step(const std::function<void()>& queue) {
  const StepWatch::Part part(*watch_, kStep, options_.timeout_s);
  queue();
  if (stream_) watch_->mark(stream_);
}

void ProcessRank::check() {
  watch_->check();
  if (ended_) throw_error(ErrorKind::failure, "{}: the ranks were ended: one of them failed", options_.name(rank()));
}

void ProcessRank::end() {
  constexpr std::chrono::seconds kForCall{1};
  const std::unique_lock lock(in_call_, kForCall);
  ended_ = true;
  if (lock && nccl_) nccl_->abort();  // else a call of NCCL waits, which nothing can end but the process's end
}

}  // namespace ridge
