// --kv-quant auto: the cache that a decision record names for this model and machine.
#pragma once

#include <filesystem>
#include <string>

#include "engine/kv_choice.h"
#include "ridge/engine.h"

namespace ridge::cli {

struct AutoChoice {
  KvChoice kv;
  std::string says;  ///< for people: what was chosen and by which record, or why f16 and what to do
};

/// For a sequence that may reach n tokens. `where` is a record, or a directory that holds the model's; f16 where there
/// is none, or it is damaged or of another model, machine or build. It never throws for a record.
AutoChoice choose_by_record(const Model& model, const std::filesystem::path& where, int n);

}  // namespace ridge::cli
