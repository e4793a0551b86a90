#include "op/cache/append.h"

#include <algorithm>
#include <cmath>

#include "format/kv_f16.h"
#include "op/trace.h"

namespace ridge {
namespace {

constexpr int kMaxDim = 1024;

const KvFormat& coded_format(const KvTiles& t) { return kv_formats()[size_t(t.format)]; }
const KvFormat& recent_format(const KvTiles& t) { return kv_formats()[size_t(t.recent)]; }
const KvFormat& f16_format() {
  static const KvFormat& format = *find_kv_format("f16").or_throw();
  return format;
}
bool keeps_exact(const KvTiles& t) { return t.ring_tiles > 0 || t.n_sinks > 0; }
/// Whether a row is coded when it comes: in formats without a window, once the centre is set.
bool coded_at_once(const KvTiles& t, int position) {
  return t.retention.window == 0 && position >= t.retention.calibration;
}
/// The format that the row of a position has while it is exact. Rows without a place in a ring are coded from f16.
const KvFormat& exact_format(const KvTiles& t, int position) {
  return position < t.n_sinks || t.ring_tiles == 0 ? f16_format() : recent_format(t);
}

/// Rounds a row to the values that it has while it is exact. Returns how many values were saturated.
int round_to_exact(const KvTiles& t, int position, float* row) {
  const KvFormat& format = exact_format(t, position);
  std::byte coded[4 * kMaxDim];
  const int saturated = format.encode(row, t.head_dim, {.scale = format.policy.scale}, coded);
  format.decode(coded, t.head_dim, {}, row);
  return saturated;
}

/// Results of one task of a parallel region. They are added up in order afterwards, so that sums do not depend on
/// threads.
struct Coded {
  PageCounts counts;
  int page = -1;
  int saturated = 0;
};

void add_up(const KvTiles& t, std::span<const Coded> tasks) {
  for (const Coded& task : tasks) {
    *t.saturated += unsigned(task.saturated);
    if (task.page < 0) continue;
    t.counts[task.page].norm2 += task.counts.norm2;
    t.counts[task.page].error2 += task.counts.error2;
  }
}

/// A new token of every kv head: into cache space, rounded, and to its place.
Coded take_row(const KvTiles& t, const KvSpan& span, int i, float* row) {
  Coded done;
  const int position = span.n_past + i;
  const bool is_early = position < t.retention.calibration, at_once = coded_at_once(t, position);
  for (int h = 0; h < t.n_kv_heads; ++h) {
    float* const values = row + int64_t(h) * t.head_dim;
    t.move_row(span.slot, h, position / kTilePositions, -1, values);  // by nothing until the centre is set
    t.rotation.forward(values);
    // The centre is the mean of rounded rows, so rows from before calibration are rounded first.
    if (is_early) round_to_exact(t, position, values);
    if (keeps_exact(t)) done.saturated += round_to_exact(t, position, values);
    if (position < t.n_sinks || (t.ring_tiles > 0 && !at_once)) write_exact_row(t, span.slot, h, position, values);
    if (at_once)
      done.saturated += encode_row(t, span.slot, h, values, t.coded_row(span.pages, h, position), done.counts);
  }
  if (at_once) done.page = span.pages[position / kPagePositions];
  return done;
}

/// Takes the centre and the heads' scales from positions [sinks, calibration) and moves the exact rows to the centre.
/// The sinks stay out: their keys are unlike all others.
void calibrate(const KvTiles& t, int slot) {
  const int last = t.retention.calibration, first = std::min(t.n_sinks, last - 1), n = last - first, dim = t.head_dim;
  std::vector<float> row(size_t(dim), 0.0f), centre(row);
  for (int head = 0; head < t.n_kv_heads; ++head) {
    if (t.centre) {
      std::vector<double> sum(size_t(dim), 0.0);
      for (int position = first; position < last; ++position) {
        read_exact_row(t, slot, head, position, row.data());
        t.rotation.backward(row.data());
        t.turn.backward(t.turn.position(position), row.data());
        for (size_t d = 0; d < row.size(); ++d) sum[d] += row[d];
      }
      float* const mean = t.centre + (int64_t(slot) * t.n_kv_heads + head) * dim;
      for (int d = 0; d < dim; ++d) mean[d] = float(sum[size_t(d)] / n);
    }
    double size2 = 0;
    for (int position = 0; position < last; ++position) {
      read_exact_row(t, slot, head, position, row.data());
      if (t.centre) {
        if (position % kTilePositions == 0) {
          std::ranges::fill(centre, 0.0f);
          t.move_row(slot, head, position / kTilePositions, 1, centre.data());
          t.rotation.forward(centre.data());
        }
        for (size_t d = 0; d < row.size(); ++d) row[d] -= centre[d];
        write_exact_row(t, slot, head, position, row.data());
      }
      for (size_t d = 0; position >= first && d < row.size(); ++d) size2 += double(row[d]) * row[d];
    }
    if (t.head_scale) t.head_scale[int64_t(slot) * t.n_kv_heads + head] = float(std::sqrt(size2 / (double(n) * dim)));
  }
}

/// A position of a span that leaves its window.
struct Leaving {
  const KvTiles* tiles;
  const KvSpan* span;
  int position;
};

Coded encode_leaving(const Leaving& leaving) {
  Coded done;
  const KvTiles& t = *leaving.tiles;
  const KvSpan& span = *leaving.span;
  float row[kMaxDim];
  for (int h = 0; h < t.n_kv_heads; ++h) {
    read_exact_row(t, span.slot, h, leaving.position, row);
    done.saturated += encode_row(t, span.slot, h, row, t.coded_row(span.pages, h, leaving.position), done.counts);
  }
  done.page = span.pages[leaving.position / kPagePositions];
  return done;
}

}  // namespace

int most_rows_at_once(const KvTiles& k, const KvTiles& v) {
  return k.retention.window > 0 || v.retention.window > 0 ? kSpareRows : 1 << 30;
}

std::vector<KvSpan> cut_span(const KvSpan& whole, int most_rows, bool calibrates) {
  std::vector<KvSpan> spans;
  for (int done = 0; done < whole.n_rows;) {
    KvSpan span = whole;
    span.first_row += done;
    span.n_past += done;
    span.n_rows = std::min(most_rows, whole.n_rows - done);
    if (calibrates && span.n_past < kCalibration)
      span.n_rows = std::min(span.n_rows, std::max(1, kCalibration - 1 - span.n_past));
    span.calibrates = calibrates && span.n_keys() == kCalibration;
    done += span.n_rows;
    spans.push_back(span);
  }
  return spans;
}

void read_exact_row(const KvTiles& t, int slot, int head, int position, float* out) {
  if (position < t.n_sinks) f16_format().decode(t.sink_row(slot, head, position), t.head_dim, {}, out);
  else recent_format(t).decode(t.ring_row(slot, head, position), t.head_dim, {}, out);
}

void write_exact_row(const KvTiles& t, int slot, int head, int position, const float* values) {
  const bool sink = position < t.n_sinks;
  const KvFormat& format = sink ? f16_format() : recent_format(t);
  format.encode(values, t.head_dim, {.scale = format.policy.scale},
                sink ? t.sink_row(slot, head, position) : t.ring_row(slot, head, position));
}

void read_cached_row(const KvTiles& t, const KvSpan& span, int head, int position, int n, float* out) {
  if (position < t.n_sinks || position >= t.retention.coded_end(n))
    return read_exact_row(t, span.slot, head, position, out);
  coded_format(t).decode(t.coded_row(span.pages, head, position), t.head_dim, t.coding(span.slot, head), out);
}

int encode_row(const KvTiles& t, int slot, int head, const float* row, std::byte* to, PageCounts& counts) {
  const KvCoding coding = t.coding(slot, head);
  const int saturated = coded_format(t).encode(row, t.head_dim, coding, to);
  float decoded[kMaxDim];
  coded_format(t).decode(to, t.head_dim, coding, decoded);
  float norm2 = 0, error2 = 0;
  for (int d = 0; d < t.head_dim; ++d) {
    const float error = row[d] - decoded[d];
    norm2 += row[d] * row[d];
    error2 += error * error;
  }
  counts.norm2 += norm2;
  counts.error2 += error2;
  return saturated;
}

Work kv_append_work(const KvTiles& k, const KvTiles& v, int64_t n_rows) {
  const int64_t values = k.n_kv_heads * int64_t(k.head_dim) + v.n_kv_heads * int64_t(v.head_dim);
  return {4 * n_rows * values, n_rows * (k.n_kv_heads * k.row_bytes + v.n_kv_heads * v.row_bytes), 0};
}

void kv_append(CpuContext& context, const KvTiles& k, const KvTiles& v, std::span<const KvSpan> spans,
               View2<float> k_rows, View2<float> v_rows) {
  int64_t n_rows = 0;
  for (const KvSpan& span : spans) n_rows += span.n_rows;
  const TracedOp traced(context, "append", {}, kv_append_work(k, v, n_rows),
                        [&] { return fmt::format("{}/{}", coded_format(k).name, coded_format(v).name); });

  // 1. Every new row to its place.
  struct NewRow {
    const KvSpan* span;
    int i;
  };
  std::vector<NewRow> rows;
  for (const KvSpan& span : spans) {
    for (const KvTiles* t : {&k, &v})
      RIDGE_CHECK(t->retention.window == 0 || span.n_rows <= kSpareRows, "{} rows at once", span.n_rows);
    for (int i = 0; i < span.n_rows; ++i) rows.push_back({&span, i});
  }
  std::vector<Coded> taken(size_t(2 * n_rows));
  const auto take = [&](int64_t task, int) {
    const bool of_k = task < n_rows;
    const NewRow& row = rows[size_t(task % n_rows)];
    taken[size_t(task)] =
        take_row(of_k ? k : v, *row.span, row.i, &(of_k ? k_rows : v_rows)(row.span->first_row + row.i, 0));
  };
  if (n_rows == 1) {
    take(0, 0);
    take(1, 0);
  } else {
    context.pool.for_each(2 * n_rows, take);
  }
  add_up(k, std::span(taken).first(size_t(n_rows)));
  add_up(v, std::span(taken).last(size_t(n_rows)));

  // 2. What leaves a window now, and what waited for calibration: the ring still has these rows.
  std::vector<Leaving> leaving;
  for (const KvSpan& span : spans)
    for (const KvTiles* t : {&k, &v}) {
      const bool calibrates = span.calibrates && t->retention.calibration > 0;
      if (calibrates) calibrate(*t, span.slot);
      if (t->ring_tiles == 0 || coded_at_once(*t, span.n_past)) continue;
      for (int p = t->retention.coded_end(span.n_past); p < t->retention.coded_end(span.n_keys()); ++p)
        leaving.push_back({t, &span, p});
    }
  if (leaving.empty()) return;
  std::vector<Coded> coded(leaving.size());
  context.pool.for_each(ssize(leaving), [&](int64_t i, int) { coded[size_t(i)] = encode_leaving(leaving[size_t(i)]); });
  for (size_t i = 0; i < leaving.size(); ++i) add_up(*leaving[i].tiles, {&coded[i], 1});
}

}  // namespace ridge
