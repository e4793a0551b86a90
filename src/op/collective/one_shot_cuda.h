// Sums and gathers in one step by packets (gpu/packet.h): every rank sends its values to each other one and takes
// theirs. Bound by the latency of the link; large ones by its rate, a quarter of
// which goes to stamps.
//
// A packet is three floats and a stamp. A thread sends one packet to each other rank (in two shots: to the owner of its
// warp) and waits for the packets of the same three floats; blocks know nothing of each other. Block b always serves
// the same places of the staging memory, and the stamp is the number of calls that block b took part in, counted in
// device memory: a recorded graph replays correctly. Staging is double: a rank that sends packets of call k + 2 has had
// a packet of call k + 1 from every other rank, or from an owner that had one, which was sent after the whole grid of
// that rank's call k had ended. So nothing is overwritten that somebody has yet to read.
//
// All blocks of a grid must run at once. A grid has no more than kOneShotBlocks for each multiprocessor.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/device.h"

namespace ridge {

/// Devices of one process that can hold a model together.
inline constexpr int kMostDeviceRanks = 8;

inline constexpr int kOneShotThreads = 256;
inline constexpr int kOneShotBlocks = 4;                         ///< of a multiprocessor
inline constexpr int kOneShotBlockFloats = 3 * kOneShotThreads;  ///< of a block

/// Bytes of packets that a rank has room for from each other rank, when grids have up to n_blocks.
inline int64_t one_shot_inbox_bytes(int n_blocks) { return int64_t(2) * n_blocks * kOneShotThreads * 16; }
/// Bytes of a rank's counters.
inline int64_t one_shot_state_bytes(int n_blocks) { return int64_t(4) * (1 + n_blocks); }

/// How waits end that no packet ends, in host memory; zeroed.
struct OneShotEnd {
  uint32_t all;                          ///< not 0: every wait gives up
  uint32_t waiting;                      ///< 1 + number of the rank whose wait ran out of time; sets `all`
  uint32_t missing;                      ///< 1 + number of the rank that it waited for
  uint32_t waits_for[kMostDeviceRanks];  ///< by number: 1 + that of a rank waited for longer than half the time; or 0
};

/// One rank, as its kernels see it.
struct OneShotRank {
  int rank = 0, n_ranks = 0, n_blocks = 0;
  int number[kMostDeviceRanks] = {};         ///< by rank: what it is called in OneShotEnd
  void* outbox[kMostDeviceRanks] = {};       ///< by rank: where it has this rank's packets
  const void* inbox[kMostDeviceRanks] = {};  ///< by rank: its packets here
  uint32_t* state = nullptr;                 ///< on the device, zeroed: whether a wait has failed, calls by block
  OneShotEnd* end = nullptr;                 ///< in host memory, the same of all ranks
  uint64_t timeout_ns = 0;                   ///< of a wait
};

/// values [n] = ((v0 + v1) + v2) + ..., in the order of ranks. After a wait that failed values are not touched any
/// more. One shot: every rank sends its values to each other one. Two shots: to the owner of each 96 floats, which
/// sends the sums; the same bits.
void one_shot_sum(gpu::StreamHandle stream, const OneShotRank& rank, float* values, int64_t n, bool overlap);
void two_shot_sum(gpu::StreamHandle stream, const OneShotRank& rank, float* values, int64_t n, bool overlap);

/// Columns [borders[r], borders[r + 1]) are rank r's.
struct ColumnBorders {
  int at[kMostDeviceRanks + 1] = {};
  int n_rows = 0;
};
/// `borders` has n_ranks + 1 entries, from 0 on, in order.
ColumnBorders column_borders(int n_ranks, int64_t n_rows, std::span<const int64_t> borders);
/// whole [n_rows, borders.at[n_ranks]] of every rank's own [n_rows, ..], bits as they are; below 2^31 floats in all.
void one_shot_gather(gpu::StreamHandle stream, const OneShotRank& rank, const float* own, const ColumnBorders& borders,
                     float* whole, bool overlap);

/// whole [n_rows, ..] of parts that lie behind each other by rank, as NCCL gathers them.
void place_columns(gpu::StreamHandle stream, int n_ranks, const float* parts, const ColumnBorders& borders,
                   float* whole);

}  // namespace ridge
