#include "model/convert.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <numeric>

#include "base/closest.h"
#include "format/nvfp4.h"
#include "io/chat_templates.h"
#include "model/arch/arch.h"
#include "model/convert_rows.h"
#include "model/mtp.h"
#include "model/tensors.h"
#include "model/weights.h"

namespace ridge {
namespace {

/// Mixes as GGUF writers publish them: Q4_K_M and Q5_K_M.
struct Mix {
  std::string_view name, format, better;
};
constexpr Mix kMixes[] = {{"q4_k_m", "q4_k", "q6_k"}, {"q5_k_m", "q5_k", "q6_k"}};

/// general.file_type of llama.cpp for the format of most tensors.
Result<uint64_t> file_type(const QuantizeType& type) {
  if (type.better != type.format) return type.format->name == "q4_k" ? 15 : 17;
  constexpr std::pair<std::string_view, uint64_t> kTypes[] = {
      {"f32", 0},   {"f16", 1},    {"q4_0", 2},   {"q4_1", 3},  {"q8_0", 7},    {"q5_0", 8},
      {"q5_1", 9},  {"q4_k", 14},  {"q5_k", 16},  {"q6_k", 18}, {"iq4_nl", 25}, {"iq4_xs", 30},
      {"bf16", 32}, {"tq1_0", 36}, {"tq2_0", 37}, {"nvfp4", 39}};
  for (const auto& [name, id] : kTypes)
    if (type.format->name == name) return id;
  return fail(ErrorKind::usage, "{} has no GGUF file type", type.format->name);
}

/// Whether a mix gives this tensor the better format: the output matrix (the embedding when tied), and attn_v and
/// ffn_down of some layers.
bool wants_better(std::string_view name, const Config& c) {
  if (name == tensor_row(&Weights::output).file.gguf) return true;
  if (name == tensor_row(&Weights::embedding).file.gguf) return c.tied_output;
  for (const TensorRow& row : layer_tensors())
    for (int i = 0; row.traits.better && i < c.n_layers; ++i)
      if (gets_better(i, c.n_layers) && name == gguf_name(row, row.file, i)) return true;
  return false;
}

bool is_written(const WeightFormat& format) { return format.encode && format.tail_bytes == 0; }

/// What find_quantize_type() knows.
std::vector<std::string_view> written_types() {
  std::vector<std::string_view> names;
  for (const WeightFormat& format : weight_formats())
    if (is_written(format)) names.push_back(format.name);
  for (const Mix& mix : kMixes) names.push_back(mix.name);
  return names;
}

bool is_ternary(const WeightFormat& format) { return format.name == "tq1_0" || format.name == "tq2_0"; }

/// A BitNet model must stay ternary.
Status check_type(const Config& c, const QuantizeType& type) {
  constexpr std::array kExact = {"f32", "f16", "bf16", "tq1_0", "tq2_0"};
  if (!c.ternary || (type.format == type.better && std::count(kExact.begin(), kExact.end(), type.format->name) > 0))
    return {};
  return wrong_field("type", "{}: a BitNet model's weights are -s, 0 and +s, which only {} keep", type.format->name,
                     fmt::join(kExact, ", "));
}

/// The format itself, or the next one whose group divides rows of n_in, as GGUF writers fall back.
const WeightFormat* fitting_format(const WeightFormat* format, int64_t n_in) {
  constexpr std::pair<std::string_view, std::string_view> kNext[] = {
      {"q4_k", "q5_0"}, {"q5_k", "q5_1"}, {"q6_k", "q8_0"}, {"iq4_xs", "iq4_nl"}, {"nvfp4", "iq4_nl"}};
  if (n_in % format->group == 0) return format;
  for (const auto& [from, to] : kNext)
    if (format->name == from) return fitting_format(*find_weight_format(to), n_in);
  return weight_format_of_gguf(1);
}

/// One tensor of the output: what it is called, where its values come from.
struct Job {
  io::GgufTensorSpec spec;
  const io::Tensor* source = nullptr;  // nullptr: `values`
  std::vector<float> values;
  float scale = 1;                               // on top of the source's values
  int pair_heads = 0;                            // > 0: rows of this many heads move from halves to interleaved pairs
  int64_t pair_rows = 0;                         // of such a head
  float offset = 0;                              // added to every value
  std::vector<const io::Tensor*> stacked = {};   // of experts: what comes behind the source
  std::vector<int64_t> rows = {}, columns = {};  // of the source, in the order to write; empty: as they are
  bool negative_exp = false;                     // -exp(value) in place of every value
};

/// Row r of a head in the interleaved convention is row (r % 2) * rope_dim/2 + r / 2 of the halves convention; rows
/// that RoPE does not turn stay.
int64_t source_row(int64_t row, int64_t head_dim, int64_t rope_dim) {
  const int64_t head = row / head_dim, r = row % head_dim;
  return r < rope_dim ? head * head_dim + r % 2 * (rope_dim / 2) + r / 2 : row;
}

int64_t rows_of(const Job& job) {
  int64_t n_rows = 1;
  for (size_t i = 0; i + 1 < job.spec.shape.size(); ++i) n_rows *= job.spec.shape[i];
  return n_rows;
}

/// Whether every row of the output is a row of a source, its blocks as they are.
bool keeps_blocks(const Job& job) {
  const auto keeps = [&](const io::Tensor* source) {
    const bool keeps_scale = source->scale == 1 || source->format->largest > 0;
    return source->format == job.spec.format && keeps_scale && source->order.empty();
  };
  return job.source && keeps(job.source) && std::ranges::all_of(job.stacked, keeps) && job.scale == 1 &&
         job.offset == 0 && job.columns.empty() && !job.negative_exp;
}

/// Matrices of a tensor: those that could each have a scale.
int64_t n_matrices(const Job& job) { return job.spec.shape.size() > 2 ? job.spec.shape[0] : 1; }

/// Where row r of the output comes from.
struct RowSource {
  const io::Tensor& tensor;
  const std::byte* blocks;
};
RowSource row_source(const Job& job, int64_t r) {
  const int64_t n_rows = rows_of(job), rows_each = n_rows / (1 + ssize(job.stacked)), part = r / rows_each;
  const io::Tensor& source = part == 0 ? *job.source : *job.stacked[size_t(part - 1)];
  const int64_t at = job.pair_heads > 0 ? source_row(r, n_rows / job.pair_heads, job.pair_rows)
                     : job.rows.empty() ? r % rows_each
                                        : job.rows[size_t(r)];
  return {source, source.data.data() + at * source.format->row_bytes(job.spec.shape.back())};
}

/// Row r of the output, before it is encoded.
void make_row(const Job& job, int64_t r, std::vector<float>& row) {
  const int64_t n_in = ssize(row);
  if (!job.source) {
    std::copy_n(job.values.begin() + r * n_in, n_in, row.begin());
    return;
  }
  const auto& [source, blocks] = row_source(job, r);
  source.format->decode(blocks, n_in, row.data());
  if (const float scale = job.scale * source.scale; scale != 1 || job.offset != 0)
    for (float& value : row) value = value * scale + job.offset;
  if (!source.order.empty()) {
    const std::vector<float> sorted = row;
    for (size_t i = 0; i < row.size(); ++i) row[size_t(source.order[i])] = sorted[i];
  }
  if (job.negative_exp)
    for (float& value : row) value = -std::exp(value);
  if (!job.columns.empty()) {
    const std::vector<float> all = row;
    for (size_t i = 0; i < row.size(); ++i) row[i] = all[size_t(job.columns[i])];
  }
}

/// What the blocks of each matrix count, for a format that has such scales: the sources' scales where blocks are kept.
std::vector<float> matrix_scales(ThreadPool& pool, const Job& job) {
  const int64_t n_rows = rows_of(job), rows_each = n_rows / n_matrices(job);
  std::vector<float> scales;
  if (keeps_blocks(job)) {
    for (int64_t r = 0; r < n_rows; r += rows_each) scales.push_back(row_source(job, r).tensor.scale);
    return scales;
  }
  std::vector<float> largest(size_t(n_rows), 0.0f);  // encoding refuses what is not finite
  for_each_row(pool, n_rows, job.spec.shape.back(), [&](int64_t r, std::vector<float>& row) -> Status {
    make_row(job, r, row);
    for (const float value : row)
      if (std::isfinite(value)) largest[size_t(r)] = std::max(largest[size_t(r)], std::abs(value));
    return {};
  }).or_throw();
  for (auto first = largest.begin(); first != largest.end(); first += rows_each) {
    const float top = *std::max_element(first, first + rows_each);
    scales.push_back(top > 0 ? std::max(top / job.spec.format->largest, std::numeric_limits<float>::min()) : 1.0f);
  }
  return scales;
}

/// `scales` are those of matrix_scales(), or none.
Status encode_job(ThreadPool& pool, const Job& job, std::span<const float> scales, std::vector<std::byte>& out) {
  const int64_t n_in = job.spec.shape.back(), n_rows = rows_of(job);
  const WeightFormat& to = *job.spec.format;
  out.resize(size_t(n_rows * to.row_bytes(n_in)));
  if (keeps_blocks(job)) {
    const int64_t row_bytes = to.row_bytes(n_in);
    pool.for_each(
        n_rows, [&](int64_t r, int) { std::copy_n(row_source(job, r).blocks, row_bytes, out.data() + r * row_bytes); });
    return {};
  }
  return for_each_row(pool, n_rows, n_in, [&](int64_t r, std::vector<float>& row) -> Status {
    make_row(job, r, row);
    if (!scales.empty())
      for (float& value : row) value /= scales[size_t(r * ssize(scales) / n_rows)];
    const std::span<std::byte> packed(out.data() + r * to.row_bytes(n_in), size_t(to.row_bytes(n_in)));
    const Status encoded = encode_rows(to, row, n_in, packed);
    if (!encoded) return bad_file("tensor {} row {}: {}", job.spec.name, r, encoded.error().message);
    return {};
  });
}

Job make_job(std::string name, const io::Tensor& source) {
  return {.spec = {.name = std::move(name), .shape = source.shape},
          .source = &source,
          .scale = source.format->tail_bytes > 0 ? io::tensor_scale(source).value() : 1.0f};  // checked by loading
}

/// Jobs of a GGUF file's tensors. Matrices in nvfp4 take their scales along; `made` owns what the jobs point to then.
std::vector<Job> gguf_jobs(std::span<const io::Tensor> tensors, std::deque<io::Tensor>& made) {
  constexpr std::string_view kWeight = ".weight", kScale = ".scale", kInputScale = ".input_scale";
  std::map<std::string_view, const io::Tensor*, std::less<>> by_name;
  for (const io::Tensor& tensor : tensors) by_name[tensor.name] = &tensor;
  const auto find = [&](std::string_view base, std::string_view part) {
    const auto found = by_name.find(std::string(base).append(part));
    return found == by_name.end() ? nullptr : found->second;
  };
  const auto is_nvfp4 = [](const io::Tensor* m) { return m && m->format->gguf_type == NVFP4::kGgufType; };
  const auto belongs_to_nvfp4 = [&](std::string_view name) {
    for (const std::string_view part : {kScale, kInputScale})
      if (name.ends_with(part) && is_nvfp4(find(name.substr(0, name.size() - part.size()), kWeight))) return true;
    return false;
  };
  std::vector<Job> jobs;
  for (const io::Tensor& tensor : tensors) {
    if (belongs_to_nvfp4(tensor.name)) continue;
    Job& job = jobs.emplace_back(make_job(tensor.name, tensor));
    const io::Tensor* const scales =
        is_nvfp4(&tensor) ? find(tensor.name.substr(0, tensor.name.size() - kWeight.size()), kScale) : nullptr;
    if (!scales) continue;
    const int64_t n = scales->shape[0], n_in = tensor.shape.back(), bytes = ssize(tensor.data) / n;
    std::vector<float> values(size_t(n), 0.0f);
    scales->format->decode(scales->data.data(), n, values.data());
    for (int64_t e = 0; e < n; ++e) {
      made.push_back({.name = tensor.name,
                      .format = tensor.format,
                      .shape = {bytes / tensor.format->row_bytes(n_in), n_in},
                      .data = tensor.data.subspan(size_t(e * bytes), size_t(bytes)),
                      .scale = values[size_t(e)]});
      if (e == 0) job.source = &made.back();
      else job.stacked.push_back(&made.back());
    }
  }
  return jobs;
}

/// BitNet matrices are written from the codes and scales that loading made of them, whatever the source keeps: master
/// weights, another ternary format, or a scale in a tensor of its own. `codes` owns what the jobs point to.
void use_ternary_codes(std::vector<Job>& jobs, const Weights& weights, std::deque<io::Tensor>& codes) {
  std::map<std::string, const Linear*, std::less<>> by_name;
  for (size_t i = 0; i < weights.layers.size(); ++i)
    for_each_tensor(weights.layers[i], [&](const TensorRow& row, const Linear& m) {
      if (m.format) by_name[gguf_name(row, row.file, int(i))] = &m;
    });
  std::erase_if(jobs, [](const Job& job) { return job.spec.name.ends_with(".scale"); });
  for (Job& job : jobs) {
    const auto found = by_name.find(job.spec.name);
    if (found == by_name.end()) continue;
    const Linear& m = *found->second;
    codes.push_back({job.spec.name, m.format, {m.n_out, m.n_in}, {m.rows, size_t(m.bytes())}});
    job.source = &codes.back();
    job.scale = m.scale;
  }
}

/// Whether a tensor of a layer holds a vector.
bool is_vector(std::string_view name, const Config& c) {
  constexpr std::string_view kBlock = "blk.";
  if (!name.starts_with(kBlock)) return false;
  const int layer = std::atoi(name.data() + kBlock.size());
  return std::ranges::any_of(layer_tensors(), [&](const TensorRow& row) {
    return !row.is_matrix() && layer <= c.n_layers && row.exists(c, layer) &&
           gguf_name(row, tensor_source(row, c, layer).name, layer) == name;
  });
}

/// Gives every matrix its format and everything else f32; lists the matrices that fell back.
std::vector<Fallback> choose_formats(std::vector<Job>& jobs, const QuantizeType& type, const Config& c) {
  std::vector<Fallback> fallbacks;
  for (Job& job : jobs) {
    const int64_t n_in = job.spec.shape.back();
    // Vectors, whatever shape they have, what chooses experts and the few weights of convolutions stay as exact as they
    // are.
    const std::string_view name = job.spec.name;
    if (job.spec.shape.size() < 2 || name.ends_with(".bias") || name.find(".ffn_gate_inp") != name.npos ||
        name.find(".ssm_conv1d") != name.npos || is_vector(name, c)) {
      job.spec.format = weight_format_of_gguf(0);
      continue;
    }
    if (is_ternary(*type.format) && !job.spec.name.starts_with("blk.")) {
      job.spec.format = job.source->format;
      continue;
    }
    const bool better = type.better != type.format && wants_better(job.spec.name, c);
    const WeightFormat* wanted = better ? type.better : type.format;
    // Readers of GGUF files look rows of embeddings up without a scale of the matrix.
    if (wanted->largest > 0 && wanted != job.source->format && name.find("token_embd") != name.npos)
      wanted = *find_weight_format("q8_0");
    job.spec.format = fitting_format(wanted, n_in);
    if (job.spec.format != wanted) fallbacks.push_back({job.spec.name, wanted, job.spec.format, n_in});
  }
  return fallbacks;
}

/// Puts a tensor NAME.scale behind each NAME.weight whose format has such a scale; its values come with the matrix's.
void add_scales(std::vector<Job>& jobs) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<Job> all;
  for (Job& job : jobs) {
    const bool has_scale = job.spec.format->largest > 0;
    const std::string base = job.spec.name.substr(0, job.spec.name.rfind(kWeight));
    const int64_t n = n_matrices(job);
    all.push_back(std::move(job));
    if (has_scale) all.push_back({.spec = {.name = base + ".scale", .format = weight_format_of_gguf(0), .shape = {n}}});
  }
  jobs = std::move(all);
}

/// Counts the matrices that are compressed and would be rounded again: loss upon loss. f16 and f32 keep what codes say.
Result<int> count_requantized(const std::vector<Job>& jobs, const QuantizeType& type, std::string_view where) {
  constexpr double kExactBits = 16;
  std::map<std::string_view, int> of_format;
  int n = 0;
  for (const Job& job : jobs) {
    if (!job.source || keeps_blocks(job)) continue;
    const bool keeps = job.spec.format->name == "f16" || job.spec.format->name == "f32";
    if (keeps || job.source->format->bits_per_weight() >= kExactBits) continue;
    ++of_format[job.source->format->name];
    ++n;
  }
  if (n == 0 || type.requantizes) return n;
  std::string found;
  for (const auto& [name, count] : of_format)
    found += fmt::format("{}{} in {}", found.empty() ? "" : ", ", count, name);
  return wrong_field("type",
                     "{}: {} {} compressed already ({}), and rounding again adds a second loss (quantize the original "
                     "weights, or add --allow-requantize)",
                     where, n, n == 1 ? "matrix is" : "matrices are", found);
}

constexpr float kNeverTurns = 1e30f;  // as other writers have it

/// frequency / scaled frequency of every pair: what a GGUF reader divides by to get llama3 or proportional scaling.
std::vector<float> rope_factors(const Config& config) {
  Config plain = config;
  plain.rope_scaling = {};
  const Rope scaled = make_rope(config, nullptr), unscaled = make_rope(plain, nullptr);
  std::vector<float> factors;
  for (size_t i = 0; i < scaled.frequency.size(); ++i)
    factors.push_back(scaled.frequency[i] > 0 ? float(unscaled.frequency[i] / scaled.frequency[i]) : kNeverTurns);
  return factors;
}

/// The jobs of a Hugging Face directory, in GGUF names and order.
struct DirectoryJobs {
  const io::HfDirectory& directory;
  const Config& config;
  const Weights& weights;
  const MtpHead* head;           ///< the model's, or nullptr; it becomes a block behind the last one
  std::deque<io::Tensor>& made;  ///< what jobs point to that is in no file
  const Arch& arch = arch_of(config);
  const Nesting nesting = find_nesting(directory.tensors);
  std::vector<Job> jobs = {};
  std::string missing = {};

