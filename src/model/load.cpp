// Models of GGUF files and of Hugging Face directories: configuration, weights, tokenizer.
#include <filesystem>
#include <tuple>

#include "io/packed.h"
#include "model/binder.h"

namespace ridge {
namespace {

Status bind_tensors(const Config& c, const BoundFile& file, Weights& w, std::string_view where) {
  Binder binder(c, file, w);
  binder.bind_model();
  for (int i = 0; i < c.n_layers; ++i) binder.bind_layer(i);
  if (w.embedding.order)
    return bad_file("{}: the embedding's columns are sorted (act-order), which is not read", where);
  if (c.tied_output) w.output = w.embedding;
  RIDGE_TRY_STATUS(binder.check_bound(where));
  RIDGE_TRY_STATUS(binder.check_rest(where));
  if (const RopeScaling& scaling = c.rope_scaling; !scaling.long_factors.empty()) {
    w.rope_factors = scaling.short_factors;
    w.long_rope_factors = scaling.long_factors;
  }
  for (const auto* factors : {&w.rope_factors, &w.long_rope_factors})
    for (const float factor : *factors)
      if (!(factor > 0)) return bad_file("{}: a factor of RoPE is {}, expected positive factors", where, factor);
  return {};
}

/// The embedding must have a row for every id that plain text can become. Tokens that were added behind it (images of
/// text-only models, padding) may lack one: such ids are never sampled, and refused in prompts.
Status check_vocab(const io::Tokenizer& tokenizer, const Config& c, std::string_view where) {
  const io::TokenizerSpec& spec = tokenizer.spec();
  for (int id = c.vocab_size; id < tokenizer.vocab_size(); ++id) {
    const io::TokenType type = spec.types[size_t(id)];
    const bool added = type == io::TokenType::control || type == io::TokenType::user_defined;
    if (!added && type != io::TokenType::unused)
      return bad_file("{}: the tokenizer has {} tokens, the embedding {} rows", where, tokenizer.vocab_size(),
                      c.vocab_size);
  }
  for (const auto& [adds, id, name] : {std::tuple(spec.add_bos, spec.bos, "BOS"), {spec.add_eos, spec.eos, "EOS"}})
    if (adds && id && *id >= c.vocab_size)
      return bad_file("{}: the tokenizer adds its {} token {} to texts, but the embedding has {} rows", where, name,
                      *id, c.vocab_size);
  return {};
}

/// Ids up to the last token that is no padding; 0 where nothing else is known.
int sampled_ids(const io::Tokenizer& tokenizer, int vocab_size) {
  int n = std::min(tokenizer.vocab_size(), vocab_size);
  while (n > 0 && tokenizer.spec().types[size_t(n) - 1] == io::TokenType::unused) --n;
  return n;
}

Status set_tokenizer(LoadedModel& model, io::TokenizerSpec spec, std::string_view where) {
  RIDGE_TRY(model.tokenizer, io::Tokenizer::make(std::move(spec)));
  RIDGE_TRY_STATUS(check_vocab(*model.tokenizer, model.config, where));
  model.config.n_ids = sampled_ids(*model.tokenizer, model.config.vocab_size);
  return {};
}

Result<LoadedModel> load_gguf(const std::string& path) {
  LoadedModel model;
  RIDGE_TRY(io::GgufFile file, io::open_gguf(path));
  RIDGE_TRY(model.config, config_from_gguf(file.gguf, path));
  if (model.config.name.empty()) model.config.name = std::filesystem::path(path).stem().string();
  RIDGE_TRY_STATUS(bind_tensors(model.config, {.tensors = file.gguf.tensors}, model.weights, path));
  if (!io::has_no_vocab(file.gguf)) {
    RIDGE_TRY(io::TokenizerSpec spec, io::tokenizer_spec_from_gguf(file.gguf, path));
    RIDGE_TRY_STATUS(set_tokenizer(model, std::move(spec), path));
  }
  model.weights.source = std::move(file);
  return model;
}

Result<LoadedModel> load_hf(const std::string& path) {
  LoadedModel model;
  RIDGE_TRY(io::HfDirectory directory, io::open_hf_directory(path));
  RIDGE_TRY(model.config, config_from_hf(directory.config_json, path + "/config.json", &model.unread_fields));
  model.config.name = std::filesystem::weakly_canonical(path).filename().string();
  RIDGE_TRY(const io::Packing packing,
            io::read_packing(directory.config_json, directory.hf_quant_config_json, path + "/config.json"));
  if (model.config.ternary && !packing.method.empty())
    return bad_file("{}: {} weights of a BitNet model are not supported", path, packing.method);
  RIDGE_TRY(model.packing, io::unpack_tensors(packing, directory.tensors, model.weights.buffers, path));
  TernaryLayout ternary = TernaryLayout::master;
  if (model.config.ternary) {
    RIDGE_TRY(ternary, ternary_layout(directory.config_json, path + "/config.json"));
  }
  const BoundFile file{directory.tensors, FileNames::directory, ternary};
  RIDGE_TRY_STATUS(bind_tensors(model.config, file, model.weights, path));
  if (!directory.tokenizer_json.empty()) {
    RIDGE_TRY(io::TokenizerSpec spec,
              io::tokenizer_spec_from_hf(directory.tokenizer_json, directory.tokenizer_config_json,
                                         path + "/tokenizer.json", directory.special_tokens_map_json));
    RIDGE_TRY_STATUS(io::add_end_ids(spec, directory.generation_config_json, path + "/generation_config.json"));
    RIDGE_TRY_STATUS(io::add_end_ids(spec, directory.config_json, path + "/config.json"));
    RIDGE_TRY_STATUS(set_tokenizer(model, std::move(spec), path));
  }
  model.weights.source = std::move(directory);
  return model;
}

}  // namespace

Result<LoadedModel> load_model(const std::string& path) {
  RIDGE_TRY(const std::filesystem::path found, io::find_model(path));
  std::error_code error;
  return std::filesystem::is_directory(found, error) ? load_hf(found.string()) : load_gguf(found.string());
}

}  // namespace ridge
