// Logits of a model over a prompt, and how far they are from golden values (mean NLL, NLL and top-k logits).
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/metrics.h"
#include "ridge/engine.h"

namespace ridge {

using Json = nlohmann::json;

inline Json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

/// Logits of every position, [n, vocab_size], in one batch or token by token.
inline std::vector<float> logits_of(const Model& model, const std::vector<int32_t>& ids, const char* kv,
                                    bool one_by_one) {
  Session session(model, {.n_ctx = int(ids.size()), .n_ubatch = 100, .k = {.format = kv}, .v = {.format = kv}});
  std::vector<float> all;
  if (one_by_one) {
    for (const int32_t id : ids) {
      const auto row = session.decode(id);
      all.insert(all.end(), row.begin(), row.end());
    }
  } else {
    session.prefill(ids, [&](int, int n, const float* rows) {
      all.insert(all.end(), rows, rows + int64_t(n) * model.info().vocab_size);
    });
  }
  return all;
}

struct Difference {
  double logit = 0;  // worst over the golden top-k entries
  double nll = 0;    // worst over all positions
  double mean_nll = 0;
};

/// `top`: per entry {position, ids, logits}.
struct TopLogits {
  int position;
  std::vector<int32_t> ids;
  std::vector<double> logits;
};

inline Difference difference(const std::vector<float>& logits, int vocab, const std::vector<int32_t>& ids,
                             const std::vector<double>& nll, const std::vector<TopLogits>& top) {
  Difference d;
  const auto row = [&](size_t t) { return std::span<const float>(logits).subspan(t * size_t(vocab), size_t(vocab)); };
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    const double value = log_sum_exp(row(t)) - row(t)[size_t(ids[t + 1])];
    d.nll = std::max(d.nll, std::abs(value - nll[t]));
    d.mean_nll += value / double(ids.size() - 1);
  }
  for (const TopLogits& entry : top)
    for (size_t j = 0; j < entry.ids.size(); ++j)
      d.logit =
          std::max(d.logit, std::abs(double(row(size_t(entry.position))[size_t(entry.ids[j])]) - entry.logits[j]));
  return d;
}

/// Against a golden object with "nll" and "top10" of a prompt.
inline Difference against_golden(const Model& model, const Json& golden, const std::vector<int32_t>& ids,
                                 const char* kv, bool one_by_one) {
  std::vector<TopLogits> top;
  for (const Json& entry : golden["top10"]) top.push_back({entry["pos"], entry["ids"], entry["logits"]});
  return difference(logits_of(model, ids, kv, one_by_one), model.info().vocab_size, ids, golden["nll"], top);
}

}  // namespace ridge
