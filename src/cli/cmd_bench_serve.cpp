// ridge bench serve: a server under load, as its clients see it.
#include <cmath>
#include <memory>

#include "cli/bench.h"
#include "cli/serve_flags.h"
#include "engine/engine.h"
#include "lab/store/machine.h"
#include "serve/load.h"
#include "serve/server.h"

namespace ridge::cli {
namespace {

constexpr int kMostLoadTokens = 1 << 24, kMostLoadClients = 4096;
constexpr int kRequestsPerClient = 4, kLeastRequests = 16, kRequestsOfRate = 64;
constexpr double kNoLimit = 1e9;

struct LoadFlags {
  ModelFlags model;
  SchedulerFlags scheduler;
  OutputFlags output;
  std::string url, key, kv, prompt = "512", answer = "64", format = "md";
  std::vector<std::string> clients;
  int64_t n_requests = 0, seed = 42;
  int prefix_tokens = 0, n_prefixes = 1;
  double rate = 0, seconds = 0, first_limit_ms = 1000, token_limit_ms = 100;
};

/// What one line of the table is about.
struct LoadTest {
  std::optional<KvChoice> kv;  ///< none: the server's own
  serve::LoadPlan plan;

  std::string kv_name() const { return kv ? kv_text(*kv) : ""; }
  std::string load() const {
    if (plan.rate > 0) return fmt::format("{} req/s", plan.rate);
    return fmt::format("{} client{}", plan.n_clients, plan.n_clients == 1 ? "" : "s");
  }
};

struct LoadRow {
  LoadTest test;
  serve::LoadRun run;
  serve::LoadSummary summary;
  double load_before = 0;  ///< of the machine
  int n_threads = 0;       ///< of the server that was started here
  lab::Row model, props;   ///< entry of /v1/models, and /props
};

std::vector<LoadTest> load_tests(const LoadFlags& flags) {
  serve::LoadPlan plan{.n_requests = flags.n_requests,
                       .seconds = flags.seconds,
                       .rate = flags.rate,
                       .prompt = serve::parse_lengths("--prompt-tokens", flags.prompt, kMostLoadTokens).or_throw(),
                       .answer = serve::parse_lengths("--answer-tokens", flags.answer, kMostLoadTokens).or_throw(),
                       .prefix_tokens = flags.prefix_tokens,
                       .n_prefixes = flags.n_prefixes,
                       .seed = uint64_t(flags.seed)};
  if (flags.rate > 0 && !flags.clients.empty()) bad_flag("--rate", "does not go with --clients", "give one of them");
  std::vector<int> clients{1, 8, 32};
  if (flags.rate > 0) clients = {0};
  read_numbers("--clients", flags.clients, 1, kMostLoadClients, clients);
  std::vector<std::optional<KvChoice>> kv{std::nullopt};
  if (!flags.kv.empty()) {
    const std::vector<KvChoice> list = parse_kv_list(flags.kv).or_throw();
    kv.assign(list.begin(), list.end());
  } else if (flags.url.empty()) {
    kv = {KvChoice{}};
  }
  std::vector<LoadTest> tests;
  for (const auto& choice : kv)
    for (const int n : clients) {
      plan.n_clients = n;
      if (flags.n_requests == 0 && flags.seconds == 0)
        plan.n_requests = flags.rate > 0 ? kRequestsOfRate : std::max(kLeastRequests, kRequestsPerClient * n);
      // A running server remembers the prompts of the tests before.
      plan.contents = flags.url.empty() ? 0 : tests.size();
      tests.push_back({choice, plan});
    }
  return tests;
}

/// The server under load: one that runs, or one started here for every test, so that each finds an empty cache.
class BenchedServer {
 public:
  explicit BenchedServer(const LoadFlags& flags) : flags_(flags) {
    if (flags.url.empty()) model_.emplace(load_model(flags.model));
  }

  serve::LoadServer start(const LoadTest& test) {
    if (!model_) {
      const http::Url url = http::parse_url(flags_.url).or_throw();
      return {url.host, url.port, flags_.key};
    }
    server_ = serve::Server::open({.http = {.threads = flags_.scheduler.io_threads}}).or_throw();
    Engine& engine = model_->engine();
    server_->serve(engine, engine.info().name, {}, flags_.scheduler.options(engine, *test.kv, 1));
    return {"127.0.0.1", server_->port(), ""};
  }
  int n_threads() const { return model_ ? model_->info().n_threads : 0; }

