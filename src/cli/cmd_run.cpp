// ridge run: generate text.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>

#include "base/build_info.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "io/mapped_file.h"
#include "lab/store/machine.h"
#include "lab/store/results.h"

namespace ridge::cli {
namespace {

constexpr uint64_t kMaxPromptBytes = uint64_t(64) << 20;

struct RunFlags {
  ModelFlags model;
  ContextFlags context;
  KvFlags kv;
  OutputFlags output;
  std::string prompt, file;
  bool has_prompt = false;
  int n_predict = -1;
  SamplerOptions sampler;
  int64_t seed = -1;
  std::vector<std::string> stop;
  bool ignore_eos = false, special = false;
  std::string load_state, save_state;
};

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
    if (text.size() > kMaxPromptBytes)
      throw_error(ErrorKind::usage, "the prompt on stdin is longer than {} MiB", kMaxPromptBytes >> 20);
  }
  return text;
}

std::string read_prompt(const RunFlags& flags) {
  if (flags.has_prompt == !flags.file.empty())
    throw Error(ErrorKind::usage, "ridge run needs one prompt: give -p TEXT or -f FILE (-f - reads stdin)");
  if (flags.has_prompt) return flags.prompt;
  return flags.file == "-" ? read_stdin() : io::read_text_file(flags.file, kMaxPromptBytes).or_throw();
}

std::string side_text(const KvSideReport& side) {
  std::string text = side.format;
  if (side.scale != "none") text += " " + side.scale;
  if (side.rotation != "none") text += " " + side.rotation;
  if (side.centre) text += " centred";
  if (side.rounding != "nearest") text += " " + side.rounding;
  if (side.window > 0) text += fmt::format(" window {} in {}", side.window, side.recent);
  if (side.sinks > 0) text += fmt::format(" sinks {}", side.sinks);
  return text + fmt::format(" ({:.4g} bits)", side.bits_per_value);
}

/// One line per kind of layer, with the layers of that kind where there are several kinds.
std::vector<std::string> cache_lines(const KvReport& kv) {
  std::vector<std::pair<std::string, std::string>> kinds;  // settings, layers
  for (const KvLayersReport& group : kv.layers) {
    const std::string settings = fmt::format("K {}, V {}", side_text(group.k), side_text(group.v));
    const std::string range =
        group.first == group.last ? fmt::format("{}", group.first) : fmt::format("{}-{}", group.first, group.last);
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](auto& kind) { return kind.first == settings; });
    if (known == kinds.end()) kinds.emplace_back(settings, range);
    else known->second += "," + range;
  }
  std::vector<std::string> lines;
  for (const auto& [settings, layers] : kinds)
    lines.push_back(kinds.size() == 1 ? settings : fmt::format("layers {}: {}", layers, settings));
  return lines;
}

double mib(int64_t bytes) { return double(bytes) / 1048576; }

void print_start(const RunFlags& flags, const Model& model, const Session& session, int n_prompt, uint64_t seed) {
  const ModelInfo& info = model.info();
  const KvReport kv = session.kv_report();
  const int64_t f16_bytes = int64_t(4) * info.n_layers * info.n_kv_heads * info.head_dim;
  fmt::print(stderr, "model    {} ({}, {} layers, {} heads, {} KV heads of {}, d_model {}), loaded in {:.2f} s\n",
             info.name, info.arch, info.n_layers, info.n_heads, info.n_kv_heads, info.head_dim, info.d_model,
             info.load_seconds);
  fmt::print(stderr, "device   {}{}\n", device_text(info),
             info.device == "cpu" ? ", " + lab::machine_info().cpu_model : "");
  fmt::print(stderr, "weights  {:.1f} MiB {}, {:.2f} M parameters; a decode step reads {:.1f} MiB\n",
             mib(info.weight_bytes), info.weight_format, double(info.n_params) / 1e6, mib(info.decode_weight_bytes));
  for (const std::string& line : cache_lines(kv)) fmt::print(stderr, "cache    {}\n", line);
  fmt::print(stderr, "         {} bytes/token (f16: {}, ratio {:.2f}), {:.1f} MiB for {} tokens\n",
             kv.bytes_per_token(), f16_bytes, double(f16_bytes) / double(kv.bytes_per_token()),
             mib(kv.k.allocated_bytes + kv.v.allocated_bytes), kv.n_ctx);
  fmt::print(stderr, "kernels  {}\n", fmt::join(session.kernels(), " "));
  fmt::print(stderr, "context  {} tokens{}, prompt {}\n", kv.n_ctx,
             kv.n_ctx > info.n_ctx_train ? fmt::format(" (the model was trained for {})", info.n_ctx_train) : "",
             n_prompt);
  if (flags.sampler.temperature <= 0) fmt::print(stderr, "sampler  greedy\n");
  else
    fmt::print(stderr, "sampler  temp {} top-k {} top-p {} min-p {} seed {}\n", flags.sampler.temperature,
               flags.sampler.top_k, flags.sampler.top_p, flags.sampler.min_p, seed);
}

