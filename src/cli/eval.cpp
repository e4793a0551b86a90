#include "cli/eval.h"

#include "chat/model.h"

namespace ridge::cli {
namespace {

constexpr int kDefaultContext = 512, kRandomTokens = 1 << 16;

/// Tokens of a text that must be the ones a base file was made from.
void check_same_tokens(const lab::Corpus& text, const lab::Corpus& base) {
  if (text.tokens.size() >= base.tokens.size() &&
      std::equal(base.tokens.begin(), base.tokens.end(), text.tokens.begin()))
    return;
  bad_flag("--file", fmt::format("{} does not begin with the tokens that {} was made from", text.path, base.path),
           "leave --file out: the base file holds its tokens");
}

/// Conversations, one a line, as the model's template shows them.
std::vector<int32_t> chat_tokens(const chat::ChatModel& model, std::string_view lines) {
  std::vector<int32_t> tokens;
  int n_line = 0;
  for (const std::string& line : split(lines, '\n')) {
    ++n_line;
    if (line.empty()) continue;
    const Result<text::Json> parsed = parse_within<text::Json>(line);
    const text::Json* const messages = parsed ? member(*parsed, "messages") : nullptr;
    if (!messages || !messages->is_array())
      bad_flag("--file", fmt::format("line {} is no conversation", n_line),
               R"(with --chat each line is {"messages": [{"role": "user", "content": "..."}, ...]})");
    const std::vector<int32_t> more = model.tokens(model.transcript(*messages));
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  return tokens;
}

}  // namespace

lab::EvalPath parse_eval_path(const std::string& name) {
  for (const lab::EvalPath path : {lab::EvalPath::prefill, lab::EvalPath::decode})
    if (lab::eval_path_name(path) == name) return path;
  bad_flag("--path", fmt::format("expects prefill or decode, found '{}'", name));
}

void add_text_flags(CLI::App& app, TextFlags& f) {
  add_corpus_flags(app, f);
  app.get_option("--file")->required(false);
  add_context_flags(app, f.context, "tokens per window; 0: 512, or what the base file has");
  in_group(app, "Text");
  add_whole(app, "--chunks", f.chunks, -1, 1 << 26, "windows to score; -1: all the text has");
  add_text(app, "--path", f.path, "NAME", "prefill (batched) or decode (token by token, what users get)");
}

void add_corpus_flags(CLI::App& app, TextFlags& f) {
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  in_group(app, "Text");
  add_text(app, "-f,--file", f.file, "FILE", "the text")->required();
  app.add_flag("--chat", f.chat,
               "lines of the file are conversations, {\"messages\": [...]}, shown by the model's template");
}

lab::Corpus read_text(const TextFlags& flags, const Model& model) {
  if (flags.file.empty()) return lab::random_corpus(model, kRandomTokens);
  if (!flags.chat) return lab::read_corpus(model, flags.file);
  const chat::ChatModel chat(model);
  return lab::read_corpus(model, flags.file, [&](std::string_view lines) { return chat_tokens(chat, lines); });
}

void add_list_flags(CLI::App& app, StudyFlags& flags) {
  in_group(app, "KV cache");
  add_text(app, "--kv", flags.list, "LIST", "comma list of caches; left out: " + flags.list)->default_str("");
  add_kv_flags(app, flags.policy);
}

void refuse_caches_beside_list(const KvFlags& flags) {
  if (flags.names_cache())
    bad_flag("--kv", "does not go with --kv-quant, -ctk, -ctv and --kv-layers",
             "write them into the list: q8_0/rotor-3");
}

lab::EvalOptions eval_options(const TextFlags& flags) {
  lab::EvalOptions options;
  options.n_ctx = flags.context.n_ctx == 0 ? kDefaultContext : flags.context.n_ctx;
  options.max_chunks = flags.chunks;
  options.n_ubatch = flags.context.ubatch(options.n_ubatch);
  options.path = parse_eval_path(flags.path);
  options.device = flags.model.device;
  return options;
}

void add_base_flags(CLI::App& app, BaseFlags& f) {
  in_group(app, "KV cache");
  add_text(app, "--base,--kl-divergence-base", f.base, "KV|FILE",
           "the cache everything is compared with, or a base file of --save-base or llama-perplexity");
  app.add_flag("--no-control", f.no_control, "leave out the row of the base against itself");
}

lab::Corpus read_base(const BaseFlags& flags, const TextFlags& text, const Model& model, lab::EvalOptions& options,
                      std::optional<io::KlBaseFile>& file) {
  options.against_base = true;
  lab::Corpus corpus;
  const Result<KvChoice> cache = parse_kv_choice(flags.base);
  if (cache) {
    options.base = *cache;
    if (text.file.empty()) bad_flag("--file", "is required", "name a text, or a base file with --base");
    corpus = read_text(text, model);
  } else {
    std::error_code error;
    if (!std::filesystem::exists(flags.base, error))
      bad_flag("--base", fmt::format("'{}' is no cache and no file: {}", flags.base, cache.error().message));
    file = io::KlBaseFile::open(flags.base).or_throw();
    options.base_file = &*file;
    corpus = lab::base_corpus(model, *file);
    if (!text.file.empty()) check_same_tokens(read_text(text, model), corpus);
  }
  const std::string control = kv_text(options.base);
  const auto is_control = [&](const KvChoice& kv) { return kv_text(kv) == control; };
  if (!flags.no_control && std::none_of(options.candidates.begin(), options.candidates.end(), is_control))
    options.candidates.insert(options.candidates.begin(), options.base);
  return corpus;
}

void print_start(const lab::Corpus& corpus, const lab::Windows& windows, const lab::EvalOptions& options,
                 const Model& model) {
  const ModelInfo& info = model.info();
  fmt::print(stderr, "model    {} ({} {}, {:.2f} M parameters), {}\n", info.name, info.arch, info.weight_format,
             double(info.n_params) / 1e6, device_text(info));
  fmt::print(stderr, "text     {}: {} bytes, {} tokens, xxh64 {:016x}\n", corpus.path, corpus.bytes,
             corpus.tokens.size(), corpus.xxh64);
  fmt::print(stderr, "windows  {} of {} tokens, the second half of each scored{}, {} path{}\n", windows.n_chunks,
             windows.n_ctx, info.add_bos ? ", BOS first" : "", lab::eval_path_name(options.path),
             options.n_ctx > info.n_ctx_train ? fmt::format(" (the model was trained for {})", info.n_ctx_train) : "");
}

}  // namespace ridge::cli
