#include "op/cache/append_cuda.h"

#include <algorithm>
#include <string>

#include "gpu/launch.h"
#include "op/cache/append_kernels.h"
#include "op/cache/exact_rows.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 128;

__global__ void rope_angles_kernel(StepRows rows, int n_pairs, const double* frequency, float magnitude, float* cosines,
                                   float* sines) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= int64_t(rows.n) * n_pairs) return;
  const double angle = double(rows.rows[i / n_pairs].position) * frequency[i % n_pairs];
  cosines[i] = float(cos(angle)) * magnitude;
  sines[i] = float(sin(angle)) * magnitude;
}

/// A warp a head of a row.
__global__ void turn_and_norm_kernel(const TurnedHeads a) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int64_t i = int64_t(blockIdx.x) * (kThreads / 32) + warp;
  if (i >= int64_t(a.rows.n) * a.n_heads) return;
  const int64_t at = i / a.n_heads * a.n_pairs;
  float* const head = a.x + (int64_t(a.rows.rows[i / a.n_heads].row) * a.n_heads + i % a.n_heads) * a.head_dim;
  for (int pair = lane; pair < a.n_pairs; pair += 32) {
    float &first = head[a.rope_halves ? pair : 2 * pair],
          &second = head[a.rope_halves ? pair + a.n_pairs : 2 * pair + 1];
    const float c = a.cosines[at + pair], s = a.sines[at + pair], x = first, y = second;
    first = x * c - y * s;
    second = y * c + x * s;
  }
  __syncwarp();
  double squares = 0;
  for (int d = lane; d < a.head_dim; d += 32) squares += double(head[d]) * head[d];
  const double factor = 1.0 / sqrt(gpu::warp_sum(squares) / a.head_dim + a.norm_eps);
  for (int d = lane; d < a.head_dim; d += 32) head[d] = float(head[d] * factor * a.norm[d]);
}

/// One warp.
__global__ void list_leaving_kernel(StepRows rows, Retentions retentions, StepSpan* spans, int32_t* n_spans) {
  const int lane = int(threadIdx.x);
  int n = 0;
  for (int from = 0; from < rows.n; from += 32) {
    const StepRow row = from + lane < rows.n ? rows.rows[from + lane] : StepRow{};
    bool leaves = retentions.n > Retentions::kMost;
    for (int i = 0; i < retentions.n && !leaves; ++i)
      leaves = retentions.at[i].coded_end(row.position + 1) > retentions.at[i].coded_end(row.position);
    leaves = leaves && row.slot >= 0;
    const unsigned found = __ballot_sync(gpu::kAllLanes, leaves);
    if (leaves) spans[n + __popc(found & ((1u << lane) - 1))] = {row.slot, row.ring, row.position, row.position + 1};
    n += __popc(found);
  }
  if (lane == 0) *n_spans = n;
}

__global__ void next_position_kernel(int n, StepRow* rows) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) rows[i].position += 1;
}

/// A warp a text; the last one writes the padding behind all.
__global__ void text_rows_kernel(TextStep a) {
  const int at = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  int first = 0;
  for (int i = 0; i < at; ++i) first += a.texts[i].n;
  if (at == a.n_texts) {
    for (int i = first + lane; i < a.n_padded; i += 32) a.rows[i] = {i, 0, -1, -1};
    return;
  }
  const TextRows& text = a.texts[at];
  const int n = text.slot < 0 ? 0 : text.n_valid ? min(*text.n_valid, text.n) : text.n;
  const int32_t position = *text.base + text.offset;
  for (int i = lane; i < text.n; i += 32) {
    const int row = first + i;
    a.rows[row] = i < n ? StepRow{row, position + i, text.slot, text.slot} : StepRow{row, 0, -1, -1};
    a.tokens[row] = text.from[i < n ? i : max(0, n - 1)];
  }
  if (lane == 0 && a.last_rows) a.last_rows[at] = first + max(0, n - 1);
}

struct RingSides {
  KvTiles own[2], of_step[2];
};

