// TokenizerSpec from and to GGUF metadata (tokenizer.ggml.*).
#include <algorithm>

#include "io/pretokenizer.h"
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
constexpr const char* kEos = "tokenizer.ggml.eos_token_id";
constexpr const char* kAddBos = "tokenizer.ggml.add_bos_token";
constexpr const char* kAddEos = "tokenizer.ggml.add_eos_token";
constexpr const char* kSpacePrefix = "tokenizer.ggml.add_space_prefix";
constexpr const char* kIgnoreMerges = "ridge.tokenizer.ignore_merges";
constexpr const char* kNfc = "ridge.tokenizer.nfc";
constexpr const char* kWordsKey = "ridge.tokenizer.words";
constexpr const char* kPrefixUnlessSpace = "ridge.tokenizer.prefix_unless_space";
constexpr const char* kPrefixFirstOnly = "ridge.tokenizer.prefix_first_only";
constexpr const char* kRuleIds = "ridge.tokenizer.match_rule_ids";
constexpr const char* kRules = "ridge.tokenizer.match_rules";

/// The bits of a stored rule.
constexpr bool MatchRule::*kRuleBits[] = {&MatchRule::strip_left, &MatchRule::strip_right, &MatchRule::single_word,
                                          &MatchRule::normalized};

struct NamedId {
  const char* key;
  std::optional<int32_t> TokenizerSpec::*id;
};
/// Ids that end a turn besides EOS. Other programs write one id to each of the first two; there we put the first of
/// them.
constexpr const char* kEndIds[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
                                   "ridge.tokenizer.end_token_ids"};
constexpr NamedId kNamedIds[] = {{"tokenizer.ggml.bos_token_id", &TokenizerSpec::bos},
                                 {"tokenizer.ggml.unknown_token_id", &TokenizerSpec::unk},
                                 {"tokenizer.ggml.padding_token_id", &TokenizerSpec::pad}};

/// Habits of llama.cpp's readers: BOS comes first, and whole pre-tokens are looked up before merging.
bool takes_whole_pieces(PreTokenizer pre) { return pre == PreTokenizer::llama_bpe || pre == PreTokenizer::tekken; }

Result<PreTokenizer> pre_from_name(std::string_view name, std::string_view where) {
  std::string known;
  for (const auto& [known_name, pre] : pretokenizer_names()) {
    if (name == known_name) return pre;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", known_name);
  }
  return bad_file("{}: {}: the pre-tokenizer {} is not supported (known: {})", where, kPre, in_quotes(name), known);
}

Status read_model(const Gguf& gguf, std::string_view where, TokenizerSpec& spec) {
  RIDGE_TRY(const std::string model, gguf.text(kModel));
  if (model == "t5") {
    for (const char* key : {"tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.remove_extra_whitespaces"})
      if (gguf.has(key)) return bad_file("{}: {} is not supported", where, key);
    spec.model = TokenizerModel::unigram;
    spec.pre = PreTokenizer::none;
    return {};
  }
  if (model == "llama" || model == "gemma4") {
    spec.model = TokenizerModel::spm;
    spec.pre = model == "llama" ? PreTokenizer::none : PreTokenizer::lines;
    return {};
  }
  if (model != "gpt2")
    return bad_file(
        "{}: {}: the tokenizer model {} is not supported (known: gpt2 (byte-level BPE), llama (spm), gemma4 (spm "
        "by lines), t5 (Unigram), no_vocab (token ids only))",
        where, kModel, in_quotes(model));
  spec.model = TokenizerModel::bpe;
  RIDGE_TRY(const std::string pre, gguf.text(kPre));
  RIDGE_TRY(spec.pre, pre_from_name(pre, where));
  return {};
}

bool means_none(int64_t id) { return id == -1 || id == int64_t(UINT32_MAX); }  // how converters write it

