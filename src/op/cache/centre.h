// The centre of a side's rows: their mean over the first positions, in the space of the model and, for keys, before
// RoPE. A row is stored without it. RoPE moves the mean of keys along the context, so the centre of keys is turned to
// the middle of each tile, and each pair shrinks by as much as it turns inside a tile.
//
// Attention adds to the score of a key what its tile's centre takes from it: the product of a query q and a centre c
// turned to tile t is the sum over pairs of (q1 c1 + q2 c2) cos + (q2 c1 - q1 c2) sin of the tile, so one row of a
// table times weights that a query has once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.h"
#include "op/cache/tile_order.h"

namespace ridge {

/// Positions that must be held before the centre and the scales of heads are set, from then on for good.
inline constexpr int kCalibration = 64;
/// Tiles of a table come in so many, for readers of whole groups.
inline constexpr int kTurnTiles = 16;

/// How RoPE turns the keys of a layer.
struct KeyRope {
  std::vector<double> frequency;  ///< [pairs], radians a position
  int first = 0;                  ///< channel of the first pair
  bool halves = true;             ///< pair i is channels (i, i + pairs) from `first` on, else (2i, 2i + 1)
};

/// How a centre turns. A row of angles is [n_pairs] cosines, [n_pairs] sines, zeros up to pitch().
struct CentreTurn {
  int n_pairs = 0;  ///< 0: the centre is the same in all tiles
  int first = 0;
  bool halves = true;
  const float* table = nullptr;  ///< [kCalibration + n_tiles, pitch()]: of positions, then of tiles, shrunk

  RIDGE_HD int pitch() const { return (2 * n_pairs + 15) / 16 * 16; }
  RIDGE_HD const float* position(int p) const { return table + int64_t(p) * pitch(); }
  RIDGE_HD const float* tile(int t) const { return table + int64_t(kCalibration + t) * pitch(); }
  RIDGE_HD bool turns(int channel) const { return channel >= first && channel < first + 2 * n_pairs; }
  RIDGE_HD int first_of(int pair) const { return first + (halves ? pair : 2 * pair); }
  RIDGE_HD int second_of(int pair) const { return first + (halves ? pair + n_pairs : 2 * pair + 1); }

  /// row [head_dim] += sign times the centre [head_dim] turned by a row of angles.
  RIDGE_HD void move(const float* angles, const float* centre, int head_dim, float sign, float* row) const {
    for (int d = 0; d < head_dim; ++d)
      if (!turns(d)) row[d] += sign * centre[d];
    for (int i = 0; i < n_pairs; ++i) move_pair(angles, centre, i, sign, row);
  }
  RIDGE_HD void move_pair(const float* angles, const float* centre, int pair, float sign, float* row) const {
    const int one = first_of(pair), two = second_of(pair);
    const float c = angles[pair], s = angles[n_pairs + pair], a = centre[one], b = centre[two];
    row[one] += sign * (a * c - b * s);
    row[two] += sign * (a * s + b * c);
  }
  /// row [head_dim] <- turned back.
  RIDGE_HD void backward(const float* angles, float* row) const {
    for (int i = 0; i < n_pairs; ++i) {
      const float c = angles[i], s = angles[n_pairs + i], a = row[first_of(i)], b = row[second_of(i)];
      row[first_of(i)] = a * c + b * s;
      row[second_of(i)] = b * c - a * s;
    }
  }
  /// What the cosine and the sine of a pair are multiplied with for the product of a query [head_dim] and the centre
  /// turned by them, both in the space of the model, pair i at to[i] and to[n_pairs + i].
  RIDGE_HD void weigh_pair(const float* q, const float* centre, int pair, float scale, float* to) const {
    const float q1 = q[first_of(pair)], q2 = q[second_of(pair)], c1 = centre[first_of(pair)],
                c2 = centre[second_of(pair)];
    to[pair] = (q1 * c1 + q2 * c2) * scale;
    to[n_pairs + pair] = (q2 * c1 - q1 * c2) * scale;
  }
};

/// to [pitch()]: weights of all pairs, then zeros.
void centre_weights(const CentreTurn& turn, const float* q, const float* centre, float scale, float* to);

/// The table of CentreTurn for n_tiles tiles, rounded up to whole groups of kTurnTiles.
std::vector<float> turn_table(std::span<const double> frequency, int n_tiles);
/// Its floats; 0 without pairs.
int64_t turn_table_size(int n_pairs, int n_tiles);

}  // namespace ridge
