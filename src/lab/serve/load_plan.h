// Plan of a load on a server: requests of random lengths over random token ids. The same plan gives the same requests
// everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/rng.h"

namespace ridge::lab {

/// Random numbers of tokens, log-uniform: as many between 100 and 200 as between 1000 and 2000.
struct Lengths {
  int least = 1, most = 1;

  int random(Rng& rng) const;
  /// "64" or "200-2000".
  std::string text() const;
};
/// Reads what text() writes, from 1 to `most`; the failure names `flag`.
Result<Lengths> parse_lengths(std::string_view flag, std::string_view text, int most);

struct LoadPlan {
  int64_t n_requests = 0;  ///< 0: `seconds` say when it is enough
  double seconds = 0;      ///< no request starts later; 0: n_requests say when it is enough
  int n_clients = 1;       ///< each sends its next request when its last one was answered
  double rate = 0;         ///< not 0: Poisson arrivals, so many a second on average, instead of clients that wait
  Lengths prompt{512, 512}, answer{64, 64};
  int prefix_tokens = 0, n_prefixes = 1;  ///< in front of each prompt stands one of n_prefixes beginnings
  int n_vocab = 0;                        ///< token ids lie below
  uint64_t seed = 42;
  uint64_t contents = 0;  ///< another number: other tokens, with the lengths and arrivals of the same seed

  int longest() const { return prefix_tokens + prompt.most + answer.most; }
};

struct LoadRequest {
  int64_t number = 0;
  double at = 0;  ///< seconds after the start at which it is due; 0: at once
  int prefix = 0;
  int n_prompt = 0, n_answer = 0;  ///< n_prompt: with the prefix
};

/// The requests of a plan, in the order they are sent.
class LoadSchedule {
 public:
  explicit LoadSchedule(const LoadPlan& plan);
  /// None after the last one. The seconds of clients that wait are theirs to watch.
  std::optional<LoadRequest> next();

 private:
  const LoadPlan plan_;
  Rng lengths_, arrivals_;
  LoadRequest last_;
  int64_t n_ = 0;
};

/// The request's prompt. The first 256 ids, which in most vocabularies are bytes and control tokens, are left out.
std::vector<int32_t> load_prompt(const LoadPlan& plan, const LoadRequest& request);

}  // namespace ridge::lab