 private:
  const LoadFlags& flags_;
  std::optional<Model> model_;
  std::unique_ptr<serve::Server> server_;  // ends before the model
};

lab::Row view_or_null(const serve::LoadServer& server, const std::string& path) {
  auto view = server.get(path);
  return view ? lab::Row(*view) : lab::Row();
}

/// The model that the server has. Refuses servers that do not say what prompts of token ids need.
lab::Row served_model(const serve::LoadServer& server, const serve::LoadPlan& plan) {
  const lab::Row models = server.get("/v1/models").or_throw();
  const lab::Row* list = models.contains("data") ? &models["data"] : nullptr;
  if (!list || !list->is_array() || list->empty() || !(*list)[0].contains("meta"))
    throw Error(ErrorKind::failure, "the server's /v1/models does not say how many tokens its model knows");
  const lab::Row& model = (*list)[0];
  const double n_vocab = lab::number_in(model["meta"], "n_vocab"), n_ctx = lab::number_in(model["meta"], "n_ctx");
  if (!(n_vocab >= 1))
    throw Error(ErrorKind::failure, "the server's /v1/models does not say how many tokens its model knows");
  if (plan.longest() > n_ctx)
    bad_flag("--prompt-tokens",
             fmt::format("prompts and answers of up to {} tokens do not fit into the server's context of {:.0f}",
                         plan.longest(), n_ctx),
             "shorter ones, or a server with a larger --ctx-size");
  return model;
}

std::string cell_of(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "";
}
std::string cells_of(const serve::Percentiles& p, int digits) {
  return fmt::format("{} / {} / {}", cell_of(1e3 * p.p50, digits), cell_of(1e3 * p.p95, digits),
                     cell_of(1e3 * p.p99, digits));
}

std::string load_markdown_head() {
  return "| kv | load | prompt | requests | failed | TTFT p50 / p95 / p99 ms | ITL p50 / p95 / p99 ms | gen t/s | "
         "prompt t/s | cached % | good req/s | good % | KV MB | step ms | decode batch | machine load |\n"
         "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | "
         "---: |";
}

std::string prompt_text(const serve::LoadPlan& plan) {
  if (plan.prefix_tokens == 0) return plan.prompt.text();
  return fmt::format("{}x{} + {}", plan.n_prefixes, plan.prefix_tokens, plan.prompt.text());
}

std::string load_markdown_line(const LoadRow& row) {
  const serve::LoadSummary& s = row.summary;
  const serve::ServerCounts& n = row.run.server;
  const std::string kv = row.test.kv ? row.test.kv_name() : lab::text_in(row.props, "kv_quant");
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |", kv,
                     row.test.load(), prompt_text(row.test.plan), row.run.samples.size(), s.n_failed,
                     cells_of(s.first, 0), cells_of(s.gap, 1), cell_of(s.generated_s, 1), cell_of(s.prompt_s, 0),
                     cell_of(100.0 * double(s.cached_tokens) / double(s.prompt_tokens), 0),
                     cell_of(double(s.n_good) / row.run.seconds, 2),
                     cell_of(100.0 * double(s.n_good) / double(s.n_ok), 0), cell_of(row.run.kv_bytes_peak / 1e6, 1),
                     cell_of(n.step_ms_p50, 2), cell_of(n.decode_rows / n.steps, 1), cell_of(row.load_before, 1));
}

lab::Row milliseconds(const serve::Percentiles& p) {
  return {{"p50", lab::number(1e3 * p.p50)}, {"p95", lab::number(1e3 * p.p95)}, {"p99", lab::number(1e3 * p.p99)}};
}

lab::Row load_fields(const LoadRow& row, const LoadFlags& flags) {
  const serve::LoadPlan& plan = row.test.plan;
  const serve::LoadSummary& s = row.summary;
  const serve::ServerCounts& n = row.run.server;
  lab::Row f;
  f["kind"] = "serve";
  f.update(lab::provenance(row.n_threads, plan.seed));
  if (std::string command = f["command"]; !flags.key.empty()) {
    for (size_t at = 0; (at = command.find(flags.key, at)) != std::string::npos;)
      command.replace(at, flags.key.size(), "KEY");
    f["command"] = command;
  }
  f["load_1min_before"] = lab::number(row.load_before);
  f["server"] = flags.url.empty() ? "own process" : flags.url;
  f["model"] = lab::text_in(row.model, "id");
  for (const char* name : {"arch", "device", "weight_format", "version", "commit", "parallel", "batch_tokens", "n_ctx"})
    f[std::string("server_") + name] = row.props.contains(name) ? row.props[name] : lab::Row();
  f["kv"] = row.test.kv ? row.test.kv_name() : lab::text_in(row.props, "kv_quant");
  for (const char* name : {"kv_bytes_per_token", "kv_ratio"})
    f[name] = row.run.kv.contains(name) ? lab::Row(row.run.kv[name]) : lab::Row();
  f["load"] = plan.rate > 0 ? "poisson" : "closed";
  f["clients"] = plan.n_clients;
  f["rate"] = plan.rate;
  f["limit_requests"] = plan.n_requests;
  f["limit_seconds"] = plan.seconds;
  f["prompt_tokens"] = plan.prompt.text();
  f["answer_tokens"] = plan.answer.text();
  f["shared_prefix"] = plan.prefix_tokens;
  f["prefixes"] = plan.n_prefixes;
  f["seconds"] = row.run.seconds;
  f["requests_ok"] = s.n_ok;
  f["requests_failed"] = s.n_failed;
  f["errors"] = lab::Row::object();
  for (const auto& [status, count] : s.errors) f["errors"][std::to_string(status)] = count;
  f["sent_late"] = s.n_late;
  f["ttft_ms"] = milliseconds(s.first);
  f["itl_ms"] = milliseconds(s.gap);
  f["total_ms"] = milliseconds(s.total);
  f["requests_s"] = lab::number(s.requests_s);
  f["gen_tok_s"] = lab::number(s.generated_s);
  f["prompt_tok_s"] = lab::number(s.prompt_s);
  f["gen_tokens"] = s.generated_tokens;
  f["text_pieces"] = s.pieces;
  f["prompt_tokens_sent"] = s.prompt_tokens;
  f["prompt_tokens_cached"] = s.cached_tokens;
  f["ttft_limit_ms"] = flags.first_limit_ms;
  f["itl_limit_ms"] = flags.token_limit_ms;
  f["requests_good"] = s.n_good;
  f["goodput_req_s"] = lab::number(double(s.n_good) / row.run.seconds);
  f["kv_bytes_peak"] = lab::number(row.run.kv_bytes_peak);
  f["kv_f16_bytes_peak"] = lab::number(row.run.kv_f16_bytes);
  f["step_ms_p50"] = lab::number(n.step_ms_p50);
  f["step_ms_mean"] = lab::number(1e3 * n.step_seconds / n.steps);
  f["steps"] = lab::number(n.steps);
  f["mean_decode_batch"] = lab::number(n.decode_rows / n.steps);
  f["server_prompt_tokens"] = lab::number(n.prompt_tokens);
  f["server_cached_tokens"] = lab::number(n.cached_tokens);
  f["parked"] = lab::number(n.parked);
  return f;
}

LoadRow run_load_test(BenchedServer& benched, const LoadTest& test, const LoadFlags& flags) {
  LoadRow row{.test = test};
  const serve::LoadServer server = benched.start(test);
  row.model = served_model(server, test.plan);
  row.props = view_or_null(server, "/props");
  row.n_threads = benched.n_threads();
  row.test.plan.n_vocab = int(lab::number_in(row.model["meta"], "n_vocab"));
  const serve::LoadTarget target{server, lab::text_in(row.model, "id"), test.kv_name()};
  serve::warm_up(target, row.test.plan);
  row.load_before = lab::machine_info().load_1min;
  row.run = serve::run_load(target, row.test.plan, interrupted);
  const auto limit = [](double ms) { return ms > 0 ? 1e-3 * ms : kNoLimit; };
  row.summary = serve::summarize(row.run, limit(flags.first_limit_ms), limit(flags.token_limit_ms));
  return row;
}

void tell_failures(const LoadRow& row) {
  for (const serve::LoadSample& sample : row.run.samples) {
    if (sample.ok()) continue;
    fmt::print(stderr, "warning: {} {}: {} of {} requests failed, one of them with {}: {}\n", row.test.kv_name(),
               row.test.load(), row.summary.n_failed, row.run.samples.size(), sample.status, sample.error);
    return;
  }
}

int bench_serve(const LoadFlags& flags) {
  if (flags.url.empty() == flags.model.model.empty())
    bad_flag("--url", "a server is asked, or one is started with --model", "give one of the two");
  const std::vector<LoadTest> tests = load_tests(flags);
  check_device(flags.model.device);
  allow_many_files();
  BenchOutput output(flags.output, flags.format, load_markdown_head());
  struct {
    std::function<bool()> stop;
    std::function<void(const std::string&, int, int)> on_status;
  } hooks;
  output.attach(hooks);
  hooks.on_status(flags.url.empty() ? "loading " + flags.model.model : flags.url, 0, int(tests.size()));
  BenchedServer benched(flags);
  int n_failed = 0;
  for (size_t i = 0; i < tests.size() && !interrupted(); ++i) {
    hooks.on_status(tests[i].kv_name() + " " + tests[i].load(), int(i), int(tests.size()));
    const LoadRow row = run_load_test(benched, tests[i], flags);
    if (interrupted()) break;
    output.clear();
    tell_failures(row);
    if (row.summary.n_wrong > 0) {
      // An answer of another length than asked for is no measurement.
      fmt::print(stderr, "error: {} wrong answers; the row is not stored\n", row.summary.n_wrong);
      ++n_failed;
      continue;
    }
    output.add(load_markdown_line(row), load_fields(row, flags));
  }
  return output.finish(n_failed);
}

}  // namespace

