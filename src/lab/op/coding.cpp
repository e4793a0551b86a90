#include "lab/op/coding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lab/op/op_data.h"
#include "op/cache/rotation.h"

namespace ridge::lab {
namespace {

/// Median of the row that has this shape and cache; NaN without one.
double median_us(std::span<const OpRow> rows, const OpProblem& of, std::string_view cache) {
  const auto found = std::ranges::find_if(rows, [&](const OpRow& row) {
    const OpProblem& p = row.problem;
    return p.n_kv_heads == of.n_kv_heads && p.n_seq == of.n_seq && p.n_keys == of.n_keys &&
           (p.op == Op::append || (p.n_heads == of.n_heads && p.n_new == of.n_new)) && p.format_text() == cache;
  });
  return found == rows.end() || found->failed() ? std::numeric_limits<double>::quiet_NaN() : found->us().median;
}

}  // namespace

double codec_error(const KvSideConfig& side, int head_dim, uint64_t seed) {
  constexpr int kRows = 256;
  std::vector<float> rows = random_values(seed, int64_t(kRows) * head_dim), decoded(rows.size());
  const RowRotation rotation(side.policy.rotation, 0, head_dim);
  const KvCoding coding{.scale = side.policy.scale, .fixed = 1};  // the scale of a head with normal rows
  std::vector<std::byte> bytes(size_t(side.format->row_bytes(head_dim)));
  for (int r = 0; r < kRows; ++r) {
    float* row = rows.data() + int64_t(r) * head_dim;
    rotation.forward(row);  // errors in cache space are those of rows: the rotation keeps lengths
    side.format->encode(row, head_dim, coding, bytes.data());
    side.format->decode(bytes.data(), head_dim, coding, decoded.data() + int64_t(r) * head_dim);
  }
  return std::sqrt(compare(decoded, rows).nmse);
}

std::vector<CodingCost> coding_costs(std::span<const OpRow> attention, std::span<const OpRow> append, uint64_t seed) {
  std::vector<CodingCost> costs;
  for (const OpRow& row : attention) {
    const OpProblem& p = row.problem;
    const std::string cache = p.format_text();
    if (cache == "f16") continue;
    costs.push_back({.attention = row,
                     .f16_us = median_us(attention, p, "f16"),
                     .coded_us = median_us({&row, 1}, p, cache),
                     .coding_us = median_us(append, p, cache),
                     .k_error = codec_error(p.k, p.head_dim, seed),
                     .v_error = codec_error(p.v, p.head_dim, seed)});
  }
  return costs;
}

Row coding_fields(const CodingCost& cost, const OpDevice& device, const OpBenchParams& params) {
  Row f = op_fields(cost.attention, device, params);
  f["kind"] = "coding";
  f["f16_us"] = number(cost.f16_us);
  f["coded_us"] = number(cost.coded_us);
  f["coding_us"] = number(cost.coding_us);
  f["sum_us"] = number(cost.sum_us());
  f["k_error"] = number(cost.k_error);
  f["v_error"] = number(cost.v_error);
  return f;
}

std::string coding_markdown_head() {
  return "| shape | cache | f16 us | coded us | coding us | coded + coding us | f16 / sum | codec error K / V |\n"
         "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |";
}

std::string coding_markdown_line(const CodingCost& c) {
  return fmt::format("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.4f} / {:.4f} |",
                     c.attention.problem.shape_text(), c.attention.problem.format_text(), c.f16_us, c.coded_us,
                     c.coding_us, c.sum_us(), c.f16_us / c.sum_us(), c.k_error, c.v_error);
}

}  // namespace ridge::lab
