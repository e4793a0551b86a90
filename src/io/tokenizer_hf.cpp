// TokenizerSpec from Hugging Face tokenizer.json and tokenizer_config.json.
//
// Understood are byte-level BPE (a ByteLevel pre-tokenizer, alone or after one of the known splits) and the converted
// SentencePiece models, where a normalizer or the pre-tokenizer Metaspace turns spaces into U+2581: BPE with byte
// fallback, whose merge list takes the place of the scores, and Unigram. Anything else that would change ids is
// refused.
#include <algorithm>

#include "io/json.h"
#include "io/pretokenizer.h"
#include "io/text.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {

namespace {

const Json kNull;

/// A member of an object, or null when it is absent or `object` is something else.
const Json& member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNull;
}

std::string text_or(const Json& value, std::string_view fallback) {
  return value.is_string() ? value.get<std::string>() : std::string(fallback);
}

bool flag_or(const Json& value, bool fallback) { return value.is_boolean() ? value.get<bool>() : fallback; }

std::string type_of(const Json& part) { return text_or(member(part, "type"), part.is_null() ? "null" : ""); }

/// The steps of a part: those of a Sequence (under `list_key`), the part itself, or none for null.
std::vector<Json> steps_of(const Json& part, const char* list_key) {
  if (part.is_null()) return {};
  const Json& list = member(part, list_key);
  if (type_of(part) == "Sequence" && list.is_array()) return {list.begin(), list.end()};
  return {part};
}

/// Reads one tokenizer.json into a spec. The order of calls in read() matters: later steps look at earlier results.
class HfReader {
 public:
  HfReader(const Json& tokenizer, const Json& config, const Json& special, std::string_view where)
      : tokenizer_(tokenizer), config_(config), special_(special), model_(member(tokenizer, "model")), where_(where) {}

  Result<TokenizerSpec> read();

 private:
  template <class... Args>
  Failure refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return bad_file("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

  Status read_model();
  Status read_normalizer();
  Status read_normalizer_step(const Json& step);
  Status read_pre_tokenizer();
  Result<std::string> read_split(const Json& step) const;
  Status read_metaspace(const Json& step);
  Status find_stages(const std::vector<std::string>& stages);
  Result<int32_t> read_id(const Json& id, std::string_view piece) const;
  Status place(const std::string& piece, int32_t id, TokenType type);
  Status read_vocab();
  Status read_scored_vocab();
  Status read_added_tokens();
  Status fill_holes();
  Status read_merges();
  Status finish_spm();
  void score_merges();
  Status read_template(const Json& step);
  Status read_post_processor();
  Result<std::optional<int32_t>> named_token(const char* key, bool must_exist) const;
  Status read_special();

  const Json& tokenizer_;
  const Json& config_;
  const Json& special_;
  const Json& model_;
  std::string_view where_;
  bool unigram_ = false;
  TokenizerSpec spec_;
  std::map<int32_t, std::pair<std::string, TokenType>> tokens_;
  std::map<std::string, int32_t, std::less<>> ids_;
  std::optional<bool> template_bos_, template_eos_;
};

Status HfReader::read_model() {
  if (!model_.is_object()) return refuse("the field 'model' is missing or not an object");
  const std::string type = text_or(member(model_, "type"), "BPE");
  if (type != "BPE" && type != "Unigram")
    return refuse("model.type is {}, expected BPE or Unigram (known: byte-level BPE, SentencePiece BPE, Unigram)",
                  in_quotes(type));
  unigram_ = type == "Unigram";
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const Json& value = member(model_, key); !value.is_null() && value != "")
      return refuse("model.{} is {}, which is not supported", key, in_quotes(value.dump()));
  if (const Json& dropout = member(model_, "dropout"); !dropout.is_null() && dropout != 0.0)
    return refuse("model.dropout is set: encoding would be random");
  spec_.ignore_merges = flag_or(member(model_, "ignore_merges"), false);
  return {};
}

