// Flags with one meaning everywhere, and strict number parsing for all others.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "engine/kv_choice.h"
#include "engine/lead.h"
#include "ridge/engine.h"

namespace ridge::cli {

inline constexpr double kGib = double(1 << 30);

/// Usage error about one flag: "--flag: why (next)".
[[noreturn]] void bad_flag(std::string_view flag, const std::string& why, std::string_view next = {});

/// A whole number in [min, max]; anything else is a usage error naming the flag.
int64_t parse_whole(std::string_view flag, const std::string& text, int64_t min, int64_t max);

/// Flags declared from here on stand in this group of the help; functions below that declare several have a group of
/// their own.
void in_group(CLI::App& app, const std::string& group);
/// Refuses the flags of a group that were given: `why` says what they belong to.
void refuse_group(const CLI::App& app, std::string_view group, const std::string& why);
/// Declare `names` (CLI11 form, "-n,--n-predict"); a value that is there is shown in help as the default.
CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& value, const std::string& type,
                      const std::string& help);
CLI::Option* add_text(CLI::App& app, const std::string& names, std::optional<std::string>& value,
                      const std::string& type, const std::string& help);
/// Help says when a flag is needed that is not always: "required, or --show".
void say_needed(CLI::Option* option, const std::string& when);
/// A bounded number: int, int64_t, uint64_t, double of whole seconds or std::optional<int>; float or double.
template <class Whole>
CLI::Option* add_whole(CLI::App& app, const std::string& names, Whole& value, int64_t min, int64_t max,
                       const std::string& help);
template <class Real>
CLI::Option* add_real(CLI::App& app, const std::string& names, Real& value, double min, double max,
                      const std::string& help);
/// A flag that switches something off.
void add_off_flag(CLI::App& app, const std::string& name, bool& value, const std::string& help);
/// A text option that takes one value each time and may be repeated; `standard` is shown as the default.
CLI::Option* add_repeatable(CLI::App& app, const std::string& names, std::vector<std::string>& values,
                            const std::string& type, const std::string& help, const std::string& standard = {});
/// Adds an option that takes a comma list.
CLI::Option* add_list(CLI::App& app, const std::string& names, std::vector<std::string>& values,
                      const std::string& standard, const std::string& help);

/// --json, --quiet, --results.
struct OutputFlags {
  bool json = false;
  bool quiet = false;
  std::string results;
};
void add_output_flags(CLI::App& app, OutputFlags& flags, bool with_results);

/// Where a model runs, for people: "CPU avx512, 2 threads" or "cuda:0 NVIDIA H200".
std::string device_text(const ModelInfo& info);

/// -m, --device, --threads, --isa, --kernel, --exact, --n-cpu-moe, --moe-device-gib, --moe-cache-gib.
struct ModelFlags {
  std::string model;
  std::string device = "cpu";
  int n_stages = 1;  ///< --pp: of several devices or of ranks
  int n_threads = 0;
  std::string isa;
  std::vector<std::string> kernels;
  bool exact = false;  ///< on a GPU kernel rows=four
  int n_cpu_moe = 0;
  double moe_device_gib = -1, moe_cache_gib = 0;
  bool whole = false;         ///< as LoadOptions has it
  std::string chat_template;  ///< of --chat-template
  bool check_finite = false;

  LoadOptions load_options() const;
};
CLI::Option* add_model_flag(CLI::App& app, ModelFlags& flags, bool required);
/// --chat-template, in the caller's group.
void add_template_flag(CLI::App& app, ModelFlags& flags);
/// --device, --threads, --isa, in the caller's group.
void add_place_flags(CLI::App& app, ModelFlags& flags);
/// --exact, in the caller's group.
void add_exact_flag(CLI::App& app, ModelFlags& flags);
/// --moe-device-gib and --moe-cache-gib, in the caller's group.
void add_moe_gib_flags(CLI::App& app, ModelFlags& flags);
void add_device_flags(CLI::App& app, ModelFlags& flags);
/// --tp, --rank-timeout, and --pp where its number has a place: for commands whose processes may be ranks of one job.
/// join_ranks() reads them.
void add_rank_flags(CLI::App& app, int* n_stages);
/// With --tp N or --pp M above 1, but on GPUs of this process: makes this process a rank before the command's action
/// runs. Returns where this rank has the models that the first one names. Throws Error as join_mpi() does.
PathHere join_ranks(const CLI::App& app, const std::vector<std::string>& words, RankUse use);
/// Refuses a device that this build or this machine does not have: exit code 6.
void check_device(const std::string& device);
Model load_model(const ModelFlags& flags);

/// --temp, --top-k, --top-p, --min-p, --repeat-penalty, --repeat-last-n, --seed; in the caller's group.
void add_sampler_flags(CLI::App& app, SamplerOptions& flags, int64_t& seed);

/// -c, -b, -ub.
struct ContextFlags {
  int n_ctx = 0;
  int n_batch = 2048;
  int n_ubatch = 0;

  /// Most tokens of a forward pass, of which an engine or a command has a default.
  int ubatch(int by_default) const { return std::min(n_ubatch > 0 ? n_ubatch : by_default, n_batch); }
};

/// --kv-quant, -ctk, -ctv, what refines them, and --kv-layers.
struct KvFlags {
  std::optional<std::string> quant, type_k, type_v, rotation, centre, scale, layers;
  std::optional<int> window, sinks;
  std::string decision;  ///< of commands that know --kv-quant auto (kv_auto.h)

  bool is_auto() const { return quant == "auto"; }
  bool any() const;
  /// Whether a flag changes what --kv-quant names.
  bool refines_quant() const;
  /// Whether a flag names a format.
  bool names_cache() const;
  KvChoice choice() const;
  /// Puts --kv-rotation, --kv-window, --kv-sinks, --kv-center and --kv-scale on every compressed side of a list whose
  /// text does not say otherwise. Throws usage where a format does not have one of them.
  void refine(std::vector<KvChoice>& list) const;

 private:
  /// The options as they stand behind a format: ":window=96:sinks=4".
  std::string refinements() const;
};
void add_kv_flags(CLI::App& app, KvFlags& flags);

void add_context_flags(CLI::App& app, ContextFlags& flags, const std::string& ctx_help);
/// Tokens of a session's context: what the flags ask for; else what the model was trained for, or less, with a warning,
/// where the cache would take more than three quarters of the memory that is free.
int context_for(const ContextFlags& flags, const KvFlags& kv, const Model& model);

/// The flag that sets a field (Error::field), empty where there is none.
std::string_view flag_of_field(std::string_view field);

/// Rewrites what CLI11 does not know: short flags of more than one letter, which llama.cpp's users type ("-ctk" is
/// "--cache-type-k"), and underscores in long ones. Values are left alone. Throws usage for flags of llama.cpp that
/// Ridge does not have, saying what it has instead.
std::vector<std::string> normalize_args(const CLI::App& root, const std::vector<std::string>& args);

/// Completes every flag of every command: it has an environment twin (--ctx-size is RIDGE_CTX_SIZE), and of a flag
/// given twice the last one counts unless it collects values.
void complete_options(CLI::App& app);

}  // namespace ridge::cli
