// Load on a running server, over HTTP: sends the requests of a plan and measures what a client sees.
#pragma once

#include <functional>
#include <map>
#include <span>

#include "base/json.h"
#include "http/client.h"
#include "lab/rows/results.h"
#include "lab/serve/load_plan.h"

namespace ridge::lab {

/// A server as its clients know it.
class LoadServer {
 public:
  /// `key`: empty for none.
  LoadServer(std::string host, uint16_t port, const std::string& key);

  http::Client client() const { return {host_, port_}; }
  const http::Headers& headers() const { return headers_; }
  /// A view. Fails where there is no answer, another status than 200, or no JSON.
  Result<Row> get(const std::string& path) const;

 private:
  std::string host_;
  uint16_t port_;
  http::Headers headers_;
};

/// One request's fate. Times are in seconds since it was due: for clients that wait, since it was sent.
struct LoadSample {
  int status = 0;                         ///< of HTTP; 0: no answer
  std::string error;                      ///< empty: answered whole
  bool wrong = false;                     ///< answered whole, with other numbers of tokens than were asked for
  double late = 0;                        ///< until it was sent
  double first = 0, last = 0, total = 0;  ///< until the first text, the last text, the end
  std::vector<double> gaps;               ///< between two pieces of text
  int64_t n_prompt = 0, n_cached = 0, n_generated = 0;

  bool ok() const { return error.empty(); }
  /// Seconds a token behind the first one; 0 for a single token.
  double per_token() const { return n_generated > 1 ? (last - first) / double(n_generated - 1) : 0; }
};

/// A server's own counts; NaN where it does not say.
struct ServerCounts {
  double steps, step_seconds, decode_rows, prompt_tokens, cached_tokens, parked;
  double step_ms_p50;  ///< of the newest steps
};

struct LoadRun {
  std::vector<LoadSample> samples;
  double seconds = 0;        ///< until the last answer
  ServerCounts server{};     ///< during the run
  double kv_bytes_peak = 0;  ///< of the pool's pages and slots in use, prefixes kept for later included; NaN: unknown
  double kv_f16_bytes = 0;   ///< what the tokens in those pages would take as f16
  Row kv;                    ///< the pool's part of /kv at the end, null where there is none
};

struct LoadTarget {
  LoadServer server;
  std::string model;  ///< name in requests
  std::string kv;     ///< kv_quant of every request, as kv_text() writes it; empty: the server's own
};

/// One small request that is not part of the load. Throws Error when it is not answered.
void warm_up(const LoadTarget& target, const LoadPlan& plan);
/// Sends everything and waits for the answers; ends early, answers cut off, once `stop` says so.
LoadRun run_load(const LoadTarget& target, const LoadPlan& plan, const std::function<bool()>& stop);

/// By linear interpolation; NaN of nothing. `values` ascend.
double percentile(std::span<const double> values, double fraction);
struct Percentiles {
  double p50, p95, p99;
};
Percentiles percentiles(std::vector<double> values);

/// Summary of a run. Times and rates are of requests that were answered whole.
struct LoadSummary {
  int64_t n_ok = 0, n_failed = 0, n_wrong = 0;
  std::map<int, int64_t> errors;  ///< by status
  int64_t n_late = 0;             ///< sent more than 10 ms after they were due
  Percentiles first, gap, total;  ///< seconds
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, pieces = 0;
  double requests_s = 0, generated_s = 0, prompt_s = 0;  ///< a second; prompts with what was cached
  int64_t n_good = 0;  ///< within both limits: first text, and seconds a token behind it
};
LoadSummary summarize(const LoadRun& run, double first_limit, double token_limit);

}  // namespace ridge::lab
