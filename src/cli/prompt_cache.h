// --prompt-cache: the cache of a prompt on disk, for the next prompt that begins alike.
#pragma once

#include <string>

#include "ridge/engine.h"

namespace ridge::cli {

/// FILE is a KV state file; FILE.ids holds its token ids and its checksum as JSON. Each appears whole, FILE first: an
/// end between the two leaves ids whose checksum differs, which are not used.
struct PromptCache {
  std::string path;

  /// The session, which is empty, takes over the longest begin of `prompt` that the file holds, at most all but the
  /// last token. Returns how many tokens that are; `says` is a line for people: how much, or why nothing.
  int load(Session& session, std::span<const int32_t> prompt, std::string& says) const;
  /// Writes the session, which holds exactly `tokens`. Throws Error, with neither of the files new.
  void save(const Session& session, std::span<const int32_t> tokens) const;
  /// FILE.ids, of a FILE that is there.
  void save_ids(std::span<const int32_t> tokens) const;
};

}  // namespace ridge::cli
