// A KV cache configuration as typed in a list: `rotor-3`, `rotor-3:planar`, `q8_0/rotor-3:window=32:centre=off`, and
// with layers of their own `rotor-3;0-1+27:q8_0/q8_0`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ridge/engine.h"

namespace ridge {

struct KvChoice {
  KvSideOptions k, v;
  std::vector<KvLayerOptions> layers;
};

/// One side: FORMAT[:ROTATION][:window=N][:sinks=N][:centre=on|off][:scale=RULE][:rounding=RULE][:recent=FORMAT].
/// `off` is another name of f16.
Result<KvSideOptions> parse_kv_side(std::string_view text);
/// Layers with settings of their own: LAYERS:SIDE or LAYERS:SIDE/SIDE, several separated by ';'. LAYERS are ranges
/// FIRST-LAST or single layers, counted from 0, separated by '+' (or ','). Refuses a layer given twice.
Result<std::vector<KvLayerOptions>> parse_kv_layers(std::string_view text);
/// SIDE for both, or SIDE/SIDE for K and V, then ';' and layers with settings of their own.
Result<KvChoice> parse_kv_choice(std::string_view text);
/// Comma list of choices, at least one.
Result<std::vector<KvChoice>> parse_kv_list(std::string_view text);

/// The text that parses to the same choice; one side when both are equal.
std::string kv_side_text(const KvSideOptions& side);
std::string kv_text(const KvChoice& choice);

/// The options of a session with this cache.
SessionOptions session_options(const KvChoice& choice, int n_ctx, int n_ubatch);

/// Pieces of `text` between separators; an empty text is one empty piece.
std::vector<std::string> split(std::string_view text, char separator);

}  // namespace ridge
