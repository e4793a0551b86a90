#include "op/cache/image_parts.h"

#include <algorithm>
#include <cstring>

namespace ridge {
namespace {

/// Calls move(whole, part, bytes) for every piece of a part's bytes: where it begins in the whole image and in the
/// part's.
template <class Move>
void for_each_piece(const KvLayout& whole, int64_t whole_bytes, const SidePart& part, const Move& move) {
  int64_t whole_at = 0, part_at = 0;
  const auto heads = [&](int64_t all_bytes) {
    if (whole.tiles.n_kv_heads == 0) return;
    const int64_t each = all_bytes / whole.tiles.n_kv_heads;
    move(whole_at + part.heads.first * each, part_at, part.heads.count * each);
    whole_at += all_bytes, part_at += part.heads.count * each;
  };
  heads(whole.centre_bytes());
  heads(whole.head_scale_bytes());
  for (const Extent& extent : part.state) {
    move(whole_at + 4 * extent.first, part_at, 4 * extent.count);
    part_at += 4 * extent.count;
  }
  whole_at += whole.state_bytes();
  heads(whole_bytes - whole_at);  // sinks, ring and coded rows
}

int64_t part_bytes(const KvLayout& whole, int64_t whole_bytes, const SidePart& part) {
  int64_t sum = 0;
  for_each_piece(whole, whole_bytes, part, [&](int64_t, int64_t, int64_t bytes) { sum += bytes; });
  return sum;
}

void check_part(const KvLayout& whole, const SidePart& part) {
  const auto inside = [](const Extent& extent, int64_t n) {
    return extent.first >= 0 && extent.count >= 0 && extent.end() <= n;
  };
  RIDGE_CHECK(inside(part.heads, whole.tiles.n_kv_heads), "kv heads {} to {} of {}", part.heads.first, part.heads.end(),
              whole.tiles.n_kv_heads);
  for (const Extent& extent : part.state)
    RIDGE_CHECK(inside(extent, whole.state_values), "values {} to {} of a state of {}", extent.first, extent.end(),
                whole.state_values);
}

/// Whether extents cover [0, n), more than once or not.
bool cover(std::vector<Extent> extents, int64_t n) {
  std::ranges::sort(extents, {}, &Extent::first);
  int64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.first > end) return false;
    end = std::max(end, extent.end());
  }
  return end >= n;
}

}  // namespace

SideImage cut_side(const KvLayout& whole, int n, const SideImage& image, const SidePart& part) {
  check_part(whole, part);
  const auto whole_bytes = ssize(image.bytes);
  RIDGE_CHECK(whole_bytes == side_image_bytes(whole, n, image.ring_first, image.coded_first),
              "{} bytes are no image of {} positions", whole_bytes, n);
  SideImage own{image.ring_first, std::vector<std::byte>(size_t(part_bytes(whole, whole_bytes, part))),
                image.coded_first};
  for_each_piece(whole, whole_bytes, part, [&](int64_t from, int64_t to, int64_t bytes) {
    if (bytes > 0) std::memcpy(own.bytes.data() + to, image.bytes.data() + from, size_t(bytes));
  });
  return own;
}

SideImage join_sides(const KvLayout& whole, int n, std::span<const SideImage> images, std::span<const SidePart> parts) {
  RIDGE_CHECK(!images.empty() && images.size() == parts.size(), "{} images of {} parts", images.size(), parts.size());
  const SideImage& first = images[0];
  const int64_t whole_bytes = side_image_bytes(whole, n, first.ring_first, first.coded_first);
  SideImage joined{first.ring_first, std::vector<std::byte>(size_t(whole_bytes)), first.coded_first};
  std::vector<Extent> heads, state;
  for (size_t i = images.size(); i-- > 0;) {  // the first rank that has a head writes last
    const SideImage& image = images[i];
    check_part(whole, parts[i]);
    RIDGE_CHECK(image.ring_first == first.ring_first && image.coded_first == first.coded_first &&
                    ssize(image.bytes) == part_bytes(whole, whole_bytes, parts[i]),
                "rows from {} and {} on in {} bytes, beside those from {} and {} on", image.ring_first,
                image.coded_first, image.bytes.size(), first.ring_first, first.coded_first);
    for_each_piece(whole, whole_bytes, parts[i], [&](int64_t to, int64_t from, int64_t bytes) {
      if (bytes > 0) std::memcpy(joined.bytes.data() + to, image.bytes.data() + from, size_t(bytes));
    });
    heads.push_back(parts[i].heads);
    state.insert(state.end(), parts[i].state.begin(), parts[i].state.end());
  }
  RIDGE_CHECK(cover(heads, whole.tiles.n_kv_heads) && cover(state, whole.state_values),
              "parts that are not all of {} kv heads and {} values of a state", whole.tiles.n_kv_heads,
              whole.state_values);
  return joined;
}

SequenceImage cut_image(WholeLayouts whole, const SequenceImage& image, std::span<const SidePart> parts) {
  RIDGE_CHECK(parts.size() == 2 * whole.size() && image.sides.size() == parts.size(), "{} sides and {} parts of {}",
              image.sides.size(), parts.size(), 2 * whole.size());
  SequenceImage own{.n = image.n, .calibrated = image.calibrated, .sides = {}};
  for (size_t i = 0; i < parts.size(); ++i)
    own.sides.push_back(cut_side(whole[i / 2].side(kKvSides[i % 2]), image.n, image.sides[i], parts[i]));
  return own;
}

}  // namespace ridge
