// What Ridge does with each key of a GGUF file and each field of a config.json: in one table a container, grouped by
// what is to be said of them. A key that changes results is used, or refused by its name; none is left aside in
// silence.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "io/json.h"

namespace ridge {

enum class KeyUse : uint8_t {
  used,      ///< read by the architectures that have it; in a file of another one: as `refused`
  harmless,  ///< does not change what is computed
  refused,   ///< not computed: only neutral values pass
};

/// What is known about one key.
struct KeyRow {
  /// A key; ".X" is ARCHITECTURE.X of a GGUF file. "*" at the end stands for any text.
  std::string_view name;
  KeyUse use = KeyUse::used;
  std::string_view why;      ///< harmless: why; refused: what the key asks for
  std::string_view neutral;  ///< values that ask for nothing, with blanks between; of a list every value must be one
};

/// The rows, in model/arch/keys.cpp: all keys that GGUF files of language models have, and all fields of the
/// configurations of supported models and of their relatives.
std::span<const KeyRow> gguf_key_rows();
std::span<const KeyRow> config_field_rows();

/// Refuses what is not used, harmless or neutral, with names and values. `read` are the keys that the configuration was
/// made of. Keys of no row: those of the architecture are refused, those of other programs pass.
Status check_gguf_keys(const io::Gguf& gguf, std::string_view arch, const std::set<std::string, std::less<>>& read,
                       std::string_view where);

/// As above for the fields of a JSON object. `inside` is what messages and rows have in front of a field's name: "" or
/// "rope_scaling.". Fields of no row that are not null are added to `unknown`: transformers does not read them either.
Status check_config_fields(const io::Json& object, std::string_view inside,
                           const std::set<std::string, std::less<>>& read, std::vector<std::string>* unknown,
                           std::string_view where);

}  // namespace ridge
