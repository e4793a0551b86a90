// Searches for the tables of the trellis code of src/format/trellis.h: two tables of 8 and two masks that make the
// squared error of normal values small. Build and run by hand:
//
//   g++ -O3 -march=native -ffast-math tools/train_trellis.cpp -o /tmp/train_trellis && /tmp/train_trellis 3 1500
//
// Arguments: seed, number of random starts. Each start is trained as Lloyd's method trains a quantiser: the search codes
// normal values, then both tables take their least-squares values for these codes. The best start is trained on more
// values; the last line is its error on values that it has not seen. Windows are 7 bits: c | c1 << 3 | b << 6, b the
// lowest bit of the code before c1 (src/format/trellis.h numbers codes with the bits of a code in reverse and xor a
// constant, so that codes of 0 before the row give levels around 0, and rounds tables to steps of 1/46).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int kStates = 16, kWindows = 128;
std::mt19937_64 random_bits;

struct Code {
  std::array<double, 16> tables{};  // own [8], before [8]
  int flip_own = 0, flip_before = 0;

  int own(int window) const { return (window & 7) ^ (window >> 6 ? flip_own : 0); }
  int before(int window) const { return 8 + ((window >> 3 & 7) ^ (window >> 6 ? flip_before : 0)); }
  float level(int window) const { return float(tables[size_t(own(window))] + tables[size_t(before(window))]); }
};

std::vector<float> normal_values(size_t n) {
  std::normal_distribution<double> normal(0, 1);
  std::vector<float> values(n);
  for (float& value : values) value = float(normal(random_bits));
  return values;
}

/// Viterbi's search over 16 states, c | b << 3. Leaves the window of every value; returns the mean squared error.
double search(const Code& code, const std::vector<float>& x, std::vector<int>& windows) {
  std::array<float, kWindows> levels;
  for (int w = 0; w < kWindows; ++w) levels[size_t(w)] = code.level(w);
  std::array<float, kStates> cost{}, next;
  std::vector<std::array<uint8_t, kStates>> from(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    for (int s = 0; s < kStates; ++s) {
      next[size_t(s)] = 1e30f;
      for (int way = 0; way < 8; ++way) {
        const int before = s >> 3 | way << 1;
        const float error = x[i] - levels[size_t(before << 3 | (s & 7))], sum = cost[size_t(before)] + error * error;
        if (sum < next[size_t(s)]) next[size_t(s)] = sum, from[i][size_t(s)] = uint8_t(before);
      }
    }
    const float least = *std::min_element(next.begin(), next.end());
    for (size_t s = 0; s < kStates; ++s) cost[s] = next[s] - least;
  }
  auto state = int(std::min_element(cost.begin(), cost.end()) - cost.begin());
  windows.resize(x.size());
  double total = 0;
  for (size_t i = x.size(); i-- > 0;) {
    const int before = from[i][size_t(state)];
    windows[i] = before << 3 | (state & 7);
    total += std::pow(double(x[i]) - code.level(windows[i]), 2);
    state = before;
  }
  return total / double(x.size());
}

/// Tables with the least squared error for the windows: normal equations, with a little weight on staying small.
void fit(Code& code, const std::vector<float>& x, const std::vector<int>& windows) {
  constexpr int n = 16;
  std::array<std::array<double, n + 1>, n> a{};
  for (size_t i = 0; i < x.size(); ++i) {
    const int own = code.own(windows[i]), before = code.before(windows[i]);
    for (const int row : {own, before}) {
      a[size_t(row)][size_t(own)] += 1;
      a[size_t(row)][size_t(before)] += 1;
      a[size_t(row)][n] += x[i];
    }
  }
  for (size_t i = 0; i < n; ++i) a[i][i] += 1e-6;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      if (j == i) continue;
      const double part = a[j][i] / a[i][i];
      for (size_t k = 0; k <= n; ++k) a[j][k] -= part * a[i][k];
    }
  double mean = 0;
  for (size_t i = 0; i < n; ++i) code.tables[i] = a[i][n] / a[i][i];
  for (size_t i = 8; i < n; ++i) mean += code.tables[i] / 8;
  for (size_t i = 0; i < n; ++i) code.tables[i] += i < 8 ? mean : -mean;
}

double train(Code& code, size_t n_values, int rounds) {
  const std::vector<float> x = normal_values(n_values);
  std::vector<int> windows;
  double error = 0;
  for (int round = 0; round < rounds; ++round) {
    error = search(code, x, windows);
    fit(code, x, windows);
  }
  return error;
}

}  // namespace

int main(int argc, char** argv) {
  random_bits.seed(argc > 1 ? uint64_t(std::atoll(argv[1])) : 1);
  const int n_starts = argc > 2 ? std::atoi(argv[2]) : 1500;
  std::normal_distribution<double> normal(0, 1);
  double least = 1;
  Code best;
  for (int start = 0; start < n_starts; ++start) {
    Code code;
    code.flip_own = start % 4 == 0 ? 0 : int(random_bits() % 8);
    code.flip_before = int(random_bits() % 8);
    const double size = 0.3 + 0.7 * double(random_bits() % 1000) / 1000;
    for (size_t i = 0; i < 16; ++i) code.tables[i] = (i < 8 ? 1 : size) * normal(random_bits);
    if (train(code, 2000, 12) > 1.04 * least) continue;
    const double error = train(code, 8000, 20);
    if (error < least) least = error, best = code;
  }
  train(best, 100000, 12);
  std::vector<int> windows;
  const double error = search(best, normal_values(100000), windows);
  std::printf("flips %d %d\n", best.flip_own, best.flip_before);
  for (size_t i = 0; i < 16; ++i) std::printf("%.5f%s", best.tables[i], i % 8 == 7 ? "\n" : ", ");
  std::printf("error %.5f\n", error);
}
