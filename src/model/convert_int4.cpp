// convert_to_int4(): a Hugging Face directory in, the same directory with its matrices packed to 4 bits out.

#include "format/int4_g128.h"
#include "io/chat_templates.h"
#include "io/json.h"
#include "io/packed.h"
#include "io/pending_file.h"
#include "model/convert.h"
#include "model/convert_rows.h"
#include "model/weights.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

/// A tensor of the output: a copy of the source, or one part of its packed form.
struct Part {
  enum class Kind : uint8_t { copy, qweight, scales } kind;
  const io::Tensor* source;
};

/// Removes the directory it made, unless everything in it was written.
class NewDirectory {
 public:
  explicit NewDirectory(fs::path path) : path_(std::move(path)) {}
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;
  ~NewDirectory() {
    std::error_code ignored;
    if (made_) fs::remove_all(path_, ignored);
  }
  Status make() {
    std::error_code error;
    if (fs::exists(path_, error))
      return fail(ErrorKind::usage, "{}: exists (int4_g128 is written as a directory; name a new one)", path_.native());
    made_ = fs::create_directory(path_, error);
    if (made_) return {};
    return fail(ErrorKind::failure, "cannot create directory {}: {}", path_.native(), error.message());
  }
  void keep() { made_ = false; }

 private:
  fs::path path_;
  bool made_ = false;
};

Status write_text(const fs::path& path, std::string_view text) {
  io::PendingFile file(path);
  RIDGE_TRY_STATUS(file.create());
  RIDGE_TRY_STATUS(file.write(text));
  return file.commit();
}

/// config.json with what says how the weights are packed.
Result<std::string> packed_config(const io::HfDirectory& directory, const std::string& where) {
  RIDGE_TRY(io::Json config, io::parse_json(directory.config_json, where + "/config.json"));
  if (config.contains("quantization_config") && !config["quantization_config"].is_null())
    return bad_file("{}: config.json has a quantization_config already (quantize the original weights)", where);
  config["quantization_config"] = io::Json::parse(io::kRidgeQuantizationConfig);
  return config.dump(2) + "\n";
}

Status encode_part(ThreadPool& pool, const Part& part, const WeightFormat& int4, const io::SafetensorsSink& sink) {
  const io::Tensor& tensor = *part.source;
  if (part.kind == Part::Kind::copy) return sink(tensor.data);
  const int64_t n_in = tensor.shape[1], n_blocks = n_in / int4.group;
  const bool codes = part.kind == Part::Kind::qweight;
  const int64_t row_bytes = codes ? n_in / 2 : 2 * n_blocks;
  std::vector<std::byte> out(size_t(tensor.shape[0] * row_bytes));
  RIDGE_TRY_STATUS(for_each_row(pool, tensor.shape[0], n_in, [&](int64_t r, std::vector<float>& row) -> Status {
    std::vector<std::byte> blocks(size_t(int4.row_bytes(n_in)));
    tensor.format->decode(tensor.data.data() + r * tensor.format->row_bytes(n_in), n_in, row.data());
    const Status encoded = encode_rows(int4, row, n_in, blocks);
    if (!encoded) return bad_file("tensor {} row {}: {}", tensor.name, r, encoded.error().message);
    const auto pack = codes ? io::pack_ridge_qweight : io::pack_ridge_scales;
    pack(blocks.data(), n_blocks, out.data() + r * row_bytes);
    return {};
  }));
  return sink(out);
}

}  // namespace

Result<Converted> convert_to_int4(const std::string& in, const fs::path& out,
                                  const std::function<void(int, int, std::string_view)>& progress, int n_threads) {
  // Loading first checks every tensor against the configuration, so nothing half-right is converted.
  RIDGE_TRY(const LoadedModel model, load_model(in));
  const auto* directory = std::get_if<io::HfDirectory>(&model.weights.source);
  if (!directory)
    return fail(ErrorKind::usage, "{}: int4_g128 is made from a Hugging Face directory (config.json and tokenizer)",
                in);
  RIDGE_TRY(const std::string config, packed_config(*directory, in));

  const WeightFormat &int4 = **find_weight_format(Int4G128::kName), &f16 = *weight_format_of_gguf(1);
  constexpr std::string_view kWeight = ".weight";
  std::vector<Part> parts;
  std::vector<io::SafetensorsSpec> specs;
  Converted converted{.n_weights = model.weights.n_params};
  for (const io::Tensor& tensor : directory->tensors) {
    const bool matrix = tensor.shape.size() == 2 && tensor.name.ends_with(kWeight);
    if (!matrix || tensor.shape[1] % int4.group != 0) {
      if (matrix) converted.fallbacks.push_back({tensor.name, &int4, tensor.format, tensor.shape[1]});
      parts.push_back({Part::Kind::copy, &tensor});
      specs.push_back({tensor.name, tensor.format, tensor.shape});
      continue;
    }
    const std::string base = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    parts.push_back({Part::Kind::qweight, &tensor});
    specs.push_back({base + ".qweight", &io::packed_words(), {tensor.shape[0], tensor.shape[1] / 8}});
    parts.push_back({Part::Kind::scales, &tensor});
    specs.push_back({base + ".scales", &f16, {tensor.shape[0], tensor.shape[1] / int4.group}});
  }

  for (const io::SafetensorsSpec& spec : specs) {
    RIDGE_TRY(const uint64_t n_bytes, io::storage_bytes(*spec.format, spec.shape));
    converted.n_bytes += int64_t(n_bytes);
  }
  NewDirectory made(out);
  RIDGE_TRY_STATUS(made.make());
  RIDGE_TRY_STATUS(write_text(out / "config.json", config));
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"}) {
    std::error_code error;
    if (!fs::exists(directory->path / name, error)) continue;
    fs::copy_file(directory->path / name, out / name, error);
    if (error) return fail(ErrorKind::failure, "cannot copy {} to {}: {}", name, out.native(), error.message());
  }
  RIDGE_TRY_STATUS(io::copy_chat_templates(directory->path, out));
  int done = 0;
  ThreadPool pool(n_threads);
  const auto payload = [&](size_t i, const io::SafetensorsSink& sink) -> Status {
    RIDGE_TRY_STATUS(encode_part(pool, parts[i], int4, sink));
    if (progress) progress(++done, int(parts.size()), specs[i].name);
    return {};
  };
  RIDGE_TRY_STATUS(io::write_safetensors(out / "model.safetensors", specs, payload));
  made.keep();
  return converted;
}

}  // namespace ridge
