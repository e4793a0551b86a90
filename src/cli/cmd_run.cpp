// ridge run: generate text.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>

#include "base/build_info.h"
#include "cli/answer.h"
#include "cli/answer_printer.h"
#include "cli/chat_model.h"
#include "cli/interrupt.h"
#include "cli/kv_auto.h"
#include "cli/options.h"
#include "cli/prompt_cache.h"
#include "cli/prompt_ids.h"
#include "cli/spec_flags.h"
#include "io/mapped_file.h"
#include "lab/store/machine.h"
#include "lab/store/results.h"
#include "rank/mpi.h"

namespace ridge::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  ContextFlags context;
  KvFlags kv;
  SpecFlags spec;
  OutputFlags output;
  std::string prompt, file, ids, system;
  bool has_prompt = false, chat = false, bare = false;
  int n_predict = -1;
  SamplerOptions sampler;
  int64_t seed = -1;
  std::vector<std::string> stop;
  bool ignore_eos = false, special = false;
  std::string load_state, save_state, prompt_cache;

  bool quiet() const { return output.quiet || bare; }
};

std::string read_prompt(const RunFlags& flags) {
  if (flags.has_prompt) return flags.prompt;
  if (Ranks* const ranks = ranks_alike(); ranks && flags.file == "-")
    return ranks->from_first(ranks->is_first() ? read_stdin() : "");
  return flags.file == "-" ? read_stdin() : io::read_text_file(flags.file, kMaxPromptBytes).or_throw();
}

void check_flags(const RunFlags& flags) {
  if (flags.has_prompt + !flags.file.empty() + !flags.ids.empty() != 1)
    throw Error(ErrorKind::usage,
                "ridge run needs one prompt: give -p TEXT, -f FILE (-f - reads stdin) or --prompt-ids LIST");
  if (flags.chat && (!flags.ids.empty() || !flags.load_state.empty()))
    bad_flag("--chat", "a message is text and begins a conversation", "leave out --prompt-ids and --load-state");
  if (!flags.system.empty() && !flags.chat) bad_flag("--system", "only a chat has a system prompt", "add --chat");
  if (!flags.prompt_cache.empty() && !flags.load_state.empty())
    bad_flag("--prompt-cache", "--load-state already fills the cache", "leave out one of them");
  flags.spec.check();
  if (flags.spec.type == "mtp" && (!flags.load_state.empty() || !flags.prompt_cache.empty()))
    bad_flag("--spec-type", "mtp must read the whole text", "leave out --load-state and --prompt-cache");
  if (flags.kv.is_auto() && (!flags.load_state.empty() || !flags.prompt_cache.empty()))
    bad_flag("--kv-quant", "auto may choose another cache than a saved one has", "name the saved cache's format");
  if (flags.bare && flags.output.json) bad_flag("--bare", "--json has the same and more", "leave out one of them");
}

