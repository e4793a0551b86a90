#include "cli/options.h"

#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cstdio>
#include <set>
#include <span>
#include <type_traits>

#include "base/build_info.h"
#include "base/limits.h"
#include "base/result.h"
#include "engine/device_name.h"
#include "engine/engine.h"
#include "engine/finite.h"
#include "engine/kv_options.h"
#include "engine/rank_device.h"
#include "format/list.h"
#include "gpu/device_query.h"
#include "rank/mpi.h"

extern char** environ;  // macOS has it in no header

namespace ridge::cli {
namespace {

constexpr int kMaxTokens = 1 << 26;
constexpr int kMaxThreads = 1024;

/// Other spellings of long flags.
constexpr std::pair<std::string_view, std::string_view> kLongShorts[] = {
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-ub", "--ubatch-size"},
    {"-pg", "--prompt-gen"},
    {"-dev", "--device"},
    {"-npp", "--n-prompt"},
    {"-ntg", "--n-gen"},
    {"-npl", "--n-parallel"},
    {"-ncmoe", "--n-cpu-moe"},
    {"-np", "--parallel"},
    {"-md", "--draft-model"},
    {"-ctkd", "--cache-type-k-draft"},
    {"-ctvd", "--cache-type-v-draft"},
    {"-j", "--json-schema"},
    {"--json-schema-file", "--json-schema"},
    {"--grammar-file", "--grammar"},
    {"--spec-draft-n-max", "--spec-depth"},
    {"--kv-quant-draft", "--draft-kv-quant"},
    {"-no-cnv", "--raw"},
    {"--no-conversation", "--raw"},
    {"--model-draft", "--draft-model"},
    {"--spec-draft-type-k", "--cache-type-k-draft"},
    {"--spec-draft-type-v", "--cache-type-v-draft"},
};

/// Fields as messages from below the command line name them, and the flags that set them.
constexpr std::pair<std::string_view, std::string_view> kFieldFlags[] = {
    {"n_ctx", "--ctx-size"},
    {"isa", "--isa"},
    {"kernels", "--kernel"},
    {"type", "--type"},
    {"temperature", "--temp"},
    {"top_k", "--top-k"},
    {"top_p", "--top-p"},
    {"min_p", "--min-p"},
    {"repeat_penalty", "--repeat-penalty"},
    {"repeat_last_n", "--repeat-last-n"},
    {"spec_depth", "--spec-depth"},
    {"max_seconds", "--seconds"},
    {"max_chunks", "--chunks"},
    {"bytes", "--size"},
    {"heads", "--heads"},
    {"shapes", "--shape"},
    {"kv", "--kv"},
    {"results", "--results"},
    {"prompt_tokens", "--prompt-tokens"},
};

/// Flags of llama.cpp that Ridge has another answer to. CLI11 would take "-ngl" for "-n gl".
struct Habit {
  std::string_view short_flag, long_flag, why, next;
};
constexpr Habit kHabits[] = {
    {"-ngl", "--n-gpu-layers", "Ridge runs a whole model on one device", "use --device cuda"},
    {"", "--gpu-layers", "Ridge runs a whole model on one device", "use --device cuda"},
    {"-sm", "--split-mode", "Ridge runs a whole model on one device", "use --device cuda:N"},
    {"-ts", "--tensor-split", "Ridge runs a whole model on one device", "use --device cuda:N"},
    {"-mg", "--main-gpu", "Ridge runs a whole model on one device", "use --device cuda:N"},
    {"-nkvo", "--no-kv-offload", "the cache is where the model is", "leave it out"},
    {"-fa", "--flash-attn", "attention is always fused, there is nothing to turn on", "leave it out"},
    {"-cnv", "--conversation", "a conversation is a command of its own",
     "use ridge chat, or ridge run -p TEXT for one message"},
    {"-sys", "--system-prompt", "the system prompt has another name", "use --system TEXT"},
    {"-hf", "--hf-repo", "Ridge downloads nothing", "download the model, then -m FILE or -m DIRECTORY"},
    {"-mu", "--model-url", "Ridge downloads nothing", "download the model, then -m FILE or -m DIRECTORY"},
    {"-md", "--model-draft", "a draft model is a way of speculation",
     "use --spec-type draft --draft-model MODEL with ridge run, chat or serve"},
    {"-np", "--parallel", "Ridge runs one sequence here", "leave it out"},
    {"-cmoe", "--cpu-moe", "a number says how many layers' experts stay in host memory", "use --n-cpu-moe 999 for all"},
    {"-ot", "--override-tensor", "only experts can stay in host memory", "use --n-cpu-moe N"},
    {"-tb", "--threads-batch", "prompts and decode have the same threads", "use -t N"},
    {"", "--tp", "this command does not run over ranks", "use ridge run, chat, serve or eval ppl"},
    {"", "--pp", "this command does not split layers over ranks", "use ridge run or eval ppl, or --tp"},
    {"-s", "", "the seed has no short name", "use --seed N"},
};

/// Refuses what a user of llama.cpp types from habit, where `app` has no such flag.
void refuse_habit(const CLI::App& app, const std::string& flag) {
  if (app.get_option_no_throw(flag)) return;
  for (const Habit& habit : kHabits)
    if (flag == habit.short_flag || flag == habit.long_flag) bad_flag(flag, std::string(habit.why), habit.next);
}

/// The longest of "-n,--n-predict": what messages call the flag.
std::string flag_of(const std::string& names) {
  std::string longest;
  for (const std::string& name : split(names, ','))
    if (name.size() > longest.size()) longest = name;
  return longest;
}

/// Declares an option whose text goes through `store`; errors carry the flag's name.
CLI::Option* add_parsed(CLI::App& app, const std::string& names, const std::string& type, const std::string& help,
                        const std::function<void(const std::string& flag, const std::string& text)>& store) {
  const std::string flag = flag_of(names);
  return app
      .add_option_function<std::string>(
          names, [flag, store](const std::string& text) { store(flag, text); }, help)
      ->type_name(type);
}

template <class T>
T parse_number(std::string_view flag, const std::string& text, T min, T max, std::string_view kind) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= min && value <= max))
    bad_flag(flag, fmt::format("expects a {} from {} to {}, found '{}'", kind, min, max, text));
  return value;
}

