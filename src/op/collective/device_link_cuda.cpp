#include "op/collective/device_link.h"

#include <algorithm>

#include "base/check.h"
#include "gpu/memory_use.h"
#include "op/collective/one_shot_cuda.h"

namespace ridge {

ColumnBorders column_borders(int n_ranks, int64_t n_rows, std::span<const int64_t> borders) {
  RIDGE_CHECK(int(borders.size()) == n_ranks + 1 && borders.front() == 0 && std::ranges::is_sorted(borders) &&
                  n_rows >= 0 && n_rows * borders.back() < INT32_MAX,
              "{} rows of {} columns of {} ranks", n_rows, borders.empty() ? 0 : borders.back(), n_ranks);
  ColumnBorders result;
  std::ranges::transform(borders, result.at, [](int64_t border) { return int(border); });
  result.n_rows = int(n_rows);
  return result;
}

void NcclGather::run(gpu::Nccl& nccl, int rank, gpu::StreamHandle stream, const float* own, int64_t n_rows,
                     std::span<const int64_t> borders, float* whole) {
  const int64_t bytes = 4 * n_rows * borders.back();
  if (bytes == 0) return;
  if (parts_.empty() || parts_.back().bytes() < bytes) {
    const gpu::MemoryLabel label(gpu::MemoryOf::scratch);
    parts_.emplace_back(std::max(bytes, parts_.empty() ? 0 : 2 * parts_.back().bytes()));
  }
  float* const all = parts_.back().as<float>();
  std::vector<float*> parts;
  std::vector<int64_t> counts;
  for (size_t r = 0; r + 1 < borders.size(); ++r) {
    parts.push_back(all + n_rows * borders[r]);
    counts.push_back(n_rows * (borders[r + 1] - borders[r]));
  }
  nccl.gather(rank, stream, own, parts, counts);
  const int n_ranks = int(parts.size());
  place_columns(stream, n_ranks, all, column_borders(n_ranks, n_rows, borders), whole);
}

}  // namespace ridge
