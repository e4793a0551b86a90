#include "cli/eval.h"

namespace ridge::cli {
namespace {

constexpr int kDefaultContext = 512;

/// Tokens of a text that must be the ones a base file was made from.
void check_same_tokens(const lab::Corpus& text, const lab::Corpus& base) {
  if (text.tokens.size() >= base.tokens.size() &&
      std::equal(base.tokens.begin(), base.tokens.end(), text.tokens.begin()))
    return;
  bad_flag("--file", fmt::format("{} does not begin with the tokens that {} was made from", text.path, base.path),
           "leave --file out: the base file holds its tokens");
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
}

void add_list_flag(CLI::App& app, std::string& list, const std::string& left_out) {
  in_group(app, "KV cache");
  add_text(app, "--kv", list, "LIST", "comma list of caches; left out: " + left_out)->default_str("");
}

lab::EvalOptions eval_options(const TextFlags& flags) {
  lab::EvalOptions options;
  options.n_ctx = flags.context.n_ctx == 0 ? kDefaultContext : flags.context.n_ctx;
  options.max_chunks = flags.chunks;
  if (flags.context.n_ubatch > 0) options.n_ubatch = flags.context.ubatch();
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

lab::Corpus read_base(const BaseFlags& flags, const std::string& text_file, const Model& model,
                      lab::EvalOptions& options, std::optional<io::KlBaseFile>& file) {
  options.against_base = true;
  lab::Corpus corpus;
  const Result<KvChoice> cache = parse_kv_choice(flags.base);
  if (cache) {
    options.base = *cache;
    if (text_file.empty()) bad_flag("--file", "is required", "name a text, or a base file with --base");
    corpus = lab::read_corpus(model, text_file);
  } else {
    std::error_code error;
    if (!std::filesystem::exists(flags.base, error))
      bad_flag("--base", fmt::format("'{}' is no cache and no file: {}", flags.base, cache.error().message));
    file = io::KlBaseFile::open(flags.base).or_throw();
    options.base_file = &*file;
    corpus = lab::base_corpus(model, *file);
    if (!text_file.empty()) check_same_tokens(lab::read_corpus(model, text_file), corpus);
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
