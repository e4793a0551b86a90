// ridge bench serve: a server under load, as its clients see it.
#include <memory>

#include "cli/bench.h"
#include "cli/serve_flags.h"
#include "engine/engine.h"
#include "lab/rows/run_hooks.h"
#include "lab/serve/load_report.h"
#include "serve/server.h"

namespace ridge::cli {
namespace {

constexpr int kMostLoadTokens = 1 << 24, kMostLoadClients = 4096;
constexpr int kRequestsPerClient = 4, kLeastRequests = 16, kRequestsOfRate = 64;

struct LoadFlags {
  ModelFlags model;
  SchedulerFlags scheduler;
  OutputFlags output;
  lab::LoadParams params;
  std::string kv, prompt = "512", answer = "64", format = "md";
  std::vector<std::string> clients;
  lab::LoadPlan plan;  ///< but what the texts say
};

std::vector<lab::LoadTest> load_tests(const LoadFlags& flags) {
  lab::LoadPlan plan = flags.plan;
  plan.prompt = lab::parse_lengths("--prompt-tokens", flags.prompt, kMostLoadTokens).or_throw();
  plan.answer = lab::parse_lengths("--answer-tokens", flags.answer, kMostLoadTokens).or_throw();
  if (plan.rate > 0 && !flags.clients.empty()) bad_flag("--rate", "does not go with --clients", "give one of them");
  std::vector<int> clients{1, 8, 32};
  if (plan.rate > 0) clients = {0};
  read_numbers("--clients", flags.clients, 1, kMostLoadClients, clients);
  std::vector<std::optional<KvChoice>> kv{std::nullopt};
  if (!flags.kv.empty()) {
    const std::vector<KvChoice> list = parse_kv_list(flags.kv).or_throw();
    kv.assign(list.begin(), list.end());
  } else if (flags.params.url.empty()) {
    kv = {KvChoice{}};
  }
  std::vector<lab::LoadTest> tests;
  for (const auto& choice : kv)
    for (const int n : clients) {
      plan.n_clients = n;
      if (flags.plan.n_requests == 0 && plan.seconds == 0)
        plan.n_requests = plan.rate > 0 ? kRequestsOfRate : std::max(kLeastRequests, kRequestsPerClient * n);
      // A running server remembers the prompts of the tests before.
      plan.contents = flags.params.url.empty() ? 0 : tests.size();
      tests.push_back({choice, plan});
    }
  return tests;
}

/// The server under load: one that runs, or one started here for every test, so that each finds an empty cache.
class BenchedServer {
 public:
  explicit BenchedServer(const LoadFlags& flags) : flags_(flags) {
    if (flags.params.url.empty()) model_.emplace(load_model(flags.model));
  }

