// Appending: what a cache holds is what the rules say row by row, and depends on positions and values only, never on
// how the tokens were batched.
#include <gtest/gtest.h>

#include "cases/attn_data.h"
#include "op/cache/host_memory.h"

namespace ridge {
namespace {

constexpr int kAppendHeads = 2, kAppendDim = 32, kContext = 330;

KvSideConfig with(const char* name, const KvPolicy& policy) { return {&kv(name), policy}; }

/// Every format with its own policy, and the policies that stress the bookkeeping.
std::vector<KvSideConfig> all_sides() {
  std::vector<KvSideConfig> sides;
  for (const KvFormat& format : kv_formats()) sides.push_back({&format, format.policy});
  const auto weighted = KvRounding::weighted;
  for (const auto& [name, policy] : std::initializer_list<std::pair<const char*, KvPolicy>>{
           {"rotor-3", {.rotation = Rotation::hadamard, .centre = true}},
           {"rotor-3", {.rotation = Rotation::planar, .centre = true, .sinks = 4}},
           {"rotor-3", {.rotation = Rotation::hadamard, .window = 32}},
           {"rotor-3", {.rotation = Rotation::hadamard, .scale = KvScale::unbiased, .rounding = weighted}},
           {"rotor-4", {Rotation::planar, true, 32, 4, KvScale::norm, weighted, "q8_0"}},
           {"rotor-3", {.centre = true, .window = 128, .sinks = 7}},
           {"rotor-3s", {.rotation = Rotation::hadamard}},
           {"rotor-3s", {.window = 32, .sinks = 4}},
           {"rotor-4",
            {.rotation = Rotation::hadamard, .centre = true, .window = 32, .sinks = 4, .scale = KvScale::lsq}},
           {"p8", {.scale = KvScale::lsq}},
           {"q8_0", {.rotation = Rotation::hadamard, .centre = true, .window = 64, .sinks = 32}},
           {"q8_0", {.sinks = 5}}})
    sides.push_back(with(name, policy));
  return sides;
}

std::string name_of(const KvSideConfig& c) {
  return fmt::format("{} window {} sinks {} centre {} recent {}", c.format->name, c.policy.window, c.policy.sinks,
                     c.policy.centre, c.policy.recent);
}

/// A form far from the identity, for sides that round weighted: one direction that every query looks at.
std::vector<float> metric_of_model() {
  std::vector<float> form;
  for (uint64_t h = 0; h < kAppendHeads; ++h) {
    const std::vector<float> seen = random_floats(99 + h, kAppendDim);
    for (size_t i = 0; i < kAppendDim; ++i)
      for (size_t j = 0; j < kAppendDim; ++j) form.push_back(seen[i] * seen[j] + (i == j ? 0.2f : 0.0f));
  }
  return form;
}

/// Caches whose two sides have one configuration.
struct Twins : Caches {
  std::vector<float> metric;
  Twins(const KvSideConfig& side, const TokenRows& rows, uint64_t order = 1)
      : Caches({.k = side,
                .v = side,
                .n_kv_heads = kAppendHeads,
                .head_dim = kAppendDim,
                .rope = rope_of(kAppendDim, uint64_t(side.policy.window / 32 + side.policy.sinks))},
               rows, order) {
    if (side.policy.rounding != KvRounding::weighted) return;
    metric = metric_in_cache_space(k.rotation, kAppendDim, metric_of_model());
    k.tiles.metric = v.tiles.metric = metric.data();
  }
};

using Bytes = std::vector<std::byte>;
void add(Bytes& bytes, const void* from, int64_t n) {
  const auto* const first = static_cast<const std::byte*>(from);
  bytes.insert(bytes.end(), first, first + n);
}

/// All that attention may read of a sequence, and what was counted.
Bytes held(const FencedSide& side, const KvSpan& at) {
  const KvTiles& t = side.tiles;
  Bytes bytes;
  const int n = at.n_past, sinks = std::min(t.n_sinks, n), coded_end = t.retention.coded_end(n);
  for (int h = 0; h < t.n_kv_heads; ++h) {
    for (int p = 0; p < sinks; ++p) add(bytes, t.sink_row(at.slot, h, p), 2 * t.head_dim);
    for (int p = sinks; p < coded_end; ++p) add(bytes, t.coded_row(at.pages, h, p), t.row_bytes);
    for (int p = std::max(sinks, coded_end); p < n; ++p) add(bytes, t.ring_row(at.slot, h, p), t.recent_row_bytes);
    if (t.centre) add(bytes, t.centre_of(at.slot, h), 4 * t.head_dim);
    if (t.head_scale) add(bytes, &t.head_scale[at.slot * t.n_kv_heads + h], 4);
  }
  for (int page = 0; page < pages_for(t.retention, n); ++page)
    add(bytes, &t.counts[at.pages[page]], sizeof(PageCounts));
  return bytes;
}

TEST(KvAppend, HoldsTheSameBitsHoweverTokensAreBatched) {
  CpuContext one(1), three(3);
  const TokenRows rows({{kAppendHeads, kAppendHeads}, kAppendDim, kContext}, 2);
  for (const KvSideConfig& side : all_sides()) {
    Twins alone(side, rows);
    for (int n = 0; n < kContext; ++n) alone.bring(one, {{Bring{0, 1}}});
    for (int n = 0; n < 150; ++n) alone.bring(one, {{Bring{1, 1}}});
    for (const int step : {2, 7, 31, 64, 100, kContext}) {
      Twins together(side, rows, uint64_t(step));
      while (together.length(0) < kContext)
        together.bring(step % 2 ? three : one, {{Bring{1, std::min(step / 2, 150 - together.length(1))},
                                                 Bring{0, std::min(step, kContext - together.length(0))}}});
      const int second = together.length(1);
      if (second < 150) together.bring(one, {{Bring{1, 150 - second}}});
      for (const int seq : {0, 1})
        for (FencedSide Twins::*of : {&Twins::k, &Twins::v})
          ASSERT_EQ(held(together.*of, together.span(seq, 0, 0)), held(alone.*of, alone.span(seq, 0, 0)))
              << name_of(side) << ", " << step << " at a time, sequence " << seq << (of == &Twins::k ? " K" : " V");
      EXPECT_EQ(together.k.saturated, alone.k.saturated);
    }
  }
}

/// The rules of append.h written down row by row.
struct Rules {
  const FencedSide& side;
  const KvSpan at;
  int head;
  std::vector<std::vector<float>> exact;  // of every position, as its coded row is made of it
  std::vector<float> centre;
  float scale = 0;

