// What a public Model holds.
#pragma once

#include "model/weights.h"
#include "ridge/engine.h"

namespace ridge {

struct Model::Impl {
  Impl(int n_threads, Isa limit) : context(n_threads, limit) {}
  const io::Tokenizer& tokenizer() const;  ///< throws usage when there is none

  CpuContext context;
  LoadedModel loaded;
  Rope rope;
  ModelInfo info;
};

}  // namespace ridge
