// ridge serve: APIs and a page for people, over one model or several.
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
  std::vector<std::string> models;  ///< MODEL or NAME=MODEL
  double memory_gib = 0;
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

/// A model as a flag names it.
struct NamedModel {
  std::string name, path;
};

/// The model's name in the API: unlike the name in the file it has no blanks, and people see which file it is. Empty
/// for models without a file.
std::string id_of_path(const std::string& model) {
  std::error_code error;
  fs::path path = fs::absolute(model, error).lexically_normal();
  if (!fs::exists(path, error)) return "";  // synth:
  if (path.filename().empty()) path = path.parent_path();
  std::string name = path.filename().string();
  for (const char* ending : {".gguf", ".safetensors"})
    if (name.size() > std::strlen(ending) &&
        same_name(std::string_view(name).substr(name.size() - std::strlen(ending)), ending))
      name.resize(name.size() - std::strlen(ending));
  return name;
}

std::vector<NamedModel> named_models(const ServeFlags& flags) {
  std::vector<NamedModel> named;
  for (const std::string& text : flags.models) {
    std::error_code error;
    const size_t equals = text.find('=');
    const bool has_name = equals != text.npos && equals > 0 && !text.starts_with("synth:") && !fs::exists(text, error);
    const std::string path = has_name ? text.substr(equals + 1) : text;
    named.push_back({has_name ? text.substr(0, equals) : id_of_path(path), path});
  }
  if (named.size() == 1) {
    if (!flags.alias.empty()) named[0].name = flags.alias;
    return named;
  }
  if (!flags.alias.empty()) bad_flag("--alias", "does not go with several models", "--model NAME=MODEL names each");
  if (flags.spec.type == "draft") bad_flag("--spec-type", "draft does not go with several models");
  if (joined_ranks()) bad_flag("--model", "ranks hold one model together, not several");
  for (size_t i = 0; i < named.size(); ++i) {
    if (named[i].path.starts_with("synth:")) bad_flag("--model", "synth: does not go with other models");
    for (size_t j = 0; j < i; ++j)
      if (named[i].name == named[j].name)
        bad_flag("--model", "two models are called " + named[i].name, "NAME=MODEL gives another name");
  }
  return named;
}

/// Bytes of a model's files: a folder, a file, or all the parts of a split one.
int64_t bytes_of_files(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error) && path.filename().string().find("-of-") == std::string::npos)
    return int64_t(fs::file_size(path, error));
  const bool is_folder = fs::is_directory(path, error);
  const std::string file = path.filename().string(), base = file.substr(0, file.find("-of-"));
  const std::string first = is_folder ? "" : base.substr(0, base.rfind('-') + 1);
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(is_folder ? path : fs::absolute(path, error).parent_path(), error))
    if (entry.is_regular_file(error) && entry.path().filename().string().starts_with(first))
      bytes += int64_t(entry.file_size(error));
  return bytes;
}

/// The server's first lines are about this.
struct Started {
  const serve::ApiModel& model;
  const serve::SchedulerOptions& options;
  std::vector<std::string> names;
  double memory_gib = 0;  ///< of several models
  uint16_t port = 0;
  std::optional<int64_t> available = {};
};