  lab::LoadServer start(const lab::LoadTest& test) {
    if (!model_) {
      const http::Url url = http::parse_url(flags_.params.url).or_throw();
      return {url.host, url.port, flags_.params.key};
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

void tell_failures(const lab::LoadRow& row) {
  for (const lab::LoadSample& sample : row.run.samples) {
    if (sample.ok()) continue;
    fmt::print(stderr, "warning: {} {}: {} of {} requests failed, one of them with {}: {}\n", row.test.kv_name(),
               row.test.load(), row.summary.n_failed, row.run.samples.size(), sample.status, sample.error);
    return;
  }
}

int bench_serve(const LoadFlags& flags) {
  if (flags.params.url.empty() == flags.model.model.empty())
    bad_flag("--url", "a server is asked, or one is started with --model", "give one of the two");
  const std::vector<lab::LoadTest> tests = load_tests(flags);
  check_device(flags.model.device);
  allow_many_files();
  BenchOutput output(flags.output, flags.format, lab::load_columns().head());
  lab::RunHooks hooks;
  output.attach(hooks);
  hooks.on_status(flags.params.url.empty() ? "loading " + flags.model.model : flags.params.url, 0, int(tests.size()));
  BenchedServer benched(flags);
  int n_failed = 0;
  for (size_t i = 0; i < tests.size() && !interrupted(); ++i) {
    hooks.on_status(tests[i].kv_name() + " " + tests[i].load(), int(i), int(tests.size()));
    lab::LoadRow row = lab::run_load_test(benched.start(tests[i]), tests[i], flags.params, interrupted);
    row.n_threads = benched.n_threads();
    if (interrupted()) break;
    output.clear();
    tell_failures(row);
    if (row.summary.n_wrong > 0) {
      // An answer of another length than asked for is no measurement.
      fmt::print(stderr, "error: {} wrong answers; the row is not stored\n", row.summary.n_wrong);
      ++n_failed;
      continue;
    }
    output.add(lab::load_columns(), row);
  }
  return output.finish(n_failed);
}

}  // namespace

static Action declare_bench_serve(CLI::App& app) {
  const auto flags = std::make_shared<LoadFlags>();
  LoadFlags& f = *flags;
  in_group(app, "Running server");
  CLI::Option* const url =
      add_text(app, "--url", f.params.url, "URL", "server to ask; without it one is started with --model");
  add_text(app, "--api-key", f.params.key, "KEY", "its key (other users see flags: prefer RIDGE_API_KEY)");
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
  add_real(app, "--rate", f.plan.rate, 0, 1e6, "instead of clients: Poisson arrivals, so many requests a second");
  add_whole(app, "--requests", f.plan.n_requests, 0, 1 << 30,
            "requests of a test; 0: four a client, at least 16 (--rate: 64), or as --seconds says");
  add_real(app, "--seconds", f.plan.seconds, 0, 1e6, "no request starts later; those under way are waited for");
  add_text(app, "--prompt-tokens", f.prompt, "N|A-B", "lengths of prompts, log-uniform from A to B");
  add_text(app, "--answer-tokens", f.answer, "N|A-B", "lengths of answers");
  add_whole(app, "--shared-prefix", f.plan.prefix_tokens, 0, kMostLoadTokens,
            "tokens in front of every prompt that others have too");
  add_whole(app, "--prefixes", f.plan.n_prefixes, 1, 1 << 20, "how many different ones there are");
  add_text(app, "--kv", f.kv, "LIST", "cache formats, tests for each: f16,rotor-3 (kv_quant of a request)");
  add_real(app, "--ttft-limit-ms", f.params.first_limit_ms, 0, 1e9,
           "a good request has its first text so soon; 0: no limit");
  add_real(app, "--itl-limit-ms", f.params.token_limit_ms, 0, 1e9,
           "and takes at most so long a token after it, on average; 0: no limit");
  add_whole(app, "--seed", f.plan.seed, 0, INT64_MAX, "seed of lengths, arrivals and tokens");
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, json or jsonl, to stdout");
  add_output_flags(app, f.output, true);
  app.footer(lab::columns_help(lab::load_columns().texts()));
  return [flags] { return bench_serve(*flags); };
}

extern const Command bench_serve_command = {
    "bench serve", "a server under load, as its clients see it",
    R"(Sends streaming completions over HTTP to a running server (--url) or to one started here (-m): from clients
that wait for their answers, one test for each number of --clients, or as Poisson arrivals (--rate). Prompts
are random token ids of random lengths, the same for the same --seed. An answer of another length than asked for
ends the command with 3. A server started here has an empty cache for every test.)",
    R"(ridge bench serve -m models/ridge-ref-q8_0.gguf --clients 1,8 --prompt-tokens 200-1000 --kv f16,rotor-3
ridge bench serve --url http://127.0.0.1:8080 --rate 2 --seconds 60 --shared-prefix 1500 --prefixes 4
ridge bench serve -m model.gguf --device cuda --parallel 128 --clients 128 --results results/serve-cuda.jsonl)",
    declare_bench_serve};

}  // namespace ridge::cli
