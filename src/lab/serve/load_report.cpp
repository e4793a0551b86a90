#include "lab/serve/load_report.h"

#include <cmath>

#include "lab/rows/columns.h"
#include "lab/rows/machine.h"

namespace ridge::lab {
namespace {

constexpr double kNoLimit = 1e9;

Row view_or_null(const LoadServer& server, const std::string& path) {
  auto view = server.get(path);
  return view ? *view : Row();
}

/// The model that the server has. Refuses servers that do not say what prompts of token ids need.
Row served_model(const LoadServer& server, const LoadPlan& plan) {
  const Row models = server.get("/v1/models").or_throw();
  const Row* list = models.contains("data") ? &models["data"] : nullptr;
  const bool has_meta = list && list->is_array() && !list->empty() && (*list)[0].contains("meta");
  const Row model = has_meta ? (*list)[0] : Row();
  const double n_vocab = has_meta ? number_in(model["meta"], "n_vocab") : NAN;
  if (!(n_vocab >= 1))
    throw Error(ErrorKind::failure, "the server's /v1/models does not say how many tokens its model knows");
  const double n_ctx = number_in(model["meta"], "n_ctx");
  if (plan.longest() > n_ctx)
    throw_wrong_field("prompt_tokens",
                      "prompts and answers of up to {} tokens do not fit into the server's context of {:.0f} (shorter "
                      "ones, or a server with a larger --ctx-size)",
                      plan.longest(), n_ctx);
  return model;
}

Row field_of(const Row& object, const char* name) { return object.contains(name) ? object[name] : Row(); }

Row milliseconds(const Percentiles& p) {
  return {{"p50", number(1e3 * p.p50)}, {"p95", number(1e3 * p.p95)}, {"p99", number(1e3 * p.p99)}};
}

Row milliseconds_cell(const Percentiles& p, const char* format) {
  const auto text = [&](double seconds) { return cell_text(number(1e3 * seconds), format); };
  return fmt::format("{} / {} / {}", text(p.p50), text(p.p95), text(p.p99));
}

/// The command line without the key of the server.
std::string hidden_command(const std::string& key) {
  std::string command = command_line();
  for (size_t at = 0; !key.empty() && (at = command.find(key, at)) != std::string::npos;)
    command.replace(at, key.size(), "KEY");
  return command;
}

Provenance provenance_of(const LoadRow& row) {
  return {row.n_threads, row.test.plan.seed, utc_now(), hidden_command(row.params.key)};
}

}  // namespace

std::string LoadTest::load() const {
  if (plan.rate > 0) return fmt::format("{} req/s", plan.rate);
  return fmt::format("{} client{}", plan.n_clients, plan.n_clients == 1 ? "" : "s");
}

std::string LoadTest::prompt() const {
  if (plan.prefix_tokens == 0) return plan.prompt.text();
  return fmt::format("{}x{} + {}", plan.n_prefixes, plan.prefix_tokens, plan.prompt.text());
}

LoadRow run_load_test(const LoadServer& server, const LoadTest& test, const LoadParams& params,
                      const std::function<bool()>& stop) {
  LoadRow row{.params = params, .test = test};
  row.model = served_model(server, test.plan);
  row.props = view_or_null(server, "/props");
  row.test.plan.n_vocab = int(number_in(row.model["meta"], "n_vocab"));
  const LoadTarget target{server, text_in(row.model, "id"), test.kv_name()};
  warm_up(target, row.test.plan);
  row.load_before = machine_info().load_1min;
  row.run = run_load(target, row.test.plan, stop);
  const auto limit = [](double ms) { return ms > 0 ? 1e-3 * ms : kNoLimit; };
  row.summary = summarize(row.run, limit(params.first_limit_ms), limit(params.token_limit_ms));
  return row;
}

Columns<LoadRow> load_columns() {
  return {
      {"kind", "-", "serve", [](auto&) { return "serve"; }},
      part_of<LoadRow>(provenance_columns(), provenance_of),
      {"load_1min_before", "processes", "load of this machine before the test", [](auto& r) { return r.load_before; }},
      {"server", "-", "its URL", [](auto& r) { return r.params.url.empty() ? "own process" : r.params.url; }},
      {"model", "-", "as the server names it", [](auto& r) { return text_in(r.model, "id"); }},
      {"server_arch", "-", "architecture of its model", [](auto& r) { return field_of(r.props, "arch"); }},
      {"server_device", "-", "of the server", [](auto& r) { return field_of(r.props, "device"); }},
      {"server_weight_format", "-", "of its model", [](auto& r) { return field_of(r.props, "weight_format"); }},
      {"server_version", "-", "release of Ridge", [](auto& r) { return field_of(r.props, "version"); }},
      {"server_commit", "-", "of its build", [](auto& r) { return field_of(r.props, "commit"); }},
      {"server_parallel", "sequences", "at a time", [](auto& r) { return field_of(r.props, "parallel"); }},
      {"server_batch_tokens", "tokens", "most of a pass", [](auto& r) { return field_of(r.props, "batch_tokens"); }},
      {"server_n_ctx", "tokens", "of a sequence", [](auto& r) { return field_of(r.props, "n_ctx"); }},
      {"kv", "-", "cache format", [](auto& r) { return r.kv(); }, "kv"},
      {"kv_bytes_per_token", "bytes", "of the cache", [](auto& r) { return field_of(r.run.kv, "kv_bytes_per_token"); }},
      {"kv_ratio", "-", "f16 over this cache", [](auto& r) { return field_of(r.run.kv, "kv_ratio"); }},
      {"load", "-", "closed or poisson", [](auto& r) { return r.test.plan.rate > 0 ? "poisson" : "closed"; }},
      {"", "-", "clients, or requests a second", [](auto& r) { return r.test.load(); }, "load"},
      {"clients", "clients", "that wait for their answers", [](auto& r) { return r.test.plan.n_clients; }},
      {"rate", "requests/s", "of arrivals", [](auto& r) { return r.test.plan.rate; }},
      {"limit_requests", "requests", "of the test", [](auto& r) { return r.test.plan.n_requests; }},
      {"limit_seconds", "s", "after which no request starts", [](auto& r) { return r.test.plan.seconds; }},
      {"", "tokens", "of a prompt, shared ones in front", [](auto& r) { return r.test.prompt(); }, ">prompt"},
      {"prompt_tokens", "tokens", "of a prompt", [](auto& r) { return r.test.plan.prompt.text(); }},
      {"answer_tokens", "tokens", "of an answer", [](auto& r) { return r.test.plan.answer.text(); }},
      {"shared_prefix", "tokens", "that prompts share", [](auto& r) { return r.test.plan.prefix_tokens; }},
      {"prefixes", "prefixes", "different ones", [](auto& r) { return r.test.plan.n_prefixes; }},
      {"seconds", "s", "of the test", [](auto& r) { return r.run.seconds; }},
      {"", "requests", "of the test", [](auto& r) { return r.run.samples.size(); }, ">requests"},
      {"requests_ok", "requests", "that were answered", [](auto& r) { return r.summary.n_ok; }},
      {"requests_failed", "requests", "that were not", [](auto& r) { return r.summary.n_failed; }, ">failed"},
      {"errors", "requests", "that failed, by status",
       [](auto& r) {
         Row errors = Row::object();
         for (const auto& [status, count] : r.summary.errors) errors[std::to_string(status)] = count;
         return errors;
       }},
      {"sent_late", "requests", "sent later than planned", [](auto& r) { return r.summary.n_late; }},
      {"ttft_ms", "ms", "time to the first text", [](auto& r) { return milliseconds(r.summary.first); }},
      {"", "ms", "time to the first text", [](auto& r) { return milliseconds_cell(r.summary.first, "{:.0f}"); },
       ">TTFT p50 / p95 / p99 ms"},
      {"itl_ms", "ms", "time between pieces of text", [](auto& r) { return milliseconds(r.summary.gap); }},
      {"", "ms", "time between pieces of text", [](auto& r) { return milliseconds_cell(r.summary.gap, "{:.1f}"); },
       ">ITL p50 / p95 / p99 ms"},
      {"total_ms", "ms", "of a request", [](auto& r) { return milliseconds(r.summary.total); }},
      {"requests_s", "requests/s", "answered", [](auto& r) { return r.summary.requests_s; }},
      {"gen_tok_s", "tokens/s", "generated for clients", [](auto& r) { return r.summary.generated_s; }, ">gen t/s",
       "{:.1f}"},
      {"prompt_tok_s", "tokens/s", "of prompts of all clients", [](auto& r) { return r.summary.prompt_s; },
       ">prompt t/s", "{:.0f}"},
      {"gen_tokens", "tokens", "generated", [](auto& r) { return r.summary.generated_tokens; }},
      {"text_pieces", "pieces", "of text", [](auto& r) { return r.summary.pieces; }},
      {"prompt_tokens_sent", "tokens", "of all prompts", [](auto& r) { return r.summary.prompt_tokens; }},
      {"prompt_tokens_cached", "tokens", "of them in the cache", [](auto& r) { return r.summary.cached_tokens; }},
      {"", "%", "prompt tokens that the cache had",
       [](auto& r) { return 100.0 * double(r.summary.cached_tokens) / double(r.summary.prompt_tokens); }, ">cached %",
       "{:.0f}"},
      {"ttft_limit_ms", "ms", "of a good request", [](auto& r) { return r.params.first_limit_ms; }},
      {"itl_limit_ms", "ms", "of a good request", [](auto& r) { return r.params.token_limit_ms; }},
      {"requests_good", "requests", "within both limits", [](auto& r) { return r.summary.n_good; }},
      {"goodput_req_s", "requests/s", "within both limits",
       [](auto& r) { return double(r.summary.n_good) / r.run.seconds; }, ">good req/s", "{:.2f}"},
      {"", "%", "requests within both limits",
       [](auto& r) { return 100.0 * double(r.summary.n_good) / double(r.summary.n_ok); }, ">good %", "{:.0f}"},
      {"kv_bytes_peak", "bytes", "most of the cache in use", [](auto& r) { return r.run.kv_bytes_peak; }},
      {"", "MB", "most of the cache in use", [](auto& r) { return r.run.kv_bytes_peak / 1e6; }, ">KV MB", "{:.1f}"},
      {"kv_f16_bytes_peak", "bytes", "the same rows as f16", [](auto& r) { return r.run.kv_f16_bytes; }},
      {"step_ms_p50", "ms", "median forward pass", [](auto& r) { return r.run.server.step_ms_p50; }, ">step ms",
       "{:.2f}"},
      {"step_ms_mean", "ms", "mean pass", [](auto& r) { return 1e3 * r.run.server.step_seconds / r.run.server.steps; }},
      {"steps", "passes", "of the server", [](auto& r) { return r.run.server.steps; }},
      {"mean_decode_batch", "sequences", "of a forward pass",
       [](auto& r) { return r.run.server.decode_rows / r.run.server.steps; }, ">decode batch", "{:.1f}"},
      {"", "processes", "before the test", [](auto& r) { return r.load_before; }, ">machine load", "{:.1f}"},
      {"server_prompt_tokens", "tokens", "computed or found", [](auto& r) { return r.run.server.prompt_tokens; }},
      {"server_cached_tokens", "tokens", "found in the cache", [](auto& r) { return r.run.server.cached_tokens; }},
      {"parked", "sequences", "moved to host memory", [](auto& r) { return r.run.server.parked; }},
  };
}

}  // namespace ridge::lab
