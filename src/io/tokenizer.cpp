// The Tokenizer: tables built from a checked spec, encode and decode over the parts in tokenizer_parts.h.
#include "io/tokenizer.h"

#include <algorithm>
#include <unordered_set>

#include "base/utf8.h"
#include "io/pretokenizer.h"
#include "io/text.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {

namespace {

bool is_hidden(TokenType type) { return type == TokenType::control || type == TokenType::unknown; }

/// Types that ordinary text may become.
bool is_text(TokenType type) { return type == TokenType::normal || type == TokenType::undefined; }

/// The first place where U+2581 follows another character, or the end.
size_t word_end(std::string_view text) {
  size_t begin = 0;
  while (text.substr(begin).starts_with(kSpmSpace)) begin += kSpmSpace.size();
  return std::min(text.find(kSpmSpace, begin), text.size());
}

}  // namespace

struct Tokenizer::Impl {
  TokenizerSpec spec;
  std::vector<std::string> bytes;  ///< id -> what it decodes to
  PieceIds ids;                    ///< piece -> id of what ordinary text and merges may become
  std::array<int32_t, 256> byte_ids{};
  /// Tokens that match text as it is, then those that match it after normalisation: user-defined, with control too.
  struct Matchers {
    SpecialMatcher user_defined, all;
  };
  std::array<Matchers, 2> matchers;
  RankMerger rank_merger;
  size_t max_piece_bytes = 0;
  bool space_begins_word = true;  ///< no piece has U+2581 after another character
  bool harmony = false;
  std::vector<int32_t> ends;  ///< ascending

  explicit Impl(TokenizerSpec checked) : spec(std::move(checked)) {}

  TokenType type(size_t id) const { return spec.types[id]; }
  bool spm() const { return spec.model != TokenizerModel::bpe; }  // spaces are U+2581, bytes <0xHH>

  Status build();
  std::string decoded(size_t id) const;
  bool may_be_merged(size_t id) const;
  void add_special(size_t id);
  Status add_bytes();
  Status add_merges();

  template <class OnText>
  void find_special(const SpecialMatcher& matcher, std::string_view text, std::vector<int32_t>& out,
                    const OnText& on_text) const;
  void encode_run(std::string_view text, bool first, std::vector<int32_t>& out) const;
  void encode_bpe(std::string_view text, std::vector<int32_t>& out) const;
  void encode_spm(std::string_view text, bool first, std::vector<int32_t>& out) const;
  void merge_by_rank(std::string_view text, std::vector<int32_t>& out) const;
  void merge_by_score(std::string_view text, std::vector<int32_t>& out) const;
  void spell(std::string_view stretch, std::vector<int32_t>& out) const;
};

std::string Tokenizer::Impl::decoded(size_t id) const {
  const std::string& piece = spec.pieces[id];
  if (type(id) == TokenType::byte) return std::string(1, char(*byte_of_piece(piece)));
  if (is_hidden(type(id))) return piece;
  if (spm()) return replace_all(piece, kSpmSpace, " ");
  return is_text(type(id)) ? bytes_of_bpe_piece(piece) : piece;
}

/// Ordinary text may become this piece. User-defined pieces of byte-level BPE are plain text, which must not be taken
/// for the byte alphabet; those of Unigram have no score and are found by their rules alone.
bool Tokenizer::Impl::may_be_merged(size_t id) const {
  if (type(id) != TokenType::user_defined) return is_text(type(id));
  if (spec.model == TokenizerModel::unigram) return false;
  return spm() || bytes_of_bpe_piece(spec.pieces[id]) == spec.pieces[id];
}

/// Special tokens match their decoded text.
void Tokenizer::Impl::add_special(size_t id) {
  const auto rule = spec.match_rules.find(int32_t(id));
  Matchers& m = matchers[rule != spec.match_rules.end() && rule->second.normalized];
  if (type(id) == TokenType::user_defined) m.user_defined.add(bytes[id], int32_t(id));
  if (type(id) == TokenType::user_defined || type(id) == TokenType::control) m.all.add(bytes[id], int32_t(id));
}

Status Tokenizer::Impl::build() {
  bytes.reserve(spec.pieces.size());
  ids.reserve(spec.pieces.size());
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    bytes.push_back(decoded(id));
    add_special(id);
    if (!may_be_merged(id)) continue;
    ids.try_emplace(spec.pieces[id], int32_t(id));
    max_piece_bytes = std::max(max_piece_bytes, spec.pieces[id].size());
    space_begins_word &= word_end(spec.pieces[id]) == spec.pieces[id].size();
  }
  for (Matchers& m : matchers) {
    m.user_defined.finish();
    m.all.finish();
  }
  RIDGE_TRY_STATUS(add_bytes());
  RIDGE_TRY_STATUS(add_merges());
  ends = end_tokens(spec);
  harmony = io::is_harmony(spec);
  return {};
}

