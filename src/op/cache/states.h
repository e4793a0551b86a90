// Where the states of sequences are: of layers that remember a fixed number of values in place of rows (op/delta/).
//
// A state cannot go back by itself. So a slot with a history keeps a state for each of the newest kStateHistory lengths
// of its sequence: the state behind n tokens is at place n mod kStateHistory. A step that turns out to have brought
// wrong draft tokens is taken back by counting fewer tokens, nothing is computed or copied. Slots without a history
// (checkpoints, sequences without draft tokens) have one state.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ridge {

/// States of a slot with a history, and tokens of a step that keeps the state behind each of them.
inline constexpr int kStateHistory = 4;

/// How many slots a memory has. The first n_histories of them have a history.
struct SlotNumbers {
  SlotNumbers(int n_slots, int with_history = 0) : n(n_slots), n_histories(with_history) {}

  /// States of a layer, in all slots.
  int64_t n_states() const { return n + int64_t(n_histories) * (kStateHistory - 1); }

  int n, n_histories;
};

/// The states of one layer.
struct LayerStates {
  float* data = nullptr;  ///< [SlotNumbers::n_states(), values]
  int64_t values = 0;     ///< of one
  int n_histories = 0;

  /// How many a slot has.
  RIDGE_HD int kept(int slot) const { return slot < n_histories ? kStateHistory : 1; }
  /// Number of the state behind n tokens of the sequence in a slot.
  RIDGE_HD int64_t number(int slot, int n) const {
    return slot < n_histories ? int64_t(slot) * kStateHistory + n % kStateHistory
                              : int64_t(n_histories) * (kStateHistory - 1) + slot;
  }
  RIDGE_HD float* at(int slot, int n) const { return data + number(slot, n) * values; }
};

/// Effect of a forward pass on the states of one sequence: n_rows new tokens come behind n_past. A pass of more tokens
/// than the slot has states keeps only the last state.
struct StatePath {
  LayerStates states;
  int slot = 0, n_past = 0, n_rows = 0;

  /// The first new token whose state stays.
  RIDGE_HD int first_kept() const { return n_rows <= states.kept(slot) ? 0 : n_rows - 1; }
  /// Where token t writes its state, and where it reads the one before.
  RIDGE_HD float* behind(int t) const {
    const int kept = first_kept();
    return states.at(slot, n_past + (t < kept ? kept : t) + 1);
  }
  RIDGE_HD float* before(int t) const { return t == 0 ? states.at(slot, n_past) : behind(t - 1); }
};

}  // namespace ridge
