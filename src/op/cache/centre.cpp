#include "op/cache/centre.h"

#include <algorithm>
#include <cmath>
#include <complex>

namespace ridge {
namespace {

int64_t table_rows(int n_tiles) { return kCalibration + (n_tiles + kTurnTiles - 1) / kTurnTiles * int64_t(kTurnTiles); }

/// The mean of e^(i f (p - middle)) over the positions p of a tile.
double shrink_of(double frequency) {
  const double half = std::sin(frequency / 2);
  return std::abs(half) < 1e-9 ? 1 : std::sin(kTilePositions * frequency / 2) / (kTilePositions * half);
}

}  // namespace

void centre_weights(const CentreTurn& turn, const float* q, const float* centre, float scale, float* to) {
  for (int i = 0; i < turn.n_pairs; ++i) turn.weigh_pair(q, centre, i, scale, to);
  std::fill(to + 2 * turn.n_pairs, to + turn.pitch(), 0.0f);
}

int64_t turn_table_size(int n_pairs, int n_tiles) {
  return n_pairs == 0 ? 0 : table_rows(n_tiles) * CentreTurn{.n_pairs = n_pairs}.pitch();
}

std::vector<float> turn_table(std::span<const double> frequency, int n_tiles) {
  const int n_pairs = int(frequency.size());
  std::vector<float> table(size_t(turn_table_size(n_pairs, n_tiles)), 0.0f);
  const int64_t pitch = CentreTurn{.n_pairs = n_pairs}.pitch();
  // Products in double: their error stays far below a float's for any number of rows.
  const auto fill = [&](int64_t first, int64_t end, double frequency_of_row, std::complex<double> angle, int i) {
    const std::complex<double> step = std::polar(1.0, frequency_of_row);
    for (int64_t row = first; row < end; ++row, angle *= step) {
      table[size_t(row * pitch + i)] = float(angle.real());
      table[size_t(row * pitch + n_pairs + i)] = float(angle.imag());
    }
  };
  for (int i = 0; i < n_pairs; ++i) {
    const double f = frequency[size_t(i)];
    fill(0, kCalibration, f, 1, i);
    fill(kCalibration, table_rows(n_tiles), kTilePositions * f,
         shrink_of(f) * std::polar(1.0, (kTilePositions - 1) / 2.0 * f), i);
  }
  return table;
}

}  // namespace ridge
