#include "lab/sweep/sweep_spec.h"

#include <algorithm>
#include <set>

#include "io/json.h"
#include "io/mapped_file.h"
#include "lab/rows/int_list.h"
#include "lab/rows/results.h"
#include "lab/sweep/compare.h"

namespace ridge::lab {
namespace {

using io::Json;

constexpr size_t kMaxCells = 10000;
constexpr int kMaxDepth = 1 << 24, kMaxBatch = 65535, kMaxGen = 1 << 16;
constexpr int64_t kMaxSpecBytes = 1 << 20;

/// The fields of a JSON object, each asked for by name; a failure names the file and the field.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  Failure failure(std::string_view field, std::string_view why) const {
    return bad_file("{}: field '{}': {}", where_, field, why);
  }
  Status known_only(std::initializer_list<std::string_view> names) const {
    for (const auto& item : object_.items())
      if (std::find(names.begin(), names.end(), item.key()) == names.end())
        return failure(item.key(), fmt::format("unknown (there are: {})", fmt::join(names, ", ")));
    return {};
  }
  bool has(std::string_view field) const { return object_.contains(field); }

  Result<int> whole(std::string_view field, int standard, int min, int max) const {
    if (!has(field)) return standard;
    const Json& value = object_.at(std::string(field));
    if (!value.is_number_integer() || value < min || value > max)
      return failure(field, fmt::format("expects a whole number from {} to {}", min, max));
    return value.get<int>();
  }
  Result<double> real(std::string_view field, double standard, double min, double max) const {
    if (!has(field)) return standard;
    const Json& value = object_.at(std::string(field));
    if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() <= max))
      return failure(field, fmt::format("expects a number from {} to {}", min, max));
    return value.get<double>();
  }
  /// A list as flags write it, from a text or from an array of texts and numbers.
  Result<std::string> list(std::string_view field, std::string_view standard) const {
    if (!has(field)) {
      if (standard.empty()) return failure(field, "is missing");
      return std::string(standard);
    }
    const Json& value = object_.at(std::string(field));
    if (value.is_string()) return value.get<std::string>();
    std::string text;
    if (!value.is_array() || value.empty()) return failure(field, "expects a list");
    for (const Json& item : value) {
      if (!item.is_string() && !item.is_number_integer()) return failure(field, "expects texts or whole numbers");
      if (!text.empty()) text += ',';
      text += item.is_string() ? item.get<std::string>() : item.dump();
    }
    return text;
  }
  Result<std::vector<int>> numbers(std::string_view field, std::string_view standard, int min, int max) const {
    RIDGE_TRY(const std::string text, list(field, standard));
    auto values = parse_int_list(field, text, min, max);
    if (!values) return failure(field, values.error().message);
    return values;
  }
  Result<std::vector<OpShape>> shapes(std::string_view field, char separator) const {
    RIDGE_TRY(const std::string text, list(field, ""));
    auto values = parse_op_shapes(field, text, separator);
    if (!values) return failure(field, values.error().message);
    return values;
  }
  Result<std::vector<std::string>> texts(std::string_view field, std::string_view standard) const {
    RIDGE_TRY(const std::string text, list(field, standard));
    for (const std::string& item : split(text, ','))
      if (item.empty()) return failure(field, "has an empty item");
    return split(text, ',');
  }

 private:
  const Json& object_;
  std::string where_;
};

Result<std::vector<std::string>> kv_formats_of(const Fields& grid) {
  RIDGE_TRY(const std::vector<std::string> texts, grid.texts("kv", ""));
  for (const std::string& text : texts)
    if (const auto choice = parse_kv_choice(text); !choice) return grid.failure("kv", choice.error().message);
  return texts;
}
Result<std::vector<std::string>> weight_formats_of(const Fields& grid) {
  RIDGE_TRY(const std::vector<std::string> texts, grid.texts("weights", ""));
  for (const std::string& text : texts)
    if (const auto format = find_weight_format(text); !format) return grid.failure("weights", format.error().message);
  return texts;
}

/// Adds `cell` in each format by each kernel.
void add_formats(const SweepCell& cell, const std::vector<std::string>& formats,
                 const std::vector<std::string>& kernels, std::vector<SweepCell>& cells) {
  for (const std::string& format : formats)
    for (const std::string& kernel : kernels) {
      cells.push_back(cell);
      cells.back().format = format;
      cells.back().kernel = kernel;
    }
}

