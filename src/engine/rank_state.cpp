#include "engine/rank_state.h"

#include <cstring>
#include <type_traits>

#include "io/mapped_file.h"

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

/// The status of the first rank, on all.
Status status_of_first(Ranks& ranks, const Status& own) {
  const std::string text = own ? "" : fmt::format("{}", int(own.error().kind)) + ":" + own.error().message;
  const std::string first = ranks.gather(ranks.is_first() ? text : "", file_seconds(ranks)).front();
  if (first.empty()) return {};
  const size_t colon = first.find(':');
  return Failure{ErrorKind(std::stoi(first.substr(0, colon))), first.substr(colon + 1)};
}

}  // namespace

double file_seconds(const Ranks& ranks) {
  constexpr double kMoreForFiles = 10;
  return kMoreForFiles * ranks.timeout_s();
}

RankCaches::RankCaches(Ranks& of, const ModelSlice& slice, std::span<const KvLayerConfig> own) : ranks(of) {
  for (int r = 0; r < of.size(); ++r) parts.push_back(side_parts(slice, r));
  for (const KvLayerConfig& layer : whole_layers(slice, own)) whole.emplace_back(layer, false);
}

RankCaches RankCaches::of_layers(std::span<const int> layers) const {
  RankCaches some = *this;
  some.whole.clear();
  for (std::vector<SidePart>& of_rank : some.parts) of_rank.clear();
  for (const int layer : layers) {
    some.whole.push_back(whole[size_t(layer)]);
    for (size_t r = 0; r < parts.size(); ++r)
      for (const int side : {0, 1}) some.parts[r].push_back(parts[r][size_t(2 * layer + side)]);
  }
  return some;
}

std::optional<SequenceImage> gather_image(const RankCaches& caches, SequenceImage own) {
  Ranks& ranks = caches.ranks;
  std::vector<SequenceImage> images(size_t(ranks.size()), {.n = own.n, .calibrated = own.calibrated, .sides = {}});
  for (SideImage& side : own.sides) {
    std::vector<BytesOut> to(size_t(ranks.size()));
    to[0] = side.bytes;
    const std::vector<std::string> bytes = ranks.trade(to, file_seconds(ranks));
    if (ranks.is_first())
      for (size_t r = 0; r < images.size(); ++r)
        images[r].sides.push_back({side.ring_first, bytes_of(bytes[r]), side.coded_first});
    side.bytes = {};
  }
  if (!ranks.is_first()) return std::nullopt;
  return join_images(caches.whole, std::move(images), caches.parts);
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

Status save_kv_state(const RankCaches& caches, SequenceImage own, uint64_t model_hash,
                     const std::filesystem::path& path) {
  const std::optional<SequenceImage> whole = gather_image(caches, std::move(own));
  return status_of_first(caches.ranks, whole ? save_kv_state(caches.whole, *whole, model_hash, path) : Status());
}

Result<SequenceImage> read_kv_state(const RankCaches& caches, int n_ctx, uint64_t model_hash, const std::string& path) {
  const auto read = [&]() -> Result<SequenceImage> {
    RIDGE_TRY(const io::MappedFile file, io::MappedFile::open(path));
    return read_kv_state(caches.whole, n_ctx, model_hash, file.bytes(), path);
  };
  std::optional<SequenceImage> whole;
  Status status;
  if (caches.ranks.is_first()) {
    Result<SequenceImage> image = read();
    if (image) whole = std::move(image).or_throw();
    else status = Failure(image.error());
  }
  RIDGE_TRY_STATUS(status_of_first(caches.ranks, status));
  return scatter_image(caches, whole ? &*whole : nullptr);
}

}  // namespace ridge