/// The command or group of this name inside `app`, nullptr when there is none.
const CLI::App* nested_app(const CLI::App& app, const std::string& name) {
  for (const CLI::App* nested : app.get_subcommands([](const CLI::App*) { return true; }))
    if (nested->get_name() == name) return nested;
  return nullptr;
}

std::string_view find_in(std::span<const std::pair<std::string_view, std::string_view>> table, std::string_view name) {
  for (const auto& [first, second] : table)
    if (first == name) return second;
  return {};
}

}  // namespace

void bad_flag(std::string_view flag, const std::string& why, std::string_view next) {
  throw Error(ErrorKind::usage, four_parts("", flag, why, next));
}

int64_t parse_whole(std::string_view flag, const std::string& text, int64_t min, int64_t max) {
  return parse_number(flag, text, min, max, "whole number");
}

void in_group(CLI::App& app, const std::string& group) { app.option_defaults()->group(group); }

void refuse_group(const CLI::App& app, std::string_view group, const std::string& why) {
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && option->get_group() == group) bad_flag(option->get_name(), why, "leave it out");
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& value, const std::string& type,
                      const std::string& help) {
  return app.add_option(names, value, help)->type_name(type)->default_str(value);
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::optional<std::string>& value,
                      const std::string& type, const std::string& help) {
  return add_parsed(app, names, type, help, [&value](const std::string&, const std::string& text) { value = text; });
}

void say_needed(CLI::Option* option, const std::string& when) {
  option->type_name(fmt::format("{} ({})", option->get_type_name(), when));
}

