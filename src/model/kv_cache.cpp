#include "model/kv_cache.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "format/kv_f16.h"
#include "op/trace.h"

namespace ridge {
namespace {

constexpr int kCodeTile = 32;      // positions coded together when there is a window
constexpr int kCalibration = 64;   // positions whose mean is the centre
constexpr int64_t kPadBytes = 64;  // kernels may read this far past the last row

const KvFormat& f16_format() {
  static const KvFormat& format = *find_kv_format("f16").or_throw();
  return format;
}

KvRetention make_retention(const KvSideConfig& config) {
  const KvPolicy& policy = config.policy;
  return {.window = policy.window,
          .tile = policy.window > 0 ? kCodeTile : 1,
          .calibration = policy.centre || config.format->head_scale ? kCalibration : 0};
}

/// Rows per head in the ring: every position that may still be exact, a window plus the tile that is filling up,
/// and all positions before calibration.
int ring_rows(const KvRetention& retention) {
  const int recent = retention.window > 0 ? retention.window + retention.tile : 0;
  return std::max(recent, retention.calibration);
}

/// What is added to a metric's diagonal of mean 1: directions nobody looks at today still get a price.
constexpr float kMetricRidge = 0.05f;

}  // namespace

KvSideConfig default_kv_side(const KvFormat& format, bool is_k, bool k_has_bias) {
  KvSideConfig config{.format = &format, .policy = format.policy};
  config.policy.centre = config.policy.centre && is_k && k_has_bias;
  return config;
}

KvLayout::KvLayout(const KvSideConfig& config, int head_dim)
    : retention(make_retention(config)),
      ring_rows(ridge::ring_rows(retention)),
      row_bytes(config.format->row_bytes(head_dim)),
      recent_bytes(config.recent().row_bytes(head_dim)) {}

KvBytes kv_bytes(const KvSideConfig& config, int n_kv_heads, int head_dim) {
  const KvLayout layout(config, head_dim);
  const int64_t ring = layout.ring_rows, sinks = config.policy.sinks, values = int64_t(n_kv_heads) * head_dim;
  return {.per_token = n_kv_heads * layout.row_bytes,
          .fixed = sinks * 2 * values + ring * n_kv_heads * layout.recent_bytes +
                   (config.policy.centre ? 4 * values : 0) + (config.format->head_scale ? 4 * int64_t(n_kv_heads) : 0),
          .padding = kPadBytes * (1 + (sinks > 0) + (ring > 0))};
}

int64_t kv_held_bytes(const KvSideConfig& config, int n_kv_heads, int head_dim, int n) {
  const KvLayout layout(config, head_dim);
  const int64_t sinks = std::min(config.policy.sinks, n),
                coded_end = std::max<int64_t>(sinks, layout.retention.coded_end(n));
  const int64_t row_bytes =
      sinks * 2 * head_dim + (coded_end - sinks) * layout.row_bytes + (n - coded_end) * layout.recent_bytes;
  return n_kv_heads * (row_bytes + (config.policy.centre ? 4 * head_dim : 0) + (config.format->head_scale ? 4 : 0));
}

std::vector<float> metric_in_cache_space(const RowRotation& rotation, int head_dim, std::span<const float> metric) {
  const size_t dim = size_t(head_dim), size = dim * dim;
  std::vector<float> turned(metric.begin(), metric.end());
  for (size_t head = 0; head < metric.size() / size; ++head) {
    float* form = turned.data() + head * size;
    for (int side = 0; side < 2; ++side) {
      for (size_t i = 0; i < dim; ++i) rotation.forward(form + i * dim);
      for (size_t i = 0; i < dim; ++i)
        for (size_t j = 0; j < i; ++j) std::swap(form[i * dim + j], form[j * dim + i]);
    }
    for (size_t i = 0; i < dim; ++i) form[i * dim + i] += kMetricRidge;
  }
  return turned;
}

KvStore::KvStore(const KvSideConfig& config, int layer, int n_kv_heads, int head_dim, int n_ctx,
                 std::span<const float> metric, RoundRow round)
    : config_(config),
      rotation_(config.policy.rotation, layer, head_dim),
      n_kv_heads_(n_kv_heads),
      head_dim_(head_dim),
      n_ctx_(n_ctx),
      layout_(config, head_dim),
      recent_(&config.recent()),
      round_(round),
      coded_(int64_t(n_kv_heads) * n_ctx * layout_.row_bytes + kPadBytes) {
  if (config.policy.sinks > 0)
    sinks_ = AlignedBuffer(int64_t(n_kv_heads) * config.policy.sinks * 2 * head_dim + kPadBytes);
  if (layout_.ring_rows > 0)
    ring_ = AlignedBuffer(int64_t(n_kv_heads) * layout_.ring_rows * layout_.recent_bytes + kPadBytes);
  if (config.policy.rounding == KvRounding::weighted) {
    RIDGE_CHECK(int64_t(metric.size()) == int64_t(n_kv_heads) * head_dim * head_dim,
                "weighted rounding needs a metric of {} x {} x {}, got {} values", n_kv_heads, head_dim, head_dim,
                metric.size());
    metric_ = metric_in_cache_space(rotation_, head_dim, metric);
  }
  if (config.policy.centre) centre_.assign(size_t(n_kv_heads) * size_t(head_dim), 0.0f);
  if (config.format->head_scale) head_scale_.assign(size_t(n_kv_heads), 0.0f);
}

int64_t KvStore::allocated_bytes() const {
  return coded_.bytes() + sinks_.bytes() + ring_.bytes() + 4 * int64_t(centre_.size() + head_scale_.size());
}

std::byte* KvStore::exact_row(int head, int position) {
  const int sinks = config_.policy.sinks;
  if (is_sink(position)) return sinks_.data() + (int64_t(head) * sinks + position) * 2 * head_dim_;
  return ring_.data() + (int64_t(head) * layout_.ring_rows + position % layout_.ring_rows) * layout_.recent_bytes;
}

void KvStore::read_exact(int head, int position, float* out) const {
  const std::byte* row = const_cast<KvStore*>(this)->exact_row(head, position);
  (is_sink(position) ? f16_format() : *recent_).decode(row, head_dim_, {}, out);
}

void KvStore::write_exact(int head, int position, const float* values) {
  const KvFormat& format = is_sink(position) ? f16_format() : *recent_;
  format.encode(values, head_dim_, {.scale = format.policy.scale}, exact_row(head, position));
}

/// What the rows of all kv heads at a position will read as from sinks or ring; returns how many values were saturated.
int64_t KvStore::round_to_exact(int position, std::span<float> rows) const {
  // Positions that have no place in a ring are coded at once, from f16.
  const KvFormat& format = is_sink(position) || layout_.ring_rows == 0 ? f16_format() : *recent_;
  std::byte coded[4 * kMaxRoundingDim];
  int64_t saturated = 0;
  for (int h = 0; h < n_kv_heads_; ++h) {
    float* row = rows.data() + int64_t(h) * head_dim_;
    saturated += format.encode(row, head_dim_, {.scale = format.policy.scale}, coded);
    format.decode(coded, head_dim_, {}, row);
  }
  return saturated;
}

void KvStore::shift(float* row, int head, float sign) const {
  const float* centre = centre_.data() + int64_t(head) * head_dim_;
  for (int d = 0; d < head_dim_; ++d) row[d] += sign * centre[d];
}

/// Takes the centre and the heads' scales from positions [sinks, calibration) and moves the exact rows already held to
/// the centre. The sinks stay out: their keys are unlike all others.
void KvStore::calibrate(int n_past, View2<float> rows) {
  const int first = std::min(config_.policy.sinks, layout_.retention.calibration - 1),
            n = layout_.retention.calibration - first;
  std::vector<float> row(size_t(head_dim_), 0.0f);
  for (int head = 0; head < n_kv_heads_; ++head) {
    std::vector<double> sum(size_t(head_dim_), 0.0);
    double size2 = 0;
    for (int position = first; position < layout_.retention.calibration; ++position) {
      const float* values = position >= n_past ? &rows(position - n_past, int64_t(head) * head_dim_) : row.data();
      if (position < n_past) read_exact(head, position, row.data());
      for (int d = 0; d < head_dim_; ++d) {
        sum[size_t(d)] += values[d];
        size2 += double(values[d]) * values[d];
      }
    }
    if (config_.policy.centre) {
      for (int d = 0; d < head_dim_; ++d) {
        const double mean = sum[size_t(d)] / n;
        centre_[size_t(head) * size_t(head_dim_) + size_t(d)] = float(mean);
        size2 -= n * mean * mean;
      }
      for (int position = 0; position < std::min(n_past, layout_.retention.calibration); ++position) {
        read_exact(head, position, row.data());
        shift(row.data(), head, -1);
        write_exact(head, position, row.data());
      }
    }
    if (config_.format->head_scale)
      head_scale_[size_t(head)] = float(std::sqrt(std::max(0.0, size2) / (double(n) * head_dim_)));
  }
  calibrated_ = true;
}

void KvStore::append(CpuContext& context, int n_past, View2<float> rows, KvScratch& scratch) {
  const int n_new = int(rows.rows), n = n_past + n_new;
  RIDGE_CHECK(n <= n_ctx_, "append {} at {} of {}", n_new, n_past, n_ctx_);
  const TracedOp traced(context, "append", {},
                        {4 * rows.rows * rows.cols, n_new * int64_t(n_kv_heads_) * layout_.row_bytes, 0},
                        [&] { return std::string(config_.format->name); });
  std::atomic<int64_t> saturated{0};
  const auto for_tokens = [&](int count, const auto& body) {
    if (count == 1) body(0, 0);
    else context.pool.for_each(count, body);
  };

  // 1. Into cache space.
  if (rotation_.kind() != Rotation::none)
    for_tokens(n_new, [&](int64_t t, int) {
      for (int h = 0; h < n_kv_heads_; ++h) rotation_.forward(&rows(t, int64_t(h) * head_dim_));
    });
  // Rows from before calibration reach the centre as exact rows read, whether from the ring or from this batch.
  for (int position = n_past; position < std::min(n, layout_.retention.calibration); ++position)
    round_to_exact(position, rows.row(position - n_past));
  if (!calibrated_ && layout_.retention.calibration > 0 && n >= layout_.retention.calibration) calibrate(n_past, rows);
  if (is_centred())
    for_tokens(n_new, [&](int64_t t, int) {
      for (int h = 0; h < n_kv_heads_; ++h) shift(&rows(t, int64_t(h) * head_dim_), h, -1);
    });

  // A format without exact rows codes every row as it comes.
  if (!keeps_exact()) {
    for_tokens(n_new, [&](int64_t t, int) {
      for (int h = 0; h < n_kv_heads_; ++h)
        saturated += config_.format->encode(&rows(t, int64_t(h) * head_dim_), head_dim_, coding(h),
                                            coded_row(h, n_past + int(t)));
    });
    saturated_ += saturated;
    scratch.first = n_past;
    return;
  }

  // 2. Round first, so that an exact row is the same whether it is read from the batch, the sinks or the ring.
  for_tokens(n_new, [&](int64_t t, int) { saturated += round_to_exact(n_past + int(t), rows.row(t)); });

  // 3. The exact rows this append's queries may need, as floats, for prefill attention.
  const int old_end = layout_.retention.coded_end(n_past), new_end = layout_.retention.coded_end(n);
  const auto read_row = [&](int head, int position, float* out) {
    if (position >= n_past)
      std::memcpy(out, &rows(position - n_past, int64_t(head) * head_dim_), sizeof(float) * size_t(head_dim_));
    else read_exact(head, position, out);
  };
  if (n_new > 1) {
    const int first = scratch.first = layout_.ring_rows > 0 ? old_end : n_past;
    const int64_t n_exact = n - first;
    float* exact = scratch.exact.ensure<float>(n_kv_heads_ * n_exact * head_dim_);
    for_tokens(int(n_exact), [&](int64_t i, int) {
      const int position = first + int(i);
      for (int h = 0; h < n_kv_heads_; ++h) read_row(h, position, exact + (h * n_exact + i) * head_dim_);
    });
    const int n_sinks = std::min(config_.policy.sinks, n);
    float* sinks = scratch.sinks.ensure<float>(int64_t(n_kv_heads_) * config_.policy.sinks * head_dim_ + 1);
    for (int h = 0; h < n_kv_heads_; ++h)
      for (int position = 0; position < n_sinks; ++position)
        read_row(h, position, sinks + (int64_t(h) * config_.policy.sinks + position) * head_dim_);
  }

  // 4. Code what leaves the window, before the ring slots are reused.
  if (new_end > old_end)
    for_tokens(new_end - old_end, [&](int64_t i, int) {
      float row[1024];
      const int position = old_end + int(i);
      for (int h = 0; h < n_kv_heads_; ++h) {
        read_row(h, position, row);
        saturated += config_.format->encode(row, head_dim_, coding(h), coded_row(h, position));
      }
    });

  // 5. The newest rows into sinks and ring.
  for (int position = n_past; position < n; ++position) {
    const bool sink = position < config_.policy.sinks;
    if (!sink && (layout_.ring_rows == 0 || position < n - layout_.ring_rows)) continue;
    for (int h = 0; h < n_kv_heads_; ++h) write_exact(h, position, &rows(position - n_past, int64_t(h) * head_dim_));
  }
  if (layout_.ring_rows > 0) ring_first_ = std::max(ring_first_, n - layout_.ring_rows);
  saturated_ += saturated;
}

KvSide KvStore::decode_side(int n) const {
  KvSide side;
  const auto push = [&](const KvFormat& format, const std::byte* base, int64_t row_bytes, int64_t rows_per_head,
                        int slot, int first, int last, const float* head_scale = nullptr) {
    if (first >= last) return;
    side.segments[size_t(side.n_segments++)] = {.format = &format,
                                                .rows = base + slot * row_bytes,
                                                .row_bytes = row_bytes,
                                                .head_stride = rows_per_head * row_bytes,
                                                .first = first,
                                                .count = last - first,
                                                .head_scale = head_scale};
  };
  const int64_t exact_bytes = 2 * int64_t(head_dim_);
  const int sinks = std::min(config_.policy.sinks, n), coded_end = std::max(sinks, layout_.retention.coded_end(n));
  push(f16_format(), sinks_.data(), exact_bytes, config_.policy.sinks, 0, 0, sinks);
  push(*config_.format, coded_.data(), layout_.row_bytes, n_ctx_, sinks, sinks, coded_end, head_scales());
  if (coded_end < n) {
    const int slot = coded_end % layout_.ring_rows, wrap = std::min(n, coded_end + layout_.ring_rows - slot);
    const int64_t recent_bytes = layout_.recent_bytes;
    push(*recent_, ring_.data(), recent_bytes, layout_.ring_rows, slot, coded_end, wrap);
    push(*recent_, ring_.data(), recent_bytes, layout_.ring_rows, 0, wrap, n);
  }
  return side;
}

PrefillSide KvStore::prefill_side(int n, const KvScratch& scratch) const {
  RIDGE_CHECK(scratch.first <= n, "prefill view of {} positions, the last append began at {}", n, scratch.first);
  return {.format = config_.format,
          .rows = coded_.data(),
          .row_bytes = layout_.row_bytes,
          .head_stride = n_ctx_ * layout_.row_bytes,
          .retention = layout_.retention,
          .sinks = std::min(config_.policy.sinks, n),
          .sink_stride = config_.policy.sinks,
          .sink_rows = reinterpret_cast<const float*>(scratch.sinks.data()),
          .exact = reinterpret_cast<const float*>(scratch.exact.data()),
          .exact_first = scratch.first,
          .head_scale = head_scales()};
}

void KvStore::rotate_queries(CpuContext& context, View2<float> q) const {
  if (rotation_.kind() == Rotation::none) return;
  const TracedOp traced(context, "rotation", {}, {4 * q.rows * q.cols, 4 * q.rows * q.cols, 0});
  context.pool.for_each(q.rows, [&](int64_t t, int) {
    for (int64_t d = 0; d < q.cols; d += head_dim_) rotation_.forward(&q(t, d));
  });
}

void KvStore::restore_output(CpuContext& context, int n_heads, View2<float> out) const {
  if (rotation_.kind() == Rotation::none && !is_centred()) return;
  const TracedOp traced(context, "rotation", {}, {4 * out.rows * out.cols, 4 * out.rows * out.cols, 0});
  const int group = n_heads / n_kv_heads_;
  context.pool.for_each(out.rows, [&](int64_t t, int) {
    for (int h = 0; h < n_heads; ++h) {
      float* row = &out(t, int64_t(h) * head_dim_);
      if (is_centred()) shift(row, h / group, 1);
      rotation_.backward(row);
    }
  });
}

void KvStore::reset() {
  calibrated_ = false;
  ring_first_ = 0;
  std::fill(centre_.begin(), centre_.end(), 0.0f);
  std::fill(head_scale_.begin(), head_scale_.end(), 0.0f);
}

void KvStore::truncate(int n_past, int n) {
  if (n == 0) return reset();
  if (layout_.ring_rows == 0 || n == n_past) return;
  // At most a window and a tile, or the positions before calibration: they fit the ring.
  const int wanted = layout_.retention.coded_end(n);
  std::vector<float> row(size_t(head_dim_), 0.0f);
  for (int position = std::max(wanted, config_.policy.sinks); position < std::min(n, ring_first_); ++position)
    for (int head = 0; head < n_kv_heads_; ++head) {
      config_.format->decode(coded_row(head, position), head_dim_, coding(head), row.data());
      write_exact(head, position, row.data());
    }
  ring_first_ = std::min(ring_first_, wanted);
}

void KvStore::discard(int n_past, int keep, int discard, const std::function<void(float* row)>& turn) {
  const int n = n_past - discard, sinks = config_.policy.sinks;
  if (discard == 0) return;
  if (n == 0) return reset();
  const int old_ring_first = ring_first_, coded_end = layout_.retention.coded_end(n);
  // Rows move to lower positions in order, so coded rows can be read where they are; ring slots cannot.
  const std::vector<std::byte> old_sinks(sinks_.data(), sinks_.data() + sinks_.bytes());
  const std::vector<std::byte> old_ring(ring_.data(), ring_.data() + ring_.bytes());
  const auto is_exact = [&](int position) {
    return position < sinks || (layout_.ring_rows > 0 && position >= old_ring_first);
  };
  std::vector<float> row(size_t(head_dim_), 0.0f);
  const auto read_old = [&](int head, int position) {
    const int64_t exact_bytes = 2 * int64_t(head_dim_), recent_bytes = layout_.recent_bytes;
    if (position < sinks)
      KvF16::decode(&old_sinks[size_t((int64_t(head) * sinks + position) * exact_bytes)], head_dim_, {}, row.data());
    else if (is_exact(position))
      recent_->decode(
          &old_ring[size_t((int64_t(head) * layout_.ring_rows + position % layout_.ring_rows) * recent_bytes)],
          head_dim_, {}, row.data());
    else config_.format->decode(coded_row(head, position), head_dim_, coding(head), row.data());
  };
  for (int head = 0; head < n_kv_heads_; ++head)
    for (int to = 0; to < n; ++to) {
      const int from = to < keep ? to : to + discard;
      const bool turned = turn && from != to, becomes_coded = to >= sinks && to < coded_end;
      if (becomes_coded && !turned && !is_exact(from)) {
        std::memmove(coded_row(head, to), coded_row(head, from), size_t(layout_.row_bytes));
        continue;
      }
      read_old(head, from);
      if (turned) {
        if (is_centred()) shift(row.data(), head, 1);
        rotation_.backward(row.data());
        turn(row.data());
        rotation_.forward(row.data());
        if (is_centred()) shift(row.data(), head, -1);
      }
      if (becomes_coded) saturated_ += config_.format->encode(row.data(), head_dim_, coding(head), coded_row(head, to));
      else write_exact(head, to, row.data());
    }
  if (layout_.ring_rows > 0) ring_first_ = coded_end;
}

template <class Visit>
void KvStore::for_each_piece(int n, int ring_first, const Visit& visit) {
  const auto exact_bytes = 2 * int64_t(head_dim_);
  const int sinks = std::min(config_.policy.sinks, n), coded_end = layout_.retention.coded_end(n);
  visit(centre_.data(), 4 * int64_t(centre_.size()));
  visit(head_scale_.data(), 4 * int64_t(head_scale_.size()));
  for (int head = 0; head < n_kv_heads_; ++head) {
    if (sinks > 0) visit(exact_row(head, 0), sinks * exact_bytes);
    if (layout_.ring_rows > 0)
      for (int position = std::max(ring_first, sinks); position < n; ++position)
        visit(exact_row(head, position), layout_.recent_bytes);
    if (coded_end > sinks) visit(coded_row(head, sinks), (coded_end - sinks) * layout_.row_bytes);
  }
}

int64_t KvStore::state_bytes(int n, int ring_first) const {
  int64_t bytes = 0;
  const_cast<KvStore*>(this)->for_each_piece(n, ring_first, [&](void*, int64_t size) { bytes += size; });
  return bytes;
}

KvSideState KvStore::export_state(int n, std::byte* out) const {
  const_cast<KvStore*>(this)->for_each_piece(n, ring_first_, [&](const void* piece, int64_t size) {
    if (size > 0) std::memcpy(out, piece, size_t(size));
    out += size;
  });
  return {.calibrated = calibrated_, .ring_first = ring_first_, .saturated = saturated_};
}

Status KvStore::check_state(int n, const KvSideState& state) const {
  const bool calibrates = layout_.retention.calibration > 0, must = calibrates && n >= layout_.retention.calibration;
  if (state.calibrated ? !calibrates || n == 0 : must)
    return bad_file("calibrated is {} at {} positions", state.calibrated, n);
  // What attention reads as exact must be there, and no more than the ring has room for.
  const int least = layout_.ring_rows > 0 ? std::max(0, n - layout_.ring_rows) : 0,
            most = layout_.ring_rows > 0 ? layout_.retention.coded_end(n) : 0;
  if (state.ring_first < least || state.ring_first > std::max(least, most))
    return bad_file("ring_first is {}, expected {} to {}", state.ring_first, least, std::max(least, most));
  if (state.saturated < 0) return bad_file("saturated is {}", state.saturated);
  return {};
}

Status KvStore::check_floats(const std::byte* in) const {
  for (size_t i = 0; i < centre_.size() + head_scale_.size(); ++i, in += 4) {
    float value;
    std::memcpy(&value, in, 4);
    const bool is_scale = i >= centre_.size();
    if (!std::isfinite(value) || (is_scale && value < 0))
      return bad_file("{} {} is {}", is_scale ? "head scale" : "centre", is_scale ? i - centre_.size() : i, value);
  }
  return {};
}

void KvStore::import_state(int n, const KvSideState& state, const std::byte* in) {
  reset();
  for_each_piece(n, state.ring_first, [&](void* piece, int64_t size) {
    if (size > 0) std::memcpy(piece, in, size_t(size));
    in += size;
  });
  calibrated_ = state.calibrated;
  ring_first_ = state.ring_first;
  saturated_ = state.saturated;
}

void KvStore::fill_random(CpuContext& context, int n, uint64_t seed, KvScratch& scratch) {
  // Real rows of unit-variance noise through the ordinary append: valid codes, scales and calibration.
  constexpr int kBatch = 256;
  std::vector<float> rows(size_t(kBatch) * size_t(n_kv_heads_) * size_t(head_dim_));
  Rng rng(seed);
  for (float& x : rows) x = float(rng.uniform() * 3.46 - 1.73);
  std::vector<float> batch(rows.size());
  for (int past = 0; past < n; past += kBatch) {
    batch = rows;
    append(context, past, View2<float>(batch.data(), std::min(kBatch, n - past), int64_t(n_kv_heads_) * head_dim_),
           scratch);
  }
}

KvCache::KvCache(std::span<const KvSideConfig> k, std::span<const KvSideConfig> v, int n_kv_heads, int head_dim,
                 int n_ctx, const KvRoundingTools& tools)
    : n_ctx_(n_ctx) {
  RIDGE_CHECK(k.size() == v.size() && n_ctx > 0, "{} K layers, {} V layers, context {}", k.size(), v.size(), n_ctx);
  for (size_t layer = 0; layer < k.size(); ++layer) {
    const int i = int(layer);
    k_.emplace_back(k[layer], i, n_kv_heads, head_dim, n_ctx, tools.metric_of(true, i), tools.round);
    v_.emplace_back(v[layer], i, n_kv_heads, head_dim, n_ctx, tools.metric_of(false, i), tools.round);
  }
}

void KvCache::reset() {
  n_past = 0;
  for (auto* side : {&k_, &v_})
    for (KvStore& store : *side) store.reset();
}

void KvCache::truncate(int n) {
  RIDGE_CHECK(n >= 0 && n <= n_past, "truncate to {} of {}", n, n_past);
  for (auto* side : {&k_, &v_})
    for (KvStore& store : *side) store.truncate(n_past, n);
  n_past = n;
}

void KvCache::discard(int keep, int discard, const std::function<void(float* row)>& turn) {
  RIDGE_CHECK(keep >= 0 && discard >= 0 && discard <= n_past - keep, "discard {} after {} of {}", discard, keep,
              n_past);
  for (KvStore& store : k_) store.discard(n_past, keep, discard, turn);
  for (KvStore& store : v_) store.discard(n_past, keep, discard, nullptr);
  n_past -= discard;
}

Status KvCache::copy_from(const KvCache& other) {
  if (other.n_layers() != n_layers())
    return fail(ErrorKind::usage, "the caches have {} and {} layers", n_layers(), other.n_layers());
  if (other.n_past > n_ctx_)
    return fail(ErrorKind::usage, "{} positions do not fit in a context of {} (raise --ctx-size)", other.n_past,
                n_ctx_);
  for (int layer = 0; layer < n_layers(); ++layer)
    for (const bool is_k : {true, false}) {
      const KvStore &mine = is_k ? k(layer) : v(layer), &its = is_k ? other.k(layer) : other.v(layer);
      if (mine.n_kv_heads() != its.n_kv_heads() || mine.head_dim() != its.head_dim())
        return fail(ErrorKind::usage, "the caches have {} and {} KV heads of {} and {}", mine.n_kv_heads(),
                    its.n_kv_heads(), mine.head_dim(), its.head_dim());
      const std::string difference = kv_side_difference(its.config(), mine.config());
      if (!difference.empty())
        return fail(ErrorKind::usage, "{} of layer {}: {} (open both sessions with the same cache options)",
                    is_k ? "K" : "V", layer, difference);
    }
  std::vector<std::byte> bytes;
  for (int layer = 0; layer < n_layers(); ++layer)
    for (const bool is_k : {true, false}) {
      KvStore& mine = is_k ? k(layer) : v(layer);
      const KvStore& its = is_k ? other.k(layer) : other.v(layer);
      bytes.resize(size_t(its.state_bytes(other.n_past, its.ring_first())));
      mine.import_state(other.n_past, its.export_state(other.n_past, bytes.data()), bytes.data());
    }
  n_past = other.n_past;
  return {};
}

std::string kv_side_difference(const KvSideConfig& a, const KvSideConfig& b) {
  const KvPolicy &p = a.policy, &q = b.policy;
  if (a.format != b.format) return fmt::format("format {}, not {}", a.format->name, b.format->name);
  if (p.rotation != q.rotation)
    return fmt::format("rotation {}, not {}", rotation_name(p.rotation), rotation_name(q.rotation));
  if (p.scale != q.scale) return fmt::format("scale rule {}, not {}", scale_name(p.scale), scale_name(q.scale));
  if (p.centre != q.centre) return fmt::format("centring {}, not {}", p.centre ? "on" : "off", q.centre ? "on" : "off");
  if (p.window != q.window) return fmt::format("window {}, not {}", p.window, q.window);
  if (p.sinks != q.sinks) return fmt::format("sinks {}, not {}", p.sinks, q.sinks);
  if (p.rounding != q.rounding)
    return fmt::format("rounding {}, not {}", rounding_name(p.rounding), rounding_name(q.rounding));
  if (p.recent != q.recent) return fmt::format("window format {}, not {}", p.recent, q.recent);
  return {};
}

Status check_kv_side(const KvSideConfig& config, std::string_view side, int head_dim) {
  const KvFormat& format = *config.format;
  if (head_dim % format.group != 0)
    return fail(ErrorKind::usage,
                "{} cache format {} needs head_dim to be a multiple of {}, this model has {} (use f16)", side,
                format.name, format.group, head_dim);
  if (config.policy.window < 0 || config.policy.window % kCodeTile != 0)
    return fail(ErrorKind::usage, "--kv-window {} is not a multiple of {} (try {})", config.policy.window, kCodeTile,
                (std::max(0, config.policy.window) + kCodeTile - 1) / kCodeTile * kCodeTile);
  if (config.policy.window > (1 << 20))
    return fail(ErrorKind::usage, "--kv-window {} is too large", config.policy.window);
  if (config.policy.sinks < 0 || config.policy.sinks > kCalibration / 2)
    return fail(ErrorKind::usage, "--kv-sinks {} is out of range (0 to {})", config.policy.sinks, kCalibration / 2);
  if (config.policy.rounding == KvRounding::weighted && !format.can_weigh)
    return fail(ErrorKind::usage, "{} cache format {} knows nearest rounding only", side, format.name);
  const KvFormat& recent = config.recent();
  if (recent.head_scale || recent.policy.rotation != Rotation::none || head_dim % recent.group != 0)
    return fail(ErrorKind::usage, "{} cache: {} cannot hold the window (try recent=f16 or recent=i8r)", side,
                recent.name);
  return {};
}

}  // namespace ridge
