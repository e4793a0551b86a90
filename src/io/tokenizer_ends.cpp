// Tokens that end a turn. All sources meet here: ids that files name (TokenizerSpec::eos and ends), known pieces, and
// the messages of harmony, which end with a piece that ends turns elsewhere.
#include <algorithm>

#include "io/json.h"
#include "io/text.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {
namespace {

/// Pieces that end a turn in published chat models. Nobody writes them in a text, so the type that a file gives them
/// does not matter: converters of fine-tuned models call them user-defined, and files without types normal.
constexpr std::string_view kEndPieces[] = {"<|im_end|>",
                                           "<|eot_id|>",
                                           "<|eom_id|>",
                                           "<|eot|>",
                                           "<|eom|>",
                                           "<|end|>",
                                           "<|return|>",
                                           "<|call|>",
                                           "<|calls|>",
                                           "<end_of_turn>",
                                           "<turn|>",
                                           "<|end_of_turn|>",
                                           "<|endoftext|>",
                                           "<|end_of_text|>",
                                           "<|end_of_sentence|>",
                                           "<｜end▁of▁sentence｜>",
                                           "<|endofturn|>",
                                           "[|endofturn|]",
                                           "<end_of_utterance>",
                                           "<|END_OF_TURN_TOKEN|>",
                                           "<|assistant_end|>",
                                           "<|role_end|>",
                                           "<seed:eos>",
                                           "[e~["};
/// Pieces that end a turn where they are control tokens. A text may spell them: some are tags of HTML.
constexpr std::string_view kControlEndPieces[] = {"</s>",  "<eos>", "<EOT>",           "_<EOT>",
                                                  "[EOT]", "[EOS]", "<|tool_response>"};
/// The next speaker of GLM's templates, which write nothing behind an answer.
constexpr std::string_view kNextSpeakers[] = {"<|user|>", "<|observation|>"};

bool is_one_of(std::span<const std::string_view> pieces, std::string_view piece) {
  return std::ranges::find(pieces, piece) != pieces.end();
}

/// Whether the vocabulary has a token of each of these pieces, of whatever type.
bool has_all(const TokenizerSpec& spec, std::span<const std::string_view> pieces) {
  return std::ranges::all_of(
      pieces, [&](std::string_view piece) { return std::ranges::find(spec.pieces, piece) != spec.pieces.end(); });
}

Status add_end_id(const Json& id, std::string_view where, TokenizerSpec& spec) {
  if (!id.is_number_integer() || id.get<int64_t>() >= int64_t(kMaxVocab))
    return bad_file("{}: eos_token_id is {}, expected token ids", where, in_quotes(id.dump()));
  const auto value = id.get<int64_t>();
  if (value < 0) return {};  // -1: none
  if (!spec.eos && size_t(value) < spec.pieces.size()) spec.eos = int32_t(value);
  add_end(spec, int32_t(value));
  return {};
}

}  // namespace

bool is_harmony(const TokenizerSpec& spec) {
  constexpr std::string_view kPieces[] = {"<|return|>", "<|call|>", "<|end|>", "<|message|>"};
  return has_all(spec, kPieces);
}

std::vector<int32_t> end_tokens(const TokenizerSpec& spec) {
  std::vector<int32_t> ends = spec.ends;
  if (spec.eos) ends.push_back(*spec.eos);
  const bool speakers = has_all(spec, kNextSpeakers);
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    const std::string& piece = spec.pieces[id];
    const bool control = spec.types[id] == TokenType::control;
    if (is_one_of(kEndPieces, piece) || (control && is_one_of(kControlEndPieces, piece)) ||
        (control && speakers && is_one_of(kNextSpeakers, piece)))
      ends.push_back(int32_t(id));
  }
  if (is_harmony(spec))
    std::erase_if(ends,
                  [&](int32_t id) { return size_t(id) < spec.pieces.size() && spec.pieces[size_t(id)] == "<|end|>"; });
  std::ranges::sort(ends);
  ends.erase(std::ranges::unique(ends).begin(), ends.end());
  return ends;
}

void add_end(TokenizerSpec& spec, int32_t id) {
  const auto at = std::ranges::lower_bound(spec.ends, id);
  if (id != spec.eos && (at == spec.ends.end() || *at != id)) spec.ends.insert(at, id);
}

Status add_end_ids(TokenizerSpec& spec, std::string_view config_json, std::string_view where) {
  if (config_json.empty()) return {};
  RIDGE_TRY(const Json config, parse_json(config_json, where));
  for (const Json* part :
       {&config, config.is_object() && config.contains("text_config") ? &config["text_config"] : nullptr}) {
    if (!part || !part->is_object() || !part->contains("eos_token_id")) continue;
    const Json& named = (*part)["eos_token_id"];
    if (named.is_null()) continue;
    for (const Json& id : named.is_array() ? named : Json::array({named}))
      RIDGE_TRY_STATUS(add_end_id(id, where, spec));
  }
  return {};
}

}  // namespace ridge::io
