#include "engine/rank_state.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace ridge {
namespace {

/// What all parts of an image have in common.
struct Begin {
  int n, calibrated;
};
struct SideBegin {
  int ring_first, coded_first;
};

template <class T>
std::string text_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
template <class T>
T value_of(const std::string& text) {
  RIDGE_CHECK(text.size() == sizeof(T), "{} bytes, expected {}", text.size(), sizeof(T));
  T value;
  std::memcpy(&value, text.data(), sizeof value);
  return value;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

double file_seconds(const Ranks& ranks) {
  constexpr double kMoreForFiles = 10;
  return std::max<double>(kMoreForFiles, ranks.n_stages()) * ranks.timeout_s();
}

RankCaches::RankCaches(Ranks& of, const ModelSlice& slice, std::span<const KvLayerConfig> own) : ranks(of) {
  for (int r = 0; r < of.size(); ++r) parts.push_back(side_parts(slice, r));
  for (const KvLayerConfig& layer : whole_layers(slice, own)) whole.emplace_back(layer, false);
}

SequenceImage scatter_image(const RankCaches& caches, const SequenceImage* whole) {
  Ranks& ranks = caches.ranks;
  RIDGE_CHECK(!ranks.is_first() || whole, "the first rank has no image to cut");
  const auto from_first = [&](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    return value_of<Value>(ranks.gather(ranks.is_first() ? text_of(value) : "", file_seconds(ranks)).front());
  };
  const Begin begin = from_first(whole ? Begin{whole->n, whole->calibrated} : Begin());
  SequenceImage own{.n = begin.n, .calibrated = begin.calibrated != 0, .sides = {}};
  for (size_t i = 0; i < 2 * caches.whole.size(); ++i) {
    const SideImage* const side = whole ? &whole->sides[i] : nullptr;
    const SideBegin of = from_first(side ? SideBegin{side->ring_first, side->coded_first} : SideBegin());
    std::vector<SideImage> cut;  // keeps what is on its way
    std::vector<BytesOut> to(size_t(ranks.size()));
    for (size_t r = 0; side && r < to.size(); ++r)
      cut.push_back(cut_side(caches.whole[i / 2].side(kKvSides[i % 2]), begin.n, *side, caches.parts[r][i]));
    for (size_t r = 0; r < cut.size(); ++r) to[r] = cut[r].bytes;
    own.sides.push_back({of.ring_first, bytes_of(ranks.trade(to, file_seconds(ranks)).front()), of.coded_first});
  }
  return own;
}

}  // namespace ridge
