// ridge serve: OpenAI's API and a page for people, over one model.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/build_info.h"
#include "base/interrupt.h"
#include "base/limits.h"
#include "cli/kv_auto.h"
#include "cli/options.h"
#include "cli/serve_flags.h"
#include "cli/spec_flags.h"
#include "engine/engine.h"
#include "io/mapped_file.h"
#include "rank/mpi.h"
#include "serve/server.h"
#include "serve/views.h"

namespace ridge::cli {
namespace {

namespace fs = std::filesystem;
using http::same_name;

constexpr uint64_t kMaxKeyBytes = 1 << 20;
constexpr int kPatience = 30;  // seconds

struct ServeFlags {
  ModelFlags model;
  KvFlags kv;
  SchedulerFlags scheduler;
  SpecFlags spec;
  std::string host = "127.0.0.1", alias, key, key_file, state_dir;
  std::vector<std::string> hosts, origins;
  int port = 8080, n_pools = 1;
  std::optional<int> patience;
  bool log_prompts = false, trace_ops = false;
  OutputFlags output;
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

void log_line(const std::string& line) {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  char text[32];
  std::strftime(text, sizeof text, "%F %T", &time);
  fmt::print(stderr, "{} {}\n", text, line);
}

/// A request to copy, of the kind that the model is for.
struct FirstRequest {
  std::string_view path, call, field, json, text;
};
FirstRequest first_request(bool has_tokenizer, bool base_model) {
  if (!has_tokenizer) return {"completions", "completions.create", "prompt", "[1, 2, 3]", "text"};
  if (base_model) return {"completions", "completions.create", "prompt", "\"The history of Paris\"", "text"};
  return {"chat/completions", "chat.completions.create", "messages",
          "[{\"role\": \"user\", \"content\": \"Who are you?\"}]", "message.content"};
}

/// The model's name in the API: unlike the name in the file it has no blanks, and people see which file it is.
std::string model_id(const ServeFlags& flags, const ModelInfo& info) {
  if (!flags.alias.empty()) return flags.alias;
  std::error_code error;
  fs::path path = fs::absolute(flags.model.model, error).lexically_normal();
  if (!fs::exists(path, error)) return info.name;  // synth:
  if (path.filename().empty()) path = path.parent_path();
  std::string name = path.filename().string();
  for (const char* ending : {".gguf", ".safetensors"})
    if (name.size() > std::strlen(ending) &&
        same_name(std::string_view(name).substr(name.size() - std::strlen(ending)), ending))
      name.resize(name.size() - std::strlen(ending));
  return name;
}

void print_start(const ServeFlags& flags, Engine& engine, const serve::SchedulerOptions& options, bool base_model,
                 uint16_t port, std::optional<int64_t> available) {
  const ModelInfo& info = engine.info();
  const std::string shown = flags.host.find(':') == std::string::npos ? flags.host : "[" + flags.host + "]";
  const std::string url = fmt::format("http://{}:{}", shown, port);
  const std::string key = flags.key.empty() && flags.key_file.empty() ? "" : " -H \"Authorization: Bearer $KEY\"";
  if (flags.output.json) {
    const serve::Json json = {{"url", url},
                              {"port", port},
                              {"model", model_id(flags, info)},
                              {"device", info.device},
                              {"kv_quant", kv_text(options.pool.kv)},
                              {"kv_bytes", options.pool.kv_bytes},
                              {"proposer_bytes", options.pool.proposer_bytes()},
                              {"parallel", options.pool.max_seqs},
                              {"n_ctx", options.pool.n_ctx},
                              {"available_bytes", available ? serve::Json(*available) : serve::Json()}};
    fmt::print("{}\n", json.dump(-1, ' ', false, serve::Json::error_handler_t::replace));
    std::fflush(stdout);
    return;
  }
  fmt::print("model    {} ({}, {}), {}\n", info.name, info.arch, info.weight_format, device_text(info));
  fmt::print("cache    {}; {:.2f} GiB for {} sequences of {} tokens\n", serve::kv_line(engine, options.pool),
             double(options.pool.kv_bytes) / kGib, options.pool.max_seqs, options.pool.n_ctx);
  if (available && !engine.on_device())
    fmt::print("memory   {:.2f} GiB were available before the model was loaded\n", double(*available) / kGib);
  if (flags.spec.on())
    fmt::print("spec     {}, up to {} tokens a step{}\n", flags.spec.type, options.pool.spec_depth,
               options.pool.proposer_bytes() > 0
                   ? fmt::format("; {:.2f} GiB of the cache for {} caches of {:.2f} GiB",
                                 double(options.pool.proposer_bytes()) / kGib, options.pool.max_seqs,
                                 double(options.pool.proposers.bytes) / kGib)
                   : "");
  if (!engine.has_tokenizer()) {
    fmt::print("note     this model has no tokenizer: prompts and answers of /v1/completions are token ids\n");
  } else if (base_model) {
    fmt::print("note     a base model without a chat template: completions work, chat uses \"User: ... Assistant:\"\n");
  }
  fmt::print("page     {}/\n", url);
  const FirstRequest first = first_request(engine.has_tokenizer(), base_model);
  fmt::print("curl     curl{} {}/v1/{} -d '{{\"{}\": {}, \"max_tokens\": 40}}'\n", key, url, first.path, first.field,
             first.json);
  fmt::print(
      "python   python3 -c 'from openai import OpenAI; print(OpenAI(base_url=\"{}/v1\", api_key=\"{}\")"
      ".{}(model=\"{}\", {}={}, max_tokens=40).choices[0].{})'\n",
      url, key.empty() ? "none" : "KEY", first.call, model_id(flags, info), first.field, first.json, first.text);
  std::fflush(stdout);
}

int serve_model(const ServeFlags& flags) {
  if (flags.trace_ops && flags.model.device != "cpu")
    bad_flag("--trace-ops", "a GPU replays recorded passes, in which the host cannot time ops",
             "`ridge profile --device cuda` times the kernels");
  check_kv_flags(flags.kv);  // refuses nonsense before the model is read
  flags.spec.check();
  check_device(flags.model.device);
  allow_many_files();
  serve::ServerOptions options{.http = {.host = flags.host,
                                        .port = uint16_t(flags.port),
                                        .threads = flags.scheduler.io_threads,
                                        .hosts = flags.hosts,
                                        .origins = flags.origins},
                               .keys = read_keys(flags),
                               .state_dir = flags.state_dir,
                               .log_prompts = flags.log_prompts};
  if (!flags.output.quiet) options.log = log_line;
  if (!is_loopback(flags.host) && options.keys.empty())
    fmt::print(stderr, "warning: {} can be reached from other machines and wants no key (--api-key-file FILE)\n",
               flags.host);

  // What the server answers with must outlive it.
  std::optional<Model> model;
  Proposers proposers;
  const std::unique_ptr<serve::Server> server = serve::Server::open(options).or_throw();
  if (!flags.output.quiet)
    log_line(fmt::format("listening on {}:{}, loading {}", flags.host, server->port(), flags.model.model));
  serve::ModelTemplate chat_template = serve::read_model_template(flags.model.model, flags.model.chat_template);
  const bool base_model = chat_template.plain();
  if (!chat_template.problem.empty())
    fmt::print(stderr, "warning: completions work, chats are refused: {} (--chat-template FILE|NAME gives another)\n",
               chat_template.problem);
  const std::optional<int64_t> available = available_memory();
  model.emplace(load_model(flags.model));
  Engine& engine = model->engine();
  const auto open = [&](const serve::PoolOptions& pool) {
    proposers =
        open_proposers(flags.spec, flags.model, *model,
                       {.n_ctx = pool.n_ctx, .n_ubatch = pool.batch_tokens, .n_texts = pool.max_seqs * flags.n_pools});
    return proposers.make;
  };
  const int n_ctx = flags.scheduler.n_ctx > 0 ? flags.scheduler.n_ctx : engine.info().n_ctx_train;
  const KvChoice kv = choice_for(flags.kv, *model, n_ctx, flags.output.quiet);
  serve::SchedulerOptions scheduler = flags.scheduler.options(engine, kv, flags.n_pools, open);
  scheduler.trace_ops = flags.trace_ops;
  scheduler.pool.spec_depth = flags.spec.depth;
  scheduler.pool.spec_rejects = flags.spec.sampling == "reject";
  server->serve(engine, model_id(flags, engine.info()), std::move(chat_template), scheduler);
  print_start(flags, engine, scheduler, base_model, server->port(), available);

  while (!interrupted() && server->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::string failure = server->failure();
  if (!flags.output.quiet) log_line(failure.empty() ? "stopping" : "the engine failed: " + failure);
  int patience = flags.patience.value_or(kPatience);
  if (Ranks* const ranks = joined_ranks(); ranks && !flags.patience) {
    // mpirun kills the ranks a second after it asked them to end, as it does when one of them has died.
    constexpr double kMostSeconds = 0.5;
    ranks->limit_waits(kMostSeconds);
    patience = 0;
  }
  server->stop(patience);
  if (!failure.empty()) throw Error(ErrorKind::failure, failure);
  if (!flags.output.quiet) log_line("stopped");
  clear_interrupt();  // it was the way to end
  return 0;
}

}  // namespace

static Action declare_serve(CLI::App& app) {
  const auto flags = std::make_shared<ServeFlags>();
  ServeFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  add_rank_flags(app, &f.model.n_stages);
  in_group(app, "Network");
  add_text(app, "--host", f.host, "ADDRESS", "address to listen on");
  add_whole(app, "--port", f.port, 0, 65535, "port; 0: any free one, printed");
  add_text(app, "--api-key", f.key, "KEY", "clients must show this key (other users see flags: prefer the file)");
  add_text(app, "--api-key-file", f.key_file, "FILE", "clients must show one of these keys, one a line");
  add_repeatable(app, "--allow-host", f.hosts, "NAME", "name that clients may call this server by (repeatable)",
                 "localhost's names on a loopback address, else any");
  add_repeatable(app, "--allow-origin", f.origins, "ORIGIN",
                 "page of another server that may call (repeatable; * is all)");
  add_http_threads(app, f.scheduler);
  in_group(app, "Requests");
  add_text(app, "-a,--alias", f.alias, "NAME", "name of the model in the API; else its file's, without the ending");
  add_request_flags(app, f.scheduler);
  add_whole(app, "--patience", f.patience, 0, 86400,
            "seconds that answers under way get at the end; of ranks over MPI 0 unless given")
      ->default_str(std::to_string(kPatience));
  add_template_flag(app, f.model);
  in_group(app, "Memory");
  add_memory_flags(app, f.scheduler);
  add_whole(app, "--kv-pools", f.n_pools, 1, 16,
            "sets of cache formats that requests may ask for; they share the bytes");
  add_text(app, "--state-dir", f.state_dir, "FOLDER",
           "keep prefixes here when the server ends, and read them at start");
  add_kv_flags(app, f.kv);
  add_decision_flag(app, f.kv);
  add_spec_flags(app, f.spec);
  in_group(app, "Output");
  app.add_flag("--log-prompts", f.log_prompts, "write prompts to the log");
  app.add_flag("--trace-ops", f.trace_ops,
               "time ops by layer for /slots, /metrics and `ridge top` (CPU; two readings of the clock an op)");
  add_output_flags(app, f.output, false);
  return [flags] { return serve_model(*flags); };
}

extern const Command serve_command = {
    "serve",
    "answer many requests at once, over HTTP",
    R"(OpenAI's API (/v1/chat/completions, /v1/completions, /v1/responses, /v1/models), Anthropic's (/v1/messages)
and a page for browsers at /, for many clients at once. One forward pass computes tokens of many requests and
parts of prompts, shared prefixes are computed once, and a request may name its cache format (kv_quant). /kv,
/slots and /metrics show the server's state. docs/serving.md and docs/serving-apis.md have every field. Ctrl-C
ends the server cleanly.)",
    R"(ridge serve -m models/ridge-ref-q8_0.gguf --kv-quant rotor-3
ridge serve -m model.gguf --spec-type draft --draft-model small.gguf
mpirun -np 2 --bind-to none ridge serve -m model.gguf --tp 2 --device cuda
ridge serve -m model.gguf --device cuda --host 0.0.0.0 --api-key-file keys.txt --ctx-size 32768)",
    declare_serve,
    RankUse::led_for_clients};

}  // namespace ridge::cli
