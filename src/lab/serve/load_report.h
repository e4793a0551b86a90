// A test of a server under load, and the forms of its row.
#pragma once

#include <optional>
#include <string>

#include "engine/kv_choice.h"
#include "lab/rows/columns.h"
#include "lab/serve/load.h"

namespace ridge::lab {

/// Parameters common to all tests of a run.
struct LoadParams {
  std::string url;                                     ///< of a running server; empty: one is started
  std::string key;                                     ///< of the server; rows hide it
  double first_limit_ms = 1000, token_limit_ms = 100;  ///< of a good request; 0: no limit
};

struct LoadTest {
  std::optional<KvChoice> kv;  ///< none: the server's own
  LoadPlan plan;

  std::string kv_name() const { return kv ? kv_text(*kv) : ""; }
  /// "8 clients", "3.5 req/s".
  std::string load() const;
  /// "512", "4x256 + 16-64" with shared beginnings.
  std::string prompt() const;
};

struct LoadRow {
  LoadParams params;
  LoadTest test;
  LoadRun run;
  LoadSummary summary;
  double load_before = 0;  ///< of the machine
  int n_threads = 0;       ///< of the server that was started here
  Row model, props;        ///< entry of /v1/models, and /props

  std::string kv() const { return test.kv ? test.kv_name() : text_in(props, "kv_quant"); }
};

/// Runs one test on `server`, a small request first. Throws Error where the server does not say what prompts of token
/// ids need, or has no room for them.
LoadRow run_load_test(const LoadServer& server, const LoadTest& test, const LoadParams& params,
                      const std::function<bool()>& stop);

Columns<LoadRow> load_columns();

}  // namespace ridge::lab