double per_second(int n, double seconds) { return seconds > 0 ? n / seconds : 0; }

std::string stop_text(const GenerateResult& result) {
  if (result.reason == StopReason::stop_string) return fmt::format("stop string '{}'", result.stop);
  return std::string(stop_reason_name(result.reason));
}

void print_end(const Session& session, const GenerateResult& result) {
  const KvReport kv = session.kv_report();
  fmt::print(stderr, "prefill  {} tokens, {:.2f} s, {:.1f} tok/s\n", result.n_prompt, result.prefill_seconds,
             per_second(result.n_prompt, result.prefill_seconds));
  fmt::print(stderr, "decode   {} steps, {:.2f} s, {:.1f} tok/s, {:.2f} ms/token\n", result.n_decoded,
             result.decode_seconds, per_second(result.n_decoded, result.decode_seconds),
             result.n_decoded > 0 ? 1e3 * result.decode_seconds / result.n_decoded : 0.0);
  fmt::print(stderr, "cache    {} of {} tokens, {:.2f} MiB", session.n_past(), kv.n_ctx,
             mib(kv.bytes_per_token() * session.n_past() + kv.k.fixed_bytes + kv.v.fixed_bytes));
  if (kv.k.saturated + kv.v.saturated > 0) fmt::print(stderr, ", {} values saturated", kv.k.saturated + kv.v.saturated);
  fmt::print(stderr, "\nstopped  {}\n", stop_text(result));
  if (result.reason == StopReason::context_full)
    fmt::print(stderr, "context full: all {} tokens are used (raise --ctx-size, or set -n)\n", kv.n_ctx);
}

lab::Row result_row(const RunFlags& flags, const Model& model, const Session& session, const GenerateResult& result,
                    uint64_t seed) {
  const KvReport kv = session.kv_report();
  lab::Row row;
  row["model"] = model.info().path;
  row["text"] = result.text;
  row["tokens"] = result.tokens;
  row["stopped"] = stop_reason_name(result.reason);
  row["n_prompt"] = result.n_prompt;
  row["n_decoded"] = result.n_decoded;
  row["prefill_seconds"] = lab::number(result.prefill_seconds);
  row["decode_seconds"] = lab::number(result.decode_seconds);
  row["prefill_tok_s"] = lab::number(per_second(result.n_prompt, result.prefill_seconds));
  row["decode_tok_s"] = lab::number(per_second(result.n_decoded, result.decode_seconds));
  row["kv"] = kv_text(flags.kv.choice());
  row["kv_bytes_per_token"] = kv.bytes_per_token();
  row["n_ctx"] = kv.n_ctx;
  row["kernels"] = session.kernels();
  row["provenance"] = lab::provenance(model.info().n_threads, seed);
  return row;
}