/// How each single byte is spelled: <0xHH> pieces in spm, one-character pieces in byte-level BPE.
Status Tokenizer::Impl::add_bytes() {
  byte_ids.fill(kNoToken);
  for (size_t id = spec.pieces.size(); spm() && id-- > 0;)  // downwards: the lowest id of a duplicate stays
    if (type(id) == TokenType::byte) byte_ids[*byte_of_piece(spec.pieces[id])] = int32_t(id);
  for (int byte = 0; byte < 256; ++byte) {
    int32_t& id = byte_ids[size_t(byte)];
    if (!spm())
      if (const auto found = ids.find(bpe_piece_of_byte(uint8_t(byte))); found != ids.end()) id = found->second;
    if (id == kNoToken && !spec.unk)
      return bad_file("tokenizer: no token spells the byte 0x{:02X}, and the vocabulary names no unknown token", byte);
  }
  return {};
}

/// Merges may pass through any piece; only rules whose pieces text may become are kept.
Status Tokenizer::Impl::add_merges() {
  std::unordered_set<std::string_view> all;
  const auto exists = [&](std::string_view piece) {
    if (all.empty()) all.insert(spec.pieces.begin(), spec.pieces.end());
    return all.contains(piece);
  };
  std::string merged;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string_view merge = spec.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == merge.npos || space + 1 == merge.size())
      return bad_file("tokenizer: merge {} is {}, expected two pieces", rank, in_quotes(merge));
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    merged = left;
    merged += right;
    std::array<int32_t, 3> rule{};
    for (size_t i = 0; const std::string_view piece : {left, right, std::string_view(merged)}) {
      const auto found = ids.find(piece);
      if (found == ids.end() && !exists(piece))
        return bad_file("tokenizer: merge {} ({}) needs the piece {}, which is not in the vocabulary", rank,
                        in_quotes(merge), in_quotes(piece));
      rule[i++] = found == ids.end() ? kNoToken : found->second;
    }
    if (std::ranges::find(rule, kNoToken) == rule.end()) rank_merger.add(rule[0], rule[1], rule[2]);
  }
  return {};
}

/// Byte by byte; what has no byte token becomes the unknown token, once for the whole stretch.
void Tokenizer::Impl::spell(std::string_view stretch, std::vector<int32_t>& out) const {
  const auto known = [&](char c) { return byte_ids[uint8_t(c)] != kNoToken; };
  if (!std::ranges::all_of(stretch, known)) return out.push_back(*spec.unk);
  for (const char c : stretch) out.push_back(byte_ids[uint8_t(c)]);
}

void Tokenizer::Impl::encode_bpe(std::string_view text, std::vector<int32_t>& out) const {
  std::vector<int32_t> word;
  std::string piece;
  cut_text(spec.pre, text, [&](std::string_view pretoken) {
    if (spec.ignore_merges && pretoken.size() <= max_piece_bytes) {
      piece.clear();
      for (const char c : pretoken) piece += bpe_piece_of_byte(uint8_t(c));
      if (const auto found = ids.find(piece); found != ids.end()) return out.push_back(found->second);
    }
    word.clear();
    for (const char c : pretoken) spell({&c, 1}, word);
    rank_merger.merge(word);
    out.insert(out.end(), word.begin(), word.end());
  });
}

void Tokenizer::Impl::merge_by_rank(std::string_view text, std::vector<int32_t>& out) const {
  std::vector<int32_t> word;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, first_utf8(text).length);
    text.remove_prefix(character.size());
    if (const auto found = ids.find(character); found != ids.end()) word.push_back(found->second);
    else spell(character, word);
  }
  rank_merger.merge(word);
  out.insert(out.end(), word.begin(), word.end());
}

void Tokenizer::Impl::merge_by_score(std::string_view text, std::vector<int32_t>& out) const {
  const std::vector<Stretch> stretches = spec.model == TokenizerModel::unigram
                                             ? BestPath(ids, spec.scores, max_piece_bytes).cut(text)
                                             : ScoreMerger(ids, spec.scores, max_piece_bytes).merge(text);
  for (const auto& [stretch, id] : stretches)
    if (id != kNoToken) out.push_back(id);
    else spell(stretch, out);
}

void Tokenizer::Impl::encode_spm(std::string_view text, bool first, std::vector<int32_t>& out) const {
  std::string escaped = replace_all(text, " ", kSpmSpace);
  const bool has_space = spec.prefix_unless_space && escaped.starts_with(kSpmSpace);
  if (spec.add_space_prefix && !has_space && (first || !spec.prefix_first_only)) escaped.insert(0, kSpmSpace);
  cut_text(spec.pre, escaped, [&](std::string_view rest) {
    if (spec.pre == PreTokenizer::lines && rest.starts_with('\n'))
      if (const auto found = ids.find(rest); found != ids.end()) return out.push_back(found->second);
    while (!rest.empty()) {
      // No merge crosses a word boundary in most vocabularies; then short words give the same ids with less work.
      const bool one = space_begins_word && spec.model == TokenizerModel::spm;
      const std::string_view word = rest.substr(0, one ? word_end(rest) : rest.size());
      rest.remove_prefix(word.size());
      if (spec.merges.empty()) merge_by_score(word, out);
      else merge_by_rank(word, out);
    }
  });
}