template <class Whole>
CLI::Option* add_whole(CLI::App& app, const std::string& names, Whole& value, int64_t min, int64_t max,
                       const std::string& help) {
  CLI::Option* option =
      add_parsed(app, names, "N", help, [&value, min, max](const std::string& flag, const std::string& text) {
        value = Whole(parse_whole(flag, text, min, max));
      });
  if constexpr (std::is_arithmetic_v<Whole>) option->default_str(fmt::format("{}", value));
  return option;
}
template CLI::Option* add_whole(CLI::App&, const std::string&, int&, int64_t, int64_t, const std::string&);
template CLI::Option* add_whole(CLI::App&, const std::string&, int64_t&, int64_t, int64_t, const std::string&);
template CLI::Option* add_whole(CLI::App&, const std::string&, uint64_t&, int64_t, int64_t, const std::string&);
template CLI::Option* add_whole(CLI::App&, const std::string&, double&, int64_t, int64_t, const std::string&);
template CLI::Option* add_whole(CLI::App&, const std::string&, std::optional<int>&, int64_t, int64_t,
                                const std::string&);

void add_off_flag(CLI::App& app, const std::string& name, bool& value, const std::string& help) {
  app.add_flag_callback(
      name, [&value] { value = false; }, help);
}

template <class Real>
CLI::Option* add_real(CLI::App& app, const std::string& names, Real& value, double min, double max,
                      const std::string& help) {
  return add_parsed(app, names, "X", help,
                    [&value, min, max](const std::string& flag, const std::string& text) {
                      value = Real(parse_number(flag, text, min, max, "number"));
                    })
      ->default_str(fmt::format("{}", value));
}
template CLI::Option* add_real(CLI::App&, const std::string&, float&, double, double, const std::string&);
template CLI::Option* add_real(CLI::App&, const std::string&, double&, double, double, const std::string&);

CLI::Option* add_repeatable(CLI::App& app, const std::string& names, std::vector<std::string>& values,
                            const std::string& type, const std::string& help, const std::string& standard) {
  return app.add_option(names, values, help)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name(type)
      ->default_str(standard);
}

CLI::Option* add_list(CLI::App& app, const std::string& names, std::vector<std::string>& values,
                      const std::string& standard, const std::string& help) {
  return add_repeatable(app, names, values, "LIST", help, standard);
}

void add_output_flags(CLI::App& app, OutputFlags& flags, bool with_results) {
  in_group(app, "Output");
  app.add_flag("--json", flags.json, "print JSON instead of text");
  app.add_flag("--quiet", flags.quiet, "no progress, no start-up lines, no statistics on stderr");
  if (with_results)
    add_text(app, "--results", flags.results, "FILE",
             "append each row to this file as a JSON line, with build, machine and command");
}

std::string device_text(const ModelInfo& info) {
  const Ranks* const ranks = joined_ranks();
  const std::string stages = info.n_stages > 1 ? fmt::format(" in {} stages", info.n_stages) : "";
  if (info.device != "cpu")
    return ranks ? fmt::format("{}, one of {} ranks", info.device, ranks->size()) : info.device + stages;
  const int n_processors = available_processors();
  const std::string crowded =
      info.n_threads > n_processors
          ? fmt::format(" on {} processor{}{}", n_processors, n_processors == 1 ? "" : "s",
                        n_processors < affine_processors() ? " that the container's quota pays for" : "")
          : "";
  return fmt::format("CPU {}, {} thread{}{}{}", info.isa, info.n_threads, info.n_threads == 1 ? "" : "s", crowded,
                     ranks ? fmt::format(" a rank, {} ranks{}", ranks->size(), stages) : "");
}

CLI::Option* add_model_flag(CLI::App& app, ModelFlags& flags, bool required) {
  in_group(app, "Model");
  return add_text(app, "-m,--model", flags.model, "MODEL",
                  "GGUF file, Hugging Face folder or synth:SHAPE with @layers= @weights= @head= @mtp= @shared= @skew=")
      ->required(required);
}

void add_template_flag(CLI::App& app, ModelFlags& flags) {
  add_text(app, "--chat-template", flags.chat_template, "FILE|NAME",
           "chat template to use: a file, the name of one in the model, or chatml, llama3, gemma, zephyr");
}

