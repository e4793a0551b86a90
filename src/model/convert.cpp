#include "model/convert.h"

#include <cmath>

#include "model/arch/arch.h"
#include "model/weights.h"

namespace ridge {
namespace {

/// general.file_type of llama.cpp for the format of most tensors.
Result<uint64_t> file_type(const WeightFormat& type) {
  constexpr std::pair<std::string_view, uint64_t> kTypes[] = {
      {"f32", 0}, {"f16", 1}, {"q4_0", 2}, {"q8_0", 7}, {"bf16", 32}};
  for (const auto& [name, id] : kTypes)
    if (type.name == name) return id;
  return fail(ErrorKind::usage, "{} has no GGUF file type", type.name);
}

/// One tensor of the output: what it is called, where its values come from.
struct Job {
  io::GgufTensorSpec spec;
  const io::Tensor* source = nullptr;  // nullptr: `values`
  std::vector<float> values;
  int pair_heads = 0;  // > 0: rows of this many heads move from halves to interleaved pairs
};

/// Row r of a head in the interleaved convention is row (r % 2) * head_dim/2 + r / 2 of the halves convention.
int64_t source_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, r = row % head_dim;
  return head * head_dim + r % 2 * (head_dim / 2) + r / 2;
}

Status encode_job(const Job& job, std::vector<std::byte>& out) {
  const auto& shape = job.spec.shape;
  const int64_t n_in = shape.back(), n_rows = shape.size() == 2 ? shape[0] : 1;
  const WeightFormat& to = *job.spec.format;
  out.resize(size_t(n_rows * to.row_bytes(n_in)));
  if (job.source && job.source->format == &to && job.pair_heads == 0) {  // same format: the bytes as they are
    std::copy(job.source->data.begin(), job.source->data.end(), out.begin());
    return {};
  }
  std::vector<float> row(size_t(n_in), 0.0f);
  for (int64_t r = 0; r < n_rows; ++r) {
    if (job.source) {
      const WeightFormat& from = *job.source->format;
      const int64_t at = job.pair_heads > 0 ? source_row(r, n_rows / job.pair_heads) : r;
      from.decode(job.source->data.data() + at * from.row_bytes(n_in), n_in, row.data());
    } else {
      std::copy_n(job.values.begin() + r * n_in, n_in, row.begin());
    }
    const std::span<std::byte> packed(out.data() + r * to.row_bytes(n_in), size_t(to.row_bytes(n_in)));
    const Status encoded = encode_rows(to, row, n_in, packed);
    if (!encoded) return bad_file("tensor {} row {}: {}", job.spec.name, r, encoded.error().message);
  }
  return {};
}

Job make_job(std::string name, const io::Tensor& source, const WeightFormat& type, const WeightFormat& f32,
             const WeightFormat& f16) {
  const bool matrix = source.shape.size() >= 2;
  const WeightFormat* to = !matrix ? &f32 : source.shape.back() % type.group == 0 ? &type : &f16;
  return {.spec = {.name = std::move(name), .format = to, .shape = source.shape},
          .source = &source,
          .values = {},
          .pair_heads = 0};
}

/// frequency / scaled frequency of every pair: what a GGUF reader divides by to get llama3 scaling.
std::vector<float> rope_factors(const Config& config) {
  Config plain = config;
  plain.rope_scaling = {};
  const Rope scaled = make_rope(config, nullptr), unscaled = make_rope(plain, nullptr);
  std::vector<float> factors;
  for (size_t i = 0; i < scaled.frequency.size(); ++i)
    factors.push_back(float(unscaled.frequency[i] / scaled.frequency[i]));
  return factors;
}

/// The jobs of an HF directory, in GGUF names and order.
Result<std::vector<Job>> hf_jobs(const io::HfDirectory& directory, const Config& c, const WeightFormat& type,
                                 std::string_view where) {
  const WeightFormat &f32 = *weight_format_of_gguf(0), &f16 = *weight_format_of_gguf(1);
  const bool permute = c.rope_pairs == RopePairs::interleaved;
  std::vector<Job> jobs;
  std::string missing;
  const auto push = [&](const tensor_names::Name& name, int layer, bool required, int pair_heads = 0) {
    const std::string hf_name = fmt::format(fmt::runtime(name.hf), layer);
    const io::Tensor* source = directory.find(hf_name);
    if (!source && required) missing += " " + hf_name;
    if (!source) return;
    jobs.push_back(make_job(fmt::format(fmt::runtime(name.gguf), layer), *source, type, f32, f16));
    jobs.back().pair_heads = permute ? pair_heads : 0;
  };
  namespace n = tensor_names;
  push(n::kEmbedding, 0, true);
  push(n::kOutputNorm, 0, true);
  push(n::kOutput, 0, !c.tied_output);
  for (int i = 0; i < c.n_layers; ++i) {
    push(n::kAttnNorm, i, true);
    push(n::kQ, i, true, c.n_heads);
    push(n::kK, i, true, c.n_kv_heads);
    push(n::kV, i, true);
    if (c.qkv_bias && permute)
      return bad_file("{}: a {} model with attention biases cannot be written as GGUF (its readers do not expect them)",
                      where, c.arch);
    push(n::kQBias, i, c.qkv_bias);
    push(n::kKBias, i, c.qkv_bias);
    push(n::kVBias, i, c.qkv_bias);
    push(n::kQNorm, i, c.qk_norm);
    push(n::kKNorm, i, c.qk_norm);
    push(n::kO, i, true);
    push(n::kFfnNorm, i, true);
    push(n::kGate, i, true);
    push(n::kUp, i, true);
    push(n::kDown, i, true);
  }
  if (!missing.empty()) return bad_file("{}: tensors are missing:{}", where, missing);
  if (c.rope_scaling.kind == RopeScaling::Kind::llama3)
    jobs.push_back({.spec = {.name = std::string(n::kRopeFactors.gguf), .format = &f32, .shape = {c.rope_dim / 2}},
                    .source = nullptr,
                    .values = rope_factors(c),
                    .pair_heads = 0});
  return jobs;
}

}  // namespace

