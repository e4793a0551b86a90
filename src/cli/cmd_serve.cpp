// ridge serve: OpenAI's API and a page for people, over one model.
#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/build_info.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "engine/kv_options.h"
#include "io/mapped_file.h"
#include "serve/server.h"
#include "serve/views.h"

namespace ridge::cli {
namespace {

constexpr double kGib = double(1 << 30);
constexpr uint64_t kMaxKeyBytes = 1 << 20;

struct ServeFlags {
  ModelFlags model;
  KvFlags kv;
  std::string host = "127.0.0.1", alias, key, key_file, state_dir;
  std::vector<std::string> hosts, origins;
  int port = 8080, n_ctx = 0, n_parallel = 0, n_pools = 1, batch_tokens = 0, queue = 256, io_threads = 2;
  int checkpoints = -1, checkpoint_every = 1024, stall_ms = 200, patience = 30;
  double kv_gib = 0, swap_gib = 4;
  bool log_prompts = false, quiet = false;
};

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

http::Keys read_keys(const ServeFlags& flags) {
  if (!flags.key.empty() && !flags.key_file.empty()) bad_flag("--api-key-file", "does not go with --api-key");
  if (!flags.key.empty()) return http::Keys::parse(flags.key, "--api-key").or_throw();
  if (flags.key_file.empty()) return {};
  http::Keys keys =
      http::Keys::parse(io::read_text_file(flags.key_file, kMaxKeyBytes).or_throw(), flags.key_file).or_throw();
  if (keys.empty()) bad_flag("--api-key-file", flags.key_file + " holds no key", "write one key a line");
  return keys;
}

/// Bytes for the cache: what all sequences fill, but not more than a part of the memory that is free.
int64_t default_kv_bytes(Engine& engine, const serve::LaneOptions& lane, int n_pools) {
  const auto layers = layer_configs(session_options(lane.kv, lane.n_ctx, 0), engine.plan());
  const auto memory = engine.open_host_memory(layers, 1, 1);
  const int64_t all = int64_t(pages_for(layers, lane.n_ctx)) * lane.max_seqs * memory->page_bytes() +
                      int64_t(lane.max_seqs + lane.n_checkpoints) * memory->slot_bytes();
  const double part = engine.on_device() ? 0.8 : 0.25;
  return std::min(all * n_pools, int64_t(part * double(engine.backend().free_bytes())));
}

serve::SchedulerOptions scheduler_options(const ServeFlags& flags, Engine& engine) {
  const bool device = engine.on_device();
  serve::LaneOptions lane{.kv = flags.kv.choice()};
  lane.n_ctx = flags.n_ctx > 0 ? flags.n_ctx : engine.info().n_ctx_train;
  lane.max_seqs = flags.n_parallel > 0 ? flags.n_parallel : device ? 64 : 16;
  lane.n_checkpoints = flags.checkpoints >= 0 ? flags.checkpoints : lane.max_seqs;
  lane.checkpoint_every = flags.checkpoint_every;
  lane.batch_tokens = flags.batch_tokens > 0 ? flags.batch_tokens : device ? 2048 : 512;
  lane.max_stall_seconds = 1e-3 * flags.stall_ms;
  lane.swap_bytes = int64_t(flags.swap_gib * kGib);
  lane.kv_bytes = flags.kv_gib > 0 ? int64_t(flags.kv_gib * kGib) : default_kv_bytes(engine, lane, flags.n_pools);
  return {.lane = lane, .max_queue = flags.queue, .max_lanes = flags.n_pools};
}

void log_line(const std::string& line) {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  char text[32];
  std::strftime(text, sizeof text, "%F %T", &time);
  fmt::print(stderr, "{} {}\n", text, line);
}

void print_start(const ServeFlags& flags, Engine& engine, const serve::SchedulerOptions& options, bool base_model,
                 uint16_t port) {
  const ModelInfo& info = engine.info();
  const std::string shown = flags.host.find(':') == std::string::npos ? flags.host : "[" + flags.host + "]";
  const std::string url = fmt::format("http://{}:{}", shown, port);
  const std::string key = flags.key.empty() && flags.key_file.empty() ? "" : " -H \"Authorization: Bearer $KEY\"";
  fmt::print("model    {} ({}, {}), {}\n", info.name, info.arch, info.weight_format, device_text(info));
  fmt::print("cache    {}; {:.2f} GiB for {} sequences of {} tokens\n", serve::kv_line(engine, options.lane),
             double(options.lane.kv_bytes) / kGib, options.lane.max_seqs, options.lane.n_ctx);
  if (!engine.has_tokenizer()) {
    fmt::print("note     this model has no tokenizer: prompts and answers of /v1/completions are token ids\n");
  } else if (base_model) {
    fmt::print("note     a base model without a chat template: completions work, chat uses \"User: ... Assistant:\"\n");
  }
  fmt::print("page     {}/\n", url);
  fmt::print("curl     curl{} {}/v1/completions -d '{{\"prompt\": {}, \"max_tokens\": 40}}'\n", key, url,
             engine.has_tokenizer() ? "\"The history of Paris\"" : "[1, 2, 3]");
  fmt::print(
      "python   python3 -c 'from openai import OpenAI; print(OpenAI(base_url=\"{}/v1\", api_key=\"{}\")"
      ".completions.create(model=\"{}\", prompt={}, max_tokens=40).choices[0].text)'\n",
      url, key.empty() ? "none" : "KEY", flags.alias.empty() ? info.name : flags.alias,
      engine.has_tokenizer() ? "\"The history of Paris\"" : "[1, 2, 3]");
  std::fflush(stdout);
}

/// Ten thousand clients are ten thousand open files.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int serve_model(const ServeFlags& flags) {
  flags.kv.choice();  // refuses nonsense before the model is read
  check_device(flags.model.device);
  allow_many_files();
  serve::ServerOptions options{.http = {.host = flags.host,
                                        .port = uint16_t(flags.port),
                                        .threads = flags.io_threads,
                                        .hosts = flags.hosts,
                                        .origins = flags.origins},
                               .keys = read_keys(flags),
                               .state_dir = flags.state_dir,
                               .log_prompts = flags.log_prompts};
  if (!flags.quiet) options.log = log_line;
  if (!is_loopback(flags.host) && options.keys.empty())
    fmt::print(stderr, "warning: {} can be reached from other machines and wants no key (--api-key-file FILE)\n",
               flags.host);

