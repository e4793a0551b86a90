// ridge plan: what a model, its caches and its steps take of memory, before anything is loaded.
#include <algorithm>
#include <memory>

#include "cli/spec_flags.h"
#include "engine/device_name.h"
#include "lab/decide/plan.h"
#include "lab/rows/columns.h"

namespace ridge::cli {
namespace {

struct PlanFlags {
  ModelFlags model;
  SpecFlags spec;
  OutputFlags output;
  int n_ctx = 0, n_sessions = 1, n_ubatch = 0, tp = 1, pp = 1;
  std::string list, roof_file;
  double memory_gib = 0, roof_gb_s = 0;
  bool check = false;
};

/// A plan and what follows from it.
struct Planned {
  lab::MemoryPlan plan;
  bool fits = false;
  int largest_context = 0;
  int64_t most_sessions = 0;
  std::optional<double> tokens_per_second;
};

std::string planned_size(int64_t bytes) {
  return bytes < 1 << 20 ? fmt::format("{:.1f} KiB", double(bytes) / 1024)
                         : fmt::format("{:.1f} MiB", double(bytes) / 1048576);
}

std::optional<double> bandwidth_of(const PlanFlags& flags, const LoadOptions& place) {
  if (flags.roof_gb_s > 0) return flags.roof_gb_s;
  if (flags.roof_file.empty()) return std::nullopt;
  if (!std::filesystem::exists(flags.roof_file))
    bad_flag("--roof-file", flags.roof_file + " is not there", "make it: ridge bench bandwidth --results FILE");
  return lab::stored_bandwidth_gb_s(lab::read_rows(flags.roof_file).or_throw(), place);
}

lab::Row planned_row(const lab::PlannedModel& model, const Planned& of) {
  lab::Row row = lab::to_row(model, of.plan);
  row["fits"] = of.fits;
  row["largest_context"] = of.largest_context;
  row["most_sessions"] = of.most_sessions;
  row["tokens_per_second"] = of.tokens_per_second ? lab::number(*of.tokens_per_second) : lab::Row(nullptr);
  return row;
}

/// Prints the numbers that decide first, then the parts.
void print_plans(const std::vector<Planned>& plans, int n_ctx_train) {
  const auto line = [&](const std::string& name, const auto& cell) {
    fmt::print("| {} |", name);
    for (const Planned& of : plans) fmt::print(" {} |", cell(of));
    fmt::print("\n");
  };
  line("KV cache", [](const Planned& of) { return kv_text(of.plan.kv); });
  line("---", [](const Planned&) { return "---:"; });
  const int n_sessions = plans[0].plan.n_sessions, n_ctx = plans[0].plan.n_ctx;
  line("total", [](const Planned& of) { return planned_size(of.plan.total()); });
  line("fits", [](const Planned& of) { return of.fits ? "yes" : "NO"; });
  line(fmt::format("largest context of {} session{} (trained for {})", n_sessions, n_sessions == 1 ? "" : "s",
                   n_ctx_train),
       [](const Planned& of) { return of.largest_context; });
  line(fmt::format("most sessions of {} tokens", n_ctx), [](const Planned& of) { return of.most_sessions; });
  line("a decode step reads", [](const Planned& of) { return planned_size(of.plan.step_bytes()); });
  if (plans[0].tokens_per_second)
    line("tokens/s at most", [](const Planned& of) { return fmt::format("{:.1f}", *of.tokens_per_second); });
  if (plans[0].plan.host_bytes > 0) {
    line("experts in host memory", [](const Planned& of) { return planned_size(of.plan.host_bytes); });
    line("a decode step of one token reads there",
         [](const Planned& of) { return planned_size(of.plan.step_host_bytes); });
    if (plans[0].plan.n_cached_experts > 0)
      line("of a layer's experts there, the GPU also keeps",
           [](const Planned& of) { return fmt::format("{} of {}", of.plan.n_cached_experts, of.plan.n_host_experts); });
  }
  for (const lab::PlanPart& part : plans[0].plan.parts) {
    // Parts that no format here has.
    if (std::ranges::all_of(plans, [&](const Planned& of) { return of.plan.of(part.name) == 0; })) continue;
    line(part.name, [&](const Planned& of) { return planned_size(of.plan.of(part.name)); });
  }
}

void print_check(const lab::MemoryPlan& plan, const lab::PlanCheck& check) {
  fmt::print("\n| {} | planned | found | difference |\n| --- | ---: | ---: | ---: |\n", kv_text(plan.kv));
  const auto line = [](const std::string& name, int64_t planned, int64_t found) {
    fmt::print("| {} | {} | {} | {:+} B |\n", name, planned_size(planned), planned_size(found), found - planned);
  };
  for (const lab::PlanPart& part : check.found)
    if (part.bytes > 0 || plan.of(part.name) > 0) line(part.name, plan.of(part.name), part.bytes);
  line("total", plan.total(), check.total());
  if (check.driver_bytes > 0) {
    fmt::print("difference {:.3f} % of what was found; the driver counts {} in use\n", 100 * check.difference(plan),
               planned_size(check.driver_bytes));
    return;
  }
  fmt::print("difference {:.3f} % of what was found; resident memory grew by {}\n", 100 * check.difference(plan),
             planned_size(check.resident_bytes));
}

lab::Row check_row(const lab::MemoryPlan& plan, const lab::PlanCheck& check) {
  lab::Row row{{"found", lab::Row::object()},
               {"found_bytes", check.total()},
               {"difference", lab::number(check.difference(plan))},
               {"driver_bytes", check.driver_bytes},
               {"resident_bytes", check.resident_bytes}};
  for (const lab::PlanPart& part : check.found) row["found"][part.name] = part.bytes;
  return row;
}

[[noreturn]] void refuse(const std::vector<Planned>& plans, int64_t memory) {
  std::string largest;
  for (const Planned& of : plans)
    largest +=
        fmt::format("{}{}: {} tokens in {} session{}, or {} session{} of {}", largest.empty() ? "" : "; ",
                    kv_text(of.plan.kv), of.largest_context, of.plan.n_sessions, of.plan.n_sessions == 1 ? "" : "s",
                    of.most_sessions, of.most_sessions == 1 ? "" : "s", of.plan.n_ctx);
  throw_error(ErrorKind::no_memory, "no plan fits in {:.2f} GiB; what fits: {}", double(memory) / kGib, largest);
}

/// "one of 4 ranks, layers 14 to 27, "
std::string rank_text(const lab::PlannedModel& model) {
  if (!model.slice) return "";
  const Extent& here = model.config().here;
  const std::string layers = here.count > 0 ? fmt::format("layers {} to {}, ", here.first, here.end() - 1) : "";
  return fmt::format("one of {} ranks, {}", model.slice->n_ranks(), layers);
}

int run_plan(const PlanFlags& flags) {
  const std::vector<int> devices = parse_devices(flags.model.device);
  const auto n_devices = int(devices.size());
  if (n_devices > 1) check_stages(devices, flags.pp);
  check_device(flags.model.device);
  flags.spec.check();
  if (n_devices > 1 && flags.tp > 1)
    bad_flag("--tp", "several devices are ranks themselves", "leave out --tp, or name one device");
  const int n_ranks = std::max(flags.tp * flags.pp, n_devices);
  if (n_ranks > 1 && (flags.spec.on() || flags.check))
    bad_flag(n_devices > 1  ? "--device"
             : flags.tp > 1 ? "--tp"
                            : "--pp",
             "a plan of one rank has no speculation, and a check would need all ranks",
             "leave out --spec-type and --check");
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  LoadOptions place = flags.model.load_options();
  if (n_devices > 1) place.device = fmt::format("cuda:{}", devices.back());
  const lab::PlannedModel model = lab::plan_model(flags.model.model, place, n_ranks, flags.pp);
  const int n_ctx = flags.n_ctx > 0 ? flags.n_ctx : model.config().n_ctx_train;
  std::shared_ptr<const lab::PlannedDraft> draft;
  if (flags.spec.on())
    draft = lab::plan_draft(model, flags.spec.type, flags.spec.draft_model, flags.spec.cache(), flags.spec.depth);
  const int64_t memory = flags.memory_gib > 0 ? int64_t(flags.memory_gib * kGib) : lab::usable_memory(model.place);
  const std::optional<double> bandwidth = bandwidth_of(flags, model.place);
  std::vector<Planned> plans;
  for (const KvChoice& kv : flags.list.empty() ? lab::planned_formats(model) : parse_kv_list(flags.list).or_throw()) {
    Planned of{.plan = lab::plan_memory(model, kv, n_ctx, flags.n_sessions, flags.n_ubatch, draft)};
    of.fits = of.plan.total() <= memory;
    of.largest_context = lab::largest_context(model, kv, flags.n_sessions, flags.n_ubatch, memory, draft);
    of.most_sessions = lab::most_sessions(model, kv, n_ctx, flags.n_ubatch, memory, draft);
    if (bandwidth && of.plan.step_host_bytes == 0)
      of.tokens_per_second = of.plan.tokens_per_second(*bandwidth / flags.pp);  // stages follow one another
    plans.push_back(std::move(of));
  }

  lab::Row rows = lab::list_of(plans, [&](const Planned& of) { return planned_row(model, of); });
  if (!flags.output.json) {
    if (!flags.output.quiet)
      fmt::print(stderr, "plan     {} ({}) on {}{}, {} session{} of {} tokens, {:.2f} GiB of memory\n",
                 model.config().name, model.config().arch, rank_text(model), model.place.device, flags.n_sessions,
                 flags.n_sessions == 1 ? "" : "s", n_ctx, double(memory) / kGib);
    print_plans(plans, model.config().n_ctx_train);
    if (plans[0].plan.host_bytes > 0 && !flags.output.quiet)
      fmt::print(stderr, "no tokens/s: a decode step also reads experts in host memory, with another bandwidth\n");
    else if (!bandwidth && !flags.output.quiet)
      fmt::print(stderr,
                 "no tokens/s: this machine's read bandwidth is not known (measure it: ridge bench bandwidth --results "
                 "FILE, then give --roof-file FILE or --roof-gbs X)\n");
  }
  bool within = true;
  // Without a list only the first format is loaded.
  const size_t n_checked = !flags.check ? 0 : flags.list.empty() ? 1 : plans.size();
  for (size_t i = 0; i < n_checked; ++i) {
    if (!plans[i].fits) continue;
    const lab::PlanCheck check = lab::check_plan(flags.model.model, plans[i].plan, flags.model.load_options());
    within &= check.difference(plans[i].plan) <= lab::kPlanTolerance;
    rows[i].update(check_row(plans[i].plan, check));
    if (!flags.output.json) print_check(plans[i].plan, check);
  }
  for (lab::Row& row : rows) {
    row.update(lab::provenance(model.place.n_threads, 0));
    row["memory_bytes"] = memory;  // of the device; provenance() has the machine's
    results.add(row);
  }
  if (flags.output.json) fmt::print("{}\n", lab::json_text(rows, 2));
  if (std::ranges::none_of(plans, &Planned::fits)) refuse(plans, memory);
  if (within) return 0;
  fmt::print(stderr, "error: the plan is off by more than {:g} %\n", 100 * lab::kPlanTolerance);
  return int(ErrorKind::gate);
}

}  // namespace

static Action declare_plan(CLI::App& app) {
  const auto flags = std::make_shared<PlanFlags>();
  PlanFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  in_group(app, "Plan");
  add_whole(app, "--tp", f.tp, 1, 64,
            "ranks that hold the model together: the plan is that of one, as of several devices");
  add_whole(app, "--pp", f.pp, 1, 64,
            "stages that the layers are split over, of ranks or of devices; the largest is planned");
  add_whole(app, "-c,--ctx-size", f.n_ctx, 0, 1 << 26, "tokens of each session; 0: what the model was trained for");
  add_whole(app, "--sessions", f.n_sessions, 1, 65536, "sequences in memory at once");
  add_whole(app, "--ubatch-size", f.n_ubatch, 0, 65536, "tokens per prefill step (-ub); 0: 512, on a GPU 2048");
  add_text(app, "--kv", f.list, "LIST", "comma list of caches; left out: f16, q8_0, p8, rotor-4, rotor-3, q4_0");
  add_real(app, "--memory-gib", f.memory_gib, 0, 1e6, "GiB that may be used; 0: what is available here (GPU: all)");
  add_real(app, "--roof-gbs", f.roof_gb_s, 0, 1e6, "read bandwidth in GB/s (10^9) that tokens/s follow from");
  add_text(app, "--roof-file", f.roof_file, "FILE", "rows of ridge bench bandwidth: the newest of this machine counts");
  app.add_flag("--check", f.check, "load the model, run the plan's steps, compare with what was allocated");
  add_spec_flags(app, f.spec);
  add_output_flags(app, f.output, true);
  return [flags] { return run_plan(*flags); };
}

extern const Command plan_command = {
    "plan", "memory of a model and its caches, before loading",
    R"(Counts every byte from the configuration and the headers of tensors: weights as the device holds them, K and V
of --sessions sequences of -c tokens, states, activations, scratch, logits. Each cache format has a column:
whether it fits, the largest context and the most sessions that fit, the bytes that a decode pass reads, and
the tokens a second that memory bandwidth allows. --check loads the model, runs the planned passes, compares
component by component, and ends with 3 if a difference is over 1 %. When no format fits, the command ends
with 5.)",
    R"(ridge plan -m model.gguf -c 32768 --sessions 4
ridge plan -m synth:llama-3.1-70b@weights=int4_g128 -c 131072 --memory-gib 80 --kv f16,rotor-3 --roof-gbs 3300
ridge plan -m models/ridge-ref-q8_0.gguf -c 4096 --sessions 2 --kv f16,rotor-3 --check)",
    declare_plan};

}  // namespace ridge::cli
