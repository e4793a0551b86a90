#include "io/packed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/pages.h"
#include "base/thread_pool.h"
#include "io/json.h"
#include "io/packed_parts.h"
#include "io/text.h"

namespace ridge::io {
namespace {

/// A member of an object; nullptr where there is none, or null.
const Json* given(const Json& object, const char* key) {
  const Json* const found = member(object, key);
  return found && found->is_null() ? nullptr : found;
}

std::string text_of(const Json& object, const char* key, const char* fallback) {
  const std::string* const text = member_text(object, key);
  return text ? *text : fallback;
}

bool is_true(const Json& object, const char* key) {
  const Json* const value = member(object, key);
  return value && *value == true;
}

std::string shown(const Json& object, const char* key) {
  const Json* const value = given(object, key);
  return value ? value->dump() : "missing";
}

/// quantization_config as one reader of a method sees it.
struct Source {
  const Json& config;
  std::string_view where;

  Failure refused(const std::string& field, const std::string& value, std::string_view expected) const {
    return bad_file("{}: quantization_config.{} is {}, expected {}", where, field, value, expected);
  }
};

Status read_bits(const Source& source) {
  const Json* const bits = given(source.config, "bits");
  if (bits && bits->is_number_integer() && *bits == 4) return {};
  return source.refused("bits", shown(source.config, "bits"), "4 (other widths are not supported)");
}

Status read_group(const Source& source, Packing& packing) {
  constexpr int64_t kMost = 1 << 20;
  const Json* const group = given(source.config, "group_size");
  const int64_t size = group && group->is_number_integer() ? group->get<int64_t>() : 0;
  if (size != -1 && (size < 32 || size % 32 != 0 || size > kMost))
    return source.refused("group_size", shown(source.config, "group_size"),
                          "-1 or a multiple of 32 (blocks of weights share a scale)");
  packing.group = std::max<int64_t>(size, 0);
  return {};
}

Status read_ridge(const Source& source, Packing& packing) {
  RIDGE_TRY_STATUS(read_bits(source));
  RIDGE_TRY_STATUS(read_group(source, packing));
  if (packing.group != 128) return source.refused("group_size", shown(source.config, "group_size"), "128");
  packing.int4 = Int4Layout::ridge;
  return {};
}

Status read_gptq(const Source& source, Packing& packing) {
  RIDGE_TRY_STATUS(read_bits(source));
  RIDGE_TRY_STATUS(read_group(source, packing));
  packing.ordered = !is_true(source.config, "desc_act");
  if (const Json* const dynamic = given(source.config, "dynamic"); dynamic && !dynamic->empty())
    return bad_file("{}: quantization_config.dynamic gives modules settings of their own (not supported)",
                    source.where);
  const std::string version = text_of(source.config, "checkpoint_format", "gptq");
  if (version != "gptq" && version != "gptq_v2")
    return source.refused("checkpoint_format", in_quotes(version), "gptq or gptq_v2");
  packing.int4 = version == "gptq" ? Int4Layout::gptq : Int4Layout::gptq_v2;
  return {};
}

Status read_awq(const Source& source, Packing& packing) {
  RIDGE_TRY_STATUS(read_bits(source));
  RIDGE_TRY_STATUS(read_group(source, packing));
  const std::string version = text_of(source.config, "version", "gemm");
  if (version != "gemm" && version != "GEMM") return source.refused("version", in_quotes(version), "gemm");
  packing.int4 = Int4Layout::awq;
  return {};
}

/// A pair of block sizes, rows and columns.
Status read_blocks(const Source& source, const Json& object, const char* key, Packing& packing) {
  const Json* const sizes = given(object, key);
  if (!sizes) return {};
  constexpr int64_t kMost = 1 << 20;
  const auto is_size = [](const Json& n) { return n.is_number_unsigned() && n >= 1 && n <= kMost; };
  if (!sizes->is_array() || sizes->size() != 2 || !is_size((*sizes)[0]) || !is_size((*sizes)[1]))
    return source.refused(key, sizes->dump(), "two sizes, of rows and of columns");
  packing.block_rows = (*sizes)[0].get<int64_t>();
  packing.block_columns = (*sizes)[1].get<int64_t>();
  return {};
}

Status read_fp8(const Source& source, Packing& packing) {
  if (const std::string kind = text_of(source.config, "fmt", "e4m3"); kind != "e4m3")
    return source.refused("fmt", in_quotes(kind), "e4m3");
  return read_blocks(source, source.config, "weight_block_size", packing);
}

/// The weights of a group of modules in the form of compressed-tensors; modelopt writes the same.
Status read_module_group(const Source& source, const std::string& name, const Json& group, Packing& packing) {
  const std::string at = fmt::format("config_groups.{}.weights", name);
  const Json* const weights = given(group, "weights");
  if (!weights || !weights->is_object()) return source.refused(at, shown(group, "weights"), "an object");
  const Json* const bits = given(*weights, "num_bits");
  const std::string type = text_of(*weights, "type", "");
  const bool is_fp8 = bits && *bits == 8 && type == "float", is_fp4 = bits && *bits == 4 && type == "float";
  if (!is_fp8 && !is_fp4)
    return source.refused(at, fmt::format("{} bits of type {}", shown(*weights, "num_bits"), in_quotes(type)),
                          "floats of 8 or 4 bits");
  if (const Json* const size = given(*weights, "group_size"); is_fp4 && (!size || *size != 16))
    return source.refused(at + ".group_size", shown(*weights, "group_size"), "16");
  return read_blocks(source, *weights, "block_structure", packing);
}

Status read_module_groups(const Source& source, Packing& packing) {
  const Json* const groups = given(source.config, "config_groups");
  if (!groups) return {};
  if (!groups->is_object()) return source.refused("config_groups", groups->dump(), "an object");
  for (const auto& [name, group] : groups->items()) RIDGE_TRY_STATUS(read_module_group(source, name, group, packing));
  return {};
}

Status read_compressed_tensors(const Source& source, Packing& packing) {
  for (const char* key : {"transform_config", "sparsity_config"})
    if (const Json* const value = given(source.config, key);
        value && !value->empty() && text_of(*value, "format", "") != "dense")
      return source.refused(key, value->dump(), "nothing");
  return read_module_groups(source, packing);
}

Status read_modelopt(const Source& source, Packing& packing) {
  const std::string kind = text_of(source.config, "quant_algo", "NVFP4");
  if (kind != "NVFP4" && kind != "FP8" && kind != "MIXED_PRECISION")
    return source.refused("quant_algo", in_quotes(kind), "NVFP4, FP8 or MIXED_PRECISION");
  return read_module_groups(source, packing);
}

using Reader = Status (*)(const Source& source, Packing& packing);
struct Method {
  std::string_view name;
  Reader read;  ///< null: other code reads the matrices
};
constexpr Method kMethods[] = {
    {"awq", read_awq},  {"bitnet", nullptr},       {"compressed-tensors", read_compressed_tensors},
    {"fp8", read_fp8},  {"gptq", read_gptq},       {"modelopt", read_modelopt},
    {"mxfp4", nullptr}, {"ridge-int4", read_ridge}};

/// One kind of packed matrix: the tensor it is known by, and what else belongs to it.
struct Kind {
  std::string_view codes;
  bool (*is_codes)(const Tensor& tensor, const Packing& packing);
  std::array<std::string_view, 5> parts;  ///< "" behind the last one
};
bool is_int4(const Tensor&, const Packing& packing) { return packing.int4 != Int4Layout::none; }
bool is_fp8(const Tensor& tensor, const Packing&) { return tensor.format == &packed_e4m3(); }
bool is_bytes(const Tensor& tensor, const Packing& packing) {
  return tensor.format == &packed_bytes() && !packing.method.empty();  // bitnet has bytes of its own
}
constexpr Kind kKinds[] = {
    {".qweight", is_int4, {".scales", ".qzeros", ".g_idx"}},
    {".weight", is_fp8, {".weight_scale_inv", ".weight_scale", ".input_scale"}},
    {".weight", is_bytes, {".weight_scale", ".weight_scale_2", ".input_scale"}},
    {".weight_packed", is_bytes, {".weight_scale", ".weight_global_scale", ".input_global_scale"}}};
constexpr const Kind &kInt4 = kKinds[0], &kFp8 = kKinds[1], &kNvfp4Divided = kKinds[3];

using TensorMap = std::map<std::string_view, const Tensor*, std::less<>>;

const Tensor* find(const TensorMap& by_name, std::string_view base, std::string_view part) {
  const auto found = by_name.find(std::string(base).append(part));
  return found == by_name.end() ? nullptr : found->second;
}

/// The matrix whose codes a tensor is; null where it is none.
const Kind* kind_of(const Tensor& tensor, const Packing& packing) {
  for (const Kind& kind : kKinds)
    if (tensor.name.ends_with(kind.codes) && kind.is_codes(tensor, packing)) return &kind;
  return nullptr;
}

PackedMatrix matrix_of(const TensorMap& by_name, const Tensor& codes, const Kind& kind) {
  PackedMatrix m{.name = std::string_view(codes.name).substr(0, codes.name.size() - kind.codes.size()),
                 .codes = &codes};
  for (const std::string_view scales : {".scales", ".weight_scale_inv", ".weight_scale"})
    if (const Tensor* const found = find(by_name, m.name, scales)) {
      m.scales = found;
      break;
    }
  m.qzeros = find(by_name, m.name, ".qzeros");
  m.g_idx = find(by_name, m.name, ".g_idx");
  m.divides = &kind == &kNvfp4Divided;
  m.global_scale = find(by_name, m.name, m.divides ? ".weight_global_scale" : ".weight_scale_2");
  return m;
}

/// A matrix with what it became.
struct Job {
  const Kind* kind;
  PackedMatrix from;
  int64_t stored_bytes = 0;
  Result<UnpackedMatrix> made = UnpackedMatrix();
};

/// "gptq: 14 matrices of 4.25 bits a weight, kept exactly as q5_0 of 5.5 bits".
std::string description(const Packing& packing, std::span<const Job> jobs) {
  struct Sum {
    int64_t n = 0, weights = 0, bytes = 0;
  };
  std::map<const WeightFormat*, Sum> by_format;
  for (const Job& job : jobs) {
    const UnpackedMatrix& made = *job.made;
    Sum& sum = by_format[made.format];
    sum.n += 1, sum.weights += made.n_out * made.n_in, sum.bytes += job.stored_bytes;
  }
  std::string text;
  for (const auto& [format, sum] : by_format)
    text += fmt::format("{}{} matri{} of {:.4g} bits a weight, kept exactly as {} of {:.4g} bits",
                        text.empty() ? packing.method + ": " : "; ", sum.n, sum.n == 1 ? "x" : "ces",
                        8.0 * double(sum.bytes) / double(sum.weights), format->name, format->bits_per_weight());
  return text;
}

}  // namespace

Result<Packing> read_packing(std::string_view config_json, std::string_view hf_quant_config_json,
                             std::string_view where) {
  RIDGE_TRY(const Json json, parse_json(config_json, where));
  RIDGE_TRY(const Json of_modelopt, parse_json(hf_quant_config_json.empty() ? "{}" : hf_quant_config_json, where));
  const Json* config = given(json, "quantization_config");
  const bool is_apart = !config;
  if (is_apart) config = given(of_modelopt, "quantization");
  if (!config) return Packing();
  if (!config->is_object()) return bad_file("{}: quantization_config is not an object", where);
  const std::string method = is_apart ? "modelopt" : text_of(*config, "quant_method", "");
  std::string names;
  for (const Method& known : kMethods) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
    if (known.name != method) continue;
    Packing packing;
    if (!known.read) return packing;
    packing.method = method;
    RIDGE_TRY_STATUS(known.read({*config, where}, packing));
    return packing;
  }
  return bad_file("{}: quantization_config.quant_method {} is not supported (there are: {})", where, in_quotes(method),
                  names);
}

