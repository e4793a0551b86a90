// Lines that `ridge run` and `ridge chat` print before they begin.
#pragma once

#include <string>

#include "engine/kv_choice.h"
#include "ridge/engine.h"

namespace ridge::cli {

/// Two lines: the model and its device, the cache and the context.
std::string start_lines(const ModelInfo& info, const Session& session, const KvChoice& kv);
/// Lines that --verbose adds: sizes of the model, weights, settings of the cache by kinds of layers, kernels.
std::string more_start_lines(const ModelInfo& info, const Session& session);

}  // namespace ridge::cli
