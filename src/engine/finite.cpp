#include "engine/finite.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine/engine.h"
#include "op/sample/rule.h"

namespace ridge {
namespace {

bool is_finite(float x) { return std::isfinite(x); }
/// A NaN without its sign.
float shown(float x) { return std::isnan(x) ? NAN : x; }

/// The first row with a value that is not finite; -1 where there is none.
int64_t bad_row(CpuContext& context, const Linear& m, std::atomic<float>& value) {
  constexpr int64_t kRowsAtOnce = 64;
  std::atomic<int64_t> first{m.n_out};
  const int64_t row_bytes = m.format->row_bytes(m.n_in);
  context.pool.for_each((m.n_out + kRowsAtOnce - 1) / kRowsAtOnce, [&](int64_t task, int) {
    std::vector<float> row(size_t(m.n_in), 0.0f);
    for (int64_t r = task * kRowsAtOnce; r < std::min(m.n_out, (task + 1) * kRowsAtOnce); ++r) {
      m.format->decode(m.rows + r * row_bytes, m.n_in, row.data());
      const auto bad = std::ranges::find_if_not(row, is_finite);
      if (bad == row.end() && is_finite(m.scale)) continue;
      for (int64_t known = first; r < known && !first.compare_exchange_weak(known, r);) {
      }
      if (first == r) value = shown(bad == row.end() ? m.scale : *bad);
      return;
    }
  });
  return first < m.n_out ? first.load() : -1;
}

std::string_view block_name(Block block) { return block == Block::feed_forward ? "attention" : "feed-forward"; }

}  // namespace

void check_logits(std::span<const float> logits) {
  float best = -INFINITY;
  bool ok = true;
  for (const float logit : logits) {
    ok = ok && logit < INFINITY;  // false for NaN too
    best = std::max(best, logit);
  }
  if (!ok || best == -INFINITY) throw NotFiniteError();
}

int32_t checked_token(int32_t token) {
  if ((token & kNotFiniteToken) != 0) throw NotFiniteError();
  return token;
}

std::string find_not_finite(CpuContext& context, const Weights& weights) {
  std::string found;
  const auto look = [&](const Linear& m, std::string_view kind) {
    if (!found.empty() || !m.rows) return;
    std::atomic<float> value{0};
    const int64_t row = bad_row(context, m, value);
    if (row >= 0) found = fmt::format("{} has {} in row {}", matrix_name(weights, m, kind), value.load(), row);
  };
  look(weights.embedding, "embedding");
  if (weights.layer_embedding.format) look(weights.layer_embedding, "layer_embedding");
  for_each_matrix(weights, look);
  return found;
}

void watch_finite(Engine& engine) {
  engine.backend().watch(nullptr, [&engine](int layer, Block block, View2<float> x) {
    const std::span<const float> all(x.data, size_t(x.rows * x.cols));
    const auto bad = std::ranges::find_if_not(all, is_finite);
    if (bad == all.end()) return;
    // The stream in front of a block is what the block before made.
    const bool is_input = layer == 0 && block == Block::mixer;
    const int of_layer = block == Block::feed_forward ? layer : layer - 1;
    const std::string where =
        is_input ? std::string("the embedding's rows") : fmt::format("the {} of layer {}", block_name(block), of_layer);
    const std::string tensor = find_not_finite(engine.context(), engine.weights());
    throw NotFiniteError(fmt::format("{}: {} is the first to give {}{}", engine.info().path, where, shown(*bad),
                                     tensor.empty() ? ", though all weights are finite" : "; " + tensor));
  });
}

}  // namespace ridge