Status check_part(std::string_view what, const Tensor* tensor, const WeightFormat& format,
                  const std::vector<int64_t>& shape) {
  if (!tensor) return bad_file("{} is missing", what);
  if (tensor->format != &format) return bad_file("{} is {}, expected {}", what, tensor->format->name, format.name);
  if (tensor->shape != shape)
    return bad_file("{} is [{}], expected [{}]", what, fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
  return {};
}

Result<std::vector<float>> finite_values(std::string_view what, const Tensor& tensor) {
  if (is_off_shelf(*tensor.format) || tensor.format->group != 1)
    return bad_file("{} is {}, expected a float format", what, tensor.format->name);
  std::vector<float> values(tensor.data.size() / size_t(tensor.format->block_bytes));
  tensor.format->decode(tensor.data.data(), ssize(values), values.data());
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i])) return bad_file("{} has {} at place {}", what, values[i], i);
  return values;
}

Result<std::string> unpack_tensors(const Packing& packing, std::vector<Tensor>& tensors,
                                   std::vector<AlignedBuffer>& buffers, std::string_view where) {
  TensorMap by_name;
  for (const Tensor& tensor : tensors) by_name[tensor.name] = &tensor;
  std::vector<Job> jobs;
  std::vector<PackedMatrix> int4;
  std::map<const Tensor*, size_t> job_of;  // of codes
  std::set<const Tensor*> parts;
  for (const Tensor& tensor : tensors) {
    const Kind* const kind = kind_of(tensor, packing);
    if (!kind) continue;
    Job& job = jobs.emplace_back(Job{kind, matrix_of(by_name, tensor, *kind), int64_t(tensor.data.size())});
    job_of[&tensor] = jobs.size() - 1;
    for (const std::string_view part : kind->parts)
      if (const Tensor* const found = part.empty() ? nullptr : find(by_name, job.from.name, part)) {
        parts.insert(found);
        job.stored_bytes += int64_t(found->data.size());
      }
    if (kind == &kInt4) int4.push_back(job.from);
  }
  if (jobs.empty()) return std::string();

  const WeightFormat& of_int4 = int4_format(packing, int4);
  ThreadPool pool(0);
  pool.for_each(ssize(jobs), [&](int64_t i, int) {
    Job& job = jobs[size_t(i)];
    job.made = job.kind == &kInt4  ? unpack_int4(packing, job.from, of_int4)
               : job.kind == &kFp8 ? unpack_fp8(packing, job.from)
                                   : unpack_nvfp4(job.from);
    release_pages(job.from.codes->data);
  });
  for (const Job& job : jobs)
    if (!job.made) return bad_file("{}: {}.{}", where, job.from.name, job.made.error().message);
  const std::string text = description(packing, jobs);

  std::vector<Tensor> all;
  for (Tensor& tensor : tensors) {
    if (parts.contains(&tensor)) continue;
    const auto found = job_of.find(&tensor);
    if (found == job_of.end()) {
      all.push_back(std::move(tensor));
      continue;
    }
    Job& job = jobs[found->second];
    UnpackedMatrix& made = *job.made;
    Tensor& to = all.emplace_back();
    to = {fmt::format("{}.weight", job.from.name), made.format, {made.n_out, made.n_in}, {}, made.scale};
    to.data = {buffers.emplace_back(std::move(made.rows)).data(),
               size_t(made.n_out * made.format->row_bytes(made.n_in))};
    if (made.order.empty()) continue;
    auto* const order = buffers.emplace_back(4 * made.n_in).as<int32_t>();
    std::ranges::copy(made.order, order);
    to.order = {order, made.order.size()};
  }
  tensors = std::move(all);
  return text;
}

}  // namespace ridge::io
