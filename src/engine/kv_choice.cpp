#include "engine/kv_choice.h"

#include <algorithm>
#include <charconv>

#include "format/list.h"
#include "op/cache/rotation.h"

namespace ridge {
namespace {

constexpr std::string_view kNext =
    "FORMAT[:ROTATION][:window=N][:sinks=N][:centre=on|off][:scale=RULE][:rounding=RULE][:recent=FORMAT]";

constexpr std::string_view kLayers = "LAYERS:K/V, for example 0-1+27:q8_0/q8_0";
constexpr int kMaxLayer = 1 << 20;

Result<int> parse_count(std::string_view name, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    return fail(ErrorKind::usage, "KV option {} expects a count from 0, found '{}' ({})", name, text, kNext);
  return value;
}

Result<bool> parse_on_off(std::string_view name, std::string_view text) {
  if (text == "on") return true;
  if (text == "off") return false;
  return fail(ErrorKind::usage, "KV option {} expects on or off, found '{}' ({})", name, text, kNext);
}

Status parse_option(std::string_view text, KvSideOptions& side) {
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  if (name == "window" || name == "sinks") {
    RIDGE_TRY(const int count, parse_count(name, value));
    (name == "window" ? side.window : side.sinks) = count;
  } else if (name == "centre" || name == "center") {
    RIDGE_TRY(side.centre, parse_on_off(name, value));
  } else if (name == "scale") {
    RIDGE_TRY(const KvFormat* format, find_kv_format(side.format));
    RIDGE_TRY(const KvScale scale, find_scale(*format, value));
    side.scale = scale_name(scale);
  } else if (name == "rounding") {
    RIDGE_TRY(const KvRounding rounding, find_rounding(value));
    side.rounding = rounding_name(rounding);
  } else if (name == "recent") {
    RIDGE_TRY(const KvFormat* format, find_kv_format(value));
    side.recent = format->name;
  } else if (equals == std::string_view::npos) {
    RIDGE_TRY(const Rotation rotation, find_rotation(name));
    side.rotation = rotation_name(rotation);
  } else {
    return fail(ErrorKind::usage, "unknown KV option '{}' ({})", name, kNext);
  }
  return {};
}

/// "3" or "0-1".
Result<KvLayerOptions> parse_range(std::string_view text) {
  const auto number = [&](std::string_view part) {
    int value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size() && value <= kMaxLayer ? value : -1;
  };
  const size_t dash = text.find('-');
  KvLayerOptions range;
  range.first = number(text.substr(0, dash));
  range.last = dash == std::string_view::npos ? range.first : number(text.substr(dash + 1));
  if (range.first < 0 || range.last < range.first)
    return fail(ErrorKind::usage, "KV layers '{}' is not a layer or a range of layers ({})", text, kLayers);
  return range;
}

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return pieces;
    begin = end + 1;
  }
}

Result<KvSideOptions> parse_kv_side(std::string_view text) {
  const std::vector<std::string> parts = split(text, ':');
  KvSideOptions side;
  RIDGE_TRY(const KvFormat* format, find_kv_format(parts[0] == "off" ? "f16" : std::string_view(parts[0])));
  side.format = format->name;
  for (size_t i = 1; i < parts.size(); ++i) RIDGE_TRY_STATUS(parse_option(parts[i], side));
  return side;
}

Result<KvChoice> parse_sides(std::string_view text) {
  const std::vector<std::string> sides = split(text, '/');
  if (sides.size() > 2)
    return fail(ErrorKind::usage, "KV choice '{}' has {} sides, expected K or K/V", text, sides.size());
  KvChoice choice;
  RIDGE_TRY(choice.k, parse_kv_side(sides.front()));
  RIDGE_TRY(choice.v, parse_kv_side(sides.back()));
  return choice;
}

Result<std::vector<KvLayerOptions>> parse_kv_layers(std::string_view text) {
  std::vector<KvLayerOptions> layers;
  for (const std::string& group : split(text, ';')) {
    const size_t colon = group.find(':');
    if (colon == std::string::npos) return fail(ErrorKind::usage, "KV layers '{}' have no format ({})", group, kLayers);
    RIDGE_TRY(const KvChoice sides, parse_sides(std::string_view(group).substr(colon + 1)));
    std::string ranges = group.substr(0, colon);
    std::replace(ranges.begin(), ranges.end(), ',', '+');
    for (const std::string& range : split(ranges, '+')) {
      RIDGE_TRY(KvLayerOptions own, parse_range(range));
      own.k = sides.k, own.v = sides.v;
      for (const KvLayerOptions& other : layers)
        if (own.first <= other.last && other.first <= own.last)
          return fail(ErrorKind::usage, "KV layers: layer {} is given twice (ranges may not overlap)",
                      std::max(own.first, other.first));
      layers.push_back(own);
    }
  }
  return layers;
}

Result<KvChoice> parse_kv_choice(std::string_view text) {
  const size_t semicolon = text.find(';');
  RIDGE_TRY(KvChoice choice, parse_sides(text.substr(0, semicolon)));
  if (semicolon != std::string_view::npos) {
    RIDGE_TRY(choice.layers, parse_kv_layers(text.substr(semicolon + 1)));
  }
  return choice;
}

Result<std::vector<KvChoice>> parse_kv_list(std::string_view text) {
  std::vector<KvChoice> choices;
  for (const std::string& item : split(text, ',')) {
    RIDGE_TRY(KvChoice choice, parse_kv_choice(item));
    choices.push_back(std::move(choice));
  }
  return choices;
}

std::string kv_side_text(const KvSideOptions& side) {
  std::string text = side.format;
  if (side.rotation) text += ":" + *side.rotation;
  if (side.window) text += fmt::format(":window={}", *side.window);
  if (side.sinks) text += fmt::format(":sinks={}", *side.sinks);
  if (side.centre) text += *side.centre ? ":centre=on" : ":centre=off";
  if (side.scale) text += ":scale=" + *side.scale;
  if (side.rounding) text += ":rounding=" + *side.rounding;
  if (side.recent) text += ":recent=" + *side.recent;
  return text;
}

namespace {
std::string sides_text(const KvSideOptions& k_side, const KvSideOptions& v_side) {
  const std::string k = kv_side_text(k_side), v = kv_side_text(v_side);
  return k == v ? k : k + "/" + v;
}
}  // namespace

std::string kv_text(const KvChoice& choice) {
  std::string text = sides_text(choice.k, choice.v);
  for (const KvLayerOptions& own : choice.layers) {
    const std::string sides = sides_text(own.k, own.v);
    const std::string range =
        own.first == own.last ? fmt::format("{}", own.first) : fmt::format("{}-{}", own.first, own.last);
    text += fmt::format(";{}:{}", range, sides);
  }
  return text;
}

SessionOptions session_options(const KvChoice& choice, int n_ctx, int n_ubatch) {
  return {.n_ctx = n_ctx, .n_ubatch = n_ubatch, .k = choice.k, .v = choice.v, .kv_layers = choice.layers};
}

}  // namespace ridge
