// ridge run: generate text.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>

#include "base/build_info.h"
#include "base/interrupt.h"
#include "chat/answer_printer.h"
#include "chat/model.h"
#include "chat/reading.h"
#include "chat/text_out.h"
#include "cli/kv_auto.h"
#include "cli/options.h"
#include "cli/prompt_cache.h"
#include "cli/prompt_ids.h"
#include "cli/spec_flags.h"
#include "cli/start_lines.h"
#include "cli/structure_flags.h"
#include "lab/rows/results.h"

namespace ridge::cli {
namespace {

using chat::AnswerPrinter, chat::ChatModel, chat::end_text, chat::message_of, chat::read_tokens, chat::ReadingOptions,
    chat::tokens_per_second, chat::write_text;

struct RunFlags {
  ModelFlags model;
  ContextFlags context;
  KvFlags kv;
  SpecFlags spec;
  StructureFlags structure;
  OutputFlags output;
  std::string prompt, file, ids, system;
  bool has_prompt = false, chat = false, raw = false, bare = false, verbose = false;
  int n_predict = -1;
  SamplerOptions sampler;
  int64_t seed = -1;
  std::vector<std::string> stop;
  bool ignore_eos = false, special = false;
  std::string load_state, save_state, prompt_cache;

  bool quiet() const { return output.quiet || bare; }
};

struct Prompt {
  enum class Form : uint8_t { ids, plain, templated, named };
  std::vector<int32_t> tokens;
  Form form = Form::ids;
  bool has_template = false;
  std::optional<serve::AnswerForm> answer = {};  ///< how the answer to a message is read
};

/// Editors and echo end a file with a line break that nobody means as a part of the prompt.
std::string without_last_break(std::string text) {
  if (!text.ends_with('\n')) return text;
  text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string read_prompt(const RunFlags& flags) {
  if (flags.has_prompt) return flags.prompt;
  if (flags.file != "-" && flags.file != "/dev/stdin")
    return without_last_break(read_prompt_file(flags.file, flags.quiet()));
  return without_last_break(read_stdin(flags.quiet()));
}

void check_flags(const RunFlags& flags) {
  if (flags.has_prompt + !flags.file.empty() + !flags.ids.empty() != 1)
    throw Error(ErrorKind::usage,
                "ridge run needs one prompt: give -p TEXT, -f FILE (-f - reads stdin) or --prompt-ids LIST; ridge chat "
                "is a conversation");
  if (flags.chat && (!flags.ids.empty() || !flags.load_state.empty()))
    bad_flag("--chat", "a message is text and begins a conversation", "leave out --prompt-ids and --load-state");
  if (flags.raw && (flags.chat || !flags.system.empty()))
    bad_flag("--raw", "plain text is no message", "leave out --chat and --system");
  if (!flags.system.empty() && (!flags.ids.empty() || !flags.load_state.empty() || (flags.special && !flags.chat)))
    bad_flag("--system", "only a chat has a system prompt", "leave out --prompt-ids, --load-state and --special");
  if (!flags.prompt_cache.empty() && !flags.load_state.empty())
    bad_flag("--prompt-cache", "--load-state already fills the cache", "leave out one of them");
  flags.spec.check();
  if (flags.spec.type == "mtp" && (!flags.load_state.empty() || !flags.prompt_cache.empty()))
    bad_flag("--spec-type", "mtp must read the whole text", "leave out --load-state and --prompt-cache");
  if (flags.kv.is_auto() && (!flags.load_state.empty() || !flags.prompt_cache.empty()))
    bad_flag("--kv-quant", "auto may choose another cache than a saved one has", "name the saved cache's format");
  if (flags.bare && flags.output.json) bad_flag("--bare", "--json has the same and more", "leave out one of them");
}

/// Whether -p and -f are a user's message. Text that goes on from a saved cache, or has control tokens of its own, is
/// not.
bool is_message(const RunFlags& flags, const ChatModel& chat) {
  if (flags.chat) return true;
  return chat.has_template() && !flags.special && flags.load_state.empty();
}

/// The prompt as tokens; adds what else ends the answer to a chat.
Prompt read_tokens_of_prompt(const RunFlags& flags, const Model& model, std::vector<std::string>& stops) {
  if (flags.raw && !flags.model.chat_template.empty())
    bad_flag("--raw", "plain text has no template", "leave out --chat-template");
  if (!flags.ids.empty()) return {.tokens = read_prompt_ids(flags.ids)};
  // A prompt that goes on from a saved cache does not begin a text.
  const auto plain = [&](bool has_template) {
    return Prompt{model.tokenize(read_prompt(flags), flags.load_state.empty(), flags.special), Prompt::Form::plain,
                  has_template};
  };
  if (flags.raw || !model.info().has_tokenizer) return plain(false);
  const ChatModel chat(model, flags.model.chat_template);
  if (!is_message(flags, chat)) {
    if (!flags.system.empty()) bad_flag("--system", "this model has no chat template", "add --chat");
    if (!chat.problem().empty() && !flags.quiet())
      fmt::print(stderr, "warning: plain text: {} (--chat-template FILE|NAME gives another)\n", chat.problem());
    return plain(chat.has_template());
  }
  text::Json messages = text::Json::array();
  if (!flags.system.empty()) messages.push_back(message_of("system", flags.system));
  messages.push_back(message_of("user", read_prompt(flags)));
  for (const std::string& stop : chat.stops()) stops.push_back(stop);
  const std::string prompt = chat.prompt(messages);
  Prompt read{.tokens = chat.tokens(prompt),
              .form = chat.has_template() ? Prompt::Form::templated : Prompt::Form::named,
              .has_template = chat.has_template()};
  if (chat.has_template()) read.answer = chat.answer_form(prompt);
  return read;
}

double mib(int64_t bytes) { return double(bytes) / 1048576; }

std::string sampler_text(const SamplerOptions& sampler) {
  if (sampler.temperature <= 0) return "greedy";
  return fmt::format("temp {} top-k {} top-p {} min-p {} seed {}", sampler.temperature, sampler.top_k, sampler.top_p,
                     sampler.min_p, sampler.seed);
}

/// How the prompt became tokens.
std::string form_text(const RunFlags& flags, const Prompt& prompt) {
  switch (prompt.form) {
    case Prompt::Form::ids: return "as given";
    case Prompt::Form::templated:
      return flags.chat ? "by the chat template" : "by the chat template (--raw: plain text)";
    case Prompt::Form::named: return "lines of \"User: ...\" and \"Assistant: ...\", as there is no chat template";
    case Prompt::Form::plain: break;
  }
  return prompt.has_template ? "plain text, without the chat template" : "plain text";
}

void print_start(const RunFlags& flags, const Model& model, const Session& session, const KvChoice& kv,
                 const Prompt& prompt, const SamplerOptions& sampler) {
  fmt::print(stderr, "{}", start_lines(model.info(), session, kv));
  if (flags.verbose) fmt::print(stderr, "{}", more_start_lines(model.info(), session));
  fmt::print(stderr, "prompt   {} tokens, {}; {}\n", prompt.tokens.size(), form_text(flags, prompt),
             sampler_text(sampler));
}

std::string stop_text(const GenerateResult& result) {
  if (result.reason == StopReason::stop_string) return fmt::format("stop string '{}'", result.stop);
  return std::string(stop_reason_name(result.reason));
}

/// A run that has ended.
struct Ended {
  const Model& model;
  const Session& session;
  const KvChoice& kv;
  const GenerateResult& result;
  const Speculation* spec;  ///< null: without draft tokens
};

void print_end(const RunFlags& flags, const Ended& run) {
  const auto& [model, session, choice, result, spec] = run;
  const KvReport kv = session.kv_report();
  fmt::print(stderr, "prefill  {} tokens, {:.2f} s, {:.1f} tok/s\n", result.n_prompt, result.prefill_seconds,
             tokens_per_second(result.n_prompt, result.prefill_seconds));
  if (result.n_decoded > 0)
    fmt::print(stderr, "decode   {} tokens, {:.2f} s, {:.1f} tok/s, {:.2f} ms/token\n", result.n_decoded,
               result.decode_seconds, tokens_per_second(result.n_decoded, result.decode_seconds),
               1e3 * result.decode_seconds / result.n_decoded);
  if (const ExpertHits hits = model.expert_hits(); hits.n_chosen > 0)
    fmt::print(stderr, "experts  {:.1f} % of {} choices were on the GPU, which keeps {} of each layer in host memory\n",
               100 * hits.share(), hits.n_chosen, model.info().n_cached_experts);
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

lab::Row result_row(const RunFlags& flags, const Ended& run, uint64_t seed) {
  const auto& [model, session, choice, result, spec] = run;
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
  if (const ExpertHits hits = model.expert_hits(); hits.n_chosen > 0) row["expert_hits"] = lab::number(hits.share());
  row["kv"] = kv_text(choice);
  row["kv_bytes_per_token"] = kv.bytes_per_token();
  row["n_ctx"] = kv.n_ctx;
  row["kernels"] = session.kernels();
  row["provenance"] = lab::provenance(model.info().n_threads, seed);
  return row;
}

/// Writes the cache's files of a session that holds `tokens`. One that cannot be written costs nothing but itself:
/// returns why; empty where it is there.
std::string keep_prompt(const PromptCache& cache, const Session& session, std::span<const int32_t> tokens) {
  try {
    cache.save(session, tokens);
    return "";
  } catch (const Error& error) {
    return fmt::format("prompt cache: nothing was kept: {}", error.what());
  }
}

int run(const RunFlags& flags) {
  check_kv_flags(flags.kv);
  check_flags(flags);
  check_device(flags.model.device);
  const Model model = load_model(flags.model);
  GenerateOptions generate{
      .max_tokens = flags.n_predict, .stop = flags.stop, .ignore_eos = flags.ignore_eos, .sampler = flags.sampler};
  generate.sampler.seed = flags.seed >= 0 ? uint64_t(flags.seed) : std::random_device{}();
  const Prompt read = read_tokens_of_prompt(flags, model, generate.stop);
  const std::vector<int32_t>& prompt = read.tokens;
  if (prompt.empty())
    throw Error(ErrorKind::usage, "the prompt is empty and this model adds no BOS token (give some text)");
  const int n_ctx = context_for(flags.context, flags.kv, model);
  const int64_t most = int64_t(prompt.size()) + (flags.n_predict < 0 ? n_ctx : flags.n_predict);
  const KvChoice kv = choice_for(flags.kv, model, int(std::min<int64_t>(n_ctx, most)), flags.quiet());
  const int n_step = flags.context.ubatch(model.engine().default_ubatch());
  Session session(model, session_options(kv, n_ctx, n_step));
  if (!flags.load_state.empty()) session.restore(flags.load_state);
  if (prompt.size() >= size_t(n_ctx - session.n_past()))
    throw_error(ErrorKind::usage,
                "the prompt has {} tokens, the context holds {}{}: nothing can be generated (raise --ctx-size or "
                "shorten the prompt)",
                prompt.size(), n_ctx,
                session.n_past() > 0 ? fmt::format(" with {} of them used", session.n_past()) : "");
  AnswerStructure structure(flags.structure, model);
  const std::unique_ptr<TokenRule> rule = structure.rule(read.answer.value_or(serve::AnswerForm()));
  const ReadingOptions reading{.n_step = n_step, .shows_progress = !flags.quiet()};
  generate.rule = rule.get();
  generate.ids = !model.info().has_tokenizer;
  const ProposerMaker proposers = open_proposers(flags.spec, flags.model, model, {n_ctx, n_step});
  const std::unique_ptr<Speculation> spec = open_speculation(flags.spec, proposers);
  Speculation* const speculation = spec.get();
  session.speculate(speculation);
  const PromptCache cache{flags.prompt_cache};
  std::string cache_line;
  if (!cache.path.empty()) generate.n_held = cache.load(session, prompt, cache_line);
  if (!flags.quiet()) {
    print_start(flags, model, session, kv, read, generate.sampler);
    if (!cache_line.empty()) fmt::print(stderr, "{}\n", cache_line);
  }
  const int n_cached = generate.n_held;
  std::string not_kept;
  const auto start = std::chrono::steady_clock::now();
  if (!cache.path.empty() && n_cached + 1 < int(prompt.size())) {
    const std::span<const int32_t> all_but_last = std::span(prompt).first(prompt.size() - 1);
    generate.n_held += read_tokens(session, model, all_but_last.subspan(size_t(n_cached)), reading);
    if (generate.n_held == int(all_but_last.size())) not_kept = keep_prompt(cache, session, all_but_last);
  }
  const std::chrono::duration<double> filling = std::chrono::steady_clock::now() - start;
  const bool stream = !flags.output.json && !flags.bare;
  // An answer's stop strings are looked for in what its reader sees as content.
  AnswerPrinter printer(stream, read.answer ? std::exchange(generate.stop, {}) : std::vector<std::string>());
  if (read.answer) {
    printer.begin(read.answer->output);
    generate.marks = read.answer->marks;
    generate.on_mark = [&](std::string_view mark) { return printer.feed_mark(mark); };
  }
  generate.read = [&](std::span<const int32_t> tokens) { return read_tokens(session, model, tokens, reading); };
  generate.interrupted = interrupted;
  GenerateResult result = ridge::generate(session, model, prompt, generate, [&](std::string_view text) {
    if (read.answer) return printer.feed(text);
    if (stream) write_text(text);
    return true;
  });
  const text::Json message = read.answer ? printer.finish(false) : text::Json();
  if (printer.stop()) result.reason = StopReason::stop_string, result.stop = *printer.stop();
  result.n_prompt += generate.n_held - n_cached;
  result.prefill_seconds += filling.count();
  std::exception_ptr not_saved;
  if (!flags.save_state.empty()) {
    // The last token was sampled but never read: the saved cache holds the whole text.
    if (!result.tokens.empty() && result.reason == StopReason::max_tokens && session.n_past() < session.n_ctx())
      session.decode(result.tokens.back());
    try {
      session.save(flags.save_state);
    } catch (const Error&) {
      not_saved = std::current_exception();  // told behind the answer
    }
  }
  end_text(!flags.quiet());
  const Ended ended{model, session, kv, result, speculation};
  if (flags.output.json) {
    lab::Row row = result_row(flags, ended, generate.sampler.seed);
    if (read.answer) row["text"] = message["content"];
    for (const char* part : {"reasoning_content", "tool_calls"})
      if (message.contains(part)) row[part] = message[part];
    fmt::print("{}\n", row.dump(2, ' ', false, lab::Row::error_handler_t::replace));
  }
  if (flags.bare)
    fmt::print("{}\n{} {} {:.2f} {:.2f}\n", fmt::join(result.tokens, " "), result.n_prompt, result.tokens.size(),
               tokens_per_second(result.n_prompt, result.prefill_seconds),
               tokens_per_second(result.n_decoded, result.decode_seconds));
  if (!flags.quiet()) print_end(flags, ended);
  if (!not_kept.empty()) fmt::print(stderr, "warning: {}\n", not_kept);
  if (not_saved) std::rethrow_exception(not_saved);
  return exit_code_of(result.reason != StopReason::interrupted);
}

}  // namespace

static Action declare_run(CLI::App& app) {
  const auto flags = std::make_shared<RunFlags>();
  RunFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  add_rank_flags(app, &f.model.n_stages);
  in_group(app, "Prompt");
  CLI::Option* prompt = add_text(app, "-p,--prompt", f.prompt, "TEXT",
                                 "the prompt: a user's message if the model has a chat template, else plain text");
  add_text(app, "-f,--file", f.file, "FILE",
           "file with the prompt, or - for stdin; one line break at the end is left out");
  app.add_flag("--raw", f.raw, "the prompt is plain text, even if the model has a chat template");
  app.add_flag("--special", f.special,
               "the prompt is plain text; control tokens written in it, such as <|im_end|>, are read as tokens");
  add_text(app, "--prompt-ids", f.ids, "LIST",
           "the prompt as token ids: 1,2,3, a file of ids, or - for stdin; Ridge adds no token");
  app.add_flag("--chat", f.chat,
               "the prompt is a user's message; a model without a template gets lines of \"User: ...\"");
  add_text(app, "--system", f.system, "TEXT", "the system prompt before a user's message");
  add_template_flag(app, f.model);
  add_text(app, "--prompt-cache", f.prompt_cache, "FILE",
           "reuse the cache that an earlier prompt left in FILE (and FILE.ids), then save this prompt's cache");
  in_group(app, "Generation");
  add_whole(app, "-n,--n-predict", f.n_predict, -1, 1 << 26,
            "most tokens to generate; -1: no limit but an end token or a full context");
  add_repeatable(app, "--stop", f.stop, "TEXT", "end the answer before this text (repeatable)");
  app.add_flag("--ignore-eos", f.ignore_eos, "generate past the end-of-text token");
  in_group(app, "Sampling");
  add_sampler_flags(app, f.sampler, f.seed);
  add_structure_flags(app, f.structure);
  in_group(app, "Context");
  add_text(app, "--load-state", f.load_state, "FILE",
           "start with a cache saved by --save-state; the prompt continues the saved text");
  add_text(app, "--save-state", f.save_state, "FILE", "write the cache to this file at the end");
  add_context_flags(app, f.context, "context in tokens; 0: the model's trained context, or less if memory is short");
  add_kv_flags(app, f.kv);
  add_decision_flag(app, f.kv);
  add_spec_flags(app, f.spec);
  add_output_flags(app, f.output, false);
  app.add_flag("--verbose", f.verbose, "more start-up lines: shape, processor, weights, cache by layers, kernels");
  app.add_flag("--bare", f.bare,
               "print token ids, no text; then a line: numbers of prompt and new tokens, prefill and decode tok/s");
  return [flags, prompt] {
    flags->has_prompt = prompt->count() > 0;
    return run(*flags);
  };
}

extern const Command run_command = {
    "run", "generate text",
    R"(Streams text to stdout: the answer to a message, or the continuation of a text. If the model has a chat
template (an instruct model), the prompt is a user's message, else plain text. --raw always means plain text,
--chat always a message. Start-up facts and final statistics go to stderr.)",
    R"(ridge run -m models/stories260K.gguf -p "Once upon a time" -n 100
ridge run -m instruct.gguf -p "What is the capital of France?" --system "Answer in one word."
ridge run -m model.gguf -f prompt.txt --raw --kv-quant rotor-3 --temp 0
ridge run -m model.gguf -f - -ctk q8_0 -ctv rotor-3 --stop '###' < prompt.txt)",
    declare_run};

}  // namespace ridge::cli
