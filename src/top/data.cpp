#include "top/data.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace ridge::top {
namespace {

using Json = nlohmann::json;
constexpr size_t kMostEntries = 4096;
constexpr size_t kMostOps = 64;

const Json& field_of(const Json& json, std::string_view name) {
  static const Json kNone;
  if (!json.is_object()) return kNone;
  const auto found = json.find(name);
  return found == json.end() ? kNone : *found;
}

double real_of(const Json& json, std::string_view name) {
  const Json& value = field_of(json, name);
  const double number = value.is_number() ? value.get<double>() : 0.0;
  return std::isfinite(number) ? number : 0.0;
}

/// Counts beyond 2^53 are no counts.
int64_t count_of(const Json& json, std::string_view name) {
  return int64_t(std::clamp(real_of(json, name), 0.0, 9007199254740992.0));
}

std::string text_of(const Json& json, std::string_view name) {
  const Json& value = field_of(json, name);
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() ? value.dump() : "";
}

template <class T, class Read>
std::vector<T> list_of(const Json& json, std::string_view name, Read read) {
  std::vector<T> list;
  const Json& entries = field_of(json, name);
  if (!entries.is_array()) return list;
  for (const Json& entry : entries)
    if (list.size() < kMostEntries) list.push_back(read(entry));
  return list;
}

Measure measure_of(const Json& json) { return {real_of(json, "norm"), real_of(json, "relative_error")}; }

Side side_of(const Json& json) {
  return {measure_of(json), count_of(json, "saturated"), list_of<Measure>(json, "pages", measure_of)};
}

LayerTimes layer_times_of(const Json& json) {
  const Json& ops = field_of(json, "seconds");
  LayerTimes times;
  if (real_of(json, "layer") >= 0) times.layer = count_of(json, "layer");
  if (!ops.is_object()) return times;
  for (const auto& [op, seconds] : ops.items())
    if (times.seconds.size() < kMostOps) times.seconds[op] = std::max(0.0, real_of(ops, op));
  return times;
}

Pool pool_of(const std::string& kv, const Json& json) {
  const Json &formats = field_of(json, "kv_formats"), &pages = field_of(json, "pages"),
             &slots = field_of(json, "slots");
  Pool p{.kv = kv, .k_format = text_of(formats, "k"), .v_format = text_of(formats, "v")};
  p.pages = count_of(pages, "total"), p.free = count_of(pages, "free"), p.used = count_of(pages, "used");
  p.shared = count_of(pages, "shared"), p.cached = count_of(pages, "cached");
  p.slots = count_of(slots, "total"), p.slots_free = count_of(slots, "free");
  p.sequences = count_of(json, "sequences"), p.checkpoints = count_of(json, "checkpoints");
  p.page_tokens = count_of(json, "page_tokens"), p.page_bytes = count_of(json, "page_bytes");
  p.slot_bytes = count_of(json, "slot_bytes"), p.used_bytes = count_of(json, "used_bytes");
  p.allocated_bytes = count_of(json, "allocated_bytes"), p.sequence_bytes = count_of(json, "sequence_bytes");
  p.sequence_f16_bytes = count_of(json, "sequence_f16_bytes");
  p.tokens = count_of(json, "tokens"), p.bytes_per_token = count_of(json, "kv_bytes_per_token");
  p.ratio = real_of(json, "kv_ratio");
  p.layers = list_of<Layer>(json, "layers", [](const Json& layer) {
    return Layer{count_of(layer, "layer"), side_of(field_of(layer, "k")), side_of(field_of(layer, "v"))};
  });
  // Servers have counted shared pages among the used ones.
  if (p.used + p.shared + p.cached + p.free > p.pages) p.used = std::max<int64_t>(0, p.used - p.shared);
  return p;
}

Result<Json> object_of(std::string_view text, std::string_view where) {
  const JsonLimits limits{.refuse_twice = [](std::string_view) { return std::string("a key comes twice"); }};
  Result<Json> json = parse_within<Json>(text, limits);
  if (!json) return bad_file("{}: {}", where, json.error().message);
  if (!json->is_object()) return bad_file("{}: not a JSON object", where);
  return json;
}

}  // namespace

OpTimes OpTimes::since(const OpTimes& before) const {
  const auto known = [](const LayerTimes& a, const LayerTimes& b) { return a.layer == b.layer; };
  if (before.passes > passes || !std::ranges::equal(before.layers, layers, known)) return *this;
  OpTimes times = *this;
  times.passes -= before.passes;
  times.seconds -= before.seconds;
  for (size_t i = 0; i < layers.size(); ++i)
    for (const auto& [op, time] : before.layers[i].seconds) times.layers[i].seconds[op] -= time;
  return times;
}

