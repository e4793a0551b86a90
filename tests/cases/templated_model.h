// A GGUF file with other metadata.
#pragma once

#include <filesystem>
#include <string>

#include "io/gguf.h"

namespace ridge {

/// Writes the model of `from` with this chat template to `to`; returns `to`.
inline std::string write_templated_model(const std::string& from, const std::filesystem::path& to,
                                         const std::string& chat_template) {
  const io::GgufFile file = io::open_gguf(from).or_throw();
  auto metadata = file.gguf.metadata;
  metadata["tokenizer.chat_template"] = chat_template;
  std::vector<io::GgufTensorSpec> specs;
  for (const io::Tensor& tensor : file.gguf.tensors) specs.push_back({tensor.name, tensor.format, tensor.shape});
  const auto copy = [&](size_t i, std::vector<std::byte>& out) -> Status {
    out.assign(file.gguf.tensors[i].data.begin(), file.gguf.tensors[i].data.end());
    return {};
  };
  io::write_gguf(to, metadata, specs, copy).or_throw();
  return to.native();
}

}  // namespace ridge