Status add_gemv(const Fields& grid, std::vector<SweepCell>& cells) {
  RIDGE_TRY_STATUS(grid.known_only({"bench", "shapes", "batch", "weights", "kernels"}));
  RIDGE_TRY(const auto shapes, grid.shapes("shapes", 'x'));
  RIDGE_TRY(const auto batch, grid.numbers("batch", "1", 1, kMaxBatch));
  RIDGE_TRY(const auto formats, weight_formats_of(grid));
  RIDGE_TRY(const auto kernels, grid.texts("kernels", "best"));
  for (const OpShape shape : shapes)
    for (const int b : batch) add_formats({.bench = "gemv", .shape = shape, .batch = b}, formats, kernels, cells);
  return {};
}

Status add_cache_op(const Fields& grid, const std::string& bench, std::vector<SweepCell>& cells) {
  const bool append = bench == "append";
  if (append)
    RIDGE_TRY_STATUS(grid.known_only({"bench", "heads", "head_dim", "batch", "depth", "new", "kv", "kernels"}));
  else RIDGE_TRY_STATUS(grid.known_only({"bench", "heads", "head_dim", "batch", "depth", "kv", "kernels"}));
  RIDGE_TRY(const auto heads, grid.shapes("heads", '/'));
  RIDGE_TRY(const int head_dim, grid.whole("head_dim", 128, 1, 256));
  RIDGE_TRY(const auto batch, grid.numbers("batch", "1", 1, kMaxBatch));
  RIDGE_TRY(const auto depths, grid.numbers("depth", append ? "8192" : "", 1, kMaxDepth));
  RIDGE_TRY(const auto n_new, grid.numbers("new", "1", 1, kMaxBatch));
  RIDGE_TRY(const auto formats, kv_formats_of(grid));
  RIDGE_TRY(const auto kernels, grid.texts("kernels", "best"));
  for (const OpShape shape : heads)
    for (const int b : batch)
      for (const int depth : depths)
        for (const int n : n_new)
          add_formats({.bench = bench,
                       .shape = shape,
                       .head_dim = head_dim,
                       .batch = b,
                       .depth = depth,
                       .n_new = append ? n : 0},
                      formats, kernels, cells);
  return {};
}

Status add_decode(const Fields& grid, std::vector<SweepCell>& cells) {
  RIDGE_TRY_STATUS(grid.known_only({"bench", "models", "depth", "n_gen", "kv"}));
  RIDGE_TRY(const auto models, grid.texts("models", ""));
  RIDGE_TRY(const auto depths, grid.numbers("depth", "0", 0, kMaxDepth));
  RIDGE_TRY(const int n_gen, grid.whole("n_gen", 32, 1, kMaxGen));
  RIDGE_TRY(const auto formats, kv_formats_of(grid));
  for (const std::string& model : models)
    for (const int depth : depths)
      add_formats({.bench = "decode", .model = model, .depth = depth, .n_gen = n_gen}, formats, {"best"}, cells);
  return {};
}

Status add_grid(const Json& object, const std::string& where, std::vector<SweepCell>& cells) {
  if (!object.is_object()) return bad_file("{}: not an object", where);
  const Fields grid(object, where);
  const std::string bench = object.contains("bench") && object["bench"].is_string() ? object["bench"] : Json("");
  if (bench == "gemv") return add_gemv(grid, cells);
  if (bench == "attention" || bench == "append") return add_cache_op(grid, bench, cells);
  if (bench == "decode") return add_decode(grid, cells);
  return grid.failure("bench", "expects gemv, attention, append or decode");
}

/// Cells of a comparison together, in the order of the first; twins left out; the first of several again at the end.
std::vector<SweepCell> arranged(const std::vector<SweepCell>& cells) {
  std::vector<std::vector<SweepCell>> groups;
  std::map<std::string, size_t> place;
  std::set<std::string> seen;
  for (const SweepCell& cell : cells) {
    if (!seen.insert(cell_key(cell.fields())).second) continue;
    const auto [found, is_new] = place.emplace(cell.comparison(), groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(cell);
  }
  std::vector<SweepCell> list;
  for (std::vector<SweepCell>& group : groups) {
    if (group.size() > 1) {
      group.push_back(group.front());
      group.back().control = true;
    }
    list.insert(list.end(), group.begin(), group.end());
  }
  return list;
}

}  // namespace

Row SweepCell::fields() const {
  Row f{{"bench", bench}};
  if (bench == "gemv") {
    f["n_out"] = shape.first;
    f["n_in"] = shape.second;
  } else if (is_decode()) {
    f["model"] = model;
  } else {
    f["n_heads"] = shape.first;
    f["n_kv_heads"] = shape.second;
    f["head_dim"] = head_dim;
  }
  f["batch"] = batch;
  if (bench != "gemv") f["depth"] = depth;
  if (bench == "append") f["n_new"] = n_new;
  if (is_decode()) f["n_gen"] = n_gen;
  f["format"] = format;
  f["kernel"] = kernel;
  if (control) f["control"] = true;
  return f;
}