Result<Props> read_props(std::string_view text) {
  RIDGE_TRY(const Json json, object_of(text, "/props"));
  Props props{
      .model = text_of(json, "model"), .device = text_of(json, "device"), .weights = text_of(json, "weight_format")};
  props.kv = text_of(json, "kv_quant"), props.chat_template = text_of(json, "template");
  props.version = text_of(json, "version");
  props.n_ctx = count_of(json, "n_ctx"), props.parallel = count_of(json, "parallel");
  props.batch_tokens = count_of(json, "batch_tokens"), props.weight_bytes = count_of(json, "weight_bytes");
  return props;
}

Result<ServerStatus> read_status(std::string_view text) {
  RIDGE_TRY(const Json json, object_of(text, "/status"));
  const Json &step = field_of(json, "step"), &totals = field_of(json, "totals");
  ServerStatus s{.queue = count_of(json, "queue"), .parallel = count_of(json, "parallel")};
  s.running = list_of<Sequence>(json, "running", [](const Json& one) {
    return Sequence{text_of(one, "id"),           text_of(one, "state"),          text_of(one, "kv_quant"),
                    count_of(one, "n_prompt"),    count_of(one, "n_prompt_done"), count_of(one, "n_cached"),
                    count_of(one, "n_generated"), real_of(one, "tok_s")};
  });
  s.ms_p50 = real_of(step, "ms_p50"), s.tok_s = real_of(step, "tok_s"), s.prompt_tok_s = real_of(step, "prompt_tok_s");
  const Json& parts = field_of(step, "parts_ms_p50");
  s.planning_ms = real_of(parts, "planning"), s.model_ms = real_of(parts, "model");
  s.sampling_ms = real_of(parts, "sampling"), s.events_ms = real_of(parts, "events");
  s.decode_seqs = count_of(step, "decode_seqs"), s.prompt_tokens = count_of(step, "prompt_tokens");
  s.requests = count_of(totals, "requests"), s.finished = count_of(totals, "finished");
  s.cancelled = count_of(totals, "cancelled"), s.failed = count_of(totals, "failed");
  s.parked = count_of(totals, "parked"), s.cached_tokens = count_of(totals, "cached_tokens");
  s.generated_tokens = count_of(totals, "generated_tokens");
  const Json& ops = field_of(json, "ops");
  s.times_ops = ops.is_object();
  s.ops = {count_of(ops, "passes"), std::max(0.0, real_of(ops, "seconds")),
           list_of<LayerTimes>(ops, "layers", layer_times_of)};
  return s;
}

Result<std::vector<Pool>> read_pools(std::string_view text) {
  RIDGE_TRY(const Json json, object_of(text, "/kv"));
  std::vector<Pool> pools;
  const Json& entries = field_of(json, "pools");
  if (!entries.is_object()) return pools;
  const std::string standard = text_of(json, "kv_quant");
  for (const auto& [kv, pool] : entries.items()) {
    if (pools.size() == kMostEntries) break;
    pools.insert(kv == standard ? pools.begin() : pools.end(), pool_of(kv, pool));
  }
  return pools;
}

Result<Delta> read_delta(std::string_view text) {
  if (text == "[DONE]") return Delta();
  RIDGE_TRY(const Json json, object_of(text, "the answer"));
  if (const Json& error = field_of(json, "error"); !error.is_null())
    return fail(ErrorKind::failure, "{}", error.is_string() ? error.get<std::string>() : text_of(error, "message"));
  const Json& choices = field_of(json, "choices");
  if (!choices.is_array() || choices.empty()) return Delta();
  const Json& one = choices[0];
  const Json& delta = field_of(one, "delta");
  return Delta{text_of(one, "text") + text_of(delta, "content"), text_of(delta, "reasoning_content"),
               text_of(one, "finish_reason")};
}

std::string error_text(int status, std::string_view body) {
  std::string said;
  if (const Result<Json> json = parse_within<Json>(body)) {
    const Json& error = field_of(*json, "error");
    said = error.is_string() ? error.get<std::string>() : text_of(error, "message");
  }
  if (status == 401) return "the server wants a key (--api-key-file FILE)" + (said.empty() ? "" : ": " + said);
  return said.empty() ? fmt::format("the server answered with status {}", status) : said;
}

std::string bytes_text(int64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = double(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

std::string count_text(int64_t count) {
  if (count < 100'000) return fmt::format("{}", count);
  if (count < 10'000'000) return fmt::format("{:.0f}k", double(count) * 1e-3);
  return fmt::format("{:.0f}M", double(count) * 1e-6);
}

}  // namespace ridge::top