void add_place_flags(CLI::App& app, ModelFlags& flags) {
  add_text(app, "--device", flags.device, "NAME",
           "cpu, cuda[:N], or cuda:N,M,...: tensor parallelism over GPUs; --pp splits by layers; also -dev");
  add_whole(app, "-t,--threads", flags.n_threads, 0, kMaxThreads,
            "number of threads; 0: all usable processors, or a container's CPU quota if that is lower");
  add_text(app, "--isa", flags.isa, "NAME", "highest instruction set to use: " + isa_names());
}

void add_exact_flag(CLI::App& app, ModelFlags& flags) {
  app.add_flag("--exact", flags.exact,
               "on a GPU: draft tokens do not change the text (slower kernels; at most 3 draft tokens a pass)");
}

void add_moe_gib_flags(CLI::App& app, ModelFlags& flags) {
  add_real(app, "--moe-device-gib", flags.moe_device_gib, 0, 1e6,
           "like --n-cpu-moe, with N chosen so that the GPU holds at most X GiB of experts")
      ->default_str("no limit");
  add_real(app, "--moe-cache-gib", flags.moe_cache_gib, 0, 1e6,
           "the GPU also keeps copies of the most used host experts, up to X GiB; 0: none");
}

void add_device_flags(CLI::App& app, ModelFlags& flags) {
  in_group(app, "Model");
  add_place_flags(app, flags);
  add_repeatable(app, "--kernel", flags.kernels, "OP=NAME",
                 "force a kernel (repeatable); `ridge explain` lists the names");
  add_exact_flag(app, flags);
  add_whole(app, "--n-cpu-moe", flags.n_cpu_moe, 0, 1 << 20,
            "on a GPU: experts of the first N layers stay in host memory, and the CPU computes them (-ncmoe)")
      ->type_name("N");
  add_moe_gib_flags(app, flags);
  app.add_flag("--check-finite", flags.check_finite,
               "stop at the first NaN or infinity of the model, and name its layer and tensor (slow)");
}

LoadOptions ModelFlags::load_options() const {
  const bool on_gpus = !parse_devices(device).empty();
  std::vector<std::string> all_kernels = kernels;
  if (exact && on_gpus) all_kernels.emplace_back("rows=four");  // a CPU is exact always
  return {.device = device,
          .n_stages = on_gpus ? n_stages : 1,  // of CPUs stages are processes
          .n_threads = n_threads,
          .isa = isa,
          .kernels = std::move(all_kernels),
          .n_cpu_moe = n_cpu_moe,
          .moe_device_gib = moe_device_gib,
          .moe_cache_gib = moe_cache_gib,
          .whole = whole};
}

void add_rank_flags(CLI::App& app, int* n_stages) {
  in_group(app, "Ranks");
  app.add_option("--tp", "tensor parallelism over N processes (mpirun -np N ridge ... --tp N); on cuda one GPU each")
      ->type_name("N")
      ->default_str("1");
  if (n_stages)
    add_whole(app, "--pp", *n_stages, 1, 64,
              "pipeline stages: layers split over the GPUs of --device, or over CPU processes (mpirun -np TP*PP)")
        ->type_name("M");
  app.add_option("--rank-timeout", "longest wait for another rank; ten times as long while the model is loading")
      ->type_name("SECONDS")
      ->default_str("60");
}

namespace {

/// Lists the flags and variables that must be the same on all ranks. The model's path may differ: bytes of models are
/// compared when they are loaded. Clients' keys concern no other rank.
std::string asked_for(const std::vector<std::string>& words) {
  const auto is_left_out = [](std::string_view flag) {
    return flag == "--api-key" || flag == "-m" || flag == "--model";
  };
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (is_left_out(words[i])) ++i;
    else if (!is_left_out(std::string_view(words[i]).substr(0, words[i].find('=')))) text += words[i] + " ";
  }
  std::set<std::string_view> variables;  // in one order: a shell that starts a rank changes it
  for (char** variable = environ; *variable; ++variable)
    if (const std::string_view of = *variable;
        of.starts_with("RIDGE_") && !of.starts_with("RIDGE_API_KEY=") && !of.starts_with("RIDGE_MODEL="))
      variables.insert(of);
  for (const std::string_view of : variables) text += fmt::format("{} ", of);
  return text;
}