std::string SweepCell::comparison() const {
  Row f = fields();
  for (const char* name : {"format", "kernel", "control"}) f.erase(name);
  return cell_key(f);
}

std::string SweepCell::text() const {
  std::string text = bench;
  if (bench == "gemv") text += fmt::format(" {}x{}, batch {}", shape.first, shape.second, batch);
  else if (is_decode()) text += fmt::format(" of {}, depth {}", model, depth);
  else text += fmt::format(" {}/{}/{}, batch {}, depth {}", shape.first, shape.second, head_dim, batch, depth);
  text += fmt::format(", {}", format);
  if (kernel != "best") text += fmt::format(" by {}", kernel);
  return control ? text + ", again" : text;
}

Result<SweepSpec> parse_sweep_spec(std::string_view text, std::string_view where) {
  RIDGE_TRY(const Json json, io::parse_json(text, where));
  if (!json.is_object()) return bad_file("{}: not a JSON object", where);
  const Fields fields(json, std::string(where));
  RIDGE_TRY_STATUS(fields.known_only({"samples", "repeats", "max_seconds", "roof_mib", "seed", "grids"}));
  SweepSpec spec;
  spec.name = where;
  RIDGE_TRY(spec.samples, fields.whole("samples", spec.samples, kFewestSamples, 100000));
  RIDGE_TRY(spec.repeats, fields.whole("repeats", spec.repeats, kFewestSamples, 100000));
  RIDGE_TRY(spec.max_seconds, fields.real("max_seconds", spec.max_seconds, 0.01, 3600));
  RIDGE_TRY(spec.roof_mib, fields.whole("roof_mib", 0, 0, 1 << 20));
  RIDGE_TRY(const int seed, fields.whole("seed", 42, 0, INT32_MAX));
  spec.seed = uint64_t(seed);
  if (!json.contains("grids") || !json["grids"].is_array() || json["grids"].empty())
    return fields.failure("grids", "expects a list of grids");
  std::vector<SweepCell> cells;
  for (size_t i = 0; i < json["grids"].size(); ++i) {
    RIDGE_TRY_STATUS(add_grid(json["grids"][i], fmt::format("{}: grid {}", where, i + 1), cells));
    if (cells.size() > kMaxCells)
      return fields.failure("grids", fmt::format("more than {} cells (split the sweep)", kMaxCells));
  }
  spec.cells = arranged(cells);
  for (const SweepCell& cell : spec.cells) {
    if (cell.is_decode()) continue;
    try {
      op_problem(spec, cell);
    } catch (const Error& error) {
      return bad_file("{}: {}: {}", where, cell.text(), error.what());
    }
  }
  return spec;
}

Result<SweepSpec> find_sweep_spec(const std::string& name_or_path) {
  std::string names;
  for (const ShippedSpec& shipped : shipped_specs()) {
    if (shipped.name == name_or_path) return parse_sweep_spec(shipped.json, shipped.name);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", shipped.name);
  }
  std::error_code error;
  if (!std::filesystem::exists(name_or_path, error))
    return fail(ErrorKind::usage, "SPEC: '{}' is neither a file nor a sweep that ships (there are: {})", name_or_path,
                names);
  RIDGE_TRY(const std::string text, io::read_text_file(name_or_path, kMaxSpecBytes));
  return parse_sweep_spec(text, name_or_path);
}

OpBenchParams op_params(const SweepSpec& spec, const SweepCell& cell) {
  OpBenchParams params;
  params.op = cell.bench == "gemv" ? Op::gemv : cell.bench == "append" ? Op::append : Op::attention;
  params.batch = {cell.batch};
  if (params.op == Op::gemv) {
    params.shapes = {cell.shape};
    params.weights = {find_weight_format(cell.format).or_throw()};
  } else {
    params.heads = {cell.shape};
    params.head_dim = cell.head_dim;
    params.seq = {cell.depth};
    if (params.op == Op::append) params.n_new = {cell.n_new};
    params.kv = {parse_kv_choice(cell.format).or_throw()};
  }
  if (cell.kernel != "best") params.kernels = {cell.kernel};
  params.replays = spec.samples;
  params.max_seconds = spec.max_seconds;
  params.roof_bytes = int64_t(spec.roof_mib) << 20;
  params.seed = spec.seed;
  return params;
}

OpProblem op_problem(const SweepSpec& spec, const SweepCell& cell) {
  std::vector<OpProblem> problems = op_problems(op_params(spec, cell));
  RIDGE_CHECK(problems.size() == 1, "{}: {} problems", cell.text(), problems.size());
  return std::move(problems[0]);
}

}  // namespace ridge::lab
