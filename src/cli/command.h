// A command of the program: one row of the table in list.cpp, one cmd_*.cpp file.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string_view>

namespace ridge::cli {

/// Runs after parsing; returns the exit code. Errors are thrown.
using Action = std::function<int()>;

struct Command {
  std::string_view name;     ///< words nest: "bench decode" is `decode` inside the group `bench`
  std::string_view summary;  ///< one line
  std::string_view details;  ///< what it does and prints, for --help
  std::string_view example;  ///< command lines to copy
  /// Declares the flags on `app`; the action owns the values they are stored in.
  Action (*declare)(CLI::App& app);
};

struct Group {
  std::string_view name;
  std::string_view summary;
};

/// Every command, in the order help lists them.
std::span<const Command> commands();
/// The words that hold nested commands.
std::span<const Group> groups();

Action declare_run(CLI::App& app);
Action declare_serve(CLI::App& app);
Action declare_chat(CLI::App& app);
Action declare_top(CLI::App& app);
Action declare_eval_ppl(CLI::App& app);
Action declare_eval_kld(CLI::App& app);
Action declare_eval_probe(CLI::App& app);
Action declare_eval_logits(CLI::App& app);
Action declare_bench_decode(CLI::App& app);
Action declare_bench_batch(CLI::App& app);
Action declare_bench_serve(CLI::App& app);
Action declare_bench_attention(CLI::App& app);
Action declare_bench_gemv(CLI::App& app);
Action declare_bench_append(CLI::App& app);
Action declare_bench_collective(CLI::App& app);
Action declare_bench_bandwidth(CLI::App& app);
Action declare_compare(CLI::App& app);
Action declare_sweep(CLI::App& app);
Action declare_plan(CLI::App& app);
Action declare_decide(CLI::App& app);
Action declare_profile(CLI::App& app);
Action declare_quantize(CLI::App& app);
Action declare_info(CLI::App& app);
Action declare_explain(CLI::App& app);
Action declare_report(CLI::App& app);
Action declare_doctor(CLI::App& app);

}  // namespace ridge::cli