Action declare_bench_serve(CLI::App& app) {
  const auto flags = std::make_shared<LoadFlags>();
  LoadFlags& f = *flags;
  in_group(app, "Running server");
  CLI::Option* const url =
      add_text(app, "--url", f.url, "URL", "server to ask; without it one is started with --model");
  add_text(app, "--api-key", f.key, "KEY", "its key (other users see flags: prefer RIDGE_API_KEY)");
  say_needed(add_model_flag(app, f.model, false), "required, or --url");
  add_device_flags(app, f.model);
  const std::string own = "Server started here";
  in_group(app, own);
  add_request_flags(app, f.scheduler);
  add_memory_flags(app, f.scheduler);
  add_http_threads(app, f.scheduler);
  for (CLI::Option* option : app.get_options())
    if (option->get_group() == own) option->excludes(url);
  in_group(app, "Load");
  add_list(app, "--clients", f.clients, "1,8,32", "clients that send their next request when the last was answered");
  add_real(app, "--rate", f.rate, 0, 1e6, "instead of clients: Poisson arrivals, so many requests a second");
  add_whole(app, "--requests", f.n_requests, 0, 1 << 30,
            "requests of a test; 0: four a client, at least 16 (--rate: 64), or as --seconds says");
  add_real(app, "--seconds", f.seconds, 0, 1e6, "no request starts later; those under way are waited for");
  add_text(app, "--prompt-tokens", f.prompt, "N|A-B", "lengths of prompts, log-uniform from A to B");
  add_text(app, "--answer-tokens", f.answer, "N|A-B", "lengths of answers");
  add_whole(app, "--shared-prefix", f.prefix_tokens, 0, kMostLoadTokens,
            "tokens in front of every prompt that others have too");
  add_whole(app, "--prefixes", f.n_prefixes, 1, 1 << 20, "how many different ones there are");
  add_text(app, "--kv", f.kv, "LIST", "cache formats, tests for each: f16,rotor-3 (kv_quant of a request)");
  add_real(app, "--ttft-limit-ms", f.first_limit_ms, 0, 1e9, "a good request has its first text so soon; 0: no limit");
  add_real(app, "--itl-limit-ms", f.token_limit_ms, 0, 1e9,
           "and takes at most so long a token after it, on average; 0: no limit");
  add_whole(app, "--seed", f.seed, 0, INT64_MAX, "seed of lengths, arrivals and tokens");
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, json or jsonl, to stdout");
  add_output_flags(app, f.output, true);
  return [flags] { return bench_serve(*flags); };
}

}  // namespace ridge::cli