  // What the server answers with must outlive it.
  std::optional<Model> model;
  const std::unique_ptr<serve::Server> server = serve::Server::open(options).or_throw();
  if (!flags.quiet)
    log_line(fmt::format("listening on {}:{}, loading {}", flags.host, server->port(), flags.model.model));
  serve::ModelTemplate chat_template = serve::read_model_template(flags.model.model);
  const bool base_model = chat_template.named.empty();
  model.emplace(load_model(flags.model));
  Engine& engine = model->engine();
  const serve::SchedulerOptions scheduler = scheduler_options(flags, engine);
  server->serve(engine, flags.alias.empty() ? engine.info().name : flags.alias, std::move(chat_template), scheduler);
  print_start(flags, engine, scheduler, base_model, server->port());

  while (!interrupted() && server->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::string failure = server->failure();
  if (!flags.quiet) log_line(failure.empty() ? "stopping" : "the engine failed: " + failure);
  server->stop(flags.patience);
  if (!failure.empty()) throw Error(ErrorKind::failure, failure);
  if (!flags.quiet) log_line("stopped");
  return 0;
}

}  // namespace

Action declare_serve(CLI::App& app) {
  const auto flags = std::make_shared<ServeFlags>();
  ServeFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  in_group(app, "Network");
  add_text(app, "--host", f.host, "ADDRESS", "address to listen on");
  add_whole(app, "--port", f.port, 0, 65535, "port; 0: any free one, printed");
  add_text(app, "--api-key", f.key, "KEY", "clients must show this key (other users see flags: prefer the file)");
  add_text(app, "--api-key-file", f.key_file, "FILE", "clients must show one of these keys, one a line");
  add_repeatable(app, "--allow-host", f.hosts, "NAME", "name that clients may call this server by (repeatable)",
                 "localhost's names on a loopback address, else any");
  add_repeatable(app, "--allow-origin", f.origins, "ORIGIN",
                 "page of another server that may call (repeatable; * is all)");
  add_whole(app, "--http-threads", f.io_threads, 1, 256, "threads for connections");
  in_group(app, "Requests");
  add_text(app, "-a,--alias", f.alias, "NAME", "name of the model in the API");
  add_whole(app, "-c,--ctx-size", f.n_ctx, 0, 1 << 26,
            "most tokens of a request with its answer; 0: what the model was trained for");
  add_whole(app, "--parallel", f.n_parallel, 0, 4096, "sequences that run at a time (-np); 0: 16, on a GPU 64");
  add_whole(app, "--queue", f.queue, 1, 1 << 20, "requests that may wait; beyond, clients get 429");
  add_whole(app, "--batch-tokens", f.batch_tokens, 0, 65536, "most tokens of a step; 0: 512, on a GPU 2048");
  add_whole(app, "--max-stall-ms", f.stall_ms, 1, 1000000,
            "how long prompts may hold up a step while other sequences decode");
  add_whole(app, "--patience", f.patience, 0, 86400, "seconds that answers under way get at the end");
  in_group(app, "Memory");
  add_real(app, "--kv-gib", f.kv_gib, 0, 1e6,
           "GiB of the cache; 0: what --parallel sequences fill, at most a quarter of free memory (GPU: four fifths)");
  add_whole(app, "--kv-pools", f.n_pools, 1, 16,
            "sets of cache formats that requests may ask for; they share the bytes");
  add_real(app, "--swap-gib", f.swap_gib, 0, 1e6, "GiB of host memory for sequences that wait for room");
  add_whole(app, "--checkpoints", f.checkpoints, -1, 65536, "prefixes kept for later requests; -1: as many as --parallel");
  add_whole(app, "--checkpoint-every", f.checkpoint_every, 64, 1 << 26, "tokens of a prompt between two of them");
  add_text(app, "--state-dir", f.state_dir, "FOLDER",
           "keep prefixes here when the server ends, and read them at start");
  add_kv_flags(app, f.kv);
  in_group(app, "Output");
  app.add_flag("--log-prompts", f.log_prompts, "write prompts to the log");
  app.add_flag("-q,--quiet", f.quiet, "no log");
  return [flags] { return serve_model(*flags); };
}

}  // namespace ridge::cli