Status HfReader::read_normalizer_step(const Json& step) {
  const std::string type = type_of(step);
  if (type == "NFC") {
    spec_.nfc = true;
    return {};
  }
  if (type == "Prepend" && text_or(member(step, "prepend"), "") == kSpmSpace && spec_.model == TokenizerModel::bpe) {
    spec_.add_space_prefix = true;
    return {};
  }
  if (type == "Precompiled" && text_or(member(step, "precompiled_charsmap"), "").empty()) return {};
  const bool spaces = text_or(member(member(step, "pattern"), "String"), "") == " ";
  if (type == "Replace" && spaces && text_or(member(step, "content"), "") == kSpmSpace) {
    spec_.model = TokenizerModel::spm;
    return {};
  }
  return refuse("the normalizer {} is not supported (known: NFC, Prepend U+2581, Replace ' ' by U+2581)",
                in_quotes(step.dump()));
}

Status HfReader::read_normalizer() {
  for (const Json& step : steps_of(member(tokenizer_, "normalizer"), "normalizers"))
    RIDGE_TRY_STATUS(read_normalizer_step(step));
  const bool spm = spec_.model == TokenizerModel::spm;
  if (spec_.add_space_prefix && !spm) return refuse("the normalizer prepends U+2581 but does not replace spaces by it");
  if (spm && spec_.nfc) return refuse("the normalizer mixes NFC with U+2581 for spaces, which is not supported");
  if (spm) spec_.pre = PreTokenizer::none;
  return {};
}

/// Files write line ends in patterns as escapes or as they are.
std::string with_escapes(std::string_view pattern) {
  return replace_all(replace_all(pattern, "\r", "\\r"), "\n", "\\n");
}

/// The pattern of a step in front of ByteLevel, or a failure: Split, or Digits as a pattern.
Result<std::string> HfReader::read_split(const Json& step) const {
  if (type_of(step) == "Digits")
    return std::string(flag_or(member(step, "individual_digits"), false) ? "\\p{N}" : "\\p{N}+");
  if (text_or(member(step, "behavior"), "") != "Isolated" || flag_or(member(step, "invert"), false))
    return refuse("the pre-tokenizer's split has behavior {} or is inverted, expected Isolated",
                  in_quotes(member(step, "behavior").dump()));
  return with_escapes(text_or(member(member(step, "pattern"), "Regex"), ""));
}