/// A run of ordinary, normalised text: no special token inside. The first one begins the whole text.
void Tokenizer::Impl::encode_run(std::string_view text, bool first, std::vector<int32_t>& out) const {
  if (spm()) encode_spm(text, first, out);
  else encode_bpe(text, out);
}

/// Puts the tokens that the matcher finds into `out`; on_text(run, first) for the text between them, which is not
/// empty.
template <class OnText>
void Tokenizer::Impl::find_special(const SpecialMatcher& matcher, std::string_view text, std::vector<int32_t>& out,
                                   const OnText& on_text) const {
  size_t done = 0;
  const auto text_until = [&](size_t end) {
    if (end > done) on_text(text.substr(done, end - done), done == 0);
  };
  for (size_t at = 0; at < text.size();) {
    const auto match = matcher.find(text, at);
    if (match.id == kNoToken) break;
    at = match.begin + match.length;
    const auto rule = spec.match_rules.find(match.id);
    const auto span = rule == spec.match_rules.end() ? std::optional(std::pair(match.begin, at))
                                                     : apply_rule(rule->second, text, match.begin, at, done);
    if (!span) continue;
    text_until(span->first);
    out.push_back(match.id);
    at = done = std::max(done, span->second);
  }
  text_until(text.size());
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::make(TokenizerSpec spec) {
  RIDGE_TRY_STATUS(check_tokenizer_spec(spec));
  auto impl = std::make_unique<Impl>(std::move(spec));
  RIDGE_TRY_STATUS(impl->build());
  return Tokenizer(std::move(impl));
}

const TokenizerSpec& Tokenizer::spec() const { return impl_->spec; }
int32_t Tokenizer::vocab_size() const { return int32_t(impl_->spec.pieces.size()); }

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  if (text.size() > kMaxTextBytes)
    throw_error(ErrorKind::usage, "tokenizer: {} bytes of text, at most {} are taken at a time", text.size(),
                kMaxTextBytes);
  const TokenizerSpec& spec = impl_->spec;
  const auto matcher = [&](size_t i) -> const SpecialMatcher& {
    return parse_special ? impl_->matchers[i].all : impl_->matchers[i].user_defined;
  };
  std::vector<int32_t> ids;
  if (add_special && spec.add_bos) ids.push_back(*spec.bos);
  impl_->find_special(matcher(0), text, ids, [&](std::string_view run, bool first) {
    const std::string normal = spec.nfc ? to_nfc(run) : std::string();
    impl_->find_special(matcher(1), spec.nfc ? normal : run, ids, [&](std::string_view part, bool first_part) {
      impl_->encode_run(part, first && first_part, ids);
    });
  });
  if (add_special && spec.add_eos) ids.push_back(*spec.eos);
  return ids;
}

std::string Tokenizer::piece(int32_t id, bool special) const {
  if (id < 0 || id >= vocab_size()) return {};
  return is_hidden(impl_->type(size_t(id))) && !special ? std::string() : impl_->bytes[size_t(id)];
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool special) const {
  std::string text;
  const bool prefixed = impl_->spm() && impl_->spec.add_space_prefix;
  bool run_begins = prefixed;
  for (const int32_t id : ids) {
    const std::string bytes = piece(id, special);
    if (id < 0 || id >= vocab_size()) continue;
    const TokenType type = impl_->type(size_t(id));
    const bool matched = type == TokenType::control || type == TokenType::user_defined;
    text += std::string_view(bytes).substr(run_begins && !matched && bytes.starts_with(' ') ? 1 : 0);
    run_begins = prefixed && matched && !spec().prefix_first_only;
  }
  return text;
}

bool Tokenizer::is_control(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->type(size_t(id)) == TokenType::control;
}

bool Tokenizer::is_end(int32_t id) const { return std::ranges::binary_search(impl_->ends, id); }

void Tokenizer::add_end(int32_t id) {
  if (!is_end(id)) impl_->ends.insert(std::ranges::lower_bound(impl_->ends, id), id);
}

bool Tokenizer::is_harmony() const { return impl_->harmony; }

std::optional<int32_t> Tokenizer::find_special(std::string_view text) const {
  for (const Impl::Matchers& m : impl_->matchers)
    if (const auto match = m.all.find(text, 0); match.id != kNoToken && match.begin == 0 && match.length == text.size())
      return match.id;
  return std::nullopt;
}

}  // namespace ridge::io
