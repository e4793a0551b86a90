// Caches of one layer on a device, for benches of single ops: sets of equal sequences in a step of new tokens. Every
// set has pages and slots of its own, so that calls which take the sets in turn find their data in memory.
//
// The contents are random codes. A few pages and slots are made and the others are copies of them: a reference in
// double over all positions costs next to nothing.
#pragma once

#include "lab/op/op_data.h"
#include "op/attn/attn_cuda.h"
#include "op/cache/device_memory.h"

namespace ridge::lab {

class DeviceCaches {
 public:
  /// n_sets sets of problem.n_seq sequences. The step brings the last problem.n_new of n_keys positions. Without
  /// `metric` [n_kv_heads, head_dim, head_dim] rows are rounded to nearest: which codes they get changes no time.
  DeviceCaches(const OpProblem& problem, const gpu::Stream& stream, int n_sets, int n_keys, uint64_t seed,
               std::span<const float> metric = {});

  /// As kernels read a side. Steps of many tokens have their exact rows in a ring of the step.
  const KvTiles& tiles(KvSide side) const { return tiles_[size_t(side)]; }
  /// Row i of the step's matrices is token i % n_new of sequence i / n_new.
  StepRows rows(int set) const;
  /// The step of each sequence of a set.
  std::vector<StepSpan> spans(int set) const;
  /// Blocks of a kernel that takes `queries` queries at a time; query heads per kv head are `group`.
  std::vector<AttnBlock> blocks(int group, int queries) const;

  /// Rows of a kv head in cache space, as the step's last queries read them; index() gives a position's row. With
  /// `device_levels` rotor rows have the levels of tile_order.h, by which integers are multiplied.
  RowPool pool(KvSide side, int head, bool device_levels) const;
  int index(KvSide side, int seq, int position) const;
  /// Bytes of the row of a position in its format, after the step.
  std::vector<std::byte> row_bytes(KvSide side, int set, int seq, int head, int position) const;
  /// Exact row of a position that leaves its window in the step: what queries read until then.
  std::vector<float> leaving_row(KvSide side, int seq, int head, int position) const;

  /// Bytes of one set.
  static int64_t bytes(const OpProblem& problem, int n_keys);

 private:
  using RowForm = DeviceKvMemory::RowForm;
  static constexpr int kMade = 7;  // pages and slots, at most: a prime

  bool is_long() const;
  int slot(int set, int seq) const { return set * p_.n_seq + seq; }
  int made_page(int seq, int i) const { return (3 * seq + i) % kMade; }
  int made_slot(int seq) const { return seq % std::min(kMade, p_.n_seq); }
  RowForm form(const KvTiles& tiles, int position) const;
  void make_ring(const gpu::Stream& stream, KvSide side);
  std::vector<float> decoded(KvSide side, RowForm form, int place, int head, int position, bool device_levels) const;

  OpProblem p_;
  int n_sets_, n_keys_, pages_each_;
  DeviceKvMemory memory_;
  KvTiles tiles_[2];
  gpu::Buffer ring_[2];  // of the step, where it brings many tokens
  gpu::Buffer rows_;     // StepRow [n_sets, n_seq, n_new]
};

}  // namespace ridge::lab