/// The pre-tokenizer that has these stages.
Status HfReader::find_stages(const std::vector<std::string>& stages) {
  std::string known;
  for (const auto& [name, pre] : pretokenizer_names()) {
    std::vector<std::string> of_pre;
    for (const std::string_view regex : pretokenizer_stages(pre)) of_pre.push_back(with_escapes(regex));
    if (stages == of_pre) {
      spec_.pre = pre;
      return {};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  }
  return refuse("the pre-tokenizer splits at {}, which is not supported; known are the patterns of {}",
                in_quotes(fmt::format("{}", fmt::join(stages, ", then "))), known);
}

/// Files before tokenizers 0.15 have add_prefix_space in place of prepend_scheme.
Status HfReader::read_metaspace(const Json& step) {
  if (const std::string sign = text_or(member(step, "replacement"), ""); sign != kSpmSpace)
    return refuse("the pre-tokenizer Metaspace has the replacement {}, expected U+2581", in_quotes(sign));
  const std::string standard = flag_or(member(step, "add_prefix_space"), true) ? "always" : "never";
  const std::string scheme = text_or(member(step, "prepend_scheme"), standard);
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return refuse("the pre-tokenizer Metaspace has the prepend_scheme {}, expected always, first or never",
                  in_quotes(scheme));
  spec_.model = TokenizerModel::spm;
  spec_.pre = flag_or(member(step, "split"), true) ? PreTokenizer::words : PreTokenizer::none;
  spec_.add_space_prefix = spec_.prefix_unless_space = scheme != "never";
  spec_.prefix_first_only = scheme == "first";
  return {};
}

Status HfReader::read_pre_tokenizer() {
  const std::vector<Json> steps = steps_of(member(tokenizer_, "pre_tokenizer"), "pretokenizers");
  if (steps.size() == 1 && type_of(steps[0]) == "Metaspace" && spec_.model == TokenizerModel::bpe && !spec_.nfc)
    return read_metaspace(steps[0]);
  if (spec_.model == TokenizerModel::spm) {
    // Gemma's files split at spaces, of which the normalizer leaves none.
    const bool idle = steps.size() == 1 && type_of(steps[0]) == "Split" &&
                      text_or(member(member(steps[0], "pattern"), "String"), "") == " ";
    return steps.empty() || idle ? Status() : refuse("a pre-tokenizer next to U+2581 for spaces is not supported");
  }
  const auto splits = [](const Json& step) { return type_of(step) == "Split" || type_of(step) == "Digits"; };
  if (steps.empty() || type_of(steps.back()) != "ByteLevel" || !std::all_of(steps.begin(), steps.end() - 1, splits))
    return refuse(
        "the pre-tokenizer {} is not supported (known: ByteLevel, or Split and ByteLevel, or Digits before it; "
        "SentencePiece models "
        "have none and replace spaces by U+2581)",
        in_quotes(member(tokenizer_, "pre_tokenizer").dump()));
  if (flag_or(member(steps.back(), "add_prefix_space"), true))
    return refuse("the ByteLevel pre-tokenizer has add_prefix_space, which is not supported");
  std::vector<std::string> stages;
  for (const Json& step : std::span(steps).first(steps.size() - 1)) {
    RIDGE_TRY(stages.emplace_back(), read_split(step));
  }
  if (flag_or(member(steps.back(), "use_regex"), true))
    stages.emplace_back(pretokenizer_stages(PreTokenizer::gpt2).front());
  if (stages.empty()) return refuse("the pre-tokenizer never splits (use_regex is false), which is not supported");
  return find_stages(stages);
}

Result<int32_t> HfReader::read_id(const Json& id, std::string_view piece) const {
  if (!id.is_number_integer() || id < 0 || id >= kMaxVocab)
    return refuse("the id of token {} is {}, expected an integer from 0 to {}", in_quotes(piece), in_quotes(id.dump()),
                  kMaxVocab - 1);
  return id.get<int32_t>();
}

/// Puts a token into the table; an added token may only restate the piece that its id already has.
Status HfReader::place(const std::string& piece, int32_t id, TokenType type) {
  const auto known = ids_.try_emplace(piece, id).first;
  if (known->second != id) return refuse("token {} has the ids {} and {}", in_quotes(piece), known->second, id);
  const auto slot = tokens_.try_emplace(id, piece, type).first;
  if (slot->second.first != piece)
    return refuse("id {} belongs to the tokens {} and {}", id, in_quotes(slot->second.first), in_quotes(piece));
  slot->second.second = type;
  return {};
}

/// A list of [piece, score], where a place in the list is the id.
Status HfReader::read_scored_vocab() {
  if (spec_.model != TokenizerModel::spm) return refuse("a Unigram model whose spaces do not become U+2581");
  spec_.model = TokenizerModel::unigram;
  const bool bytes = flag_or(member(model_, "byte_fallback"), false);
  const Json& vocab = member(model_, "vocab");
  if (!vocab.is_array() || vocab.empty()) return refuse("model.vocab is missing, empty or not an array");
  for (const Json& entry : vocab) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      return refuse("entry {} of model.vocab is {}, expected [piece, score]", spec_.scores.size(),
                    in_quotes(entry.dump()));
    const std::string piece = entry[0];
    RIDGE_TRY_STATUS(place(piece, int32_t(spec_.scores.size()),
                           bytes && byte_of_piece(piece) ? TokenType::byte : TokenType::normal));
    spec_.scores.push_back(entry[1].get<float>());
  }
  const Json& unk = member(model_, "unk_id");
  if (unk.is_null()) return {};
  RIDGE_TRY(const int32_t id, read_id(unk, "unk_id"));
  if (size_t(id) >= spec_.scores.size())
    return refuse("model.unk_id is {}, expected an id below {}", id, spec_.scores.size());
  spec_.unk = id;
  return {};
}

Status HfReader::read_vocab() {
  if (unigram_) return read_scored_vocab();
  const Json& vocab = member(model_, "vocab");
  if (!vocab.is_object() || vocab.empty()) return refuse("model.vocab is missing, empty or not an object");
  const bool spm = spec_.model == TokenizerModel::spm;
  for (const auto& [piece, value] : vocab.items()) {
    RIDGE_TRY(const int32_t id, read_id(value, piece));
    RIDGE_TRY_STATUS(place(piece, id, spm && byte_of_piece(piece) ? TokenType::byte : TokenType::normal));
  }
  return {};
}