Status convert_to_gguf(const std::string& in, const std::filesystem::path& out, const WeightFormat& type,
                       const std::function<void(int, int, std::string_view)>& progress) {
  RIDGE_TRY(const uint64_t type_id, file_type(type));
  std::error_code error;
  if (std::filesystem::equivalent(in, out, error))
    return fail(ErrorKind::usage, "{}: input and output are the same file (name another output)", in);
  // Loading first checks every tensor against the configuration, so nothing half-right is converted.
  RIDGE_TRY(const LoadedModel model, load_model(in));
  std::vector<Job> jobs;
  std::map<std::string, io::GgufValue, std::less<>> metadata;
  if (const auto* directory = std::get_if<io::HfDirectory>(&model.weights.source)) {
    Config config = model.config;
    for (const Arch& arch : arch_list())
      if (arch.name == config.arch) config.rope_pairs = arch.gguf_pairs;
    RIDGE_TRY(jobs, hf_jobs(*directory, config, type, in));
    metadata = config_metadata(config);
    if (!model.tokenizer)
      return bad_file("{}: there is no tokenizer.json (a GGUF file carries its tokenizer; put it beside config.json)",
                      in);
    metadata.merge(io::tokenizer_metadata(model.tokenizer->spec()));
  } else {
    const io::Gguf& gguf = std::get<io::GgufFile>(model.weights.source).gguf;
    metadata = gguf.metadata;
    for (const io::Tensor& tensor : gguf.tensors)
      jobs.push_back(make_job(tensor.name, tensor, type, *weight_format_of_gguf(0), *weight_format_of_gguf(1)));
  }
  metadata["general.file_type"] = type_id;
  metadata["general.quantization_version"] = uint64_t(2);

  std::vector<io::GgufTensorSpec> specs;
  for (const Job& job : jobs) specs.push_back(job.spec);
  return io::write_gguf(out, metadata, specs, [&](size_t i, std::vector<std::byte>& bytes) -> Status {
    RIDGE_TRY_STATUS(encode_job(jobs[i], bytes));
    if (progress) progress(int(i) + 1, int(jobs.size()), jobs[i].spec.name);
    return {};
  });
}

}  // namespace ridge