  Result<std::vector<Job>> make(std::string_view where) {
    push_model(config, 0);
    for (int i = 0; i < config.n_layers + (head ? 1 : 0); ++i) {
      const bool is_head = i == config.n_layers;
      const Config c = is_head ? head_config(config) : config;
      if (is_head) push_model(c, i);
      const bool leads = (arch.grouped_experts || arch.short_conv) && i < ssize(c.dense_layers);
      if (c.n_experts > 0 && !c.has_experts(i) && !leads && !arch.one_block)
        return bad_file("{}: layer {} is dense among layers of experts, which GGUF files of {} cannot say", where, i,
                        c.arch);
      const LayerWeights& layer = is_head ? head->weights.layers[0] : weights.layers[size_t(i)];
      for (const TensorRow& row : layer_tensors())
        if (row.exists(c, i)) push_row(row, c, i, layer);
    }
    if (!missing.empty()) return bad_file("{}: tensors are missing:{}", where, missing);
    push_factors();
    return std::move(jobs);
  }

  void push_model(const Config& c, int layer) {
    for (const TensorRow& row : model_tensors())
      if (row.exists(c, layer) && row.kind != TensorKind::factors) push(row, tensor_source(row, c, layer).name, layer);
    if (layer == c.n_layers)
      for (const TensorName& end : head_ends(arch))
        if (directory.find(file_name(model_tensors()[0], end, layer))) push(model_tensors()[0], end, layer);
  }

