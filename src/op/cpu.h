// What the CPU can run, and the context every CPU op gets.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "base/result.h"
#include "base/thread_pool.h"

namespace ridge {

/// Instruction sets kernels are written for. A build has those of its processor's family, in rising order; each
/// includes the ones before it. neon means ARMv8.2 with the dot products of int8; avx2 means AVX2+FMA+F16C; avx512
/// means AVX-512 F/BW/DQ/VL + VNNI + VBMI.
enum class Isa : uint8_t { scalar, neon, avx2, avx512 };
std::string_view isa_name(Isa isa);
/// Those of this build.
std::span<const Isa> isas();
/// Their names: "scalar, avx2, avx512".
std::string isa_names();
/// By name among isas(); the empty name is the best there is. The failure lists the names.
Result<Isa> find_isa(std::string_view name);

/// The best one this processor runs.
Isa detect_isa();

/// What the processor has of the abilities that kernels ask for, by the names of the operating system.
std::vector<std::string_view> cpu_abilities();

/// Whether one of them has this name.
bool has_ability(std::string_view name);

/// Bytes and flops an op must move and do at least; declared once per op and used by bench, explain and profile.
struct Work {
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  int64_t flops = 0;
  Work& operator+=(const Work& other) {
    read_bytes += other.read_bytes;
    write_bytes += other.write_bytes;
    flops += other.flops;
    return *this;
  }
};

/// Whether a kernel can serve a problem, and why not.
struct Support {
  bool ok = true;
  std::string why_not;
};

/// `--kernel op=name`: kernels that an op must use, by op; several names joined by '+'.
using ForcedKernels = std::map<std::string, std::string, std::less<>>;

/// Whether a row of this name may serve the op: nothing is forced, or it is.
bool is_allowed(const ForcedKernels& forced, std::string_view op, std::string_view name);

/// The row of a table with this name; null when there is none.
template <class Variant>
const Variant* find_row(std::span<const Variant> rows, std::string_view name) {
  for (const Variant& row : rows)
    if (row.name == name) return &row;
  return nullptr;
}

/// "a, b, c" of a table, for messages.
template <class Variant>
std::string row_names(std::span<const Variant> rows) {
  std::string names;
  for (const Variant& row : rows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

/// Picks from `rows` (best last): the last allowed row that supports the problem, which support(row) says. A forced
/// kernel that cannot serve or does not exist, or a problem without a kernel, throws Error(usage) with the reason of
/// every row that cannot serve and the name of every row that can.
template <class Variant, class SupportOf>
const Variant& select_row(const ForcedKernels& forced, std::string_view op, std::span<const Variant> rows,
                          const SupportOf& support) {
  for (size_t i = rows.size(); i-- > 0;)
    if (is_allowed(forced, op, rows[i].name) && support(rows[i]).ok) return rows[i];

  std::string can, cannot;
  for (const Variant& row : rows) {
    const Support s = support(row);
    (s.ok ? can : cannot) += s.ok ? fmt::format(" {}", row.name) : fmt::format("; {}: {}", row.name, s.why_not);
  }
  const auto choice = forced.find(op);
  const std::string request = choice == forced.end() ? fmt::format("op {} has no kernel for this problem", op)
                                                     : fmt::format("kernel {}={} cannot serve", op, choice->second);
  throw_wrong_field(choice == forced.end() ? "" : "kernels", "{} (can:{}{})", request, can.empty() ? " none" : can,
                    cannot);
}

/// Bytes that a call of a kernel works in: of each buffer of CpuContext::scratch.
using ScratchBytes = std::array<int64_t, 3>;

class OpTrace;  // op/trace.h

/// Everything a CPU op needs besides its arguments. Not thread-safe: one context, one caller.
struct CpuContext {
  explicit CpuContext(int n_threads, Isa limit = Isa::avx512) : pool(n_threads), isa(std::min(limit, detect_isa())) {}

  ThreadPool pool;
  Isa isa;
  ForcedKernels forced;                  ///< Model::load() fills it and refuses names that are in no table
  std::array<AlignedBuffer, 3> scratch;  ///< each op uses these as it likes; nothing survives the call
  AlignedBuffer sorted;                  ///< x in the order of a matrix's columns (linear())
  OpTrace* trace = nullptr;              ///< where ops write themselves down; null: nowhere

  /// Makes each scratch buffer as large as this, if it is smaller; contents are lost then.
  void make_scratch(const ScratchBytes& needed) {
    for (size_t i = 0; i < scratch.size(); ++i)
      if (needed[i] > scratch[i].bytes()) scratch[i] = AlignedBuffer(needed[i]);
  }
};

/// select_row() among the rows of an instruction set.
template <class Variant, class... Problem>
const Variant& select_variant(Isa isa, const ForcedKernels& forced, std::string_view op,
                              std::span<const Variant> variants, const Problem&... problem) {
  return select_row(forced, op, variants, [&](const Variant& variant) -> Support {
    if (variant.isa <= isa) return variant.supports(problem...);
    return {false, fmt::format("needs {}, this processor, or the isa asked for, allows {}", isa_name(variant.isa),
                               isa_name(isa))};
  });
}
template <class Variant, class... Problem>
const Variant& select_variant(const CpuContext& context, std::string_view op, std::span<const Variant> variants,
                              const Problem&... problem) {
  return select_variant(context.isa, context.forced, op, variants, problem...);
}

}  // namespace ridge