/// The ids of a key that has one or a list; none where it is missing.
Result<std::vector<int64_t>> read_one_or_more(const Gguf& gguf, const char* key) {
  if (!gguf.has(key)) return std::vector<int64_t>();
  const Result<int64_t> one = gguf.integer(key);
  if (one) return std::vector<int64_t>{*one};
  Result<std::vector<int64_t>> list = gguf.integers(key);
  if (!list) return one.error();
  return list;
}

Status read_ends(const Gguf& gguf, std::string_view where, TokenizerSpec& spec) {
  for (const char* key : {kEos, kEndIds[0], kEndIds[1], kEndIds[2]}) {
    RIDGE_TRY(const std::vector<int64_t> ids, read_one_or_more(gguf, key));
    for (const int64_t id : ids) {
      if (means_none(id)) continue;
      if (id < 0 || uint64_t(id) >= (key == kEos ? spec.pieces.size() : kMaxVocab))
        return bad_file("{}: {} is {}, expected an id below {}{}", where, key, id,
                        key == kEos ? spec.pieces.size() : kMaxVocab, key == kEos ? ", the number of tokens" : "");
      if (key == kEos && !spec.eos) spec.eos = int32_t(id);
      add_end(spec, int32_t(id));
    }
  }
  return {};
}

Status read_ids(const Gguf& gguf, std::string_view where, TokenizerSpec& spec) {
  for (const auto& [key, member] : kNamedIds) {
    if (!gguf.has(key)) continue;
    RIDGE_TRY(const int64_t id, gguf.integer(key));
    if (means_none(id)) continue;
    if (id < 0 || uint64_t(id) >= spec.pieces.size())
      return bad_file("{}: {} is {}, expected an id below {}, the number of tokens", where, key, id,
                      spec.pieces.size());
    spec.*member = int32_t(id);
  }
  return read_ends(gguf, where, spec);
}

void guess_types(TokenizerSpec& spec) {
  spec.types.assign(spec.pieces.size(), TokenType::normal);
  for (size_t id = 0; spec.model != TokenizerModel::bpe && id < spec.pieces.size(); ++id)
    if (byte_of_piece(spec.pieces[id])) spec.types[id] = TokenType::byte;
  for (const auto& id : {spec.bos, spec.eos, spec.pad})
    if (id) spec.types[size_t(*id)] = TokenType::control;
  for (const int32_t id : spec.ends)
    if (size_t(id) < spec.types.size()) spec.types[size_t(id)] = TokenType::control;
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
  const bool spm = spec.model != TokenizerModel::bpe;
  spec.ignore_merges = takes_whole_pieces(spec.pre);
  spec.add_bos = (spm || spec.ignore_merges) && spec.bos.has_value();
  spec.add_space_prefix = spm && spec.pre == PreTokenizer::none;
  RIDGE_TRY_STATUS(read_flag(gguf, kAddBos, spec.add_bos));
  RIDGE_TRY_STATUS(read_flag(gguf, kAddEos, spec.add_eos));
  RIDGE_TRY_STATUS(read_flag(gguf, kIgnoreMerges, spec.ignore_merges));
  RIDGE_TRY_STATUS(read_flag(gguf, kNfc, spec.nfc));
  if (!spm) return {};
  RIDGE_TRY_STATUS(read_flag(gguf, kSpacePrefix, spec.add_space_prefix));
  RIDGE_TRY_STATUS(read_flag(gguf, kPrefixUnlessSpace, spec.prefix_unless_space));
  RIDGE_TRY_STATUS(read_flag(gguf, kPrefixFirstOnly, spec.prefix_first_only));
  bool words = false;
  RIDGE_TRY_STATUS(read_flag(gguf, kWordsKey, words));
  if (words) spec.pre = PreTokenizer::words;
  return {};
}