void print_start(const ServeFlags& flags, const Started& started) {
  Engine& engine = started.model.engine;
  const serve::SchedulerOptions& options = started.options;
  const std::optional<int64_t>& available = started.available;
  const bool base_model = started.model.chat_template.plain();
  const ModelInfo& info = engine.info();
  const std::string shown = flags.host.find(':') == std::string::npos ? flags.host : "[" + flags.host + "]";
  const std::string url = fmt::format("http://{}:{}", shown, started.port);
  const std::string key = flags.key.empty() && flags.key_file.empty() ? "" : " -H \"Authorization: Bearer $KEY\"";
  if (flags.output.json) {
    const serve::Json json = {{"url", url},
                              {"port", started.port},
                              {"model", started.model.name},
                              {"models", started.names},
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
  if (started.names.size() > 1)
    fmt::print("models   {}: loaded when a request names them, within {:.2f} GiB\n", fmt::join(started.names, ", "),
               started.memory_gib);
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
      url, key.empty() ? "none" : "KEY", first.call, started.model.name, first.field, first.json, first.text);
  std::fflush(stdout);
}

/// A loaded model with the caches of its draft tokens.
struct Owner {
  std::optional<Model> model;
  ProposerMaker proposers = {};
};

serve::ModelSource::Opened open_model(const ServeFlags& flags, const std::string& path) {
  const auto owner = std::make_shared<Owner>();
  ModelFlags model = flags.model;
  model.model = path;
  serve::ModelTemplate chat_template = serve::read_model_template(path, model.chat_template);
  if (!chat_template.problem.empty())
    fmt::print(stderr, "warning: completions work, chats are refused: {} (--chat-template FILE|NAME gives another)\n",
               chat_template.problem);
  owner->model.emplace(load_model(model));
  Engine& engine = owner->model->engine();
  const auto open = [&](const serve::PoolOptions& pool) {
    owner->proposers =
        open_proposers(flags.spec, model, *owner->model,
                       {.n_ctx = pool.n_ctx, .n_ubatch = pool.batch_tokens, .n_texts = pool.max_seqs * flags.n_pools});
    return owner->proposers;
  };
  const int n_ctx = flags.scheduler.n_ctx > 0 ? flags.scheduler.n_ctx : engine.info().n_ctx_train;
  const KvChoice kv = choice_for(flags.kv, *owner->model, n_ctx, flags.output.quiet);
  serve::SchedulerOptions scheduler = flags.scheduler.options(engine, kv, flags.n_pools, open);
  scheduler.trace_ops = flags.trace_ops;
  scheduler.pool.spec_depth = flags.spec.depth;
  scheduler.pool.spec_rejects = flags.spec.sampling == "reject";
  return {owner, engine, std::move(chat_template), scheduler};
}

/// Several models share `memory_gib`: each one's files, and a cache for each.
void serve_several(ServeFlags flags, const std::vector<NamedModel>& named, serve::Server& server) {
  constexpr double kCacheShare = 1.0 / 8;
  if (flags.scheduler.kv_gib == 0) flags.scheduler.kv_gib = kCacheShare * flags.memory_gib;
  std::vector<serve::ModelSource> sources;
  for (const NamedModel& one : named)
    sources.push_back({.name = one.name,
                       .bytes = bytes_of_files(one.path) + int64_t(flags.scheduler.kv_gib * kGib),
                       .open = [flags, path = one.path] { return open_model(flags, path); }});
  server.serve(std::move(sources), int64_t(flags.memory_gib * kGib));
}

/// GiB that several models may take: a part of the memory that is free.
double shared_memory_gib(const ServeFlags& flags, std::optional<int64_t> available) {
  constexpr double kPart = 0.75;
  if (flags.memory_gib > 0) return flags.memory_gib;
  if (flags.model.device != "cpu" || !available)
    bad_flag("--memory-gib", "is needed for several models here", "the memory that all of them may take");
  return kPart * double(*available) / kGib;
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

  const std::vector<NamedModel> named = named_models(flags);
  ServeFlags shared = flags;
  std::shared_ptr<void> owner;  // of one model; it must outlive the server
  const std::unique_ptr<serve::Server> server = serve::Server::open(options).or_throw();
  if (!flags.output.quiet)
    log_line(fmt::format("listening on {}:{}, loading {}", flags.host, server->port(), named[0].path));
  const std::optional<int64_t> available = available_memory();
  if (named.size() > 1) {
    shared.memory_gib = shared_memory_gib(flags, available);
    serve_several(shared, named, *server);
  } else {
    serve::ModelSource::Opened opened = open_model(flags, named[0].path);
    owner = opened.owner;
    const std::string id = named[0].name.empty() ? opened.engine.info().name : named[0].name;
    server->serve(opened.engine, id, std::move(opened.chat_template), opened.options);
  }
  {
    const serve::Models::Pointer first = server->models().look("");
    print_start(flags, {first->model, first->scheduler->options(), server->models().names(), shared.memory_gib,
                        server->port(), available});
  }

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
  in_group(app, "Model");
  add_repeatable(app, "-m,--model", f.models, "[NAME=]MODEL",
                 "GGUF file, Hugging Face folder, or synth:SHAPE; repeatable: requests name theirs, and load it", "")
      ->required();
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
  add_real(app, "--memory-gib", f.memory_gib, 0, 1e6,
           "GiB of several models with their caches (--kv-gib each, else 1/8); 0: 3/4 of free memory");
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
               "time ops by layer for /status, /metrics and `ridge top` (CPU; two readings of the clock an op)");
  add_output_flags(app, f.output, false);
  return [flags] { return serve_model(*flags); };
}

extern const Command serve_command = {
    "serve",
    "answer many requests at once, over HTTP",
    R"(OpenAI's API (/v1/chat/completions, /v1/completions, /v1/responses, /v1/models), Anthropic's (/v1/messages)
and a page for browsers at /, for many clients at once. One forward pass computes tokens of many requests and
parts of prompts, shared prefixes are computed once, and a request may name its cache format (kv_quant). /kv,
/status and /metrics show the server's state. docs/serving.md and docs/serving-apis.md have every field. Ctrl-C
ends the server cleanly.)",
    R"(ridge serve -m models/ridge-ref-q8_0.gguf --kv-quant rotor-3
ridge serve -m model.gguf --spec-type draft --draft-model small.gguf
ridge serve --model small=small.gguf --model large=large.gguf --memory-gib 24
mpirun -np 2 --bind-to none ridge serve -m model.gguf --tp 2 --device cuda
ridge serve -m model.gguf --device cuda --host 0.0.0.0 --api-key-file keys.txt --ctx-size 32768)",
    declare_serve,
    RankUse::led_for_clients};

}  // namespace ridge::cli