/// The prompt as tokens; adds what else ends the answer to a chat, and how it is read.
std::vector<int32_t> prompt_tokens(const RunFlags& flags, const Model& model, std::vector<std::string>& stops,
                                   std::optional<serve::AnswerForm>& form) {
  if (flags.ids == "-" && ranks_alike()) bad_flag("--prompt-ids", "only the first rank has a stdin", "give a file");
  if (!flags.ids.empty()) return read_prompt_ids(flags.ids);
  const std::string text = read_prompt(flags);
  // A prompt that goes on from a saved cache does not begin a text.
  if (!flags.chat) return model.tokenize(text, flags.load_state.empty(), flags.special);
  const ChatModel chat(model, flags.model.chat_template);
  if (!chat.has_template() && chat.problem().empty() && !flags.quiet())
    fmt::print(stderr, "chat     this model has no chat template: lines of \"User: ...\" and \"Assistant: ...\"\n");
  text::Json messages = text::Json::array();
  if (!flags.system.empty()) messages.push_back(message_of("system", flags.system));
  messages.push_back(message_of("user", text));
  for (const std::string& stop : chat.stops()) stops.push_back(stop);
  const std::string prompt = chat.prompt(messages);
  if (chat.has_template()) form = chat.answer_form(prompt);
  return chat.tokens(prompt);
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
    const bool one_row = group.v.bytes_per_token == 0 && group.k.bytes_per_token > 0;  // latent attention
    const std::string settings = one_row ? fmt::format("one row for K and V, {}", side_text(group.k))
                                         : fmt::format("K {}, V {}", side_text(group.k), side_text(group.v));
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
  const int64_t f16_bytes = int64_t(2) * info.n_cached_sides * info.n_cached_layers * info.n_kv_heads * info.head_dim;
  fmt::print(stderr, "model    {} ({}, {} layers, {} heads, {} KV heads of {}, d_model {}), loaded in {:.2f} s\n",
             info.name, info.arch, info.n_layers, info.n_heads, info.n_kv_heads, info.head_dim, info.d_model,
             info.load_seconds);
  fmt::print(stderr, "device   {}{}\n", device_text(info),
             info.device == "cpu" ? ", " + lab::machine_info().cpu_model : "");
  fmt::print(stderr, "weights  {:.1f} MiB {}, {:.2f} M parameters; a decode step reads {:.1f} MiB\n",
             mib(info.weight_bytes), info.weight_format, double(info.n_params) / 1e6, mib(info.decode_weight_bytes));
  for (const std::string& line : cache_lines(kv)) fmt::print(stderr, "cache    {}\n", line);
  // The first of several ranks may have layers without rows alone.
  fmt::print(stderr, "         {} bytes/token (f16: {}, ratio {:.2f}), {:.1f} MiB for {} tokens\n",
             kv.bytes_per_token(), f16_bytes, double(f16_bytes) / double(std::max<int64_t>(1, kv.bytes_per_token())),
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

std::string stop_text(const GenerateResult& result) {
  if (result.reason == StopReason::stop_string) return fmt::format("stop string '{}'", result.stop);
  return std::string(stop_reason_name(result.reason));
}

void print_end(const Session& session, const GenerateResult& result, const RunFlags& flags, const Speculation* spec) {
  const KvReport kv = session.kv_report();
  fmt::print(stderr, "prefill  {} tokens, {:.2f} s, {:.1f} tok/s\n", result.n_prompt, result.prefill_seconds,
             tokens_per_second(result.n_prompt, result.prefill_seconds));
  fmt::print(stderr, "decode   {} tokens, {:.2f} s, {:.1f} tok/s, {:.2f} ms/token\n", result.n_decoded,
             result.decode_seconds, tokens_per_second(result.n_decoded, result.decode_seconds),
             result.n_decoded > 0 ? 1e3 * result.decode_seconds / result.n_decoded : 0.0);
  if (spec) {
    const SpecReport& report = spec->report();
    fmt::print(stderr, "spec     {}: {} steps, {} proposed, {} accepted, {:.2f} tokens a step\n", flags.spec.type,
               report.n_steps, report.n_proposed, report.n_accepted, report.tokens_per_step());
  }
  fmt::print(stderr, "cache    {} of {} tokens, {:.2f} MiB", session.n_past(), kv.n_ctx,
             mib(kv.bytes_per_token() * session.n_past() + kv.k.fixed_bytes + kv.v.fixed_bytes));
  if (kv.k.saturated + kv.v.saturated > 0) fmt::print(stderr, ", {} values saturated", kv.k.saturated + kv.v.saturated);
  fmt::print(stderr, "\nstopped  {}\n", stop_text(result));
  if (result.reason == StopReason::context_full)
    fmt::print(stderr, "context full: all {} tokens are used (raise --ctx-size, or set -n)\n", kv.n_ctx);
}

lab::Row result_row(const RunFlags& flags, const Model& model, const Session& session, const KvChoice& choice,
                    const GenerateResult& result, uint64_t seed, const Speculation* spec) {
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
  row["prefill_tok_s"] = lab::number(tokens_per_second(result.n_prompt, result.prefill_seconds));
  row["decode_tok_s"] = lab::number(tokens_per_second(result.n_decoded, result.decode_seconds));
  if (spec) {
    row["spec_type"] = flags.spec.type;
    row["spec_steps"] = spec->report().n_steps;
    row["spec_proposed"] = spec->report().n_proposed;
    row["spec_accepted"] = spec->report().n_accepted;
  }
  row["kv"] = kv_text(choice);
  row["kv_bytes_per_token"] = kv.bytes_per_token();
  row["n_ctx"] = kv.n_ctx;
  row["kernels"] = session.kernels();
  row["provenance"] = lab::provenance(model.info().n_threads, seed);
  return row;
}

/// Reads all but the last token of the prompt and writes the cache's files. Returns how many tokens the session holds.
int fill_prompt_cache(const PromptCache& cache, Session& session, const Model& model, std::span<const int32_t> prompt,
                      int n_held, int n_step) {
  const std::span<const int32_t> most = prompt.first(prompt.size() - 1);
  n_held += read_tokens(session, model, most.subspan(size_t(n_held)), n_step);
  if (n_held == int(most.size())) cache.save(session, most);
  return n_held;
}

int run(const RunFlags& flags) {
  check_kv_flags(flags.kv);
  check_flags(flags);
  check_device(flags.model.device);
  const Model model = load_model(flags.model);
  GenerateOptions generate{
      .max_tokens = flags.n_predict, .stop = flags.stop, .ignore_eos = flags.ignore_eos, .sampler = flags.sampler};
  generate.sampler.seed = flags.seed >= 0 ? uint64_t(flags.seed) : std::random_device{}();
  if (Ranks* const ranks = ranks_alike())
    generate.sampler.seed = std::stoull(ranks->from_first(std::to_string(generate.sampler.seed)));
  std::optional<serve::AnswerForm> form;  // of a chat
  const std::vector<int32_t> prompt = prompt_tokens(flags, model, generate.stop, form);
  if (prompt.empty())
    throw Error(ErrorKind::usage, "the prompt is empty and this model adds no BOS token (give some text)");
  const int n_ctx = flags.context.n_ctx == 0 ? model.info().n_ctx_train : flags.context.n_ctx;
  const int64_t most = int64_t(prompt.size()) + (flags.n_predict < 0 ? n_ctx : flags.n_predict);
  const KvChoice kv = choice_for(flags.kv, model, int(std::min<int64_t>(n_ctx, most)), flags.quiet());
  Session session(model, session_options(kv, n_ctx, flags.context.ubatch()));
  if (!flags.load_state.empty()) session.restore(flags.load_state);
  if (prompt.size() >= size_t(n_ctx - session.n_past()))
    throw_error(ErrorKind::usage,
                "the prompt has {} tokens, the context holds {}{}: nothing can be generated (raise --ctx-size or "
                "shorten the prompt)",
                prompt.size(), n_ctx,
                session.n_past() > 0 ? fmt::format(" with {} of them used", session.n_past()) : "");
  AnswerOptions options{.generate = generate, .n_step = flags.context.ubatch(), .ids = !model.info().has_tokenizer};
  const Proposers proposers = open_proposers(flags.spec, flags.model, model, n_ctx, flags.context.ubatch());
  const std::unique_ptr<Speculation> spec = open_speculation(flags.spec, proposers);
  Speculation* const speculation = spec.get();
  session.speculate(speculation);
  const PromptCache cache{flags.prompt_cache};
  std::string cache_line;
  if (!cache.path.empty()) options.n_held = cache.load(session, prompt, cache_line);
  if (!flags.quiet()) {
    print_start(flags, model, session, int(prompt.size()), generate.sampler.seed);
    if (!cache_line.empty()) fmt::print(stderr, "{}\n", cache_line);
  }
  const int n_cached = options.n_held;
  const auto start = std::chrono::steady_clock::now();
  if (!cache.path.empty() && n_cached + 1 < int(prompt.size()))
    options.n_held = fill_prompt_cache(cache, session, model, prompt, n_cached, options.n_step);
  const std::chrono::duration<double> filling = std::chrono::steady_clock::now() - start;
  const bool stream = !flags.output.json && !flags.bare;
  AnswerPrinter printer(stream);
  if (form) {
    printer.begin(form->output);
    options.marks = form->marks;
    options.on_mark = [&](std::string_view mark) { printer.feed_mark(mark); };
  }
  GenerateResult result = answer(session, model, prompt, options, [&](std::string_view text) {
    if (form) return printer.feed(text);
    if (!stream) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  const text::Json message = form ? printer.finish(false) : text::Json();
  result.n_prompt += options.n_held - n_cached;
  result.prefill_seconds += filling.count();
  if (!flags.save_state.empty()) {
    // The last token was drawn but never read: the saved cache holds the whole text.
    if (!result.tokens.empty() && result.reason == StopReason::max_tokens && session.n_past() < session.n_ctx())
      session.decode(result.tokens.back());
    session.save(flags.save_state);
  }
  if (stream && !result.text.empty() && !result.text.ends_with('\n') && isatty(STDOUT_FILENO)) fmt::print("\n");
  if (flags.output.json) {
    lab::Row row = result_row(flags, model, session, kv, result, generate.sampler.seed, speculation);
    if (form) row["text"] = message["content"];
    for (const char* part : {"reasoning_content", "tool_calls"})
      if (message.contains(part)) row[part] = message[part];
    fmt::print("{}\n", row.dump(2, ' ', false, lab::Row::error_handler_t::replace));
  }
  if (flags.bare)
    fmt::print("{}\n{} {} {:.2f} {:.2f}\n", fmt::join(result.tokens, " "), result.n_prompt, result.tokens.size(),
               tokens_per_second(result.n_prompt, result.prefill_seconds),
               tokens_per_second(result.n_decoded, result.decode_seconds));
  if (!flags.quiet()) {
    if (stream && !isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) fmt::print(stderr, "\n");
    print_end(session, result, flags, speculation);
  }
  return interrupted() ? int(ErrorKind::interrupted) : 0;
}

}  // namespace

Action declare_run(CLI::App& app) {
  const auto flags = std::make_shared<RunFlags>();
  RunFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  add_rank_flags(app, &f.model.n_stages);
  in_group(app, "Prompt");
  CLI::Option* prompt = add_text(app, "-p,--prompt", f.prompt, "TEXT", "the prompt");
  add_text(app, "-f,--file", f.file, "FILE", "read the prompt from a file; - is stdin");
  app.add_flag("--special", f.special, "control-token text in the prompt becomes control tokens");
  add_text(app, "--prompt-ids", f.ids, "LIST",
           "the prompt as token ids: 1,2,3, a file of ids, or - for stdin; nothing is added");
  app.add_flag("--chat", f.chat, "the prompt is a user's message: apply the chat template, end with the answer");
  add_text(app, "--system", f.system, "TEXT", "with --chat: the system prompt");
  add_template_flag(app, f.model);
  add_text(app, "--prompt-cache", f.prompt_cache, "FILE",
           "take the prompt's begin from this cache, and write the prompt's cache to it (FILE and FILE.ids)");
  in_group(app, "Generation");
  add_whole(app, "-n,--n-predict", f.n_predict, -1, 1 << 26,
            "tokens to generate; -1: until the model or the context ends");
  add_repeatable(app, "--stop", f.stop, "TEXT", "end before this text appears (repeatable)");
  app.add_flag("--ignore-eos", f.ignore_eos, "go on past the end-of-text token");
  in_group(app, "Sampling");
  add_sampler_flags(app, f.sampler, f.seed);
  in_group(app, "Context");
  add_text(app, "--load-state", f.load_state, "FILE", "go on from a cache saved with --save-state, then the prompt");
  add_text(app, "--save-state", f.save_state, "FILE", "write the cache to this file at the end");
  add_context_flags(app, f.context, "context in tokens; 0: what the model was trained for");
  add_kv_flags(app, f.kv);
  add_decision_flag(app, f.kv);
  add_spec_flags(app, f.spec);
  add_output_flags(app, f.output, false);
  app.add_flag("--bare", f.bare,
               "print ids, then prompt tokens, generated tokens, prefill tok/s, decode tok/s; nothing else");
  return [flags, prompt] {
    flags->has_prompt = prompt->count() > 0;
    return run(*flags);
  };
}

}  // namespace ridge::cli
