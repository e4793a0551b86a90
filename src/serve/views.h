// Views of the server's state: JSON for people's pages and tools, text for Prometheus.
#pragma once

#include "http/server.h"
#include "serve/chat.h"
#include "serve/models.h"
#include "serve/scheduler.h"

namespace ridge::serve {

// All but models_json() and metrics_text() ask the scheduler's thread, between two steps; null or empty once it has
// stopped.
/// All models, loaded or not.
Json models_json(const Models& models);
Json props_json(Scheduler& scheduler, const ApiModel& model);
/// The median time of a step is of the newest `n_steps` of those remembered.
Json status_json(Scheduler& scheduler, int64_t n_steps);
/// The list of llama.cpp's server: a slot for each running sequence, then the idle ones. Texts are not told.
Json slots_json(Scheduler& scheduler);
/// Detail of kv_json() about rows. Their norms and coding errors are copied from the device, layer by layer.
enum class KvDetail : uint8_t { none, layers, pages };
/// Bytes and pages of every pool, with such detail.
Json kv_json(Scheduler& scheduler, KvDetail detail);
std::string metrics_text(const Board& board, const http::Counts& counts);

/// "rotor-3/rotor-3, 84 bytes a token (f16: 448, ratio 5.33)".
std::string kv_line(Engine& engine, const PoolOptions& pool);

}  // namespace ridge::serve