/// Last value given for a flag; nothing where the flag was left out or the command does not have it.
std::optional<std::string> given(const CLI::App& app, const std::string& flag) {
  const CLI::Option* const option = app.get_option_no_throw(flag);
  return option && option->count() > 0 ? std::optional(option->results().back()) : std::nullopt;
}

/// Finds the model of this rank's command line that stands where a model of the first rank's stands in its own.
PathHere models_here(Ranks& ranks, const CLI::App& app) {
  const CLI::Option* const option = app.get_option_no_throw("--model");
  const std::string own = option ? fmt::format("{}", fmt::join(option->results(), ",")) : "";
  return [here = split(own, ','), there = split(ranks.from_first(own), ',')](const std::string& model) {
    const auto at = std::ranges::find(there, model);
    return here.size() == there.size() && at != there.end() ? here[size_t(at - there.begin())] : model;
  };
}

}  // namespace

PathHere join_ranks(const CLI::App& app, const std::vector<std::string>& words, RankUse use) {
  if (!app.get_option_no_throw("--rank-timeout")) return {};  // a plan runs alone
  const auto number = [&](const char* flag, int64_t most, int64_t left_out) {
    const std::optional<std::string> text = given(app, flag);
    return text ? parse_whole(flag, *text, 1, most) : left_out;
  };
  const auto tp = int(number("--tp", 64, 1)), pp = int(number("--pp", 64, 1));
  if ((!given(app, "--tp") && !given(app, "--pp")) || (tp * pp == 1 && !in_mpi_job())) return {};
  const std::string device = given(app, "--device").value_or("cpu");
  const std::vector<int> devices = parse_devices(device);
  if (!devices.empty() && tp == 1 && !in_mpi_job()) return check_stages(devices, pp), PathHere();
  if (!devices.empty() && pp > 1)
    bad_flag("--pp", "layers are not split over GPUs of several processes",
             "leave it out, or run the GPUs of one machine in one process: --device cuda:0,1 --pp 2");
  const int64_t seconds = number("--rank-timeout", 86400, 60);
  Ranks& ranks = join_mpi(tp, pp, double(seconds));
  if (tp * pp == 1) return leave_mpi(), PathHere();
  ranks.require_same("the command line", asked_for(words), "give every rank the same flags", double(seconds));
  if (use == RankUse::each) return {};
  ranks.be_led();
  if (!devices.empty()) device_of_rank(ranks, device);  // says on all ranks what one of them lacks
  return models_here(ranks, app);
}

void check_device(const std::string& device) {
  const std::vector<int> numbers = parse_devices(device);
  if (numbers.empty()) return;
  const gpu::DeviceReport report = gpu::query_devices();
  if (size_t(std::ranges::max(numbers)) < report.devices.size()) {
    const gpu::Device& first = report.devices[size_t(numbers.front())];
    if (build_info().cuda && !has_native_code(build_info().cuda_targets, first.sm))
      fmt::print(
          stderr,
          "note: this build has no native code for {} ({}): its driver compiles PTX now, a minute or more, and keeps "
          "the result for later starts\n",
          first.name, first.target());
    return;
  }
  const std::string why = report.devices.empty() ? report.why_none : fmt::format("there are {}", report.devices.size());
  throw Error(ErrorKind::no_device,
              four_parts(fmt::format("device {} is not available", device), "--device", why, "use --device cpu"));
}

Model load_model(const ModelFlags& flags) {
  check_device(flags.device);
  Model model = Model::load(flags.model, flags.load_options());
  if (flags.check_finite) watch_finite(model.engine());
  return model;
}

