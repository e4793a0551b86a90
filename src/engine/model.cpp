// The public Model: a thin front of Engine.
#include "engine/engine.h"
#include "rank/mpi.h"

namespace ridge {

Model::Model(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::load(const std::string& path, const LoadOptions& options) {
  return Model(std::make_unique<Engine>(path, options, options.whole ? nullptr : joined_ranks()));
}

const ModelInfo& Model::info() const { return engine_->info(); }
ExpertHits Model::expert_hits() const { return engine_->backend().expert_hits(); }
std::vector<std::string> synth_shapes() { return synth_shape_names(); }

std::vector<int32_t> Model::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  return engine_->tokenize(text, add_special, parse_special);
}
std::string Model::piece(int32_t token, bool special) const { return engine_->tokenizer().piece(token, special); }
std::string Model::detokenize(std::span<const int32_t> tokens, bool special) const {
  return engine_->tokenizer().decode(tokens, special);
}
bool Model::is_end(int32_t token) const { return engine_->has_tokenizer() && engine_->tokenizer().is_end(token); }
std::optional<int32_t> Model::bos() const {
  return engine_->has_tokenizer() ? engine_->tokenizer().spec().bos : std::nullopt;
}

}  // namespace ridge
