// The proposer that looks up what followed an earlier place of the text that ends as the text does.
#include <algorithm>
#include <unordered_map>

#include "engine/decode/proposer.h"

namespace ridge {
namespace {

/// Shorter ends are everywhere and say little; longer ones than the most are as good as that.
constexpr size_t kLeast = 3, kMost = 16;

/// Places of a text by the tokens in front of them, so that a step does not walk over the whole text. It only names
/// places that may serve: the text itself is compared there. Another text is noticed by the last tokens that were read.
class Places {
 public:
  void read(std::span<const int32_t> text) {
    const size_t n_read = earlier_.size();
    if (text.size() < n_read || !std::ranges::equal(last_, text.subspan(n_read - last_.size(), last_.size()))) {
      newest_.clear();
      earlier_.clear();
    }
    const std::span<const int32_t> last = text.last(std::min(text.size(), kMost));
    last_.assign(last.begin(), last.end());
    for (size_t end = earlier_.size(); end < text.size(); ++end) {
      int64_t& newest = newest_.try_emplace(end < kLeast ? 0 : key(text, end), -1).first->second;
      earlier_.push_back(newest);
      newest = int64_t(end);
    }
  }
  /// Places with the same tokens in front, from the newest one on; below 0 none.
  int64_t newest_like(std::span<const int32_t> text) const {
    const auto found = newest_.find(key(text, text.size()));
    return found == newest_.end() ? -1 : found->second;
  }
  int64_t earlier(int64_t place) const { return earlier_[size_t(place)]; }

 private:
  /// Different for different tokens up to 2^21, more than any vocabulary has.
  static uint64_t key(std::span<const int32_t> text, size_t end) {
    uint64_t key = 1;
    for (size_t i = end - kLeast; i < end; ++i) key = key << 21 | uint64_t(text[i]);
    return key;
  }

  std::unordered_map<uint64_t, int64_t> newest_;
  std::vector<int32_t> last_;     // that were read
  std::vector<int64_t> earlier_;  // of each place the one before it with the same tokens in front
};

class LookupProposer final : public Proposer {
 public:
  std::vector<int32_t> propose(std::span<const int32_t> text, int n) override {
    std::vector<int32_t> proposals;
    if (text.size() <= kLeast) return proposals;
    places_.read(text);
    size_t length = kLeast - 1, next = 0;
    for (int64_t place = places_.newest_like(text); place >= 0 && length < kMost; place = places_.earlier(place)) {
      const auto end = size_t(place);
      size_t equal = 0;
      while (equal < std::min(end, kMost) && text[end - 1 - equal] == text[text.size() - 1 - equal]) ++equal;
      if (equal > length) length = equal, next = end;
    }
    if (next == 0) return proposals;
    // Behind the text's end the proposals go on: a loop is shorter than they are.
    for (size_t i = next; ssize(proposals) < n; ++i)
      proposals.push_back(i < text.size() ? text[i] : proposals[i - text.size()]);
    return proposals;
  }

 private:
  Places places_;
};

}  // namespace

std::unique_ptr<Proposer> make_lookup_proposer() { return std::make_unique<LookupProposer>(); }

}  // namespace ridge
