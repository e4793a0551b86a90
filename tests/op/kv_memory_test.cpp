// Sequences as bytes: images hold what the header says and come back bit for bit, in every order of tiles; hostile ones
// are refused.
#include "op/cache/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/host_cache.h"
#include "op/cache/tile_formats.h"

namespace ridge {
namespace {

using testing::HasSubstr;
constexpr int kMemoryHeads = 2, kMemoryDim = 64, kLength = 150;

TEST(SequenceImage, HoldsEveryRowInTheOrderOfItsHeader) {
  const std::vector<KvLayerConfig> layers = all_layers(kMemoryHeads, kMemoryDim);
  Host host(layers, {2, 0});
  host.append(kLength, 1);
  const SequenceImage image = host.image();
  ASSERT_EQ(image.sides.size(), 2 * layers.size());
  for (size_t i = 0; i < image.sides.size(); ++i) {
    const KvTiles& t = host.memory.tiles(int(i / 2), kKvSides[i % 2]);
    std::vector<std::byte> expected;
    const auto add = [&](const void* from, int64_t n) {
      const auto* const first = static_cast<const std::byte*>(from);
      expected.insert(expected.end(), first, first + n);
    };
    if (t.centre) add(t.centre_of(1, 0), 4 * kMemoryHeads * kMemoryDim);
    if (t.head_scale) add(t.head_scale + kMemoryHeads, 4 * kMemoryHeads);
    for (int h = 0; h < kMemoryHeads; ++h) {
      for (int p = 0; p < t.n_sinks; ++p) add(t.sink_row(1, h, p), 2 * kMemoryDim);
      if (t.ring_tiles > 0)
        for (int p = std::max(t.n_sinks, host.ring_first[i]); p < kLength; ++p)
          add(t.ring_row(1, h, p), t.recent_row_bytes);
      for (int p = t.n_sinks; p < t.retention.coded_end(kLength); ++p)
        add(t.coded_row(host.pages.data(), h, p), t.row_bytes);
    }
    EXPECT_EQ(image.sides[i].bytes, expected) << "side " << i;
    EXPECT_EQ(side_image_bytes(host.memory.layout(int(i / 2), kKvSides[i % 2]), kLength, host.ring_first[i]),
              ssize(expected));
  }
}

TEST(SequenceImage, ComesBackBitForBitElsewhereAndGoesOnAsIfNothingHadHappened) {
  const std::vector<KvLayerConfig> layers = all_layers(kMemoryHeads, kMemoryDim);
  for (const int n : {1, 3, 40, 63, 64, 100, kLength}) {
    Host original(layers, {2, 0}), other(layers, {1, 3});
    original.append(n, 1);
    other.append(77, 9);  // used before
    const SequenceImage image = original.image();
    other.n = n, other.ring_first = original.ring_first;
    other.memory.clear_slot(1);
    other.memory.write(image, other.place());
    EXPECT_TRUE(same_bytes(other.image(), image)) << n;
    for (Host* host : {&original, &other}) host->append(30, 2);
    EXPECT_TRUE(same_bytes(other.image(), original.image())) << n << ", later";
  }
}

TEST(SequenceImage, IsTheSameWhateverTheOrderOfTiles) {
  for (const char* recent : {"f16", "i8r"})
    for (const KvFormat& format : kv_formats()) {
      KvPolicy policy{.rotation = Rotation::hadamard, .centre = true, .window = 32, .sinks = 4};
      policy.recent = recent;
      const KvLayerConfig layer{side_of(format, policy), side_of(format, policy), kMemoryHeads, kMemoryDim};
      const int number = int(&format - kv_formats().data());
      ASSERT_EQ(device_tiles(layer).ok, tile_kind_of(number).has_value()) << format.name;
      if (!device_tiles(layer).ok) continue;
      Host host({&layer, 1}, {0, 1});
      host.append(kLength, 3);
      const SequenceImage image = host.image();
      for (const KvSide side : kKvSides) {
        const KvLayout layout(layer, side, true);
        Guarded<uint8_t> pages(2 * layout.page_bytes()), ring(layout.ring_bytes()), sinks(layout.sinks_bytes());
        Guarded<float> centre(layout.centre_bytes() / 4), head_scale(layout.head_scale_bytes() / 4);
        const auto bytes = [](Guarded<uint8_t>& b) { return reinterpret_cast<std::byte*>(b.data()); };
        const SideBytes held{{bytes(pages) + layout.page_bytes(), bytes(pages)},
                             bytes(sinks),
                             bytes(ring),
                             centre.data(),
                             head_scale.data()};
        const SideImage& expected = image.sides[size_t(side)];
        write_side(layout, expected.bytes.data(), kLength, expected.ring_first, held);
        Guarded<uint8_t> back(ssize(expected.bytes));
        read_side(layout, held, kLength, expected.ring_first, bytes(back));
        EXPECT_TRUE(pages.intact() && ring.intact() && sinks.intact() && centre.intact() && head_scale.intact() &&
                    back.intact());
        EXPECT_TRUE(std::equal(expected.bytes.begin(), expected.bytes.end(), bytes(back))) << format.name;
      }
    }
}

TEST(SequenceImage, StatesThatCannotBeAreRefused) {
  const KvLayerConfig layer{side_of(kv("rotor-3s"), kFullPolicy), side_of(kv("f16")), kMemoryHeads, kMemoryDim};
  const KvLayouts layouts(layer, false);
  const auto message = [](const Status& status) { return status ? std::string() : status.error().message; };
  // A ring of 96 rows: at 200 positions coded up to 160, at least 104 and at most 160 is its first.
  for (const auto& [ring_first, ok] : {std::pair(103, false), {104, true}, {160, true}, {161, false}, {-1, false}})
    EXPECT_EQ(bool(check_side_state(layouts.k, 200, ring_first, true)), ok) << ring_first;
  EXPECT_THAT(message(check_side_state(layouts.k, 200, 0, true)), HasSubstr("ring_first is 0, expected 104 to 160"));
  EXPECT_THAT(message(check_side_state(layouts.k, 200, 160, false)), HasSubstr("calibrated is false at 200"));
  EXPECT_THAT(message(check_side_state(layouts.k, 0, 0, true)), HasSubstr("calibrated is true at 0"));
  EXPECT_EQ(message(check_side_state(layouts.k, 63, 0, false)), "");
  EXPECT_EQ(message(check_side_state(layouts.k, 40, 0, true)), "") << "went back below calibration";
  EXPECT_NE(message(check_side_state(layouts.v, 10, 0, true)), "") << "f16 is never calibrated";
  EXPECT_NE(message(check_side_state(layouts.v, 10, 1, false)), "") << "f16 has no ring";
  EXPECT_EQ(message(check_side_state(layouts.v, 10, 0, false)), "");

  std::vector<float> floats(kMemoryHeads * kMemoryDim + kMemoryHeads, -1.5f);
  const auto check = [&](size_t at, float value) {
    std::vector<float> changed = floats;
    for (size_t h = 0; h < kMemoryHeads; ++h) changed[kMemoryHeads * kMemoryDim + h] = 2;
    changed[at] = value;
    return message(check_side_floats(layouts.k, reinterpret_cast<const std::byte*>(changed.data())));
  };
  EXPECT_EQ(check(0, -3), "");
  for (const float hostile : {NAN, INFINITY, -INFINITY}) {
    EXPECT_THAT(check(5, hostile), HasSubstr("centre 5 is"));
    EXPECT_THAT(check(kMemoryHeads * kMemoryDim + 1, hostile), HasSubstr("head scale 1 is"));
  }
  EXPECT_THAT(check(kMemoryHeads * kMemoryDim, -1), HasSubstr("head scale 0 is -1"));
  EXPECT_EQ(check(kMemoryHeads * kMemoryDim, 0), "");
}

TEST(HostKvMemory, AllocatesWhatTheFormulaSaysAndItsPadding) {
  const std::vector<KvLayerConfig> layers = all_layers(kMemoryHeads, kMemoryDim);
  const HostKvMemory memory(layers, {}, nullptr, 4, 3);
  int64_t overhead = 0, page = 0, slot = 0;
  for (int layer = 0; layer < memory.n_layers(); ++layer)
    for (const KvSide side : kKvSides) {
      const KvLayout& layout = memory.layout(layer, side);
      overhead += memory.overhead_bytes(layer, side);
      page += layout.page_bytes(), slot += layout.slot_bytes();
      EXPECT_EQ(memory.allocated_bytes(layer, side),
                4 * layout.page_bytes() + 3 * layout.slot_bytes() + memory.overhead_bytes(layer, side));
    }
  EXPECT_EQ(memory.page_bytes(), page);
  EXPECT_EQ(memory.slot_bytes(), slot);
  EXPECT_EQ(memory.allocated_bytes(), 4 * page + 3 * slot + overhead);
}

TEST(HostKvMemory, AClearedSlotForgetsItsCalibration) {
  const std::vector<KvLayerConfig> layers = all_layers(kMemoryHeads, kMemoryDim);
  Host used(layers, {0, 1}), fresh(layers, {0, 1});
  used.append(100, 5);
  used.memory.clear_slot(1);
  used.n = 0;
  for (Host* host : {&used, &fresh}) host->append(kLength, 6);
  EXPECT_TRUE(same_bytes(used.image(), fresh.image()));
}

TEST(HostKvMemory, CopiesOfSlotsAndPagesAreTheSequenceAndCountsStartAgain) {
  const std::vector<KvLayerConfig> layers = all_layers(kMemoryHeads, kMemoryDim);
  Host host(layers, {2, 0});
  host.append(kLength, 7);
  const SequenceImage image = host.image();
  host.memory.copy_slot(1, 0, host.n);
  host.memory.copy_page(2, 3);
  host.memory.copy_page(0, 1);
  const std::vector<int32_t> pages = {3, 1};
  EXPECT_TRUE(same_bytes(host.memory.read({0, host.n, pages, host.ring_first}, true), image));
  EXPECT_GT(host.memory.counts(0, KvSide::k, 3).norm2, 0);
  EXPECT_EQ(host.memory.counts(0, KvSide::k, 3).norm2, host.memory.counts(0, KvSide::k, 2).norm2);
  host.memory.clear_counts(3);
  EXPECT_EQ(host.memory.counts(0, KvSide::k, 3).norm2, 0);
  EXPECT_GT(host.memory.counts(0, KvSide::k, 2).norm2, 0);
}

TEST(HostKvMemory, FilledSequencesAreValidAndTheSameForASeed) {
  const std::vector<KvLayerConfig> layers = all_layers(kMemoryHeads, kMemoryDim);
  Host a(layers, {2, 0}), b(layers, {1, 3}), c(layers, {1, 3});
  for (Host* host : {&a, &b, &c}) {
    host->n = 250;
    for (size_t i = 0; i < host->ring_first.size(); ++i) {
      const KvTiles& t = host->memory.tiles(int(i / 2), kKvSides[i % 2]);
      host->ring_first[i] = t.ring_tiles > 0 ? t.retention.coded_end(250) : 0;
    }
    host->memory.fill(host->place(), host == &c ? 2 : 1);
  }
  EXPECT_TRUE(same_bytes(a.image(), b.image()));
  EXPECT_FALSE(same_bytes(a.image(), c.image()));
  std::vector<float> row(kMemoryDim);
  const KvSpan at{.n_past = 250, .slot = 1, .pages = a.pages.data()};
  for (int layer = 0; layer < a.memory.n_layers(); ++layer)
    for (int p = 0; p < 250; ++p) {
      read_cached_row(a.memory.tiles(layer, KvSide::k), at, 1, p, 250, row.data());
      for (const float x : row) ASSERT_TRUE(std::abs(x) < 10) << "layer " << layer << " position " << p;
    }
}

}  // namespace
}  // namespace ridge
