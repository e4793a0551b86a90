// What every model with every cache format must hold: coded rows stay close to exact ones, and states go on.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "base/metrics.h"
#include "format/list.h"
#include "ridge/engine.h"

namespace ridge {

inline SessionOptions short_cache(std::string format) {
  return {.n_ctx = 192, .k = {.format = format}, .v = {.format = format}};
}
inline std::vector<int32_t> some_tokens(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * 7919 + 13) % 512);
  return tokens;
}
inline std::vector<float> decode(Session& session, int32_t token) {
  const auto logits = session.decode(token);
  return {logits.begin(), logits.end()};
}

/// Errors in logits of variance 1 that a format of so many bits may make: the rows' relative error, a few layers deep.
inline constexpr std::pair<const char*, double> kCodedRowBounds[] = {
    {"f16", 1e-5}, {"q8_0", 1e-3}, {"i8r", 1e-3}, {"q4_0", 0.05}, {"rotor-4", 0.05}, {"rotor-3", 0.1}};

/// check(format, NMSE of the logits behind 170 tokens against an f32 cache, bound) of each.
template <class Check>
void each_coded_error(const Model& model, const Check& check) {
  Session exact(model, short_cache("f32"));
  exact.prefill(some_tokens(170));
  const std::vector<float> expected = decode(exact, 7);
  for (const auto& [name, bound] : kCodedRowBounds) {
    Session session(model, short_cache(name));
    session.prefill(some_tokens(170));
    check(name, compare(decode(session, 7), expected).nmse, bound);
  }
}

/// Saved, restored and copied caches of every format go on bit for bit. `name`: of the state's file.
inline void expect_states_go_on(const Model& model, const std::string& name) {
  const std::string path = testing::TempDir() + name;
  for (const KvFormat& format : kv_formats()) {
    const SessionOptions options = short_cache(std::string(format.name));
    Session session(model, options), restored(model, options), copied(model, options);
    session.prefill(some_tokens(150));
    session.save(path);
    restored.restore(path);
    copied.copy_from(session);
    const std::vector<float> expected = decode(session, 7);
    EXPECT_EQ(decode(restored, 7), expected) << format.name;
    EXPECT_EQ(decode(copied, 7), expected) << format.name;
  }
  std::filesystem::remove(path);
}

}  // namespace ridge
