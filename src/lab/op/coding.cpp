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

std::string errors_text(const CodingCost& cost) { return fmt::format("{:.4f} / {:.4f}", cost.k_error, cost.v_error); }

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
    costs.back().attention.kind = "coding";
  }
  return costs;
}

Columns<CodingCost> coding_columns() {
  return {
      part_of<CodingCost>(op_columns(), &CodingCost::attention),
      {"", "-", "heads, sequences and positions", [](auto& c) { return c.attention.problem.shape_text(); }, "shape"},
      {"", "-", "cache format", [](auto& c) { return c.attention.problem.format_text(); }, "cache"},
      {"f16_us", "us", "attention over f16", &CodingCost::f16_us, ">f16 us", "{:.2f}"},
      {"coded_us", "us", "attention over the coded cache", &CodingCost::coded_us, ">coded us", "{:.2f}"},
      {"coding_us", "us", "coding one new row of each sequence", &CodingCost::coding_us, ">coding us", "{:.2f}"},
      {"sum_us", "us", "both", &CodingCost::sum_us, ">coded + coding us", "{:.2f}"},
      {"", "-", "above 1 the coded cache pays", [](auto& c) { return c.f16_us / c.sum_us(); }, ">f16 / sum", "{:.2f}"},
      {"k_error", "-", "relative L2 error of K's codec", &CodingCost::k_error},
      {"v_error", "-", "relative L2 error of V's codec", &CodingCost::v_error},
      {"", "-", "relative L2 error of a random normal row", &errors_text, ">codec error K / V"},
  };
}

}  // namespace ridge::lab