Status read_rules(const Gguf& gguf, std::string_view where, TokenizerSpec& spec) {
  if (!gguf.has(kRuleIds)) return {};
  RIDGE_TRY(const std::vector<int64_t> ids, gguf.integers(kRuleIds));
  RIDGE_TRY(const std::vector<int64_t> rules, gguf.integers(kRules));
  if (rules.size() != ids.size())
    return bad_file("{}: {} has {} entries, expected {} as {}", where, kRules, rules.size(), ids.size(), kRuleIds);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || size_t(ids[i]) >= spec.pieces.size())
      return bad_file("{}: {} has {}, expected ids below {}", where, kRuleIds, ids[i], spec.pieces.size());
    if (rules[i] < 0 || rules[i] >= int64_t(1) << std::size(kRuleBits))
      return bad_file("{}: {} has {}, expected 0 to 15", where, kRules, rules[i]);
    MatchRule& rule = spec.match_rules[int32_t(ids[i])];
    for (size_t bit = 0; bit < std::size(kRuleBits); ++bit) rule.*kRuleBits[bit] = (rules[i] >> bit & 1) != 0;
  }
  return {};
}

std::string_view pre_name(PreTokenizer pre) {
  const auto row = std::ranges::find(pretokenizer_names(), pre, &PreTokenizerName::pre);
  return row == pretokenizer_names().end() ? "default" : row->name;
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
  RIDGE_TRY_STATUS(read_rules(gguf, where, spec));
  return spec;
}

std::map<std::string, GgufValue, std::less<>> tokenizer_metadata(const TokenizerSpec& spec) {
  const bool spm = spec.model != TokenizerModel::bpe, unigram = spec.model == TokenizerModel::unigram;
  std::map<std::string, GgufValue, std::less<>> metadata;
  metadata[kModel] = std::string(!spm ? "gpt2" : unigram ? "t5" : spec.pre == PreTokenizer::lines ? "gemma4" : "llama");
  metadata[kPre] = std::string(pre_name(spec.pre));
  metadata[kTokens] = spec.pieces;
  std::vector<int64_t> types;
  for (const TokenType type : spec.types) types.push_back(int64_t(type));
  metadata[kTypes] = std::move(types);
  if (spm) metadata[kScores] = std::vector<double>(spec.scores.begin(), spec.scores.end());
  if (!spm || !spec.merges.empty()) metadata[kMerges] = spec.merges;
  for (const auto& [key, member] : kNamedIds)
    if (const auto& id = spec.*member) metadata[key] = uint64_t(*id);
  if (spec.eos) metadata[kEos] = uint64_t(*spec.eos);
  for (size_t i = 0; i < std::min<size_t>(spec.ends.size(), 2); ++i) metadata[kEndIds[i]] = uint64_t(spec.ends[i]);
  if (spec.ends.size() > 2) metadata[kEndIds[2]] = std::vector<int64_t>(spec.ends.begin() + 2, spec.ends.end());
  metadata[kAddBos] = spec.add_bos;
  metadata[kAddEos] = spec.add_eos;
  if (spm) metadata[kSpacePrefix] = spec.add_space_prefix;
  if (spec.ignore_merges != takes_whole_pieces(spec.pre)) metadata[kIgnoreMerges] = spec.ignore_merges;
  const std::pair<const char*, bool> flags[] = {{kNfc, spec.nfc},
                                                {kWordsKey, spec.pre == PreTokenizer::words},
                                                {kPrefixUnlessSpace, spec.prefix_unless_space},
                                                {kPrefixFirstOnly, spec.prefix_first_only}};
  for (const auto& [key, value] : flags)
    if (value) metadata[key] = true;
  if (spec.match_rules.empty()) return metadata;
  std::vector<int64_t> ids, rules;
  for (const auto& [id, rule] : spec.match_rules) {
    ids.push_back(id);
    rules.push_back(0);
    for (size_t bit = 0; bit < std::size(kRuleBits); ++bit) rules.back() |= int64_t(rule.*kRuleBits[bit]) << bit;
  }
  metadata[kRuleIds] = std::move(ids);
  metadata[kRules] = std::move(rules);
  return metadata;
}

}  // namespace ridge::io