  void push_row(const TensorRow& row, const Config& c, int i, const LayerWeights& layer) {
    const TensorSource from = tensor_source(row, c, i);
    if (row.is_in<ExpertWeights>() || row.of_heads()) return push_stacked(row, gguf_name(row, from.name, i), layer);
    // Parts that are one tensor in both containers stay one.
    if (!jobs.empty() && jobs.back().spec.name == gguf_name(row, from.name, i)) return;
    Job* const job = push(row, from.name, i);
    if (!job) return;
    const bool shared = part_of(row, c, i, &TensorName::gguf).count > 1;
    if (from.layout == TensorLayout::by_key_head && !shared) {
      job->rows = rows_by_key_head(c.delta, std::get<Linear DeltaWeights::*>(row.member));
      job->spec.shape[0] = ssize(job->rows);
    }
    if (const TensorPart part = part_of(row, c, i, &TensorName::hf);
        part.count > 1 && !shared && from.layout == TensorLayout::rows) {
      job->rows.resize(size_t(row.shape(c, i).n_out));
      std::iota(job->rows.begin(), job->rows.end(), part.first);
      job->spec.shape[0] = ssize(job->rows);
    }
    if (row.traits.rope && !shared && arch.gguf_pairs != arch.hf_pairs && c.kv_rank == 0) turn_pairs(row, c, *job);
    if (arch.delta_keys_cycle && c.has_delta(i)) cycle_heads(row, c, *job);
    if (row.kind == TensorKind::convolution) job->spec.shape = {row.shape(c, i).n_in, row.shape(c, i).n_out};
    job->negative_exp = row.kind == TensorKind::decay;
    // As other readers of Mamba2's vectors have them.
    const int64_t n = row.shape(c, i).n_out;
    if (row.member == TensorMember(&LayerWeights::mamba_norm))
      job->spec.shape = {c.mamba.n_groups, n / c.mamba.n_groups};
    if (row.member == TensorMember(&LayerWeights::mamba_decay) || row.member == TensorMember(&LayerWeights::mamba_d))
      job->spec.shape = {n, 1};
  }

