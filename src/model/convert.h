// Model conversion: a Hugging Face directory or a GGUF file in, a GGUF file with another weight format out.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "format/list.h"

namespace ridge {

/// Writes `out`. Matrices get format `type`; norms and biases stay f32; rows whose length the group does not divide get
/// f16. Hugging Face q and k rows are put into the GGUF pair convention of the architecture, and llama3 RoPE scaling
/// becomes the tensor rope_freqs.weight, so that other GGUF readers compute the same. A GGUF input keeps its metadata.
/// Nothing is left behind on failure. `progress` is told after each tensor.
Status convert_to_gguf(const std::string& in, const std::filesystem::path& out, const WeightFormat& type,
                       const std::function<void(int done, int total, std::string_view tensor)>& progress);

}  // namespace ridge
