#include "lab/quality/matrix.h"

#include <algorithm>
#include <optional>

#include "format/list.h"

namespace ridge::lab {
namespace {

/// The finished row of a cell, nothing when the store has none. The last one counts.
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

double field(const Row& row, const char* name, const char* part) { return number_in(row[name], part); }

}  // namespace

std::vector<KvChoice> default_matrix(int head_dim) {
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
    if (name == "q8_0") continue;
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

std::vector<Row> run_matrix(const Model& model, const Corpus& corpus, const EvalOptions& options, int group,
                            std::span<const Row> stored, ResultsFile& store, const MatrixHooks& hooks) {
  RIDGE_CHECK(group > 0 && options.against_base && options.save_base.empty(), "groups of {}", group);
  const EvalResult plan = plan_evaluation(model, corpus, options);
  std::vector<std::optional<Row>> cells;
  std::vector<size_t> missing;
  for (const KvChoice& kv : options.candidates) {
    cells.push_back(find_cell(stored, identity(plan, kv)));
    if (!cells.back()) missing.push_back(cells.size() - 1);
  }
  if (hooks.on_start) hooks.on_start(int(cells.size() - missing.size()), int(missing.size()));

  const Row from = provenance(model.info().n_threads, 0);
  for (size_t begin = 0; begin < missing.size(); begin += size_t(group)) {
    const size_t end = std::min(missing.size(), begin + size_t(group));
    EvalOptions part = options;
    part.candidates.clear();
    for (size_t i = begin; i < end; ++i) part.candidates.push_back(options.candidates[missing[i]]);
    const EvalResult result = evaluate(model, corpus, part, hooks.eval);
    if (result.chunks_done == 0) break;
    for (size_t i = begin; i < end; ++i) {
      Row row = to_row(result, result.candidates[i - begin]);
      row.update(from);
      row["date"] = utc_now();
      store.add(row);
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

std::string matrix_table(std::span<const Row> rows) {
  std::string text = fmt::format(
      "| KV cache K/V | bits K / V | bits at 4k | bytes/token | mean KLD | ln PPL ratio | same top % | 99 % KLD | PPL "
      "| PPL - base (gate +{}) |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
      kPplGate);
  for (const Row& row : rows) {
    const double rise = field(row, "difference", "value");
    text += fmt::format(
        "| {} | {:.4g} / {:.4g} | {:.3f} | {} | {:.6f} ± {:.6f} | {:.5f} ± {:.5f} | {:.2f} ± {:.2f} | {:.5f} | {:.3f} "
        "| {:+.4f} ± {:.4f} {} |\n",
        row["kv"].get<std::string>(), row["kv_k"]["bits_per_value"].get<double>(),
        row["kv_v"]["bits_per_value"].get<double>(), row["effective_bits_4k"].get<double>(),
        row["bytes_per_token"].get<int64_t>(), row["kld"]["mean"]["value"].get<double>(),
        row["kld"]["mean"]["error"].get<double>(), field(row, "ln_ratio", "value"), field(row, "ln_ratio", "error"),
        100 * field(row, "same_top", "value"), 100 * field(row, "same_top", "error"),
        field(row["kld"], "percentiles", "99.0%"), field(row, "ppl", "value"), rise, field(row, "difference", "error"),
        rise <= kPplGate ? "pass" : "FAIL");
  }
  return text;
}

}  // namespace ridge::lab