/// Blocks: (tile of the sequence's own ring, and on the way in one block more; side and kv head; span).
__global__ void copy_ring_kernel(const RingSides sides, const StepSpan* spans, RingCopy direction) {
  const StepSpan span = spans[blockIdx.z];
  const int n_kv_heads = sides.own[0].n_kv_heads, side = int(blockIdx.y) / n_kv_heads;
  const KvTiles &own = sides.own[side], &of_step = sides.of_step[side];
  const KvRetention& r = own.retention;
  if (r.window == 0 && span.n_past >= r.calibration) return;  // nothing is exact any more
  const bool in = direction == RingCopy::in;
  const int head = int(blockIdx.y) % n_kv_heads, n_uint4 = int(own.ring_tile_bytes / 16);
  const int last_old = span.n_past > 0 ? (span.n_past - 1) / kTilePositions : -1,
            last_new = (span.n - 1) / kTilePositions;
  if (own.ring_tiles == 0 || head >= own.n_kv_heads) return;
  const auto step_tile = [&](int tile) { return reinterpret_cast<uint4*>(of_step.ring_tile(span.ring, head, tile)); };
  if (in && int(blockIdx.x) == int(gridDim.x) - 1) {
    // Places of a new tile that get no row, behind the prompt's last one and those of the sinks, are masked, and masked
    // values must be finite. The ring of the step holds what another layer or cache left there, whose exact rows may be
    // of another kind.
    const auto clear = [&](int tile) {
      for (int i = int(threadIdx.x); i < n_uint4; i += kThreads) step_tile(tile)[i] = {};
    };
    if (last_old < 0 && own.n_sinks > 0) clear(0);
    if (span.n % kTilePositions > 0 && last_new != last_old) clear(last_new);
    return;
  }
  const int tile = (in ? last_old : last_new) - int(blockIdx.x);
  if (int(blockIdx.x) >= own.ring_tiles || tile < r.coded_end(span.n_past) / kTilePositions) return;
  auto* const own_tile = reinterpret_cast<uint4*>(own.ring_tile(span.slot, head, tile));
  uint4* const to = in ? step_tile(tile) : own_tile;
  const uint4* const from = in ? own_tile : step_tile(tile);
  for (int i = int(threadIdx.x); i < n_uint4; i += kThreads) to[i] = from[i];
}

}  // namespace

void Retentions::add(const KvRetention& r) {
  const auto same = [&](const KvRetention& other) {
    return other.window == r.window && other.tile == r.tile && other.calibration == r.calibration;
  };
  if (r.window == 0 || n > kMost) return;  // nothing leaves
  for (int i = 0; i < n; ++i)
    if (same(at[i])) return;
  if (n < kMost) at[n] = r;
  ++n;
}

void device_append(gpu::StreamHandle stream, const DeviceAppend& a) {
  if (a.rows.n == 0) return;
  if (a.k_tiles.kind == TileKind::rows) append_rows(stream, a);
  else append_tiles(stream, a);
}

void encode_leaving(gpu::StreamHandle stream, const LeavingTiles& a) {
  if (a.n_sides == 0 || a.n_kv_heads == 0 || a.most_spans == 0 || a.most_tiles == 0) return;
  if (a.in_fragments) encode_leaving_tiles(stream, a);
  else encode_leaving_rows(stream, a);
}

void device_rope_angles(gpu::StreamHandle stream, const StepRows& rows, int n_pairs, const double* frequency,
                        float magnitude, float* cosines, float* sines) {
  if (n_pairs == 0 || rows.n == 0) return;
  gpu::launch("rope angles", rope_angles_kernel,
              {unsigned(gpu::ceil_div(int64_t(rows.n) * n_pairs, kThreads)), kThreads, 0, stream}, rows, n_pairs,
              frequency, magnitude, cosines, sines);
}

void device_turn_and_norm(gpu::StreamHandle stream, const TurnedHeads& a) {
  if (a.rows.n == 0) return;
  gpu::launch("turn and norm", turn_and_norm_kernel,
              {unsigned(gpu::ceil_div(int64_t(a.rows.n) * a.n_heads, kThreads / 32)), kThreads, 0, stream}, a);
}

void device_list_leaving(gpu::StreamHandle stream, const StepRows& rows, const Retentions& retentions, StepSpan* spans,
                         int32_t* n_spans) {
  gpu::launch("leaving rows", list_leaving_kernel, {1, 32, 0, stream}, rows, retentions, spans, n_spans);
}

void device_next_position(gpu::StreamHandle stream, int n, StepRow* rows) {
  gpu::launch("next position", next_position_kernel, {unsigned(gpu::ceil_div(n, kThreads)), kThreads, 0, stream}, n,
              rows);
}

void device_text_rows(gpu::StreamHandle stream, const TextStep& step) {
  int n = 0;
  for (int i = 0; i < std::min(step.n_texts, kMostTextsAhead); ++i) n += step.texts[i].n;
  if (step.n_texts < 1 || step.n_texts > kMostTextsAhead || n < step.n_texts || n > step.n_padded)
    throw Error(ErrorKind::failure,
                "a step of " + std::to_string(n) + " rows of " + std::to_string(step.n_texts) + " texts");
  gpu::launch("text rows", text_rows_kernel, {1, unsigned(32 * (step.n_texts + 1)), 0, stream}, step);
}

void copy_ring_tiles(gpu::StreamHandle stream, std::span<const KvTiles, 2> own, std::span<const KvTiles, 2> of_step,
                     const StepSpan* spans, int n, RingCopy direction) {
  const int most = std::max(own[0].ring_tiles, own[1].ring_tiles);
  if (n == 0 || most == 0) return;
  gpu::launch("copy of ring tiles", copy_ring_kernel,
              {dim3(unsigned(most + int(direction == RingCopy::in)), unsigned(2 * own[0].n_kv_heads), unsigned(n)),
               kThreads, 0, stream},
              RingSides{{own[0], own[1]}, {of_step[0], of_step[1]}}, spans, direction);
}

}  // namespace ridge