  std::string file_name(const TensorRow& row, const TensorName& name, int layer) const {
    const std::string hf = hf_name(row, name, layer);
    const bool of_head = layer == config.n_layers && !arch.grouped_experts;
    return of_head ? head_name(FileNames::under_mtp, hf, 0) : nested_name(nesting, hf);
  }

  /// A tensor as the directory has it; null where there is none.
  Job* push(const TensorRow& row, const TensorName& name, int layer) {
    const std::string in_file = file_name(row, name, layer);
    const io::Tensor* const source = directory.find(in_file);
    if (!source) return missing += " " + in_file, nullptr;
    Job& job = jobs.emplace_back(make_job(gguf_name(row, name, layer), *source));
    const bool is_norm = row.kind == TensorKind::norm || row.kind == TensorKind::block_norm;
    job.offset = is_norm && arch.norms_plus_one ? 1.0f : 0.0f;
    return &job;
  }

  /// One tensor of a matrix or a bias of all experts or heads, as loading took them apart.
  void push_stacked(const TensorRow& row, std::string name, const LayerWeights& layer) {
    Job& job = jobs.emplace_back();
    job.spec.name = std::move(name);
    for_each_of(row, layer, [&](const TensorRow&, const auto& part) {
      std::vector<int64_t>& shape = job.spec.shape;
      if constexpr (std::is_same_v<decltype(part), const Linear&>) {
        made.push_back({.name = job.spec.name,
                        .format = part.format,
                        .shape = {part.n_out, part.n_in},
                        .data = {part.rows, size_t(part.bytes())},
                        .scale = part.scale});
        if (part.order) made.back().order = {part.order, size_t(part.n_in)};
        shape = {shape.empty() ? 1 : shape[0] + 1, part.n_out, part.n_in};
        if (!job.source) job.source = &made.back();
        else job.stacked.push_back(&made.back());
      } else {
        shape = {shape.empty() ? 1 : shape[0] + 1, ssize(part)};
        job.values.insert(job.values.end(), part.begin(), part.end());
      }
    });
  }

