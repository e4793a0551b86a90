// Up to which batch, or from which depth, one format is faster than another: answers made of a sweep's rows.
//
// Rows of the same op, shape, device and build are compared at every batch (or depth) by the rule of
// lab/sweep/compare.h, with the sweep's second measurement of its first format as A'. A cell inside the noise is
// undecided, so that the answer may be an interval.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/sweep/compare.h"

namespace ridge::lab {

/// The two formats at one batch or depth.
struct CrossoverPoint {
  int64_t x = 0;
  Verdict verdict;
  std::string missing;            ///< why there is none: "int4_g128: failed (NMSE 0.2 over 1e-5)"; empty: there is
  std::string baseline_key, key;  ///< of the rows, in the store
};

struct Crossover {
  enum class Answer : uint8_t { always, never, up_to, from, mixed, undecided };
  Answer answer = Answer::undecided;
  std::string axis;                    ///< "batch" or "depth"
  std::string format, baseline;        ///< "int4_g128", "f16", "int4_g128 (two-op)" by a kernel that was asked for
  std::string subject;                 ///< "gemv 8960x1536", "attention 12/2/128, batch 1"
  std::string where;                   ///< "AMD EPYC, 2 threads"
  Row series;                          ///< what all points have in common, of their cells
  std::vector<CrossoverPoint> points;  ///< by x
  /// up_to and from: the last x at which the format is faster or slower and the first at which it is the other.
  std::optional<int64_t> between_low, between_high;
};

struct CrossoverOptions {
  std::string baseline = "f16";  ///< a format; "all": every pair
  double budget = kEffectBudget;
};

/// Rows that have no cell, or no second batch or depth to compare with, are left out. Of several builds the one with
/// the newest rows counts.
std::vector<Crossover> find_crossovers(std::span<const Row> rows, const CrossoverOptions& options);

/// "int4_g128 beats f16 up to batch 16 on gemv 8960x1536 (AMD EPYC, 2 threads): at 16 1.21x [1.17, 1.25], ..."
std::string sentence(const Crossover& crossover);
Columns<Crossover> crossover_columns();
/// Columns of a point; `axis` is the name of its x.
Columns<CrossoverPoint> crossover_point_columns(std::string_view axis);

}  // namespace ridge::lab
