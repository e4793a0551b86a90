#include "lab/quality/eval_rows.h"

#include <algorithm>
#include <optional>

#include "format/list.h"

namespace ridge::lab {
namespace {

/// The finished row of a cell, nothing where there is none. The last one counts.
std::optional<Row> find_cell(std::span<const Row> stored, const Row& cell) {
  for (size_t i = stored.size(); i-- > 0;) {
    const Row& row = stored[i];
    const auto same = [&](const auto& field) { return row.contains(field.key()) && row[field.key()] == field.value(); };
    const auto fields = cell.items();
    if (std::all_of(fields.begin(), fields.end(), same) && row.contains("chunks") &&
        row["chunks"] == cell["chunks_planned"])
      return row;
  }
  return std::nullopt;
}

}  // namespace

std::vector<KvChoice> shelf_caches(int head_dim) {
  std::string list = "f16";
  const auto add = [&](const std::string& item) { list += "," + item; };
  const auto fits = [&](const KvFormat& format) { return head_dim % format.group == 0; };
  const auto exact = [&](const KvFormat& format) { return format.bits_per_value(head_dim) >= 16; };
  for (const KvFormat& format : kv_formats()) {
    if (!fits(format) || format.name == "f16") continue;
    const std::string name(format.name);
    add(name);
    if (exact(format)) continue;
    add(name + "/f16");
    add("f16/" + name);
    if (name == "q8_0" || !fits(**find_kv_format("q8_0"))) continue;
    add(name + "/q8_0");
    add("q8_0/" + name);
  }
  for (const KvFormat& format : kv_formats())
    for (const KvScale scale : format.scales)
      if (fits(format) && scale != format.policy.scale) add(fmt::format("{}:scale={}", format.name, scale_name(scale)));
  const auto rotor = find_kv_format("rotor-3");
  if (!rotor || !fits(**rotor)) return parse_kv_list(list).or_throw();
  for (const char* part : {":planar", ":none", ":centre=off", ":centre=on", ":window=0", ":window=32", ":window=256",
                           ":sinks=0", ":window=0:sinks=0", ":recent=f16", ":rounding=nearest"})
    add(std::string("rotor-3") + part);
  // The seed's coding: nothing but rotation, codes and a norm.
  for (const char* rotation : {"hadamard", "planar", "none"})
    add(fmt::format("rotor-3:{}:window=0:sinks=0:centre=off:scale=norm:rounding=nearest", rotation));
  return parse_kv_list(list).or_throw();
}

std::vector<KvChoice> each_layer(const KvChoice& kv, int n_layers) {
  std::vector<KvChoice> choices(static_cast<size_t>(n_layers));
  for (int i = 0; i < n_layers; ++i) choices[size_t(i)].layers.push_back({.first = i, .last = i, .k = kv.k, .v = kv.v});
  return choices;
}

std::vector<Row> evaluate_rows(const Model& model, const Corpus& corpus, const EvalOptions& options,
                               std::span<const Row> stored, ResultsFile& file, const EvalRowHooks& hooks) {
  const auto group = size_t(options.group);
  RIDGE_CHECK(group > 0 && (options.save_base.empty() || options.candidates.size() <= group), "groups of {}", group);
  const EvalResult plan = plan_evaluation(model, corpus, options);
  std::vector<std::optional<Row>> cells;
  std::vector<size_t> missing;
  for (const KvChoice& kv : options.candidates) {
    cells.push_back(find_cell(stored, identity(plan, kv)));
    if (!cells.back()) missing.push_back(cells.size() - 1);
  }
  if (hooks.on_start) hooks.on_start(int(cells.size() - missing.size()), int(missing.size()));

  const Row from = provenance(model.info().n_threads, 0);
  for (size_t begin = 0; begin < missing.size(); begin += group) {
    const size_t end = std::min(missing.size(), begin + group);
    EvalOptions part = options;
    part.candidates.clear();
    for (size_t i = begin; i < end; ++i) part.candidates.push_back(options.candidates[missing[i]]);
    const EvalResult result = evaluate(model, corpus, part, hooks.eval);
    if (result.chunks_done == 0) break;
    for (size_t i = begin; i < end; ++i) {
      Row row = to_row(result, result.candidates[i - begin]);
      row.update(from);
      row["date"] = utc_now();
      file.add(row);
      cells[missing[i]] = std::move(row);
    }
    if (hooks.on_group) hooks.on_group(result, int(missing.size() - end));
    if (!result.complete()) break;
  }
  std::vector<Row> rows;
  for (std::optional<Row>& cell : cells)
    if (cell) rows.push_back(std::move(*cell));
  return rows;
}

}  // namespace ridge::lab