void add_sampler_flags(CLI::App& app, SamplerOptions& flags, int64_t& seed) {
  add_real(app, "--temp", flags.temperature, 0, 100, "temperature; 0: always the likeliest token");
  add_whole(app, "--top-k", flags.top_k, 0, 1 << 26, "keep the k likeliest tokens; 0: all");
  add_real(app, "--top-p", flags.top_p, 0, 1,
           "keep the likeliest tokens until their probabilities add up to this; 1: all");
  add_real(app, "--min-p", flags.min_p, 0, 1,
           "drop tokens less probable than this share of the likeliest one; 0: none");
  add_real(app, "--repeat-penalty", flags.repeat_penalty, 0.01, 100, "penalty for repeating recent tokens; 1: none");
  add_whole(app, "--repeat-last-n", flags.repeat_last_n, 0, 1 << 26,
            "number of recent tokens that --repeat-penalty counts");
  add_whole(app, "--seed", seed, -1, INT64_MAX, "random seed of the sampling; -1: a random seed, which is printed");
}

void add_context_flags(CLI::App& app, ContextFlags& flags, const std::string& ctx_help) {
  in_group(app, "Context");
  add_whole(app, "-c,--ctx-size", flags.n_ctx, 0, kMaxTokens, ctx_help);
  add_whole(app, "-b,--batch-size", flags.n_batch, 1, kMaxTokens, "upper limit of --ubatch-size and of its default");
  add_whole(app, "--ubatch-size", flags.n_ubatch, 0, 65536,
            "most prompt tokens in one forward pass; 0: 512 on a CPU, 2048 on a GPU; also -ub");
}

int context_for(const ContextFlags& flags, const KvFlags& kv, const Model& model) {
  if (flags.n_ctx > 0) return flags.n_ctx;
  Engine& engine = model.engine();
  const int trained = model.info().n_ctx_train;
  const KvChoice choice = kv.is_auto() ? KvChoice() : kv.choice();  // f16 takes the most
  const int n_step = flags.ubatch(engine.default_ubatch());
  const auto layers = layer_configs(session_options(choice, trained, n_step), engine.plan());
  const int64_t free = engine.backend().free_bytes();
  const int n = context_that_fits(layers, engine.on_device(), trained, n_step, free / 4 * 3);
  static int said = 0;
  if (n < trained && n != said)
    fmt::print(stderr,
               "warning: the context is {} tokens, not the {} that the model was trained for: {:.2f} GiB of memory are "
               "free, three quarters of them for the cache (-c N asks for more, --kv-quant for a smaller cache)\n",
               said = n, trained, double(free) / kGib);
  return n > 0 ? n : trained;
}

bool KvFlags::any() const { return quant || refines_quant(); }

bool KvFlags::names_cache() const { return quant || type_k || type_v || layers; }

bool KvFlags::refines_quant() const {
  return type_k || type_v || rotation || centre || scale || layers || window || sinks;
}

KvChoice KvFlags::choice() const {
  KvChoice choice;
  if (quant) choice = parse_kv_choice(*quant).or_throw();
  if (type_k) choice.k = parse_kv_side(*type_k).or_throw();
  if (type_v) choice.v = parse_kv_side(*type_v).or_throw();
  if (layers) choice.layers = parse_kv_layers(*layers).or_throw();
  const std::string refined = refinements();
  if (refined.empty()) return choice;
  if (choice.k.format == "f16" && choice.v.format == "f16")
    bad_flag("--kv-rotation, --kv-window, --kv-sinks, --kv-center, --kv-scale",
             "both sides of the cache are f16, which has none of these",
             "choose a format with --kv-quant, -ctk or -ctv");
  for (KvSideOptions* side : {&choice.k, &choice.v})
    if (side->format != "f16") *side = parse_kv_side(kv_side_text(*side) + refined).or_throw();
  return choice;
}

std::string KvFlags::refinements() const {
  std::string refined;
  if (rotation) refined += ":" + *rotation;
  if (window) refined += fmt::format(":window={}", *window);
  if (sinks) refined += fmt::format(":sinks={}", *sinks);
  if (centre) refined += ":centre=" + *centre;
  if (scale) refined += ":scale=" + *scale;
  return refined;
}

