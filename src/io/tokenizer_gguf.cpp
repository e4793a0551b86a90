// TokenizerSpec from and to GGUF metadata (tokenizer.ggml.*).
#include <algorithm>

#include "io/text.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {

namespace {

constexpr const char* kModel = "tokenizer.ggml.model";
constexpr const char* kPre = "tokenizer.ggml.pre";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kAddBos = "tokenizer.ggml.add_bos_token";
constexpr const char* kAddEos = "tokenizer.ggml.add_eos_token";
constexpr const char* kSpacePrefix = "tokenizer.ggml.add_space_prefix";
constexpr const char* kIgnoreMerges = "ridge.tokenizer.ignore_merges";
constexpr const char* kNfc = "ridge.tokenizer.nfc";

struct NamedId {
  const char* key;
  std::optional<int32_t> TokenizerSpec::*id;
};
constexpr NamedId kNamedIds[] = {{"tokenizer.ggml.bos_token_id", &TokenizerSpec::bos},
                                 {"tokenizer.ggml.eos_token_id", &TokenizerSpec::eos},
                                 {"tokenizer.ggml.eot_token_id", &TokenizerSpec::eot},
                                 {"tokenizer.ggml.unknown_token_id", &TokenizerSpec::unk},
                                 {"tokenizer.ggml.padding_token_id", &TokenizerSpec::pad}};

/// The first name of a pre-tokenizer is the one we write.
constexpr std::pair<std::string_view, PreTokenizer> kPreNames[] = {
    {"gpt-2", PreTokenizer::gpt2},       {"llama-bpe", PreTokenizer::llama_bpe},
    {"llama3", PreTokenizer::llama_bpe}, {"llama-v3", PreTokenizer::llama_bpe},
    {"qwen2", PreTokenizer::qwen2},      {"deepseek-r1-qwen", PreTokenizer::qwen2}};

Result<PreTokenizer> pre_from_name(std::string_view name, std::string_view where) {
  std::string known;
  for (const auto& [known_name, pre] : kPreNames) {
    if (name == known_name) return pre;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", known_name);
  }
  return bad_file("{}: {}: the pre-tokenizer {} is not supported (known: {})", where, kPre, in_quotes(name), known);
}

Status read_model(const Gguf& gguf, std::string_view where, TokenizerSpec& spec) {
  RIDGE_TRY(const std::string model, gguf.text(kModel));
  if (model == "llama") {
    spec.model = TokenizerModel::spm;
    spec.pre = PreTokenizer::none;
    return {};
  }
  if (model != "gpt2")
    return bad_file(
        "{}: {}: the tokenizer model {} is not supported (known: gpt2 (byte-level BPE), llama (spm), no_vocab "
        "(token ids only))",
        where, kModel, in_quotes(model));
  spec.model = TokenizerModel::bpe;
  RIDGE_TRY(const std::string pre, gguf.text(kPre));
  RIDGE_TRY(spec.pre, pre_from_name(pre, where));
  return {};
}

Status read_ids(const Gguf& gguf, std::string_view where, TokenizerSpec& spec) {
  for (const auto& [key, member] : kNamedIds) {
    if (!gguf.has(key)) continue;
    RIDGE_TRY(const int64_t id, gguf.integer(key));
    if (id == -1 || id == int64_t(UINT32_MAX)) continue;  // how converters write "none"
    if (id < 0 || uint64_t(id) >= spec.pieces.size())
      return bad_file("{}: {} is {}, expected an id below {}, the number of tokens", where, key, id,
                      spec.pieces.size());
    spec.*member = int32_t(id);
  }
  return {};
}

void guess_types(TokenizerSpec& spec) {
  spec.types.assign(spec.pieces.size(), TokenType::normal);
  for (size_t id = 0; spec.model == TokenizerModel::spm && id < spec.pieces.size(); ++id)
    if (byte_of_piece(spec.pieces[id])) spec.types[id] = TokenType::byte;
  for (const auto& id : {spec.bos, spec.eos, spec.eot, spec.pad})
    if (id) spec.types[size_t(*id)] = TokenType::control;
  if (spec.unk) spec.types[size_t(*spec.unk)] = TokenType::unknown;
}

Status read_types(const Gguf& gguf, std::string_view where, TokenizerSpec& spec) {
  if (!gguf.has(kTypes)) {
    guess_types(spec);
    return {};
  }
  RIDGE_TRY(const std::vector<int64_t> types, gguf.integers(kTypes));
  if (types.size() != spec.pieces.size())
    return bad_file("{}: {} has {} entries, expected {}, the number of tokens", where, kTypes, types.size(),
                    spec.pieces.size());
  spec.types.reserve(types.size());
  for (const int64_t type : types) {
    if (type < 0 || type > int64_t(TokenType::byte))
      return bad_file("{}: {} of token {} is {}, expected 0 to 6", where, kTypes, spec.types.size(), type);
    spec.types.push_back(TokenType(type));
  }
  return {};
}

Status read_merge_order(const Gguf& gguf, std::string_view where, TokenizerSpec& spec) {
  if (spec.model == TokenizerModel::bpe || gguf.has(kMerges)) {
    RIDGE_TRY(spec.merges, gguf.texts(kMerges));
  }
  if (spec.model == TokenizerModel::bpe) return {};
  RIDGE_TRY(const std::vector<double> scores, gguf.numbers(kScores));
  if (scores.size() != spec.pieces.size())
    return bad_file("{}: {} has {} entries, expected {}, the number of tokens", where, kScores, scores.size(),
                    spec.pieces.size());
  spec.scores.assign(scores.begin(), scores.end());
  return {};
}

Status read_flag(const Gguf& gguf, const char* key, bool& value) {
  if (!gguf.has(key)) return {};
  RIDGE_TRY(value, gguf.flag(key));
  return {};
}

/// Files say only what differs from the habit of their kind.
Status read_flags(const Gguf& gguf, TokenizerSpec& spec) {
  const bool spm = spec.model == TokenizerModel::spm, llama_bpe = spec.pre == PreTokenizer::llama_bpe;
  spec.add_bos = (spm || llama_bpe) && spec.bos.has_value();
  spec.ignore_merges = llama_bpe;
  spec.add_space_prefix = spm;
  RIDGE_TRY_STATUS(read_flag(gguf, kAddBos, spec.add_bos));
  RIDGE_TRY_STATUS(read_flag(gguf, kAddEos, spec.add_eos));
  RIDGE_TRY_STATUS(read_flag(gguf, kIgnoreMerges, spec.ignore_merges));
  RIDGE_TRY_STATUS(read_flag(gguf, kNfc, spec.nfc));
  if (spm) RIDGE_TRY_STATUS(read_flag(gguf, kSpacePrefix, spec.add_space_prefix));
  return {};
}

std::string_view pre_name(PreTokenizer pre) {
  const auto row = std::ranges::find(kPreNames, pre, &std::pair<std::string_view, PreTokenizer>::second);
  return row == std::end(kPreNames) ? "default" : row->first;
}

}  // namespace