int run(const RunFlags& flags) {
  const KvChoice kv = flags.kv.choice();
  check_device(flags.model.device);
  const std::string prompt_text = read_prompt(flags);
  const Model model = load_model(flags.model);
  // A prompt that goes on from a saved cache does not begin a text.
  const std::vector<int32_t> prompt = model.tokenize(prompt_text, flags.load_state.empty(), flags.special);
  if (prompt.empty())
    throw Error(ErrorKind::usage, "the prompt is empty and this model adds no BOS token (give some text)");
  const int n_ctx = flags.context.n_ctx == 0 ? model.info().n_ctx_train : flags.context.n_ctx;
  Session session(model, session_options(kv, n_ctx, flags.context.ubatch()));
  if (!flags.load_state.empty()) session.restore(flags.load_state);
  if (prompt.size() >= size_t(n_ctx - session.n_past()))
    throw_error(ErrorKind::usage,
                "the prompt has {} tokens, the context holds {}{}: nothing can be generated (raise --ctx-size or "
                "shorten the prompt)",
                prompt.size(), n_ctx,
                session.n_past() > 0 ? fmt::format(" with {} of them used", session.n_past()) : "");

  GenerateOptions options{
      .max_tokens = flags.n_predict, .stop = flags.stop, .ignore_eos = flags.ignore_eos, .sampler = flags.sampler};
  options.sampler.seed = flags.seed >= 0 ? uint64_t(flags.seed) : std::random_device{}();
  if (!flags.output.quiet) print_start(flags, model, session, int(prompt.size()), options.sampler.seed);
  const bool stream = !flags.output.json;
  const GenerateResult result = generate(session, model, prompt, options, [&](std::string_view text) {
    if (stream) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
    return !interrupted();
  });
  if (!flags.save_state.empty()) {
    // The last token was drawn but never read: the saved cache holds the whole text.
    if (!result.tokens.empty() && result.reason == StopReason::max_tokens && session.n_past() < session.n_ctx())
      session.decode(result.tokens.back());
    session.save(flags.save_state);
  }
  if (stream && !result.text.empty() && !result.text.ends_with('\n') && isatty(STDOUT_FILENO)) fmt::print("\n");
  if (!stream)
    fmt::print("{}\n", result_row(flags, model, session, result, options.sampler.seed)
                           .dump(2, ' ', false, lab::Row::error_handler_t::replace));
  if (!flags.output.quiet) {
    if (stream && !isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) fmt::print(stderr, "\n");
    print_end(session, result);
  }
  return interrupted() ? int(ErrorKind::interrupted) : 0;
}

}  // namespace

Action declare_run(CLI::App& app) {
  const auto flags = std::make_shared<RunFlags>();
  RunFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  in_group(app, "Prompt");
  CLI::Option* prompt = add_text(app, "-p,--prompt", f.prompt, "TEXT", "the prompt");
  add_text(app, "-f,--file", f.file, "FILE", "read the prompt from a file; - is stdin");
  app.add_flag("--special", f.special, "control-token text in the prompt becomes control tokens");
  in_group(app, "Generation");
  add_whole(app, "-n,--n-predict", f.n_predict, -1, 1 << 26,
            "tokens to generate; -1: until the model or the context ends");
  add_repeatable(app, "--stop", f.stop, "TEXT", "end before this text appears (repeatable)");
  app.add_flag("--ignore-eos", f.ignore_eos, "go on past the end-of-text token");
  in_group(app, "Sampling");
  add_real(app, "--temp", f.sampler.temperature, 0, 100, "temperature; 0: always the likeliest token");
  add_whole(app, "--top-k", f.sampler.top_k, 0, 1 << 26, "keep the k likeliest tokens; 0: all");
  add_real(app, "--top-p", f.sampler.top_p, 0, 1, "keep the likeliest tokens of this much probability; 1: all");
  add_real(app, "--min-p", f.sampler.min_p, 0, 1, "drop tokens below this part of the likeliest; 0: none");
  add_real(app, "--repeat-penalty", f.sampler.repeat_penalty, 0.01, 100, "penalty of recent tokens; 1: none");
  add_whole(app, "--repeat-last-n", f.sampler.repeat_last_n, 0, 1 << 26, "tokens the penalty looks back");
  add_whole(app, "--seed", f.seed, -1, INT64_MAX, "seed of the draws; -1: a random one, printed");
  in_group(app, "Context");
  add_text(app, "--load-state", f.load_state, "FILE", "go on from a cache saved with --save-state, then the prompt");
  add_text(app, "--save-state", f.save_state, "FILE", "write the cache to this file at the end");
  add_context_flags(app, f.context, "context in tokens; 0: what the model was trained for");
  add_kv_flags(app, f.kv);
  add_output_flags(app, f.output, false);
  return [flags, prompt] {
    flags->has_prompt = prompt->count() > 0;
    return run(*flags);
  };
}

}  // namespace ridge::cli
