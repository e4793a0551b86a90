#include "model/mtp.h"

#include <array>
#include <cstring>

#include "model/binder.h"
#include "model/slice.h"

namespace ridge {
namespace {

/// Names of a head's own tensors under mtp. and in a file of its own.
constexpr std::pair<std::string_view, std::string_view> kOwnFileNames[] = {
    {"mtp.fc.weight", "eh_proj.weight"},
    {"mtp.pre_fc_norm_embedding.weight", "enorm.weight"},
    {"mtp.pre_fc_norm_hidden.weight", "hnorm.weight"},
    {"mtp.norm.weight", "shared_head_norm.weight"}};

/// The tensors among which a head of the model's own file is.
std::vector<io::Tensor> own_head_tensors(const Weights& model, bool behind) {
  if (const auto* gguf = std::get_if<io::GgufFile>(&model.source)) return gguf->gguf.tensors;
  std::vector<io::Tensor> tensors;
  for (const io::Tensor& tensor : std::get<io::HfDirectory>(model.source).tensors)
    if (behind || tensor.name.starts_with("mtp.")) tensors.push_back(tensor);
  return tensors;
}

/// The matrix in another format, in a buffer of its own; as it is where the format has no encoder or no such rows, or
/// its blocks need a scale of the matrix.
Linear encoded(const Linear& m, const WeightFormat* format, std::vector<AlignedBuffer>& buffers) {
  if (!format->encode || format == m.format || m.n_in % format->group != 0 || format->tail_bytes > 0 ||
      format->largest > 0)
    return m;
  Linear to{.format = format, .n_out = m.n_out, .n_in = m.n_in};
  std::byte* const rows = buffers.emplace_back(to.bytes()).data();
  std::vector<float> row(size_t(m.n_in), 0.0f);
  for (int64_t i = 0; i < m.n_out; ++i) {
    m.format->decode(m.rows + i * m.format->row_bytes(m.n_in), m.n_in, row.data());
    format->encode(row.data(), m.n_in, rows + i * format->row_bytes(m.n_in));
  }
  to.rows = rows;
  return to;
}

/// Heads whose RoPE turns halves of their first rope_dim rows, with these in the order of neighbouring pairs.
Linear interleaved(const Linear& m, int64_t head_dim, int64_t rope_dim, std::vector<AlignedBuffer>& buffers) {
  Linear to = m;
  const int64_t row_bytes = m.format->row_bytes(m.n_in);
  std::byte* const rows = buffers.emplace_back(m.bytes()).data();
  for (int64_t i = 0; i < m.n_out; ++i) {
    const int64_t in_head = i % head_dim, turned = in_head % 2 * (rope_dim / 2) + in_head / 2,
                  from = i - in_head + (in_head < rope_dim ? turned : in_head);
    std::copy_n(m.rows + from * row_bytes, row_bytes, rows + i * row_bytes);
  }
  to.rows = rows;
  return to;
}

/// Binds the join, the norms and the layer of a head.
Status bind_head(const Config& c, const BoundFile& file, MtpHead& head, std::string_view where) {
  Binder b(c, file, head.weights);
  b.bind_model(c.n_layers);
  b.bind_layer(c.n_layers);
  const std::span<const TensorName> ends = head_ends(arch_of(c));
  head.weights.embedding = b.end(ends[0], c.n_layers);
  head.weights.output = b.end(ends[1], c.n_layers);
  RIDGE_TRY_STATUS(b.check_bound(where));
  // In a file of the whole model the tensors of the block behind the last one are the head's.
  const std::string block = file.names == FileNames::gguf        ? fmt::format("blk.{}.", c.n_layers)
                            : file.names == FileNames::directory ? fmt::format("model.layers.{}.", c.n_layers)
                                                                 : "";
  return b.check_rest(where, block);
}

/// Gives the head the model's matrix in the place of one that it lacks, or whose bytes are the same. True where it has
/// its own.
bool keeps_own(Linear& own, const Linear& of_model) {
  if (!own.format) return false;
  const bool same = own.format == of_model.format && own.scale == of_model.scale && of_model.rows &&
                    std::memcmp(own.rows, of_model.rows, size_t(own.bytes())) == 0;
  if (same) own = {};
  return !same;
}

/// The head of a plain model in a safetensors file.
Status load_separate_head(const Config& c, const Weights& model, std::string path, MtpHead& head) {
  if (!takes_plain_head(c))
    return fail(ErrorKind::usage, "MTP heads are read for plain layers only, not for {}", c.arch);
  if (const auto* directory = std::get_if<io::HfDirectory>(&model.source); directory && path.empty())
    path = directory->path / "mtp.safetensors";
  if (path.empty()) return fail(ErrorKind::usage, "the model's file has no MTP head (give the file of the head)");
  io::HfDirectory& source = head.weights.source.emplace<io::HfDirectory>();
  RIDGE_TRY(io::MappedFile file, io::MappedFile::open(path));
  source.files.push_back(std::move(file));
  RIDGE_TRY(source.tensors, io::parse_safetensors(source.files[0].bytes(), path));
  Config plain = head_config(c);
  plain.arch = "llama";  // whose names and matrices such files have
  RIDGE_TRY_STATUS(bind_head(plain, {.tensors = source.tensors, .names = FileNames::head_file}, head, path));
  LayerWeights& layer = head.weights.layers[0];
  const WeightFormat* const format = model.layers.back().q.format;
  const auto encode = [&](const TensorRow&, Linear& m) {
    if (m.format) m = encoded(m, format, head.weights.buffers);
  };
  call_member(tensor_row(&Weights::join), head.weights, encode);
  for_each_tensor(layer, encode);
  if (c.rope_pairs == RopePairs::interleaved) {  // of a GGUF file; the head's are halves
    layer.q = interleaved(layer.q, c.head_dim, c.rope_dim, head.weights.buffers);
    layer.k = interleaved(layer.k, c.head_dim, c.rope_dim, head.weights.buffers);
  }
  return {};
}

}  // namespace

std::string head_name(FileNames names, std::string_view name, int layer) {
  constexpr std::string_view kLayers = "model.layers.";
  if (name.starts_with(kLayers)) {
    const std::string_view rest = name.substr(name.find('.', kLayers.size()) + 1);
    return names == FileNames::head_file ? fmt::format("layer.{}", rest) : fmt::format("mtp.layers.{}.{}", layer, rest);
  }
  for (const auto& [under_mtp, own] : kOwnFileNames)
    if (names == FileNames::head_file && name == under_mtp) return std::string(own);
  return std::string(name);
}

ModelPlan head_plan(const Config& c, const Weights& model) {
  ModelPlan plan = make_plan(head_config(c), model.rope_factors, model.long_rope_factors);
  plan.layers.erase(plan.layers.begin(), plan.layers.end() - 1);
  return plan;
}

bool takes_plain_head(const Config& c) {
  return !c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm && c.nope_period == 0 && c.position_scale == 0 &&
         !c.layer_norm && !c.sink_logits && !c.sub_norm && c.norms == NormPlace::before &&
         !c.has_experts(c.n_layers - 1) && c.attends(c.n_layers - 1) && c.kv_rank == 0;
}

Status add_head_file(io::HfDirectory& directory, const std::filesystem::path& path) {
  RIDGE_TRY(io::MappedFile file, io::MappedFile::open(path));
  directory.files.push_back(std::move(file));
  RIDGE_TRY(std::vector<io::Tensor> tensors, io::parse_safetensors(directory.files.back().bytes(), path.native()));
  constexpr std::string_view kLayer = "layer.";
  for (io::Tensor& tensor : tensors) {
    if (tensor.name.starts_with(kLayer)) tensor.name.replace(0, kLayer.size(), "mtp.layers.0.");
    for (const auto& [under_mtp, own] : kOwnFileNames)
      if (tensor.name == own) tensor.name = under_mtp;
    directory.tensors.push_back(std::move(tensor));
  }
  return {};
}

Result<std::optional<MtpHead>> read_own_mtp_head(const Config& config, const Weights& model) {
  const Arch& arch = arch_of(config);
  const auto* const directory = std::get_if<io::HfDirectory>(&model.source);
  const bool is_gguf = std::holds_alternative<io::GgufFile>(model.source);
  std::optional<MtpHead> head;
  if ((!directory && !is_gguf) || (!arch.grouped_experts && !arch.delta && !takes_plain_head(config))) return head;
  const std::vector<io::Tensor> tensors = own_head_tensors(model, arch.grouped_experts);
  BoundFile file{.tensors = tensors};
  if (directory) file.names = arch.grouped_experts ? FileNames::directory : FileNames::under_mtp;
  const Config c = head_config(config);
  {
    Weights none;
    const Binder b(c, file, none);
    if (!b.has(tensor_row(&Weights::join_embedding_norm), c.n_layers)) return head;
    if (b.has(tensor_row(&LayerWeights::attn_norm), c.n_layers + 1))
      return fail(ErrorKind::usage, "the model's file has an MTP head of several layers (not supported)");
  }
  head.emplace().after_norm = arch.delta || arch.grouped_experts;
  RIDGE_TRY_STATUS(bind_head(c, file, *head, "the MTP head"));
  return head;
}

Result<MtpHead> load_mtp_head(CpuContext& context, const Config& c, const Weights& model, std::string path) {
  MtpHead head;
  const bool is_made = model.head && path.empty();  // its matrices stay the model's
  if (is_made) head.weights = view_of(*model.head);
  std::optional<MtpHead> own;
  if (path.empty() && !is_made) {
    RIDGE_TRY(own, read_own_mtp_head(c, model));
  }
  if (own) head = std::move(*own);
  else if (!is_made) RIDGE_TRY_STATUS(load_separate_head(c, model, std::move(path), head));
  Weights& w = head.weights;
  head.own_embedding = !is_made && keeps_own(w.embedding, model.embedding);
  head.own_output = !is_made && keeps_own(w.output, model.output);
  if (!is_made) pack_weights(context, w);
  if (!head.own_embedding) w.embedding = model.embedding;
  if (!head.own_output) w.output = model.output;
  return head;
}

}  // namespace ridge