  /// Rows of heads, or their biases, from halves to interleaved pairs.
  static void turn_pairs(const TensorRow& row, const Config& c, Job& job) {
    const int n_heads = row.cut == TensorCut::heads ? c.n_heads : c.n_kv_heads;
    const int64_t n = job.spec.shape[0];
    if (row.is_matrix()) job.pair_heads = n_heads, job.pair_rows = c.rope_dim;
    else
      for (int64_t i = 0; i < n; ++i) job.columns.push_back(source_row(i, n / n_heads, c.rope_dim));
  }

  /// Rows or columns of value heads in the order of GGUF files.
  static void cycle_heads(const TensorRow& row, const Config& c, Job& job) {
    const DeltaShape& d = c.delta;
    // Heads of n each, from number `first` on.
    const auto cycled = [&](int64_t first, int64_t n) {
      std::vector<int64_t> numbers;
      for (int64_t i = 0; i < first; ++i) numbers.push_back(i);
      for (int64_t i = 0; i < d.n_value_heads; ++i)
        for (int64_t j = 0; j < n; ++j) numbers.push_back(first + cycled_head(d, i) * n + j);
      return numbers;
    };
    if (row.cut == TensorCut::channels) job.rows = cycled(2 * d.keys(), d.value_dim);
    if (row.cut == TensorCut::values) job.rows = cycled(0, d.value_dim);
    if (row.cut == TensorCut::mixed) job.columns = cycled(0, d.value_dim);
    if (row.cut == TensorCut::value_heads) (row.is_matrix() ? job.rows : job.columns) = cycled(0, 1);
  }

