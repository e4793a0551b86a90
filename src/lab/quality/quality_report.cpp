#include "lab/quality/quality_report.h"

namespace ridge::lab {

Row to_row(const Estimate& estimate) { return {{"value", number(estimate.value)}, {"error", number(estimate.error)}}; }

Row to_row(const KvSideReport& side) {
  return {{"format", side.format},
          {"rotation", side.rotation},
          {"scale", side.scale},
          {"rounding", side.rounding},
          {"recent", side.recent},
          {"centre", side.centre},
          {"window", side.window},
          {"sinks", side.sinks},
          {"bits_per_value", number(side.bits_per_value)},
          {"bytes_per_token", side.bytes_per_token},
          {"fixed_bytes", side.fixed_bytes},
          {"allocated_bytes", side.allocated_bytes},
          {"saturated", side.saturated}};
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

std::string ppl_text(const EvalResult& result, const CandidateResult& candidate) {
  const Estimate ppl = candidate.scores.ppl.ppl();
  return fmt::format("Final estimate: PPL = {:.4f} +/- {:.5f}  (KV {}, {} tokens scored, {:.4f} bits per byte)\n",
                     ppl.value, ppl.error, kv_text(candidate.kv), candidate.scores.ppl.count(),
                     result.bits_per_byte(candidate));
}

std::string kld_text(const CandidateResult& candidate) {
  const PairReport r = candidate.scores.pair.report();
  const PairMeans& m = r.means;
  std::string text = "====== Perplexity statistics ======\n";
  const auto line = [&](std::string_view label, const Estimate& e) {
    text += fmt::format("{:<30}: {:10.6f} ± {:10.6f}\n", label, e.value, e.error);
  };
  line("Mean PPL(Q)", m.ppl);
  line("Mean PPL(base)", m.ppl_base);
  text += fmt::format("{:<30}: {:6.2f}%\n", "Cor(ln(PPL(Q)), ln(PPL(base)))", 100 * m.correlation);
  line("Mean ln(PPL(Q)/PPL(base))", m.ln_ratio);
  line("Mean PPL(Q)/PPL(base)", m.ratio);
  line("Mean PPL(Q)-PPL(base)", m.difference);

  text += "\n====== KL divergence statistics ======\n";
  text += fmt::format("{:<7} KLD: {:10.6f} ± {:10.6f}\n", "Mean", m.kld.value, m.kld.error);
  text += fmt::format("{:<7} KLD: {:10.6f}\n", "Maximum", r.kld_max);
  for (size_t i = 0; i < kKldQuantiles.size(); ++i)
    text += fmt::format("{:<7} KLD: {:10.6f}\n", kKldQuantiles[i].label, r.kld_quantiles[i]);
  text += fmt::format("{:<7} KLD: {:10.6f}\n", "Minimum", r.kld_min);

  text += "\n====== Token probability statistics ======\n";
  text += fmt::format("{:<7} Δp: {:6.3f} ± {:5.3f} %\n", "Mean", 100 * m.delta_p.value, 100 * m.delta_p.error);
  text += fmt::format("{:<7} Δp: {:6.3f}%\n", "Maximum", 100 * r.delta_p_max);
  for (size_t i = 0; i < kDeltaPQuantiles.size(); ++i)
    text += fmt::format("{:<7} Δp: {:6.3f}%\n", kDeltaPQuantiles[i].label, 100 * r.delta_p_quantiles[i]);
  text += fmt::format("{:<7} Δp: {:6.3f}%\n", "Minimum", 100 * r.delta_p_min);
  text += fmt::format("RMS Δp    : {:6.3f} ± {:5.3f} %\n", 100 * m.delta_p_rms.value, 100 * m.delta_p_rms.error);
  text += fmt::format("Same top p: {:6.3f} ± {:5.3f} %\n", 100 * m.same_top.value, 100 * m.same_top.error);
  return text;
}

std::string curve_text(const EvalResult& result) {
  const int n_ctx = result.windows.n_ctx;
  std::string text = fmt::format("{:<14}", "mean KLD at");
  for (const CandidateResult& c : result.candidates) text += fmt::format(" {:>22}", kv_text(c.kv));
  text += '\n';
  for (int part = 0; part < kCurveParts; ++part) {
    const auto count = [&](const CandidateResult& c) { return c.scores.curve[size_t(part)].count(); };
    if (result.candidates.empty() || count(result.candidates[0]) == 0) continue;
    text += fmt::format("{:<14}", fmt::format("{} to {}", curve_begin(part, n_ctx), curve_begin(part + 1, n_ctx) - 1));
    for (const CandidateResult& c : result.candidates) {
      const Estimate kld = c.scores.curve[size_t(part)].mean();
      text += fmt::format(" {:>22}", fmt::format("{:.6f} ± {:.6f}", kld.value, kld.error));
    }
    text += '\n';
  }
  return text;
}

std::string markdown_table(const EvalResult& result) {
  const bool pairs = result.options.against_base;
  std::string text = fmt::format("| KV format | rotation | bits K/V | bytes/token | MiB at 32k | PPL | {}bits/byte |\n",
                                 pairs ? "ln(PPL(Q)/PPL(base)) | mean KLD | same top p | " : "");
  text += fmt::format("|---|---|---:|---:|---:|---:|{}---:|\n", pairs ? "---:|---:|---:|" : "");
  for (const CandidateResult& c : result.candidates) {
    const Estimate ppl = pairs ? c.scores.pair.means().ppl : c.scores.ppl.ppl();
    text += fmt::format(
        "| {} | {} | {} | {} | {:.1f} | {:.4f} ± {:.4f} |", kv_text(c.kv), both(c.cache.k.rotation, c.cache.v.rotation),
        both(fmt::format("{:.4g}", c.cache.k.bits_per_value), fmt::format("{:.4g}", c.cache.v.bits_per_value)),
        c.cache.bytes_per_token(), c.mib_at(kTableContext), ppl.value, ppl.error);
    if (pairs) {
      const PairMeans m = c.scores.pair.means();
      text += fmt::format(" {:.5f} ± {:.5f} | {:.6f} ± {:.6f} | {:.2f} ± {:.2f} % |", m.ln_ratio.value,
                          m.ln_ratio.error, m.kld.value, m.kld.error, 100 * m.same_top.value, 100 * m.same_top.error);
    }
    text += fmt::format(" {:.4f} |\n", result.bits_per_byte(c));
  }
  return text;
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
  row["kv_k"] = to_row(candidate.cache.k);
  row["kv_v"] = to_row(candidate.cache.v);
  if (candidate.cache.layers_differ())
    for (const KvLayersReport& group : candidate.cache.layers)
      row["kv_layers"].push_back(
          {{"first", group.first}, {"last", group.last}, {"k", to_row(group.k)}, {"v", to_row(group.v)}});
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