Status HfReader::read_added_tokens() {
  const Json& added = member(tokenizer_, "added_tokens");
  if (!added.is_array()) return added.is_null() ? Status() : refuse("added_tokens is not an array");
  for (const Json& token : added) {
    const std::string piece = text_or(member(token, "content"), "");
    if (piece.empty()) return refuse("an added token has no content: {}", in_quotes(token.dump()));
    RIDGE_TRY(const int32_t id, read_id(member(token, "id"), piece));
    const bool special = flag_or(member(token, "special"), false);
    const bool escapes = !member(tokenizer_, "normalizer").is_null() && spec_.model != TokenizerModel::bpe;
    const MatchRule rule{.strip_left = flag_or(member(token, "lstrip"), false),
                         .strip_right = flag_or(member(token, "rstrip"), false),
                         .single_word = flag_or(member(token, "single_word"), false),
                         .normalized = flag_or(member(token, "normalized"), escapes && !special)};
    // There spaces are U+2581 already, and may have one more of them in front.
    if (rule.normalized && escapes)
      return refuse("the added token {} is matched after normalisation, which is not supported", in_quotes(piece));
    if (rule != MatchRule()) spec_.match_rules[id] = rule;
    RIDGE_TRY_STATUS(place(piece, id, special ? TokenType::control : TokenType::user_defined));
  }
  return {};
}

Status HfReader::fill_holes() {
  const size_t size = size_t(tokens_.rbegin()->first) + 1;
  if (size > 2 * tokens_.size() + 1024)
    return refuse("{} tokens reach up to id {}: more than half of the ids are missing", tokens_.size(), size - 1);
  spec_.pieces.resize(size);
  spec_.types.assign(size, TokenType::unused);
  for (const auto& [id, token] : tokens_) {
    spec_.pieces[size_t(id)] = token.first;
    spec_.types[size_t(id)] = token.second;
  }
  return {};
}

Status HfReader::read_merges() {
  if (unigram_) return {};
  const Json& merges = member(model_, "merges");
  if (!merges.is_array()) return refuse("model.merges is missing or not an array");
  for (const Json& merge : merges) {
    const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (!pair && !merge.is_string())
      return refuse("merge {} is {}, expected \"left right\" or [\"left\", \"right\"]", spec_.merges.size(),
                    in_quotes(merge.dump()));
    std::string text =
        pair ? merge[0].get<std::string>() + " " + merge[1].get<std::string>() : merge.get<std::string>();
    if (std::ranges::count(text, ' ') != 1)
      return refuse("merge {} is {}: pieces with spaces cannot be merged", spec_.merges.size(), in_quotes(text));
    spec_.merges.push_back(std::move(text));
  }
  return {};
}

/// Scores for readers that know no merge list: a later merge scores lower. Our own merging follows the list.
void HfReader::score_merges() {
  spec_.scores.assign(spec_.pieces.size(), 0.0f);
  for (size_t rank = spec_.merges.size(); rank-- > 0;) {  // downwards: the best merge into a piece stays
    std::string merged = spec_.merges[rank];
    merged.erase(merged.find(' '), 1);
    if (const auto id = ids_.find(merged); id != ids_.end()) spec_.scores[size_t(id->second)] = -float(rank + 1);
  }
}

Status HfReader::finish_spm() {
  if (spec_.model == TokenizerModel::bpe)
    return flag_or(member(model_, "byte_fallback"), false) ? refuse("byte_fallback with byte-level BPE makes no sense")
                                                           : Status();
  if (unigram_) {
    spec_.scores.resize(spec_.pieces.size(), 0.0f);
    return {};
  }
  const auto bytes = std::ranges::count(spec_.types, TokenType::byte);
  if (!flag_or(member(model_, "byte_fallback"), false) || bytes < 256)
    return refuse("a SentencePiece model without byte_fallback and all 256 byte tokens is not supported (found {})",
                  bytes);
  if (spec_.ignore_merges) return refuse("ignore_merges with a SentencePiece model is not supported");
  if (spec_.merges.empty()) return refuse("model.merges is empty, which leaves a SentencePiece model without an order");
  score_merges();
  return {};
}

/// TemplateProcessing puts special tokens around the text: "<bos> A" or "A <eos>" in its `single` form.
Status HfReader::read_template(const Json& step) {
  const Json& items = member(step, "single");
  bool before = true;
  template_bos_ = template_eos_ = false;
  for (const Json& item : items.is_array() ? items : Json::array()) {
    if (!member(item, "Sequence").is_null()) before = false;
    const Json& token = member(item, "SpecialToken");
    if (token.is_null()) continue;
    const auto id = ids_.find(text_or(member(token, "id"), ""));
    if (id == ids_.end()) return refuse("the post-processor adds {}, which is no token", in_quotes(token.dump()));
    if (before ? *template_bos_ : *template_eos_)
      return refuse("the post-processor adds more than one token on a side, which is not supported");
    (before ? template_bos_ : template_eos_) = true;
    (before ? spec_.bos : spec_.eos) = id->second;
  }
  return {};
}