void KvFlags::refine(std::vector<KvChoice>& list) const {
  const std::string refined = refinements();
  constexpr int kHeadDim = 64;
  const auto refine_side = [&](KvSideOptions& side) {
    if (find_kv_format(side.format).or_throw()->bits_per_value(kHeadDim) >= 16) return;
    // Options of the list come last, and hold.
    const std::string own = kv_side_text(side).substr(side.format.size());
    side = parse_kv_side(side.format + refined + own).or_throw();
  };
  for (KvChoice& choice : list) {
    refine_side(choice.k), refine_side(choice.v);
    for (KvLayerOptions& own : choice.layers) refine_side(own.k), refine_side(own.v);
  }
}

void add_kv_flags(CLI::App& app, KvFlags& flags) {
  in_group(app, "KV cache");
  add_text(app, "--kv-quant", flags.quant, "KV",
           "cache format (`ridge info` lists all), K/V pair such as q8_0/rotor-3, or auto; default f16");
  add_text(app, "--cache-type-k", flags.type_k, "FORMAT", "format of K (-ctk); overrides --kv-quant");
  add_text(app, "--cache-type-v", flags.type_v, "FORMAT", "format of V (-ctv); overrides --kv-quant");
  add_text(app, "--kv-layers", flags.layers, "LAYERS:KV",
           "other formats for some layers: 0-1,26-27:q8_0/q8_0; ';' separates several");
  add_text(app, "--kv-rotation", flags.rotation, "NAME", "rotation of compressed rows: hadamard, planar, none");
  add_text(app, "--kv-center", flags.centre, "on|off",
           "subtract the first tokens' mean in each channel; default: on for K of rotor-3, -3s and -4");
  add_text(app, "--kv-scale", flags.scale, "RULE",
           "rule for scales: absmax, norm, lsq or unbiased; each format allows some of them");
  add_whole(app, "--kv-window", flags.window, 0, kMaxTokens,
            "newest tokens kept uncoded: in int8 with rotor-3, -3s, -4 (default 96), else in f16 (default 0)");
  add_whole(app, "--kv-sinks", flags.sinks, 0, kMaxTokens,
            "first tokens kept in f16: 4 by default with rotor-3, -3s and -4, else none");
}

std::string_view flag_of_field(std::string_view field) { return find_in(kFieldFlags, field); }

std::vector<std::string> normalize_args(const CLI::App& root, const std::vector<std::string>& args) {
  std::vector<std::string> out;
  const CLI::App* app = &root;
  bool value_next = false, only_values = false;
  for (const std::string& arg : args) {
    if (value_next || only_values || arg.size() < 2 || arg[0] != '-') {
      if (!value_next && !only_values)
        if (const CLI::App* nested = nested_app(*app, arg)) app = nested;
      value_next = false;
      out.push_back(arg);
      continue;
    }
    only_values = arg == "--";
    const size_t equals = arg.find('=');
    std::string name = arg.substr(0, equals);
    if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
    if (const std::string_view long_name = find_in(kLongShorts, name);
        !long_name.empty() && app->get_option_no_throw(std::string(long_name)))
      name = long_name;
    refuse_habit(*app, name);
    const CLI::Option* option = app->get_option_no_throw(name);
    value_next = equals == std::string::npos && option && option->get_items_expected_min() > 0;
    out.push_back(equals == std::string::npos ? name : name + arg.substr(equals));
  }
  return out;
}

void complete_options(CLI::App& app) {
  for (CLI::App* nested : app.get_subcommands({})) complete_options(*nested);
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw)
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    std::string name = "RIDGE_" + option->get_lnames().front();
    if (name == "RIDGE_help" || name == "RIDGE_version") continue;
    for (char& c : name) c = c == '-' ? '_' : char(std::toupper(static_cast<unsigned char>(c)));
    option->envname(name);
  }
}

}  // namespace ridge::cli
