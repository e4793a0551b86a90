// A Session as the lab's passes see it.
#pragma once

#include "lab/windows.h"

namespace ridge::lab {

class SessionTimeline : public Timeline {
 public:
  SessionTimeline(const Model& model, const SessionOptions& options) : session(model, options) {}
  void reset() override { session.reset(); }
  void prefill(std::span<const int32_t> tokens) override { session.prefill(tokens); }
  void prefill(std::span<const int32_t> tokens, const LogitsCallback& logits) override {
    session.prefill(tokens, logits);
  }
  std::span<const float> decode(int32_t token) override { return session.decode(token); }

  Session session;
};

}  // namespace ridge::lab
