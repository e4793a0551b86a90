// The commands, in the order of help. A new one is a file cmd_*.cpp, which has its row, and its name here, twice.
#include "cli/command.h"

namespace ridge::cli {

extern const Command run_command, serve_command, chat_command, top_command, eval_ppl_command, eval_kld_command,
    eval_probe_command, eval_tasks_command, eval_logits_command, bench_decode_command, bench_batch_command,
    bench_serve_command, bench_attention_command, bench_gemv_command, bench_append_command, bench_collective_command,
    bench_bandwidth_command, compare_command, sweep_command, plan_command, decide_command, profile_command,
    quantize_command, info_command, explain_command, report_command, doctor_command;

std::span<const Group> groups() {
  static constexpr Group kGroups[] = {
      {"eval", "quality on a text: perplexity, KL divergence"},
      {"bench", "speed, and the machine's ceilings"},
  };
  return kGroups;
}

std::span<const Command> commands() {
  static const Command kCommands[] = {run_command,
                                      serve_command,
                                      chat_command,
                                      top_command,
                                      eval_ppl_command,
                                      eval_kld_command,
                                      eval_probe_command,
                                      eval_tasks_command,
                                      eval_logits_command,
                                      bench_decode_command,
                                      bench_batch_command,
                                      bench_serve_command,
                                      bench_attention_command,
                                      bench_gemv_command,
                                      bench_append_command,
                                      bench_collective_command,
                                      bench_bandwidth_command,
                                      compare_command,
                                      sweep_command,
                                      plan_command,
                                      decide_command,
                                      profile_command,
                                      quantize_command,
                                      info_command,
                                      explain_command,
                                      report_command,
                                      doctor_command};
  return kCommands;
}

}  // namespace ridge::cli
