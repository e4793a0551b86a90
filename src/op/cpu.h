// What the CPU can run, and the context every CPU op gets.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/aligned.h"
#include "base/result.h"
#include "base/thread_pool.h"

namespace ridge {

/// Instruction sets kernels are built for, in rising order; each includes the ones before it.
/// avx2 means AVX2+FMA+F16C; avx512 means AVX-512 F/BW/DQ/VL + VNNI + VBMI.
enum class Isa : uint8_t { scalar, avx2, avx512 };
std::string_view isa_name(Isa isa);
/// By name; the empty name is the best there is. The failure lists the names.
Result<Isa> find_isa(std::string_view name);

/// The best one this processor runs.
Isa detect_isa();

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

class OpTrace;  // op/trace.h

/// Everything a CPU op needs besides its arguments. Not thread-safe: one context, one caller.
struct CpuContext {
  explicit CpuContext(int n_threads, Isa limit = Isa::avx512) : pool(n_threads), isa(std::min(limit, detect_isa())) {}

  ThreadPool pool;
  Isa isa;
  /// `--kernel op=name`: forces a variant for an op. Model::load() fills it and refuses names that are in no table.
  std::map<std::string, std::string, std::less<>> forced;
  AlignedBuffer scratch[3];  ///< each op uses these as it likes; nothing survives the call
  OpTrace* trace = nullptr;  ///< where ops write themselves down; null: nowhere
};

/// One row of a kernel table: what `explain` prints.
struct KernelInfo {
  std::string_view op;
  std::string_view name;
  Isa isa;
};

/// Picks from `variants` (best last): the forced one if it supports the problem, else the last supported one.
/// A forced kernel that cannot serve or does not exist, or a problem without a kernel, throws Error(usage) with the
/// reason of every row that cannot serve and the name of every row that can.
template <class Variant, class... Problem>
const Variant& select_variant(const CpuContext& context, std::string_view op, std::span<const Variant> variants,
                              const Problem&... problem) {
  const auto forced = context.forced.find(op);
  const auto support = [&](const Variant& variant) -> Support {
    if (variant.isa <= context.isa) return variant.supports(problem...);
    return {false, fmt::format("needs {}, this processor, or the isa asked for, allows {}", isa_name(variant.isa),
                               isa_name(context.isa))};
  };
  for (size_t i = variants.size(); i-- > 0;)
    if ((forced == context.forced.end() || variants[i].name == forced->second) && support(variants[i]).ok)
      return variants[i];

  std::string can, cannot;
  for (const Variant& variant : variants) {
    const Support s = support(variant);
    (s.ok ? can : cannot) += s.ok ? fmt::format(" {}", variant.name) : fmt::format("; {}: {}", variant.name, s.why_not);
  }
  const std::string request = forced == context.forced.end()
                                  ? fmt::format("op {} has no kernel for this problem", op)
                                  : fmt::format("kernel {}={} cannot serve", op, forced->second);
  throw Error(ErrorKind::usage, fmt::format("{} (can:{}{})", request, can.empty() ? " none" : can, cannot),
              forced == context.forced.end() ? "" : "kernels");
}

}  // namespace ridge
