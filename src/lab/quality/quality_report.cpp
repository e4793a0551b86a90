#include "lab/quality/quality_report.h"

#include "lab/rows/columns.h"

namespace ridge::lab {

Row to_row(const Estimate& estimate) { return {{"value", number(estimate.value)}, {"error", number(estimate.error)}}; }

Columns<KvSideReport> kv_side_columns() {
  return {
      {"format", "-", "of coded rows", &KvSideReport::format},
      {"rotation", "-", "of coded rows", &KvSideReport::rotation},
      {"scale", "-", "rule of the scales", &KvSideReport::scale},
      {"rounding", "-", "of codes", &KvSideReport::rounding},
      {"recent", "-", "format of the window", &KvSideReport::recent},
      {"centre", "-", "means are subtracted", &KvSideReport::centre},
      {"window", "tokens", "newest ones, in that format", &KvSideReport::window},
      {"sinks", "tokens", "first ones, in f16", &KvSideReport::sinks},
      {"bits_per_value", "bits", "of a coded row, scales included", &KvSideReport::bits_per_value},
      {"bytes_per_token", "bytes", "of one more token", &KvSideReport::bytes_per_token},
      {"fixed_bytes", "bytes", "whatever the context", &KvSideReport::fixed_bytes},
      {"allocated_bytes", "bytes", "at the whole context", &KvSideReport::allocated_bytes},
      {"saturated", "values", "clamped while coding", &KvSideReport::saturated},
  };
}

namespace {

constexpr int kTableContext = 32768;  // where the table states the cache's size

std::string both(std::string_view k, std::string_view v) {
  return k == v ? std::string(k) : fmt::format("{}/{}", k, v);
}

std::string pair_line(const PairMeans& m) {
  return fmt::format("{:10.4f} ± {:8.4f} {:11.5f} ± {:9.5f} {:11.5f} ± {:9.5f} {:7.3f} ± {:6.3f} % {:7.3f} ± {:6.3f} %",
                     m.ppl.value, m.ppl.error, m.ln_ratio.value, m.ln_ratio.error, m.kld.value, m.kld.error,
                     100 * m.delta_p_rms.value, 100 * m.delta_p_rms.error, 100 * m.same_top.value,
                     100 * m.same_top.error);
}

template <size_t n>
Row quantile_row(const std::array<Quantile, n>& labels, const std::array<double, n>& values) {
  Row row;
  for (size_t i = 0; i < n; ++i) row[std::string(labels[i].label)] = number(values[i]);
  return row;
}

Row pair_row(const PairReport& r) {
  Row row;
  row["ppl"] = to_row(r.means.ppl);
  row["ppl_base"] = to_row(r.means.ppl_base);
  row["correlation"] = number(r.means.correlation);
  row["ln_ratio"] = to_row(r.means.ln_ratio);
  row["ratio"] = to_row(r.means.ratio);
  row["difference"] = to_row(r.means.difference);
  row["kld"] = {{"mean", to_row(r.means.kld)},
                {"maximum", number(r.kld_max)},
                {"percentiles", quantile_row(kKldQuantiles, r.kld_quantiles)},
                {"minimum", number(r.kld_min)}};
  row["delta_p"] = {{"mean", to_row(r.means.delta_p)},
                    {"maximum", number(r.delta_p_max)},
                    {"percentiles", quantile_row(kDeltaPQuantiles, r.delta_p_quantiles)},
                    {"minimum", number(r.delta_p_min)},
                    {"rms", to_row(r.means.delta_p_rms)}};
  row["same_top"] = to_row(r.means.same_top);
  return row;
}

/// Parts of the window that were looked at: positions [from, to), tokens, divergence.
Row curve_row(const Scores& scores, int n_ctx) {
  Row parts = Row::array();
  for (int part = 0; part < kCurveParts; ++part) {
    const MeanStat& stat = scores.curve[size_t(part)];
    if (stat.count() == 0) continue;
    parts.push_back({{"from", curve_begin(part, n_ctx)},
                     {"to", curve_begin(part + 1, n_ctx)},
                     {"count", stat.count()},
                     {"kld", to_row(stat.mean())}});
  }
  return parts;
}

}  // namespace

std::string chunk_heading(const EvalResult& result) {
  if (!result.options.against_base) return "";
  return fmt::format("{:>5}  {:<24}{:^21} {:^23} {:^23} {:^18} {:^18}", "chunk", "KV", "PPL", "ln(PPL(Q)/PPL(base))",
                     "KL divergence", "Δp RMS", "Same top p");
}

std::string chunk_text(const EvalResult& so_far) {
  std::string text;
  if (so_far.options.against_base) {
    for (const CandidateResult& candidate : so_far.candidates)
      text += fmt::format("{}{:5}  {:<24}{}", text.empty() ? "" : "\n", so_far.chunks_done, kv_text(candidate.kv),
                          pair_line(candidate.scores.pair.means()));
    return text;
  }
  if (so_far.candidates.size() == 1)
    return fmt::format("[{}]{:.4f},", so_far.chunks_done, so_far.candidates[0].scores.ppl.ppl().value);
  text = fmt::format("[{}]", so_far.chunks_done);
  for (const CandidateResult& candidate : so_far.candidates)
    text += fmt::format(" {} {:.4f},", kv_text(candidate.kv), candidate.scores.ppl.ppl().value);
  return text;
}

std::string ppl_text(const Row& row) {
  return fmt::format("Final estimate: PPL = {:.4f} +/- {:.5f}  (KV {}, {} tokens scored, {:.4f} bits per byte)\n",
                     number_in(row["ppl"], "value"), number_in(row["ppl"], "error"), text_in(row, "kv"),
                     row["tokens_scored"].get<int64_t>(), number_in(row, "bits_per_byte"));
}

std::string kld_text(const Row& row) {
  std::string text = "====== Perplexity statistics ======\n";
  const auto line = [&](std::string_view label, const char* name) {
    text += fmt::format("{:<30}: {:10.6f} ± {:10.6f}\n", label, number_in(row[name], "value"),
                        number_in(row[name], "error"));
  };
  line("Mean PPL(Q)", "ppl");
  line("Mean PPL(base)", "ppl_base");
  text += fmt::format("{:<30}: {:6.2f}%\n", "Cor(ln(PPL(Q)), ln(PPL(base)))", 100 * number_in(row, "correlation"));
  line("Mean ln(PPL(Q)/PPL(base))", "ln_ratio");
  line("Mean PPL(Q)/PPL(base)", "ratio");
  line("Mean PPL(Q)-PPL(base)", "difference");

  const Row &kld = row["kld"], &delta_p = row["delta_p"];
  text += "\n====== KL divergence statistics ======\n";
  const auto kld_line = [&](std::string_view label, double value) {
    text += fmt::format("{:<7} KLD: {:10.6f}\n", label, value);
  };
  text += fmt::format("{:<7} KLD: {:10.6f} ± {:10.6f}\n", "Mean", number_in(kld["mean"], "value"),
                      number_in(kld["mean"], "error"));
  kld_line("Maximum", number_in(kld, "maximum"));
  for (const auto& [label, value] : kld["percentiles"].items()) kld_line(label, value.get<double>());
  kld_line("Minimum", number_in(kld, "minimum"));

  text += "\n====== Token probability statistics ======\n";
  const auto delta_line = [&](std::string_view label, double value) {
    text += fmt::format("{:<7} Δp: {:6.3f}%\n", label, 100 * value);
  };
  const auto estimate = [](const Row& of) {
    return fmt::format("{:6.3f} ± {:5.3f} %\n", 100 * number_in(of, "value"), 100 * number_in(of, "error"));
  };
  text += fmt::format("{:<7} Δp: {}", "Mean", estimate(delta_p["mean"]));
  delta_line("Maximum", number_in(delta_p, "maximum"));
  for (const auto& [label, value] : delta_p["percentiles"].items()) delta_line(label, value.get<double>());
  delta_line("Minimum", number_in(delta_p, "minimum"));
  text += "RMS Δp    : " + estimate(delta_p["rms"]);
  text += "Same top p: " + estimate(row["same_top"]);
  return text;
}

std::string curve_text(std::span<const Row> rows) {
  std::string text = fmt::format("{:<14}", "mean KLD at");
  for (const Row& row : rows) text += fmt::format(" {:>22}", text_in(row, "kv"));
  text += '\n';
  for (size_t i = 0; !rows.empty() && i < rows[0]["kld_by_position"].size(); ++i) {
    const Row& first = rows[0]["kld_by_position"][i];
    text += fmt::format("{:<14}", fmt::format("{} to {}", first["from"].get<int>(), first["to"].get<int>() - 1));
    for (const Row& row : rows) {
      const Row& kld = row["kld_by_position"][i]["kld"];
      text += fmt::format(" {:>22}", fmt::format("{:.6f} ± {:.6f}", number_in(kld, "value"), number_in(kld, "error")));
    }
    text += '\n';
  }
  return text;
}

namespace {

Estimate estimate_in(const Row& row) { return {number_in(row, "value"), number_in(row, "error")}; }

std::string plus_minus(const Row& estimate, int digits, double factor = 1, std::string_view unit = "") {
  return fmt::format("{:.{}f} ± {:.{}f}{}", factor * number_in(estimate, "value"), digits,
                     factor * number_in(estimate, "error"), digits, unit);
}
Row both_sides(const Row& row, const char* field) {
  const Row &k = row["kv_k"][field], &v = row["kv_v"][field];
  return both(cell_text(k, "{:.4g}"), cell_text(v, "{:.4g}"));
}

Columns<Row> cache_columns() {
  return {
      {"", "-", "of the cache", [](auto& r) { return r["kv"]; }, "KV format"},
      {"", "-", "of K and V", [](auto& r) { return both_sides(r, "rotation"); }, "rotation"},
      {"", "bits", "of a value", [](auto& r) { return both_sides(r, "bits_per_value"); }, ">bits K/V"},
      {"", "bits", "of a value at 4096 tokens", [](auto& r) { return r["effective_bits_4k"]; }, ">bits at 4k",
       "{:.3f}"},
      {"", "bytes", "of a token", [](auto& r) { return r["bytes_per_token"]; }, ">bytes/token"},
      {"", "MiB", "at 32768 tokens", [](auto& r) { return r["mib_at_32k"]; }, ">MiB at 32k", "{:.1f}"},
      {"", "-", "perplexity", [](auto& r) { return plus_minus(r["ppl"], 4); }, ">PPL"},
      {"", "bits", "of a byte of text", [](auto& r) { return r["bits_per_byte"]; }, ">bits/byte", "{:.4f}"},
  };
}
Columns<Row> pair_columns() {
  return {
      {"", "-", "against the base", [](auto& r) { return plus_minus(r["ln_ratio"], 5); }, ">ln(PPL(Q)/PPL(base))"},
      {"", "nats", "against the base", [](auto& r) { return plus_minus(r["kld"]["mean"], 6); }, ">mean KLD"},
      {"", "nats", "of 99 % of tokens", [](auto& r) { return r["kld"]["percentiles"]["99.0%"]; }, ">99 % KLD",
       "{:.5f}"},
      {"", "%", "likeliest token unchanged", [](auto& r) { return plus_minus(r["same_top"], 2, 100, " %"); },
       ">same top p"},
      {"", "-", "rise of perplexity, and whether the limits are kept",
       [](auto& r) {
         const Estimate rise = estimate_in(r["difference"]), kld = estimate_in(r["kld"]["mean"]);
         return fmt::format("{:+.4f} ± {:.4f} {}", rise.value, rise.error, kept_name(keeps({}, rise, kld)));
       },
       ">PPL - base (limits: +0.25, KLD 0.02)"},
  };
}

}  // namespace

std::string eval_table(std::span<const Row> rows) {
  if (rows.empty()) return "";
  return (rows[0].contains("kld") ? cache_columns().with(pair_columns()) : cache_columns()).table(rows);
}

Row identity(const EvalResult& result, const KvChoice& kv) {
  Row row = result.subject;
  row["path"] = eval_path_name(result.options.path);
  row["n_ctx"] = result.windows.n_ctx;
  row["chunks_planned"] = result.windows.n_chunks;
  row["bos_rule"] = result.windows.bos ? "first token of each chunk is BOS" : "none";
  row["first_scored"] = result.windows.first_scored();
  row["kv"] = kv_text(kv);
  if (result.options.against_base) row["base"] = result.base_name();
  return row;
}

Row to_row(const EvalResult& result, const CandidateResult& candidate) {
  Row row = identity(result, candidate.kv);
  row["chunks"] = result.chunks_done;
  row["isa"] = result.model.isa;
  row["kv_k"] = kv_side_columns().fields(candidate.cache.k);
  row["kv_v"] = kv_side_columns().fields(candidate.cache.v);
  if (candidate.cache.layers_differ())
    for (const auto& [first, last, k, v] : candidate.cache.layers)
      row["kv_layers"].push_back(
          {{"first", first}, {"last", last}, {"k", kv_side_columns().fields(k)}, {"v", kv_side_columns().fields(v)}});
  row["bytes_per_token"] = candidate.cache.bytes_per_token();
  row["mib_at_32k"] = number(candidate.mib_at(kTableContext));
  row["effective_bits_4k"] = number(result.effective_bits_4k(candidate));
  row["bits_per_byte"] = number(result.bits_per_byte(candidate));
  row["seconds"] = number(result.seconds);
  if (result.options.against_base) {
    row["tokens_scored"] = candidate.scores.pair.count();
    row.update(pair_row(candidate.scores.pair.report()));
    row["kld_by_position"] = curve_row(candidate.scores, result.windows.n_ctx);
  } else {
    row["tokens_scored"] = candidate.scores.ppl.count();
    row["ppl"] = to_row(candidate.scores.ppl.ppl());
  }
  return row;
}

}  // namespace ridge::lab
