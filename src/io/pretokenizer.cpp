#include "io/pretokenizer.h"

#include <array>

#include "base/utf8.h"
#include "io/pretokenizer_regex.h"

namespace ridge::io {
namespace {

constexpr std::string_view kGpt2[] = {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kLlamaBpe[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen35[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kTekken[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kGpt4o[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kSmollm[] = {R"(\p{N})", kGpt2[0]};
constexpr std::string_view kDeepseekV3[] = {
    R"(\p{N}{1,3})", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
/// Letters that have a case are listed by their makers; escaped here because an editor may normalise them.
constexpr std::string_view kDeepseekLlm[] = {
    "[\r\n]",
    "\\s?["
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376"
    "\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F"
    "\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77"
    "\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D"
    "\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4"
    "\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139"
    "\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D"
    "\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A"
    "\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
    "\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
    "]+",
    "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
    R"(\s+$)",
    "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+",
    R"(\p{N}+)"};
/// llama.cpp's, for files that name no other.
constexpr std::string_view kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2[0], R"(\p{N}+)", "[0-9][0-9][0-9]"};
constexpr std::string_view kLines[] = {"[^\n]+|[\n]+"};
constexpr std::string_view kWords[] = {"\u2581[^\u2581]*|[^\u2581]+"};

constexpr PreTokenizerName kNames[] = {{"gpt-2", PreTokenizer::gpt2},
                                       {"phi-2", PreTokenizer::gpt2},
                                       {"olmo", PreTokenizer::gpt2},
                                       {"llama-bpe", PreTokenizer::llama_bpe},
                                       {"llama3", PreTokenizer::llama_bpe},
                                       {"llama-v3", PreTokenizer::llama_bpe},
                                       {"qwen2", PreTokenizer::qwen2},
                                       {"deepseek-r1-qwen", PreTokenizer::qwen2},
                                       {"qwen35", PreTokenizer::qwen35},
                                       {"tekken", PreTokenizer::tekken},
                                       {"gpt-4o", PreTokenizer::gpt4o},
                                       {"o200k", PreTokenizer::gpt4o},
                                       {"llama4", PreTokenizer::gpt4o},
                                       {"smollm", PreTokenizer::smollm},
                                       {"deepseek-v3", PreTokenizer::deepseek_v3},
                                       {"deepseek-llm", PreTokenizer::deepseek_llm},
                                       {"default", PreTokenizer::ggml_default}};

const std::vector<SplitRegex>& compiled(PreTokenizer pre) {
  static const auto all = [] {
    std::array<std::vector<SplitRegex>, size_t(PreTokenizer::none) + 1> stages;
    for (size_t i = 0; i < stages.size(); ++i)
      for (const std::string_view regex : pretokenizer_stages(PreTokenizer(i))) stages[i].emplace_back(regex);
    return stages;
  }();
  return all[size_t(pre)];
}

void cut_stages(std::span<const SplitRegex> stages, std::string_view text,
                const std::function<void(std::string_view)>& take) {
  if (stages.empty()) return take(text);
  size_t gap = 0;  // where the text that nothing matched begins
  const auto next_stage = [&](size_t begin, size_t end) {
    if (begin < end) cut_stages(stages.subspan(1), text.substr(begin, end - begin), take);
  };
  for (size_t at = stages[0].first_start(text); at < text.size();) {
    const std::optional<size_t> end = stages[0].match_end(text, at);
    if (end) {
      next_stage(gap, at);
      next_stage(at, *end);
    }
    at = end ? *end : at + first_utf8(text.substr(at)).length;
    if (end) gap = at;
  }
  next_stage(gap, text.size());
}

}  // namespace

std::span<const std::string_view> pretokenizer_stages(PreTokenizer pre) {
  switch (pre) {
    case PreTokenizer::gpt2: return kGpt2;
    case PreTokenizer::llama_bpe: return kLlamaBpe;
    case PreTokenizer::qwen2: return kQwen2;
    case PreTokenizer::qwen35: return kQwen35;
    case PreTokenizer::tekken: return kTekken;
    case PreTokenizer::gpt4o: return kGpt4o;
    case PreTokenizer::smollm: return kSmollm;
    case PreTokenizer::deepseek_v3: return kDeepseekV3;
    case PreTokenizer::deepseek_llm: return kDeepseekLlm;
    case PreTokenizer::ggml_default: return kDefault;
    case PreTokenizer::lines: return kLines;
    case PreTokenizer::words: return kWords;
    case PreTokenizer::none: break;
  }
  return {};
}

std::span<const PreTokenizerName> pretokenizer_names() { return kNames; }

void cut_text(PreTokenizer pre, std::string_view text, const std::function<void(std::string_view)>& take) {
  if (!text.empty()) cut_stages(compiled(pre), text, take);
}

}  // namespace ridge::io