Status HfReader::read_post_processor() {
  for (const Json& step : steps_of(member(tokenizer_, "post_processor"), "processors")) {
    const std::string type = type_of(step);
    if (type == "ByteLevel") continue;  // moves offsets, not ids
    if (type != "TemplateProcessing")
      return refuse("the post-processor {} is not supported (known: ByteLevel, TemplateProcessing)", in_quotes(type));
    RIDGE_TRY_STATUS(read_template(step));
  }
  return {};
}

/// The id of bos_token and its kin in tokenizer_config.json, or else special_tokens_map.json: a string, {"content":
/// string} or null.
Result<std::optional<int32_t>> HfReader::named_token(const char* key, bool must_exist) const {
  const Json& value = member(member(config_, key).is_null() ? special_ : config_, key);
  if (value.is_null()) return std::optional<int32_t>();
  const std::string piece = text_or(value.is_object() ? member(value, "content") : value, "");
  if (const auto id = ids_.find(piece); id != ids_.end()) return std::optional<int32_t>(id->second);
  if (must_exist) return refuse("tokenizer_config.json: {} is {}, which is no token", key, in_quotes(value.dump()));
  return std::optional<int32_t>();
}

Status HfReader::read_special() {
  RIDGE_TRY(const auto bos, named_token("bos_token", true));
  RIDGE_TRY(const auto eos, named_token("eos_token", true));
  RIDGE_TRY(const auto unknown, named_token("unk_token", false));
  if (!spec_.unk) spec_.unk = unknown;
  RIDGE_TRY(spec_.pad, named_token("pad_token", false));
  if (bos) spec_.bos = bos;
  if (eos) spec_.eos = eos;
  for (const char* key : {"eot_token", "eom_token"}) {
    RIDGE_TRY(const auto end, named_token(key, false));
    if (end) add_end(spec_, *end);
  }
  if (const auto unk = ids_.find(text_or(member(model_, "unk_token"), "")); !spec_.unk && unk != ids_.end())
    spec_.unk = unk->second;
  const bool spm = spec_.model == TokenizerModel::spm;
  if (spec_.model != TokenizerModel::bpe && spec_.unk && spec_.types[size_t(*spec_.unk)] == TokenType::control)
    spec_.types[size_t(*spec_.unk)] = TokenType::unknown;
  // The Llama classes add BOS by themselves, so a SentencePiece model that says nothing gets it.
  spec_.add_bos = flag_or(member(config_, "add_bos_token"), template_bos_.value_or(spm && spec_.bos));
  spec_.add_eos = flag_or(member(config_, "add_eos_token"), template_eos_.value_or(false));
  return {};
}

Result<TokenizerSpec> HfReader::read() {
  RIDGE_TRY_STATUS(read_model());
  RIDGE_TRY_STATUS(read_normalizer());
  RIDGE_TRY_STATUS(read_pre_tokenizer());
  RIDGE_TRY_STATUS(read_vocab());
  RIDGE_TRY_STATUS(read_added_tokens());
  RIDGE_TRY_STATUS(fill_holes());
  RIDGE_TRY_STATUS(read_merges());
  RIDGE_TRY_STATUS(finish_spm());
  RIDGE_TRY_STATUS(read_post_processor());
  RIDGE_TRY_STATUS(read_special());
  return std::move(spec_);
}

}  // namespace

Result<TokenizerSpec> tokenizer_spec_from_hf(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                                             std::string_view where, std::string_view special_tokens_map_json) {
  RIDGE_TRY(const Json tokenizer, parse_json(tokenizer_json, where));
  Json config, special;
  if (!tokenizer_config_json.empty()) {
    RIDGE_TRY(config, parse_json(tokenizer_config_json, where));
  }
  if (!special_tokens_map_json.empty()) {
    RIDGE_TRY(special, parse_json(special_tokens_map_json, where));
  }
  return HfReader(tokenizer, config, special, where).read();
}

}  // namespace ridge::io