bool has_no_vocab(const Gguf& gguf) {
  const auto entry = gguf.metadata.find(kModel);
  const auto* const model = entry == gguf.metadata.end() ? nullptr : std::get_if<std::string>(&entry->second);
  return model && (*model == "no_vocab" || *model == "none");
}

Result<TokenizerSpec> tokenizer_spec_from_gguf(const Gguf& gguf, std::string_view where) {
  TokenizerSpec spec;
  RIDGE_TRY_STATUS(read_model(gguf, where, spec));
  RIDGE_TRY(spec.pieces, gguf.texts(kTokens));
  if (spec.pieces.empty()) return bad_file("{}: {} is empty: the vocabulary has no tokens", where, kTokens);
  RIDGE_TRY_STATUS(read_ids(gguf, where, spec));
  RIDGE_TRY_STATUS(read_types(gguf, where, spec));
  RIDGE_TRY_STATUS(read_merge_order(gguf, where, spec));
  RIDGE_TRY_STATUS(read_flags(gguf, spec));
  return spec;
}

std::map<std::string, GgufValue, std::less<>> tokenizer_metadata(const TokenizerSpec& spec) {
  const bool spm = spec.model == TokenizerModel::spm;
  std::map<std::string, GgufValue, std::less<>> metadata;
  metadata[kModel] = std::string(spm ? "llama" : "gpt2");
  metadata[kPre] = std::string(pre_name(spec.pre));
  metadata[kTokens] = spec.pieces;
  std::vector<int64_t> types;
  for (const TokenType type : spec.types) types.push_back(int64_t(type));
  metadata[kTypes] = std::move(types);
  if (spm) metadata[kScores] = std::vector<double>(spec.scores.begin(), spec.scores.end());
  if (!spm || !spec.merges.empty()) metadata[kMerges] = spec.merges;
  for (const auto& [key, member] : kNamedIds)
    if (const auto& id = spec.*member) metadata[key] = uint64_t(*id);
  metadata[kAddBos] = spec.add_bos;
  metadata[kAddEos] = spec.add_eos;
  if (spm) metadata[kSpacePrefix] = spec.add_space_prefix;
  if (spec.ignore_merges != (spec.pre == PreTokenizer::llama_bpe)) metadata[kIgnoreMerges] = spec.ignore_merges;
  if (spec.nfc) metadata[kNfc] = true;
  return metadata;
}

}  // namespace ridge::io