  void push_factors() {
    const auto push_values = [&](std::string_view name, const Values& values) {
      if (!values.empty())
        jobs.push_back({.spec = {.name = std::string(name), .shape = {config.rope_dim / 2}}, .values = values});
    };
    const RopeScaling& scaling = config.rope_scaling;
    const TensorRow& factors = tensor_row(&Weights::rope_factors);
    push_values(tensor_source(factors, config, 0).name.gguf,
                scaling.kind == RopeScaling::Kind::llama3 || scaling.kind == RopeScaling::Kind::proportional
                    ? rope_factors(config)
                    : scaling.short_factors);
    push_values(tensor_row(&Weights::long_rope_factors).file.gguf, scaling.long_factors);
  }
};

}  // namespace

bool gets_better(int layer, int n_layers) {
  return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

Result<QuantizeType> find_quantize_type(std::string_view name) {
  for (const Mix& mix : kMixes) {
    if (mix.name != name) continue;
    QuantizeType type(**find_weight_format(mix.format));
    type.better = *find_weight_format(mix.better);
    return type;
  }
  const auto format = find_weight_format(name);
  if (format && is_written(**format)) return QuantizeType(**format);
  if (format)
    return wrong_field("type", "{}: this format is read, not written ({})", name,
                       (*format)->encode ? "tq2_0 holds the same" : "there are: " + quantize_type_names());
  return wrong_field("type", "unknown weight format '{}' ({})", name, choices_text(name, written_types()));
}

std::string quantize_type_names() { return fmt::format("{}", fmt::join(written_types(), ", ")); }

Result<Converted> convert_to_gguf(const std::string& in, const std::filesystem::path& out, const QuantizeType& type,
                                  const std::function<void(int, int, std::string_view)>& progress) {
  RIDGE_TRY(const uint64_t type_id, file_type(type));
  std::error_code error;
  RIDGE_TRY(const std::filesystem::path source, io::find_model(in));
  if (std::filesystem::equivalent(source, out, error))
    return fail(ErrorKind::usage, "{}: input and output are the same file (name another output)", in);
  // Loading first checks every tensor against the configuration, so nothing half-right is converted.
  RIDGE_TRY(LoadedModel model, load_model(in));
  RIDGE_TRY_STATUS(check_type(model.config, type));
  std::vector<Job> jobs;
  std::optional<MtpHead> head;
  std::deque<io::Tensor> codes;  // what jobs point to that is in no file
  std::map<std::string, io::GgufValue, std::less<>> metadata;
  if (auto* directory = std::get_if<io::HfDirectory>(&model.weights.source)) {
    Config config = model.config;
    config.rope_pairs = arch_of(config).gguf_pairs;
    const std::filesystem::path head_file = directory->path / "mtp.safetensors";
    if (takes_plain_head(config) && !arch_of(config).fused && std::filesystem::exists(head_file, error))
      RIDGE_TRY_STATUS(add_head_file(*directory, head_file));
    RIDGE_TRY(head, read_own_mtp_head(model.config, model.weights));
    DirectoryJobs of_directory{*directory, config, model.weights, head ? &*head : nullptr, codes};
    RIDGE_TRY(jobs, of_directory.make(in));
    metadata = config_metadata(config);
    if (head) {
      metadata[config.arch + ".block_count"] = uint64_t(config.n_layers + 1);
      metadata[config.arch + ".nextn_predict_layers"] = uint64_t(1);
    }
    if (!model.tokenizer)
      return bad_file("{}: there is no tokenizer.json (a GGUF file carries its tokenizer; put it beside config.json)",
                      in);
    metadata.merge(io::tokenizer_metadata(model.tokenizer->spec()));
    const io::ChatTemplates templates = io::chat_templates_of_directory(directory->path);
    if (!templates.problem.empty())
      return bad_file("{} (mend or remove the chat template: it would be lost)", templates.problem);
    metadata.merge(io::chat_template_metadata(templates.named));
  } else {
    const io::Gguf& gguf = std::get<io::GgufFile>(model.weights.source).gguf;
    metadata = gguf.metadata;
    jobs = gguf_jobs(gguf.tensors, codes);
  }
  if (model.config.ternary) use_ternary_codes(jobs, model.weights, codes);
  Converted converted{.fallbacks = choose_formats(jobs, type, model.config)};
  if (!model.config.ternary) {
    RIDGE_TRY(converted.n_requantized, count_requantized(jobs, type, in));
  }
  add_scales(jobs);
  metadata["general.file_type"] = type_id;
  metadata["general.quantization_version"] = uint64_t(2);

  std::vector<io::GgufTensorSpec> specs;
  for (const Job& job : jobs) {
    specs.push_back(job.spec);
    RIDGE_TRY(const uint64_t n_float_bytes, io::storage_bytes(*weight_format_of_gguf(0), job.spec.shape));
    RIDGE_TRY(const uint64_t n_bytes, io::storage_bytes(*job.spec.format, job.spec.shape));
    converted.n_weights += int64_t(n_float_bytes / sizeof(float));
    converted.n_bytes += int64_t(n_bytes);
  }
  ThreadPool pool(type.n_threads);
  const auto payload = [&](size_t i, std::vector<std::byte>& bytes) -> Status {
    std::vector<float> scales;
    if (jobs[i].spec.format->largest > 0) scales = jobs[i + 1].values = matrix_scales(pool, jobs[i]);
    RIDGE_TRY_STATUS(encode_job(pool, jobs[i], scales, bytes));
    if (progress) progress(int(i) + 1, int(jobs.size()), jobs[i].spec.name);
    return {};
  };
  RIDGE_TRY_STATUS(io::write_gguf(out, metadata, specs, payload));
  return converted;
}

}  // namespace ridge
