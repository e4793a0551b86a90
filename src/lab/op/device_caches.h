// Caches of one layer on a device, for benches of single ops: sets of equal sequences, each with pages and a slot of its
// own, so that calls which take the sets in turn find their data in memory.
//
// The contents are random codes: a few pages are made, all others are copies of them, so a reference in double over all
// positions costs next to nothing.
#pragma once

#include <functional>

#include "lab/op/op_data.h"
#include "op/cache/device_memory.h"

namespace ridge::lab {

class DeviceCaches {
 public:
  /// n_sets sets of problem.n_seq sequences that hold problem.n_keys positions, and have room for n_more. Rows that a
  /// bench appends are rounded to nearest: the metric of weighted rounding is used only where a tile leaves its window.
  DeviceCaches(const OpProblem& problem, const gpu::Stream& stream, int n_sets, int n_more, uint64_t seed);

  const KvTiles& tiles(bool is_k) const { return memory_.tiles(0, is_k); }
  bool in_fragments() const { return memory_.in_fragments(0); }
  /// The last n_new positions of [0, n_keys) of every sequence of a set: row i of the step's matrices is token i % n_new
  /// of sequence i / n_new.
  StepRows rows(int set, int n_new, int n_keys);
  /// Blocks of a kernel that takes so many queries at a time, for rows(): one span a sequence, or one a row.
  std::vector<AttnBlock> blocks(int n_new, int group, int queries, bool each_row) const;

  /// Row of pool() that a sequence's kv head has at a position, as queries that see n_keys positions read it.
  int index(bool is_k, int seq, int head, int position) const;
  /// What rows read as, in cache space. Rotor rows with the levels of `device_levels`: integers for the kernels that
  /// multiply integers.
  RowPool pool(bool is_k, bool device_levels) const;
  /// A row's bytes in its format.
  std::vector<std::byte> row_bytes(bool is_k, int set, int seq, int head, int position, int n) const;

  static int64_t bytes(const OpProblem& problem, int n_more);

 private:
  static constexpr int kMostPages = 7;  // that are made: a prime

  int pages_each() const;
  int slot(int set, int seq) const { return set * p_.n_seq + seq; }
  int page(int set, int seq, int i) const { return slot(set, seq) * pages_each_ + i; }
  std::vector<float> decoded(bool is_k, DeviceKvMemory::RowForm form, int place, int head, int position,
                             bool device_levels) const;

  OpProblem p_;
  const gpu::Stream& stream_;
  int pages_each_, n_made_;
  DeviceKvMemory memory_;
  std::vector<gpu::Buffer> rows_;  // StepRow, of each set
  int n_new_ = 0, n_keys_ = 0;     // that rows_ were made for
};

}  // namespace ridge::lab
