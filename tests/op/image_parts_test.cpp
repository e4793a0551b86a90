// Images of memories that hold a part of a model's heads, beside those of a memory that holds all of them.
#include "op/cache/image_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "cases/host_cache.h"

namespace ridge {
namespace {

constexpr int kImageHeads = 4, kImageDim = 64;
const std::vector<int32_t> kPages = {2, 0};

std::vector<KvLayouts> layouts_of(std::span<const KvLayerConfig> layers) {
  std::vector<KvLayouts> layouts;
  for (const KvLayerConfig& layer : layers) layouts.emplace_back(layer, false);
  return layouts;
}

/// Which heads rank r of `size` has; with more ranks than heads, consecutive ranks have the same one.
Extent heads_of(int rank, int size) {
  const int count = std::max(1, kImageHeads / size);
  return {rank / std::max(1, size / kImageHeads) * count, count};
}

std::vector<SidePart> parts_of(std::span<const KvLayerConfig> layers, Extent heads) {
  return std::vector<SidePart>(2 * layers.size(), SidePart{heads, {}});
}

/// The memory of a rank.
Host part_of(std::vector<KvLayerConfig> layers, Extent heads) {
  for (KvLayerConfig& layer : layers) layer.n_kv_heads = int(heads.count);
  return Host(layers, kPages, int(heads.first), kImageHeads);
}

/// Joins all sides: parts[r] are the sides of images[r].
SequenceImage join_images(WholeLayouts whole, const std::vector<SequenceImage>& images,
                          const std::vector<std::vector<SidePart>>& parts) {
  SequenceImage joined{.n = images[0].n, .calibrated = images[0].calibrated, .sides = {}};
  for (size_t i = 0; i < 2 * whole.size(); ++i) {
    std::vector<SideImage> sides;
    std::vector<SidePart> of;
    for (size_t r = 0; r < images.size(); ++r) {
      sides.push_back(images[r].sides[i]);
      of.push_back(parts[r][i]);
    }
    joined.sides.push_back(join_sides(whole[i / 2].side(kKvSides[i % 2]), joined.n, sides, of));
  }
  return joined;
}

TEST(ImageParts, OfEveryFormatAreWhatMemoriesOfTheHeadsHold) {
  const std::vector<KvLayerConfig> layers = all_layers(kImageHeads, kImageDim);
  const std::vector<KvLayouts> layouts = layouts_of(layers);
  for (const int n : {0, 3, 63, 64, 150}) {
    Host whole(layers, kPages);
    if (n > 0) whole.append(n, 1);
    const SequenceImage expected = whole.image();
    for (const int size : {1, 2, 4, 8}) {
      std::vector<SequenceImage> images;
      std::vector<std::vector<SidePart>> parts;
      for (int rank = 0; rank < size; ++rank) {
        Host part = part_of(layers, heads_of(rank, size));
        if (n > 0) part.append(n, 1);
        images.push_back(part.image());
        parts.push_back(parts_of(layers, heads_of(rank, size)));
        EXPECT_TRUE(same_bytes(cut_image(layouts, expected, parts.back()), images.back()))
            << n << " positions, rank " << rank << " of " << size;
      }
      EXPECT_TRUE(same_bytes(join_images(layouts, images, parts), expected)) << n << " positions, " << size << " ranks";
    }
  }
}

TEST(ImageParts, GoOnInMemoriesOfOtherNumbersOfRanks) {
  const std::vector<KvLayerConfig> layers = all_layers(kImageHeads, kImageDim);
  Host whole(layers, kPages);
  whole.append(100, 1);
  const SequenceImage image = whole.image();
  whole.append(30, 2);
  const SequenceImage later = whole.image();
  for (const int size : {2, 4}) {
    std::vector<SequenceImage> images;
    std::vector<std::vector<SidePart>> parts;
    for (int rank = 0; rank < size; ++rank) {
      parts.push_back(parts_of(layers, heads_of(rank, size)));
      Host part = part_of(layers, heads_of(rank, size));
      part.n = 100;
      for (size_t i = 0; i < part.ring_first.size(); ++i) part.ring_first[i] = image.sides[i].ring_first;
      part.memory.write(cut_image(layouts_of(layers), image, parts.back()), part.place());
      part.append(30, 2);
      images.push_back(part.image());
    }
    EXPECT_TRUE(same_bytes(join_images(layouts_of(layers), images, parts), later)) << size;
  }
}

/// Where a sequence has given pages back, its image begins later.
TEST(ImageParts, OfSlidingLayersBeginWhereTheirRowsDo) {
  KvLayerConfig layer{side_of(kv("rotor-3"), kWindowPolicy), side_of(kv("q8_0"), kWindowPolicy), kImageHeads,
                      kImageDim};
  layer.attention_window = 64;
  const std::vector<KvLayouts> layouts = layouts_of({&layer, 1});
  Host whole({&layer, 1}, kPages);
  const auto image = [](Host& host) {
    const std::vector<int32_t> held = {kNoPage, 0};
    SequencePlace place = host.place();
    place.pages = {}, place.sliding_pages = held, place.sliding_first = kPagePositions;
    return host.memory.read(place, false);
  };
  whole.append(240, 1);
  const SequenceImage expected = image(whole);
  ASSERT_EQ(expected.sides[0].coded_first, kPagePositions);
  std::vector<SequenceImage> images;
  std::vector<std::vector<SidePart>> parts;
  for (int rank = 0; rank < 2; ++rank) {
    Host part = part_of({layer}, heads_of(rank, 2));
    part.append(240, 1);
    images.push_back(image(part));
    parts.push_back(parts_of({&layer, 1}, heads_of(rank, 2)));
    const SequenceImage cut = cut_image(layouts, expected, parts.back());
    EXPECT_TRUE(same_bytes(cut, images.back()));
    EXPECT_EQ(cut.sides[0].coded_first, kPagePositions);
  }
  const SequenceImage joined = join_images(layouts, images, parts);
  EXPECT_TRUE(same_bytes(joined, expected));
  EXPECT_EQ(joined.sides[1].coded_first, kPagePositions);
}

TEST(ImageParts, OfLatentRowsAreOnEveryRank) {
  const KvLayerConfig layer{
      .k = side_of(kv("q8_0")), .v = side_of(kv("q8_0")), .n_kv_heads = 1, .head_dim = kImageDim, .v_is_k = true};
  Host host({&layer, 1}, kPages);
  host.append(70, 1);
  const SequenceImage image = host.image();
  EXPECT_TRUE(image.sides[1].bytes.empty());
  const std::vector<SidePart> part = {{{0, 1}, {}}, {}};
  EXPECT_TRUE(same_bytes(cut_image(layouts_of({&layer, 1}), image, part), image));
  EXPECT_TRUE(same_bytes(join_images(layouts_of({&layer, 1}), {image, image}, {{part, part}}), image));
}

TEST(ImageParts, OfStatesAreRunsOfTheirValues) {
  const KvLayerConfig layer{
      .k = side_of(kv("f16")), .v = side_of(kv("f16")), .head_dim = kImageDim, .state_values = 12};
  const std::vector<KvLayouts> layouts = layouts_of({&layer, 1});
  SequenceImage image{.n = 7, .calibrated = false, .sides = std::vector<SideImage>(2)};
  const auto bytes = [](const std::vector<float>& values) {
    const auto all = std::as_bytes(std::span(values));
    return std::vector<std::byte>(all.begin(), all.end());
  };
  image.sides[0].bytes = bytes({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const std::vector<std::vector<SidePart>> parts = {{{{}, {{0, 2}, {4, 2}, {8, 2}}}, {}},
                                                    {{{}, {{2, 2}, {6, 2}, {10, 2}}}, {}}};
  const SequenceImage first = cut_image(layouts, image, parts[0]), second = cut_image(layouts, image, parts[1]);
  EXPECT_EQ(first.sides[0].bytes, bytes({0, 1, 4, 5, 8, 9}));
  EXPECT_EQ(second.sides[0].bytes, bytes({2, 3, 6, 7, 10, 11}));
  EXPECT_TRUE(same_bytes(join_images(layouts, {first, second}, parts), image));
}

TEST(ImageParts, ThatDoNotFitAreOurMistake) {
  const std::vector<KvLayerConfig> layers = {{side_of(kv("f16")), side_of(kv("f16")), kImageHeads, kImageDim}};
  const std::vector<KvLayouts> layouts = layouts_of(layers);
  Host whole(layers, kPages);
  whole.append(10, 1);
  SequenceImage image = whole.image();
  const auto half = [&](int rank) { return parts_of(layers, heads_of(rank, 2)); };
  EXPECT_THROW(cut_image(layouts, image, parts_of(layers, {3, 2})), Error) << "heads that are not there";
  EXPECT_THROW(cut_image(layouts, image, std::vector<SidePart>(1)), Error) << "one side of two";
  const SequenceImage own = cut_image(layouts, image, half(0));
  EXPECT_THROW(join_images(layouts, {own, own}, {{half(0), half(0)}}), Error) << "the other half is missing";
  image.n = 11;
  EXPECT_THROW(cut_image(layouts, image, half(0)), Error) << "an image of another length";
  SequenceImage longer = own;
  longer.sides[0].bytes.resize(longer.sides[0].bytes.size() + 8);
  EXPECT_THROW(join_images(layouts, {own, longer}, {{half(0), half(1)}}), Error) << "ranks that are apart";
}

}  // namespace
}  // namespace ridge