  Rules(const FencedSide& of, const KvSpan& span, int h, const std::vector<float>& rows)
      : side(of), at(span), head(h), centre(kAppendDim, 0.0f) {
    const KvTiles& t = side.tiles;
    const bool calibrates = side.layout.calibrates();
    for (int p = 0; p < at.n_past; ++p) {
      const auto from = rows.begin() + (int64_t(p) * kAppendHeads + head) * kAppendDim;
      std::vector<float>& row = exact.emplace_back(from, from + kAppendDim);
      for (size_t d = 0; d < kAppendDim; ++d) row[d] -= centre_at(p)[d];
      side.rotation.forward(row.data());
      if (calibrates && p < kCalibration) row = rounded(rounded(row, p), p);
      if (calibrates && p == kCalibration - 1) calibrate();
      if (p < t.retention.calibration) continue;
      if (t.ring_tiles > 0 || t.n_sinks > 0) row = rounded(row, p);
    }
  }
  std::vector<float> rounded(const std::vector<float>& row, int position) const {
    const KvTiles& t = side.tiles;
    const KvFormat& format = position < t.n_sinks || t.ring_tiles == 0 ? kv("f16") : kv_formats()[size_t(t.recent)];
    std::vector<std::byte> bytes(size_t(format.row_bytes(kAppendDim)));
    std::vector<float> out(row.size());
    format.encode(row.data(), kAppendDim, {.scale = format.policy.scale}, bytes.data());
    format.decode(bytes.data(), kAppendDim, {}, out.data());
    return out;
  }
  /// The centre turned to the tile of a position.
  std::vector<float> centre_at(int position) const {
    std::vector<float> turned = centre;
    const CentreTurn& turn = side.tiles.turn;
    for (int i = 0; i < turn.n_pairs; ++i) {
      const float* const angles = turn.tile(position / kTilePositions);
      float &a = turned[size_t(turn.first_of(i))], &b = turned[size_t(turn.second_of(i))];
      const float x = a * angles[i] - b * angles[turn.n_pairs + i];
      b = a * angles[turn.n_pairs + i] + b * angles[i];
      a = x;
    }
    return turned;
  }
  /// The mean of the rows without sinks before RoPE, and the root mean square around it; rows move to the centre.
  void calibrate() {
    const KvTiles& t = side.tiles;
    std::vector<double> sum(kAppendDim, 0.0);
    double size2 = 0;
    const int n = kCalibration - t.n_sinks;
    for (int p = t.n_sinks; p < kCalibration && t.centre; ++p) {
      std::vector<float> row = exact[size_t(p)];
      side.rotation.backward(row.data());
      t.turn.backward(t.turn.position(p), row.data());
      for (size_t d = 0; d < kAppendDim; ++d) sum[d] += row[d];
    }
    for (size_t d = 0; d < kAppendDim; ++d) centre[d] = float(sum[d] / n);
    for (int p = 0; p < kCalibration; ++p) {
      std::vector<float> turned = centre_at(p);
      side.rotation.forward(turned.data());
      std::vector<float>& row = exact[size_t(p)];
      for (size_t d = 0; d < kAppendDim; ++d) row[d] -= turned[d];
      for (const float x : row) size2 += p >= t.n_sinks ? double(x) * x : 0;
      if (t.centre) row = rounded(row, p);
    }
    scale = float(std::sqrt(size2 / (double(n) * kAppendDim)));
  }
};

TEST(KvAppend, EveryRowIsWhereItBelongsAndWhatItsFormatMakesOfIt) {
  CpuContext context(2);
  const TokenRows rows({{kAppendHeads, kAppendHeads}, kAppendDim, kContext}, 1);
  for (const KvSideConfig& config : all_sides())
    for (const int n : {40, 63, 64, 129, kContext}) {
      SCOPED_TRACE(fmt::format("{} at {}", name_of(config), n));
      Twins caches(config, rows);
      caches.bring(context, {{Bring{0, n}}});
      const KvSpan at = caches.span(0, 0, 0);
      for (FencedSide* side : {&caches.k, &caches.v}) {
        const KvTiles& t = side->tiles;
        const int coded_end = t.retention.coded_end(n);
        std::vector<double> norm2(size_t(pages_for(t.retention, n)), 0.0), error2 = norm2;
        for (int h = 0; h < kAppendHeads; ++h) {
          const Rules rules(*side, at, h, side == &caches.k ? rows.k[0] : rows.v[0]);
          if (t.centre) {
            ASSERT_TRUE(std::ranges::equal(rules.centre, std::span(t.centre_of(at.slot, h), kAppendDim)));
          }
          if (t.head_scale && n >= kCalibration) {
            ASSERT_NEAR(t.head_scale[at.slot * kAppendHeads + h], rules.scale, 1e-6 * rules.scale);
          }
          for (int p = 0; p < n; ++p) {
            const std::vector<float>& row = rules.exact[size_t(p)];
            std::vector<float> read(kAppendDim), decoded(kAppendDim);
            if (p < coded_end) {
              Bytes bytes(size_t(t.row_bytes));
              config.format->encode(row.data(), kAppendDim, t.coding(at.slot, h), bytes.data());
              ASSERT_EQ(std::memcmp(bytes.data(), t.coded_row(at.pages, h, p), bytes.size()), 0) << "position " << p;
              config.format->decode(bytes.data(), kAppendDim, t.coding(at.slot, h), decoded.data());
              for (size_t d = 0; d < kAppendDim; ++d) {
                norm2[size_t(p / kPagePositions)] += double(row[d]) * row[d];
                error2[size_t(p / kPagePositions)] += std::pow(double(row[d]) - decoded[d], 2);
              }
            }
            // The ring holds the window, the tile that fills up and the spare rows; what it held before calibration
            // serves a side without a window until then.
            if (p < t.n_sinks || (t.retention.window > 0 ? p >= (n + 31) / 32 * 32 - 32 * t.ring_tiles
                                                         : t.ring_tiles > 0 && n <= kCalibration)) {
              read_exact_row(t, at.slot, h, p, read.data());
              ASSERT_EQ(read, row) << "exact position " << p;
            }
            read_cached_row(t, at, h, p, n, read.data());
            ASSERT_EQ(read, p >= t.n_sinks && p < coded_end ? decoded : row) << "position " << p;
          }
        }
        // Float sums of 32 values, 2 heads and up to 128 rows, all of one sign.
        for (size_t page = 0; page < norm2.size(); ++page) {
          const PageCounts& counts = t.counts[at.pages[page]];
          EXPECT_NEAR(counts.norm2, norm2[page], (kAppendDim + 2 + 128 + 2) * 0x1p-24 * norm2[page]) << "page " << page;
          EXPECT_NEAR(counts.error2, error2[page], (kAppendDim + 2 + 128 + 4) * 0x1p-24 * error2[page] + 1e-30);
        }
      }
    }
}

TEST(KvAppend, TouchesItsOwnPagesAndSlotOnly) {
  CpuContext context(2);
  const TokenRows rows({{kAppendHeads, kAppendHeads}, kAppendDim, kContext}, 3);
  for (const KvSideConfig& config : all_sides()) {
    Twins caches(config, rows);
    caches.bring(context, {{Bring{0, 200}, Bring{2, 33}}});
    for (FencedSide* side : {&caches.k, &caches.v}) {
      const KvSpan first = caches.span(0, 0, 0), second = caches.span(2, 0, 0);
      const auto own_pages = [&](const KvSpan& span) {
        return std::span(span.pages, size_t(pages_for(side->tiles.retention, span.n_past)));
      };
      const auto untouched = [](std::byte* from, int64_t n) {
        return std::all_of(from, from + n, [](std::byte b) { return b == std::byte(0xFF); });
      };
      for (int page = 0; page < ssize(side->counts); ++page) {
        const auto holds = [&](const KvSpan& span) { return std::ranges::count(own_pages(span), page) > 0; };
        EXPECT_EQ(untouched(side->tiles.coded_tile(page, 0, 0), side->layout.page_bytes()),
                  !holds(first) && !holds(second))
            << name_of(config) << " page " << page;
      }
      for (int slot = 0; slot < 5; ++slot) {
        if (slot == first.slot || slot == second.slot) continue;
        EXPECT_TRUE(untouched(side->ring.data() + slot * side->layout.ring_bytes(), side->layout.ring_bytes()));
        EXPECT_TRUE(untouched(side->sinks.data() + slot * side->layout.sinks_bytes(), side->layout.sinks_bytes()));
      }
    }
  }
}

TEST(KvAppend, RowsAreLeftInCacheSpaceAsTheCacheReadsThem) {
  CpuContext context(1);
  const TokenRows rows({{kAppendHeads, kAppendHeads}, kAppendDim, 64}, 1);
  const KvSideConfig side = with("rotor-3", {.rotation = Rotation::hadamard, .window = 32, .recent = "i8r"});
  Twins caches(side, rows);
  std::vector<float> k(rows.k[0].begin(), rows.k[0].begin() + 5 * kAppendHeads * kAppendDim), v = k;
  const KvSpan span = caches.span(0, 0, 5);
  kv_append(context, caches.k.tiles, caches.v.tiles, {&span, 1}, {k.data(), 5, kAppendHeads * kAppendDim},
            {v.data(), 5, kAppendHeads * kAppendDim});
  for (int p = 0; p < 5; ++p)
    for (int h = 0; h < kAppendHeads; ++h) {
      std::vector<float> read(kAppendDim);
      read_cached_row(caches.k.tiles, span, h, p, 5, read.data());
      EXPECT_TRUE(std::equal(read.begin(), read.end(), &k[size_t(p * kAppendHeads + h) * kAppendDim]));
    }
}

TEST(KvAppend, NonFiniteRowsAreCountedAndDoNotSpread) {
  CpuContext context(2);
  TokenRows rows({{kAppendHeads, kAppendHeads}, kAppendDim, 100}, 1);
  for (auto* side : {&rows.k[0], &rows.v[0]}) {
    (*side)[size_t(70 * kAppendHeads * kAppendDim + 5)] = NAN;
    (*side)[size_t(71 * kAppendHeads * kAppendDim + 6)] = INFINITY;
    (*side)[size_t(71 * kAppendHeads * kAppendDim + 7)] = 1e6f;
  }
  for (const KvSideConfig& config : all_sides()) {
    Twins caches(config, rows);
    caches.bring(context, {{Bring{0, 100}}});
    for (const FencedSide* side : {&caches.k, &caches.v}) {
      EXPECT_GT(side->saturated, 0u) << name_of(config);
      if (config.format == &kv("f16")) {
        EXPECT_EQ(side->saturated, 3u);
      }
      const KvSpan at = caches.span(0, 0, 0);
      std::vector<float> row(kAppendDim);
      for (int p = 0; p < 100; ++p)
        for (int h = 0; h < kAppendHeads; ++h) {
          read_cached_row(side->tiles, at, h, p, 100, row.data());
          for (const float x : row) ASSERT_TRUE(std::isfinite(x)) << name_of(config) << " position " << p;
        }
    }
  }
}

TEST(KvAppend, SpansAreCutAtTheMostRowsAndAroundCalibration) {
  const auto cuts = [](int n_past, int n_rows, int most, bool calibrates) {
    std::vector<int> sizes;
    int next = n_past, row = 7;
    for (const KvSpan& span :
         cut_span({.first_row = 7, .n_rows = n_rows, .n_past = n_past, .slot = 3}, most, calibrates)) {
      EXPECT_EQ(span.n_past, next);
      EXPECT_EQ(span.first_row, row);
      EXPECT_EQ(span.slot, 3);
      EXPECT_EQ(span.calibrates, calibrates && span.n_past == 63 && span.n_rows == 1);
      next += span.n_rows, row += span.n_rows;
      sizes.push_back(span.n_rows);
    }
    return sizes;
  };
  EXPECT_EQ(cuts(0, 512, 1 << 30, false), (std::vector{512}));
  EXPECT_EQ(cuts(0, 512, 1 << 30, true), (std::vector{63, 1, 448}));
  EXPECT_EQ(cuts(0, 100, 32, true), (std::vector{32, 31, 1, 32, 4}));
  EXPECT_EQ(cuts(62, 2, 32, true), (std::vector{1, 1}));
  EXPECT_EQ(cuts(63, 40, 32, true), (std::vector{1, 32, 7}));
  EXPECT_EQ(cuts(64, 33, 32, true), (std::vector{32, 1}));
  EXPECT_EQ(cuts(10, 53, 1 << 30, true), (std::vector{53}));
  const KvLayerConfig window{side_of(kv("f16"), {.window = 32}), side_of(kv("f16")), 1, 32};
  const KvLayouts layouts(window, false);
  EXPECT_EQ(most_rows_at_once(layouts.k.tiles, layouts.v.tiles), kSpareRows);
  EXPECT_GE(most_rows_at_once(layouts.v.tiles, layouts.v.tiles), 1 << 20);
}

TEST(KvLayout, BytesAreThePublishedOnes) {
  // Bytes per token and side at the shapes whose memory is quoted: BitNet-2B-4T, Qwen2.5-1.5B, Llama-3.1-70B.
  const std::pair<std::string_view, double> bits[] = {
      {"f32", 32},   {"f16", 16},        {"bf16", 16},       {"q8_0", 8.5},   {"p8", 8.5},    {"i8r", 8.125},
      {"q4_0", 4.5}, {"rotor-4", 4.125}, {"rotor-3", 3.125}, {"rotor-3s", 3}, {"rotor-3u", 3}};
  EXPECT_EQ(std::size(bits), kv_formats().size());
  for (const auto& [name, per_value] : bits)
    for (const int n_kv_heads : {5, 2, 8}) {
      const KvSideConfig config{&kv(name), kv(name).policy};
      const KvLayout layout({config, config, n_kv_heads, 128}, KvSide::k, false);
      EXPECT_EQ(double(layout.bytes_per_token()), n_kv_heads * 128 * per_value / 8) << name;
      EXPECT_EQ(layout.page_bytes(), kPagePositions * layout.bytes_per_token()) << name;
      // Only what the policy keeps exact costs more: f16 sinks, a ring of int8 rows (window, the tile that fills up, 32
      // spare rows), a centre, a scale.
      const int64_t ring = config.policy.window > 0 ? config.policy.window + 32 + 32 : 0;
      const int64_t slot = config.policy.sinks * 256 + ring * 130 + (config.policy.centre ? 512 : 0) +
                           (config.format->head_scale ? 4 : 0);
      EXPECT_EQ(layout.slot_bytes(), n_kv_heads * slot) << name;
    }
}

TEST(KvLayout, ReadBytesAreTheRowsThatAQueryReads) {
  for (const KvSideConfig& config : all_sides()) {
    const KvTiles t = KvLayout({config, config, kAppendHeads, kAppendDim}, KvSide::k, false).tiles;
    for (const int n : {1, 4, 40, 64, 130, kContext}) {
      int64_t bytes = 0;
      for (int p = 0; p < n; ++p)
        bytes += kAppendHeads * (p < t.n_sinks                  ? 2 * kAppendDim
                                 : p < t.retention.coded_end(n) ? t.row_bytes
                                                                : t.recent_row_bytes);
      EXPECT_EQ(kv_read_bytes(t, n), bytes) << name_of(config) << " at " << n;
    }
  }
}

TEST(KvLayout, PoliciesThatCannotWorkAreRefusedWithTheSetting) {
  const auto message = [](const KvSideConfig& config, int head_dim) {
    const Status status = check_kv_side(config, "K", head_dim);
    return status ? std::string() : status.error().message;
  };
  const auto expect = [&](const KvSideConfig& config, int head_dim, const char* part) {
    EXPECT_NE(message(config, head_dim).find(part), std::string::npos) << message(config, head_dim);
  };
  EXPECT_EQ(message({&kv("rotor-3"), kv("rotor-3").policy}, 128), "");
  expect({&kv("rotor-3"), kv("rotor-3").policy}, 12, "multiple of 8");
  expect({&kv("q8_0"), kv("q8_0").policy}, 80, "multiple of 32");
  expect(with("rotor-3", {.window = 33}), 128, "window 33");
  expect(with("rotor-3", {.window = -32}), 128, "window");
  expect(with("rotor-3", {.window = 1 << 21}), 128, "too large");
  expect(with("rotor-3", {.sinks = -1}), 128, "sinks -1");
  expect(with("rotor-3", {.sinks = 33}), 128, "sinks 33");
  expect(with("q8_0", {.window = 32, .rounding = KvRounding::weighted}), 128, "nearest rounding only");
  expect(with("q8_0", {.window = 32, .recent = "rotor-3"}), 128, "recent=i8r");
  expect(with("rotor-3", {.window = 32, .recent = "q8_0"}), 80, "cannot hold the window");
}

}  // namespace
}  // namespace ridge
