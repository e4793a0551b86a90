#include "engine/kv_state.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "io/pending_file.h"

namespace ridge {
namespace {

static_assert(std::endian::native == std::endian::little, "state files are little-endian");

constexpr char kMagic[8] = {'R', 'I', 'D', 'G', 'E', '-', 'K', 'V'};
constexpr uint32_t kVersion = 3;
constexpr uint32_t kStillCentre = 2;  // and before: the mean of rotated rows, the same at every position
constexpr uint32_t kEqualParts = 1;   // where Hadamard parts were all of the largest power of two that divides head_dim
constexpr uint32_t kRotationSeed = 0x9E3779B9u;  // of op/cache/rotation.h; another one is another rotation

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t n_layers;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t n_past;
  uint32_t rotation_seed;
  uint64_t model_hash;
  uint64_t file_bytes;
  uint64_t xxh64;  // of the bytes before it
};
static_assert(sizeof(FileHeader) == 56);

/// One per layer and side, K before V, each followed by its payload (SideImage::bytes).
struct SideHeader {
  char format[16];  // zero-padded
  char recent[16];  // format of the ring's rows, zero-padded
  uint8_t rotation, scale, centre, calibrated;
  uint32_t rounding;
  uint32_t window, sinks, ring_first;
  uint32_t coded_first;
  int64_t saturated;
  uint64_t payload_bytes;
  uint64_t xxh64;  // of the header before it, then the payload
};
static_assert(sizeof(SideHeader) == 80);

uint64_t hash_of(const FileHeader& header) { return XXH64(&header, offsetof(FileHeader, xxh64), 0); }
uint64_t hash_of(const SideHeader& header, const std::byte* payload) {
  return XXH64(payload, size_t(header.payload_bytes), XXH64(&header, offsetof(SideHeader, xxh64), 0));
}

SideHeader side_header(const KvSideConfig& config) {
  SideHeader header{};
  config.format->name.copy(header.format, sizeof header.format);
  config.policy.recent.copy(header.recent, sizeof header.recent);
  header.rounding = uint32_t(config.policy.rounding);
  header.rotation = uint8_t(config.policy.rotation);
  header.scale = uint8_t(config.policy.scale);
  header.centre = config.policy.centre;
  header.window = uint32_t(config.policy.window);
  header.sinks = uint32_t(config.policy.sinks);
  return header;
}

std::string_view text_of(const char (&field)[16]) { return {field, strnlen(field, sizeof field)}; }

/// Which field of `found` differs from what this side would write; empty when none does.
std::string difference(const SideHeader& found, const SideHeader& own) {
  const auto rotation = [](uint8_t kind) { return kind <= 2 ? rotation_name(Rotation(kind)) : "of an unknown kind"; };
  const auto scale = [](uint8_t rule) { return rule <= 4 ? scale_name(KvScale(rule)) : "of an unknown kind"; };
  if (std::memcmp(found.format, own.format, sizeof own.format) != 0)
    return fmt::format("format {}, this cache has {}", text_of(found.format), text_of(own.format));
  if (found.rotation != own.rotation)
    return fmt::format("rotation {}, this cache has {}", rotation(found.rotation), rotation(own.rotation));
  if (found.scale != own.scale)
    return fmt::format("scale rule {}, this cache has {}", scale(found.scale), scale(own.scale));
  if (found.centre != own.centre) return fmt::format("centring {}, this cache has {}", found.centre, own.centre);
  if (found.window != own.window) return fmt::format("window {}, this cache has {}", found.window, own.window);
  if (found.sinks != own.sinks) return fmt::format("sinks {}, this cache has {}", found.sinks, own.sinks);
  if (found.rounding != own.rounding)
    return fmt::format("rounding {}, this cache has {}", found.rounding, own.rounding);
  if (std::memcmp(found.recent, own.recent, sizeof own.recent) != 0)
    return fmt::format("window format {}, this cache has {}", text_of(found.recent), text_of(own.recent));
  return {};
}

template <class T>
std::string_view as_text(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// Checks the side at the front of `rest`, of a file of this version, and takes it off.
Result<SideImage> check_side(const KvLayout& layout, int n, uint32_t version, bool& calibrated,
                             std::span<const std::byte>& rest) {
  SideHeader header;
  if (rest.size() < sizeof header) return bad_file("the file ends inside its header");
  std::memcpy(&header, rest.data(), sizeof header);
  rest = rest.subspan(sizeof header);
  if (const std::string differs = difference(header, side_header(layout.config)); !differs.empty())
    return bad_file("{} (use the cache options the state was saved with)", differs);
  if (version == kEqualParts && layout.config.policy.rotation == Rotation::hadamard &&
      !std::has_single_bit(uint32_t(layout.tiles.head_dim)))
    return bad_file("version {} rotated rows of {} in other parts (compute the text again)", version,
                    layout.tiles.head_dim);
  if (version <= kStillCentre && layout.config.policy.centre)
    return bad_file("version {} centred rows in another way (compute the text again)", version);
  // The payload's size follows from the configuration, n and ring_first: nothing in the file is used as a size before
  // it has been compared with that.
  if (header.ring_first > uint32_t(n)) return bad_file("ring_first is {} of {} positions", header.ring_first, n);
  if (header.calibrated > 1) return bad_file("calibrated is {}", header.calibrated);
  if (header.saturated < 0) return bad_file("saturated is {}", header.saturated);
  if (header.coded_first > uint32_t(n)) return bad_file("coded_first is {} of {} positions", header.coded_first, n);
  SideImage side{.ring_first = int(header.ring_first), .bytes = {}, .coded_first = int(header.coded_first)};
  RIDGE_TRY_STATUS(check_side_state(layout, n, side.ring_first, header.calibrated == 1, side.coded_first));
  const auto expected = uint64_t(side_image_bytes(layout, n, side.ring_first, side.coded_first));
  if (header.payload_bytes != expected)
    return bad_file("payload of {} bytes, expected {}", header.payload_bytes, expected);
  if (rest.size() < expected) return bad_file("the file ends inside its rows");
  if (hash_of(header, rest.data()) != header.xxh64) return bad_file("checksum differs: the file is damaged");
  RIDGE_TRY_STATUS(check_side_floats(layout, rest.data()));
  calibrated = calibrated || header.calibrated == 1;
  side.bytes.assign(rest.begin(), rest.begin() + ptrdiff_t(expected));
  rest = rest.subspan(size_t(expected));
  return side;
}

/// Tiles of K of the first layer with KV heads: layers before it may have a state instead.
const KvTiles& first_heads(std::span<const KvLayouts> layouts) {
  size_t layer = 0;
  while (layer + 1 < layouts.size() && layouts[layer].k.tiles.n_kv_heads == 0) ++layer;
  return layouts[layer].k.tiles;
}

Failure refused(std::string_view file, std::string_view where, const Failure& why) {
  return fail(why.kind, "cannot restore: {}: {}{}", file, where, why.message);
}

Status check_header(const FileHeader& header, std::span<const KvLayouts> layouts, int n_ctx, uint64_t model,
                    size_t file_bytes) {
  const KvTiles& k = first_heads(layouts);
  const auto same = [](std::string_view field, uint64_t found, uint64_t expected) -> Status {
    if (found == expected) return {};
    return bad_file("{} is {}, this cache has {}", field, found, expected);
  };
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return bad_file("not a KV state file");
  if (header.version < kEqualParts || header.version > kVersion)
    return bad_file("version {} is not supported (this build reads versions {} to {})", header.version, kEqualParts,
                    kVersion);
  if (header.xxh64 != hash_of(header)) return bad_file("checksum of the header differs: the file is damaged");
  RIDGE_TRY_STATUS(same("n_layers", header.n_layers, layouts.size()));
  RIDGE_TRY_STATUS(same("n_kv_heads", header.n_kv_heads, uint64_t(k.n_kv_heads)));
  RIDGE_TRY_STATUS(same("head_dim", header.head_dim, uint64_t(k.head_dim)));
  if (header.model_hash != model)
    return bad_file("model hash {:016x}, this model has {:016x}: the state belongs to other weights", header.model_hash,
                    model);
  if (header.rotation_seed != kRotationSeed)
    return bad_file("rotation seed {:08x}, this build has {:08x}", header.rotation_seed, kRotationSeed);
  if (header.n_past > uint32_t(n_ctx))
    return bad_file("n_past is {}, this cache holds {} (a larger n_ctx)", header.n_past, n_ctx);
  if (header.file_bytes != file_bytes)
    return bad_file("file_bytes is {}, the file has {}: it was cut or something was appended", header.file_bytes,
                    file_bytes);
  return {};
}

}  // namespace

Status save_kv_state(std::span<const KvLayouts> layouts, const SequenceImage& image, uint64_t model_hash,
                     const std::filesystem::path& path) {
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.n_layers = uint32_t(layouts.size());
  header.n_kv_heads = uint32_t(first_heads(layouts).n_kv_heads);
  header.head_dim = uint32_t(first_heads(layouts).head_dim);
  header.n_past = uint32_t(image.n);
  header.rotation_seed = kRotationSeed;
  header.model_hash = model_hash;
  header.file_bytes = sizeof header;
  for (const SideImage& side : image.sides) header.file_bytes += sizeof(SideHeader) + side.bytes.size();
  header.xxh64 = hash_of(header);

  io::PendingFile file(path);
  RIDGE_TRY_STATUS(file.create());
  RIDGE_TRY_STATUS(file.write(as_text(header)));
  for (size_t i = 0; i < image.sides.size(); ++i) {
    const KvLayout& layout = layouts[i / 2].side(kKvSides[i % 2]);
    const SideImage& of_side = image.sides[i];
    SideHeader side = side_header(layout.config);
    side.calibrated = image.calibrated && layout.calibrates();
    side.ring_first = uint32_t(of_side.ring_first);
    side.coded_first = uint32_t(of_side.coded_first);
    side.payload_bytes = of_side.bytes.size();
    side.xxh64 = hash_of(side, of_side.bytes.data());
    RIDGE_TRY_STATUS(file.write(as_text(side)));
    RIDGE_TRY_STATUS(file.write({reinterpret_cast<const char*>(of_side.bytes.data()), of_side.bytes.size()}));
  }
  return file.commit();
}

Result<SequenceImage> read_kv_state(std::span<const KvLayouts> layouts, int n_ctx, uint64_t model_hash,
                                    std::span<const std::byte> file, std::string_view name) {
  FileHeader header;
  if (file.size() < sizeof header)
    return refused(name, "", bad_file("{} bytes are too few for a KV state file", file.size()));
  std::memcpy(&header, file.data(), sizeof header);
  if (const Status status = check_header(header, layouts, n_ctx, model_hash, file.size()); !status)
    return refused(name, "", status.error());

  SequenceImage image{.n = int(header.n_past), .calibrated = false};
  std::span<const std::byte> rest = file.subspan(sizeof header);
  for (size_t layer = 0; layer < layouts.size(); ++layer)
    for (const KvSide side : kKvSides) {
      Result<SideImage> read = check_side(layouts[layer].side(side), image.n, header.version, image.calibrated, rest);
      if (!read)
        return refused(name, fmt::format("{} of layer {}: ", side == KvSide::k ? "K" : "V", layer), read.error());
      image.sides.push_back(std::move(read).or_throw());
    }
  if (!rest.empty()) return refused(name, "", bad_file("{} bytes after the last layer", rest.size()));
  return image;
}

Result<SequenceImage> read_kv_state(const SequencePool& pool, int n_ctx, uint64_t model_hash,
                                    std::span<const std::byte> file, std::string_view name) {
  RIDGE_TRY(SequenceImage image, read_kv_state(pool.memory().layouts(), n_ctx, model_hash, file, name));
  if (const Status status = pool.check_image(image); !status) return refused(name, "", status.error());
  return image;
}

}  // namespace ridge
