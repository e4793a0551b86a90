#include "serve/views.h"

#include <fmt/chrono.h>

#include <cmath>

#include "base/build_info.h"
#include "engine/kv_options.h"

namespace ridge::serve {
namespace {

int64_t f16_bytes_per_token(const Engine& engine) { return 2 * engine.info().cached_values(); }

Json report_json(const KvReport& report, int64_t f16_bytes) {
  return {{"kv_formats", {{"k", report.k.format}, {"v", report.v.format}}},
          {"kv_bytes_per_token", report.bytes_per_token()},
          {"kv_bytes_per_token_f16", f16_bytes},
          {"kv_fixed_bytes", report.k.fixed_bytes + report.v.fixed_bytes},
          {"kv_ratio", double(f16_bytes) / double(report.bytes_per_token())}};
}

/// Tokens that the running sequences of a pool hold, shared ones once a holder.
int64_t held_tokens(PoolRunner& runner) {
  int64_t n = 0;
  for (const auto& job : runner.jobs()) n += runner.pool().length(job->text.seq);
  return n;
}

/// Bytes of the rows that a side of a layer holds for sequences, and of the same rows in f16.
struct RowBytes {
  int64_t held = 0, f16 = 0;
  /// `n`: tokens of one more sequence.
  void add(const KvTiles& t, int n) {
    const int first = t.first_seen(n), sinks = std::min(n, t.n_sinks);
    const int coded = std::max(0, t.retention.coded_end(n) - std::max(first, sinks));
    const int exact = n - std::max(first, sinks) - coded;
    const int64_t f16_row = int64_t(2) * t.head_dim;
    held += t.n_kv_heads *
            (sinks * f16_row + coded * t.row_bytes + exact * (t.ring_tiles > 0 ? t.recent_row_bytes : t.row_bytes));
    f16 += t.n_kv_heads * (sinks + coded + exact) * f16_row;
  }
};

struct Quality {
  double norm2 = 0, error2 = 0;
  void add(const PageCounts& counts) { norm2 += counts.norm2, error2 += counts.error2; }
  Json json() const {
    return {{"norm", std::sqrt(norm2)}, {"relative_error", norm2 > 0 ? std::sqrt(error2 / norm2) : 0.0}};
  }
};

/// Pages of a class that running sequences hold.
std::vector<int32_t> held_pages(PoolRunner& runner, PageClass of) {
  std::vector<int32_t> pages;
  for (const auto& job : runner.jobs())
    if (!job->parked) {
      const auto held = runner.pool().pages(job->text.seq, of);
      pages.insert(pages.end(), held.begin(), held.end());
    }
  std::ranges::sort(pages);
  pages.erase(std::ranges::unique(pages).begin(), pages.end());
  return pages;
}

Json layers_json(PoolRunner& runner, KvDetail detail) {
  KvMemory& memory = runner.pool().memory();
  const std::vector<int32_t> of_class[] = {held_pages(runner, PageClass::full), held_pages(runner, PageClass::sliding)};
  Json layers = Json::array();
  for (int layer = 0; layer < memory.n_layers(); ++layer) {
    Json entry = {{"layer", layer}};
    const std::vector<int32_t>& pages = of_class[size_t(memory.page_class(layer))];
    for (const KvSide side : kKvSides) {
      const std::vector<PageCounts> all_pages = memory.counts(layer, side);
      Quality all;
      Json list = Json::array();
      for (const int32_t page : pages) {
        const PageCounts& counts = all_pages[size_t(page)];
        all.add(counts);
        Quality one;
        one.add(counts);
        Json of_page = one.json();
        of_page["page"] = page;
        list.push_back(std::move(of_page));
      }
      Json json = all.json();
      json["saturated"] = memory.saturated(layer, side);
      if (detail == KvDetail::pages) json["pages"] = std::move(list);
      entry[side == KvSide::k ? "k" : "v"] = std::move(json);
    }
    layers.push_back(std::move(entry));
  }
  return layers;
}

Json pages_json(const PageReport& pages) {
  const int cached = pages.pages_of_checkpoints;
  return {{"total", pages.n_pages},
          {"free", pages.pages_free},
          {"used", pages.n_pages - pages.pages_free - cached - pages.pages_shared},
          {"shared", pages.pages_shared},
          {"cached", cached}};
}

Json pool_json(Scheduler& scheduler, PoolRunner& runner, KvDetail detail) {
  const PoolReport pool = runner.pool().report();
  Json json =
      report_json(kv_report(runner.pool().memory(), runner.options().n_ctx), f16_bytes_per_token(scheduler.engine()));
  json["pages"] = pages_json(pool);
  if (pool.sliding) json["sliding_pages"] = pages_json(*pool.sliding);
  json["slots"] = {{"total", pool.n_slots}, {"free", pool.slots_free}};
  json["sequences"] = pool.sequences;
  json["checkpoints"] = pool.checkpoints;
  json["page_tokens"] = kPagePositions;
  json["page_bytes"] = pool.page_bytes;
  if (pool.sliding) json["sliding_page_bytes"] = pool.sliding->page_bytes;
  json["slot_bytes"] = pool.slot_bytes;
  json["used_bytes"] = pool.used_bytes;
  json["allocated_bytes"] = pool.allocated_bytes;
  const KvMemory& memory = runner.pool().memory();
  int64_t values[kPageClasses] = {};  // of a position
  for (int layer = 0; layer < memory.n_layers(); ++layer)
    for (const KvSide side : kKvSides) {
      const KvTiles& t = memory.layout(layer, side).tiles;
      values[size_t(page_class_of(t))] += int64_t(t.n_kv_heads) * t.head_dim;
    }
  int64_t f16_bytes = 0;
  for (const PageClass of : memory.page_classes()) {
    const PageReport& pages = of == PageClass::sliding && pool.sliding ? *pool.sliding : pool;
    f16_bytes += int64_t(pages.n_pages - pages.pages_free) * kPagePositions * 2 * values[size_t(of)];
  }
  json["f16_bytes"] = f16_bytes;
  json["tokens"] = held_tokens(runner);
  RowBytes rows;
  for (const auto& job : runner.jobs())
    for (int layer = 0; layer < memory.n_layers(); ++layer)
      for (const KvSide side : kKvSides)
        rows.add(memory.layout(layer, side).tiles, runner.pool().length(job->text.seq));
  json["sequence_bytes"] = rows.held;
  json["sequence_f16_bytes"] = rows.f16;
  if (detail != KvDetail::none) json["layers"] = layers_json(runner, detail);
  return json;
}

/// Median over the newest n steps, in milliseconds; `seconds` takes a record.
double median_ms(const std::deque<StepRecord>& steps, int64_t n, const auto& seconds) {
  std::vector<double> times;
  for (auto step = steps.rbegin(); step != steps.rend() && ssize(times) < n; ++step) times.push_back(seconds(*step));
  if (times.empty()) return 0;
  std::ranges::nth_element(times, times.begin() + ssize(times) / 2);
  return 1e3 * times[times.size() / 2];
}

Json parts_json(const std::deque<StepRecord>& steps, int64_t n) {
  Json parts;
  for (size_t i = 0; i < kStepParts.size(); ++i)
    parts[std::string(kStepParts[i])] = median_ms(steps, n, [i](const StepRecord& step) { return step.parts[i]; });
  return parts;
}

Json ops_json(const OpTimes& times) {
  Json layers = Json::array();
  for (const auto& [layer, ops] : times.ops) layers.push_back({{"layer", layer}, {"seconds", ops}});
  return {{"passes", times.passes}, {"seconds", times.seconds}, {"layers", std::move(layers)}};
}

}  // namespace

std::string kv_line(Engine& engine, const PoolOptions& pool) {
  const auto layers = layer_configs(session_options(pool.kv, pool.n_ctx, 0), engine.plan());
  const KvReport report = kv_report(*engine.open_host_memory(layers, 1, 1), pool.n_ctx);
  const int64_t f16 = f16_bytes_per_token(engine);
  return fmt::format("{}{}, {} bytes a token (f16: {}, ratio {:.2f})", kv_text(pool.kv),
                     engine.info().n_cached_sides == 1 ? ", one row for K and V" : "", report.bytes_per_token(), f16,
                     double(f16) / double(report.bytes_per_token()));
}

Json models_json(const Models& models) {
  Json data = Json::array();
  for (const std::string& name : models.names()) {
    const Models::Pointer served = models.look(name);
    const int64_t created = served ? served->model.loaded : models.opened;
    // OpenAI's fields, Anthropic's, and those of llama.cpp's server.
    Json one = {{"id", name},
                {"object", "model"},
                {"created", created},
                {"owned_by", "ridge"},
                {"name", name},
                {"type", "model"},
                {"display_name", name},
                {"created_at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time_t(created)))},
                {"status", {{"value", served ? "loaded" : "unloaded"}}}};
    if (served) {
      const ModelInfo& info = served->model.engine.info();
      one["meta"] = {{"name", info.name},         {"n_ctx", served->model.n_ctx}, {"n_ctx_train", info.n_ctx_train},
                     {"n_params", info.n_params}, {"n_vocab", info.vocab_size},   {"size", info.weight_bytes}};
    }
    data.push_back(std::move(one));
  }
  return {{"object", "list"},
          {"data", std::move(data)},
          {"has_more", false},
          {"first_id", models.names().front()},
          {"last_id", models.names().back()}};
}

Json props_json(Scheduler& scheduler, const ApiModel& model) {
  const ModelInfo& info = model.engine.info();
  Json json = {{"model", model.name},
               {"name", info.name},
               {"arch", info.arch},
               {"device", info.device},
               {"weight_format", info.weight_format},
               {"weight_bytes", info.weight_bytes},
               {"n_ctx", model.n_ctx},
               {"parallel", scheduler.options().pool.max_seqs},
               {"batch_tokens", scheduler.options().pool.batch_tokens},
               {"kv_quant", scheduler.default_kv()},
               {"kv_pools", scheduler.options().max_pools},
               {"template", !info.has_tokenizer           ? "none"
                            : model.chat_template.plain() ? "plain"
                                                          : "model"},
               {"version", build_info().version},
               {"commit", build_info().commit},
               // Fields that tools of llama.cpp's server read.
               {"model_alias", model.name},
               {"total_slots", scheduler.options().pool.max_seqs},
               {"default_generation_settings", {{"n_ctx", model.n_ctx}}},
               {"chat_template", model.chat_template.named.empty() ? "" : model.chat_template.named[0].source},
               {"modalities", {{"vision", false}, {"audio", false}}},
               {"build_info", fmt::format("ridge {} {}", build_info().version, build_info().commit)}};
  scheduler.inspect([&](Scheduler& s) {
    const auto runner = s.runners().find(s.default_kv());
    if (runner == s.runners().end()) return;  // not opened yet
    json.update(
        report_json(kv_report(runner->second->pool().memory(), model.n_ctx), f16_bytes_per_token(model.engine)));
  });
  return json;
}

Json status_json(Scheduler& scheduler, int64_t n_steps) {
  Json json;
  scheduler.inspect([&](Scheduler& s) {
    Json running = Json::array();
    for (const auto& [kv, runner] : s.runners())
      for (const auto& job : runner->jobs()) {
        const double seconds = job->decodes() ? seconds_since(job->decoding) : 0;
        const int64_t n = ssize(job->result.tokens);
        running.push_back({{"id", job->id},
                           {"state", phase_name(runner->phase(*job))},
                           {"kv_quant", kv},
                           {"n_prompt", job->n_prompt()},
                           {"n_prompt_done", job->n_done},
                           {"n_cached", job->usage.n_cached},
                           {"n_generated", n},
                           {"tok_s", seconds > 0 && n > 1 ? double(n - 1) / seconds : 0.0}});
      }
    const Totals& totals = s.totals();
    // Tokens a second of the newest steps: none when they are old.
    double seconds = 0;
    int64_t generated = 0, prompt = 0;
    for (auto step = totals.recent.rbegin(); step != totals.recent.rend() && seconds < 1; ++step)
      seconds += step->seconds, generated += step->n_decode + step->n_accepted, prompt += step->n_prompt_tokens;
    const bool idle = running.empty() || seconds == 0;
    const StepRecord last = totals.recent.empty() || idle ? StepRecord() : totals.recent.back();
    json = {{"queue", s.n_waiting()},
            {"parallel", s.options().pool.max_seqs},
            {"running", std::move(running)},
            {"step",
             {{"ms_p50", median_ms(totals.recent, n_steps, [](const StepRecord& step) { return step.seconds; })},
              {"parts_ms_p50", parts_json(totals.recent, n_steps)},
              {"decode_seqs", last.n_decode},
              {"prompt_tokens", last.n_prompt_tokens},
              {"tok_s", idle ? 0.0 : double(generated) / seconds},
              {"prompt_tok_s", idle ? 0.0 : double(prompt) / seconds}}},
            {"totals",
             {{"requests", totals.requests},
              {"finished", totals.finished},
              {"cancelled", totals.cancelled},
              {"failed", totals.failed},
              {"parked", totals.parked},
              {"prompt_tokens", totals.prompt_tokens},
              {"cached_tokens", totals.cached_tokens},
              {"generated_tokens", totals.generated_tokens},
              {"proposed_tokens", totals.proposed_tokens},
              {"accepted_tokens", totals.accepted_tokens},
              {"steps", totals.steps},
              {"decode_rows", totals.decode_rows},
              {"step_seconds", totals.step_seconds}}}};
    if (totals.ops) json["ops"] = ops_json(*totals.ops);
  });
  return json;
}

Json slots_json(Scheduler& scheduler) {
  Json slots = Json::array();
  scheduler.inspect([&](Scheduler& s) {
    const PoolOptions& pool = s.options().pool;
    const auto slot = [&](bool speculative, bool busy) {
      return Json{{"id", slots.size()}, {"n_ctx", pool.n_ctx}, {"speculative", speculative}, {"is_processing", busy}};
    };
    for (const auto& [kv, runner] : s.runners())
      for (const auto& job : runner->jobs()) {
        const SamplerOptions& sampler = job->text.sampler;
        Json one = slot(job->speculation != nullptr, true);
        one["id_task"] = job->id;
        one["params"] = {{"n_predict", job->request.options.max_tokens},
                         {"temperature", sampler.temperature},
                         {"top_k", sampler.top_k},
                         {"top_p", sampler.top_p},
                         {"min_p", sampler.min_p}};
        Json next = {{"has_next_token", job->text.n_left > 0},
                     {"n_decoded", job->result.tokens.size()},
                     {"n_remain", job->text.n_left}};
        one["next_token"] = Json::array({std::move(next)});
        slots.push_back(std::move(one));
      }
    while (ssize(slots) < pool.max_seqs) slots.push_back(slot(false, false));
  });
  return slots;
}

Json kv_json(Scheduler& scheduler, KvDetail detail) {
  Json json;
  scheduler.inspect([&](Scheduler& s) {
    const std::string standard = s.default_kv();
    Json pools = Json::object();
    for (const auto& [kv, runner] : s.runners()) pools[kv] = pool_json(s, *runner, detail);
    json = pools.contains(standard) ? pools[standard] : Json::object();
    json["kv_quant"] = standard;
    json["pools"] = std::move(pools);
  });
  return json;
}

std::string metrics_text(const Board& board, const http::Counts& counts) {
  std::string text;
  const auto add = [&](std::string_view type, std::string_view name, std::string_view help, double value) {
    text += fmt::format("# HELP ridge_{0} {1}\n# TYPE ridge_{0} {2}\nridge_{0} {3}\n", name, help, type, value);
  };
  const Totals& t = board.totals;
  add("counter", "requests_total", "Requests that came, a choice each.", double(t.requests));
  add("counter", "requests_finished_total", "Requests answered whole.", double(t.finished));
  add("counter", "requests_cancelled_total", "Requests whose client left, or that were stopped.", double(t.cancelled));
  add("counter", "requests_failed_total", "Requests that an error ended.", double(t.failed));
  add("counter", "prompt_tokens_total", "Tokens of prompts that were computed.", double(t.prompt_tokens));
  add("counter", "cached_tokens_total", "Tokens of prompts that were in the cache.", double(t.cached_tokens));
  add("counter", "generated_tokens_total", "Tokens that were generated.", double(t.generated_tokens));
  add("counter", "proposed_tokens_total", "Draft tokens that were proposed.", double(t.proposed_tokens));
  add("counter", "accepted_tokens_total", "Draft tokens that were accepted.", double(t.accepted_tokens));
  add("counter", "steps_total", "Steps of the model.", double(t.steps));
  add("counter", "steps_ahead_total", "Steps that a device ran before the host had the tokens of the step in front.",
      double(t.steps_ahead));
  add("counter", "decode_rows_total", "Decoding sequences, summed over steps.", double(t.decode_rows));
  add("counter", "parked_total", "Times that a sequence left the cache for want of pages.", double(t.parked));
  text += "# HELP ridge_step_part_seconds_total Seconds of steps by part.\n";
  text += "# TYPE ridge_step_part_seconds_total counter\n";
  for (size_t i = 0; i < kStepParts.size(); ++i)
    text += fmt::format("ridge_step_part_seconds_total{{part=\"{}\"}} {}\n", kStepParts[i], t.part_seconds[i]);
  if (t.ops) {
    text += "# HELP ridge_op_seconds_total Seconds of the CPU's ops by layer; -1: outside the layers.\n";
    text += "# TYPE ridge_op_seconds_total counter\n";
    for (const auto& [layer, ops] : t.ops->ops)
      for (const auto& [op, seconds] : ops)
        text += fmt::format("ridge_op_seconds_total{{op=\"{}\",layer=\"{}\"}} {}\n", op, layer, seconds);
  }
  add("gauge", "requests_running", "Requests with a place in the cache.", double(board.n_running));
  add("gauge", "requests_parked", "Requests whose cache is in host memory.", double(board.n_parked));
  add("gauge", "requests_waiting", "Requests in the queue.", double(board.n_waiting));
  constexpr std::string_view kPages[] = {"free", "used", "shared", "cached"};
  const auto add_pages = [&](std::string_view name, std::string_view kv, const PageReport& p) {
    const int used = p.n_pages - p.pages_free - p.pages_shared - p.pages_of_checkpoints;
    const int n[] = {p.pages_free, used, p.pages_shared, p.pages_of_checkpoints};
    for (int i = 0; i < 4; ++i) text += fmt::format("{}{{kv=\"{}\",state=\"{}\"}} {}\n", name, kv, kPages[i], n[i]);
  };
  text += "# HELP ridge_kv_pages Pages of 128 tokens by state.\n# TYPE ridge_kv_pages gauge\n";
  for (const auto& [kv, pool] : board.pools) add_pages("ridge_kv_pages", kv, pool);
  text += "# HELP ridge_kv_sliding_pages Those of sliding layers, beside full ones.\n";
  text += "# TYPE ridge_kv_sliding_pages gauge\n";
  for (const auto& [kv, pool] : board.pools)
    if (pool.sliding) add_pages("ridge_kv_sliding_pages", kv, *pool.sliding);
  text += "# HELP ridge_kv_bytes Bytes of pages and slots in use.\n# TYPE ridge_kv_bytes gauge\n";
  for (const auto& [kv, pool] : board.pools)
    text += fmt::format("ridge_kv_bytes{{kv=\"{}\"}} {}\n", kv, pool.used_bytes);
  text += t.queue.text("ridge_queue_seconds", "From the request to its first step.");
  text += t.first_token.text("ridge_first_token_seconds", "From the request to its first token.");
  text += t.between_tokens.text("ridge_between_tokens_seconds", "Between two tokens of one request.");
  text += t.step.text("ridge_step_seconds", "Steps of the model.");
  text += t.request.text("ridge_request_seconds", "From the request to its end.");
  add("gauge", "connections", "Open connections.", double(counts.connections));
  add("counter", "connections_total", "Connections that were accepted.", double(counts.accepted));
  add("counter", "http_requests_total", "HTTP requests that were read whole.", double(counts.requests));
  add("counter", "http_refused_total", "HTTP requests refused before their handler.", double(counts.refused));
  add("counter", "http_stalled_total", "Connections cut because the client read nothing.", double(counts.stalled));
  return text;
}

}  // namespace ridge::serve
