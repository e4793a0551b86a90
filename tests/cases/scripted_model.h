// A tiny model that says what it is told: one layer of zeros, so that the newest token alone decides the next one.
#pragma once

#include <cstring>
#include <map>

#include "base/check.h"
#include "cases/temp_dir.h"
#include "format/list.h"
#include "io/gguf.h"
#include "io/tokenizer.h"
#include "io/tokenizer_parts.h"

namespace ridge {

/// Ids 0 to 255 are the bytes. Pieces of a script are tokens of their own that no text becomes.
class ScriptedModel {
 public:
  static constexpr int64_t kWidth = 64;

  ScriptedModel() {
    for (int byte = 0; byte < 256; ++byte) add(io::bpe_piece_of_byte(uint8_t(byte)), io::TokenType::normal);
  }

  int32_t add(std::string piece, io::TokenType type) {
    spec.pieces.push_back(std::move(piece));
    spec.types.push_back(type);
    return int32_t(spec.pieces.size()) - 1;
  }
  int32_t id(std::string_view piece) const {
    const auto at = std::ranges::find(spec.pieces, piece);
    RIDGE_CHECK(at != spec.pieces.end(), "no piece {}", piece);
    return int32_t(at - spec.pieces.begin());
  }
  /// Behind the token `start` come these pieces: known ones, or new ones. No piece may come twice.
  void say(int32_t start, std::initializer_list<std::string_view> pieces) {
    for (const std::string_view text : pieces) {
      std::string piece;
      for (const char c : text) piece += io::bpe_piece_of_byte(uint8_t(c));
      const bool special = std::ranges::find(spec.pieces, text) != spec.pieces.end();
      const int32_t next = special ? id(text) : add(piece, io::TokenType::normal);
      RIDGE_CHECK(next_.emplace(start, next).second, "two tokens behind token {}", start);
      start = next;
    }
  }

  /// Writes a GGUF file; `extra` replaces keys of the same name.
  void write(const std::filesystem::path& path, std::map<std::string, io::GgufValue, std::less<>> extra = {}) const {
    const auto n = int64_t(spec.pieces.size());
    std::map<std::string, io::GgufValue, std::less<>> metadata = io::tokenizer_metadata(spec);
    const auto number = [&](const char* key, uint64_t value) { metadata[std::string("llama.") + key] = value; };
    metadata["general.architecture"] = std::string("llama");
    number("context_length", 2048), number("embedding_length", kWidth), number("block_count", 1);
    number("feed_forward_length", kWidth), number("attention.head_count", 1), number("attention.head_count_kv", 1);
    number("vocab_size", uint64_t(n));
    metadata["llama.attention.layer_norm_rms_epsilon"] = 1e-5;
    metadata["llama.rope.freq_base"] = 1e4;
    for (auto& [key, value] : extra) metadata[key] = std::move(value);

    std::vector<float> embedding(size_t(n * kWidth)), output(size_t(n * kWidth));
    int64_t dim = 0;
    for (const auto& [from, to] : next_) {
      RIDGE_CHECK(dim < kWidth, "a script of more than {} tokens", kWidth);
      embedding[size_t(from * kWidth + dim)] = 1;
      output[size_t(to * kWidth + dim++)] = 8;
    }
    std::vector<std::pair<io::GgufTensorSpec, std::vector<float>>> tensors;
    const WeightFormat* const f32 = weight_format_of_gguf(0);
    const auto add_tensor = [&](const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
      tensors.push_back({{name, f32, std::move(shape)}, std::move(values)});
    };
    const std::vector<float> ones(kWidth, 1.0f), zeros(kWidth * kWidth, 0.0f);
    add_tensor("token_embd.weight", {n, kWidth}, std::move(embedding));
    add_tensor("output.weight", {n, kWidth}, std::move(output));
    add_tensor("output_norm.weight", {kWidth}, ones);
    add_tensor("blk.0.attn_norm.weight", {kWidth}, ones);
    add_tensor("blk.0.ffn_norm.weight", {kWidth}, ones);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
      add_tensor(std::string("blk.0.") + name + ".weight", {kWidth, kWidth}, zeros);
    std::vector<io::GgufTensorSpec> specs;
    for (const auto& [tensor, values] : tensors) specs.push_back(tensor);
    const auto payload = [&](size_t i, std::vector<std::byte>& bytes) -> Status {
      bytes.resize(tensors[i].second.size() * sizeof(float));
      std::memcpy(bytes.data(), tensors[i].second.data(), bytes.size());
      return {};
    };
    io::write_gguf(path, metadata, specs, payload).or_throw();
  }

  io::TokenizerSpec spec;

 private:
  std::map<int32_t, int32_t> next_;
};

}  // namespace ridge
