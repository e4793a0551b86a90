// Runs the steps that profile.h attributes.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/rng.h"
#include "engine/device_name.h"
#include "engine/engine.h"
#include "gpu/device_query.h"
#include "gpu/kernel_times.h"
#include "gpu/launch_log.h"
#include "lab/model/bench.h"
#include "lab/model/profile.h"
#include "lab/op/cpu_counters.h"
#include "lab/op/machine_ceilings.h"
#include "op/trace.h"

namespace ridge::lab {
namespace {

// On a device: every kind of step has been recorded by then, those in which a tile of 32 positions is coded too.
constexpr int kDeviceWarmUp = 100;
constexpr int kHostWarmUp = 2;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void append(std::vector<gpu::KernelTime>& to, const std::vector<gpu::KernelTime>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

class ProfileRunner {
 public:
  ProfileRunner(const ProfileParams& params, const ProfileHooks& hooks, const Model& model)
      : params_(params), hooks_(hooks), model_(model), rng_(params.seed) {}

  std::vector<int32_t> tokens(int n) { return random_tokens(model_, n, rng_); }

  /// A session at the depth, with room for `n_more` tokens.
  Session open(int n_more) const {
    return {model_, session_options(params_.kv, params_.n_depth + n_more, std::max(1, params_.n_prompt))};
  }

  void status(const std::string& what, int done) const { hooks_.on_status(what, done, params_.n_steps); }

  /// Steps on the CPU, every other one without a trace. False when asked to stop.
  bool run_host(std::vector<ProfiledStep>& steps, std::vector<double>& untraced, Profile& profile) {
    CpuContext& context = model_.engine().context();
    const int per_step = std::max(1, params_.n_prompt), n_decode = params_.n_prompt > 0 ? 1 : 2 * params_.n_steps;
    Session session = open((n_decode + kHostWarmUp) * per_step);
    profile.cache = session.kv_report();
    const double begin = now_us();
    OpTrace trace;
    std::optional<CpuCounters> counters;
    if (params_.counters) {
      Result<CpuCounters> opened = CpuCounters::open();
      profile.counted = bool(opened);
      if (opened) {
        counters = std::move(opened).or_throw();
        trace.read_counters = [&] { return counters->read(); };
      } else {
        profile.why_not_counted = opened.error().message;
      }
    }
    bool at_depth = false;
    for (int i = -kHostWarmUp; i < 2 * params_.n_steps; ++i) {
      const double seconds = (now_us() - begin) * 1e-6;
      if (int(steps.size()) >= 2 && seconds > params_.max_seconds) break;
      if (!at_depth || params_.n_prompt > 0) session.fill(params_.n_depth, params_.seed);
      at_depth = true;
      if (profile.step_read_bytes == 0) profile.step_read_bytes = session.decode_read_bytes();
      const std::vector<int32_t> ids = tokens(per_step);
      const bool traced = i >= 0 && i % 2 == 0;
      status(fmt::format("step {}", std::max(0, i) / 2 + 1), std::max(0, i) / 2);
      context.trace = traced ? &trace : nullptr;
      const double start = trace.now_us();
      if (params_.n_prompt > 0) session.prefill(ids);
      else session.decode(ids[0]);
      const double us = trace.now_us() - start;
      context.trace = nullptr;
      if (hooks_.stop()) return false;
      if (traced) steps.push_back({.start_us = start, .us = us, .calls = std::exchange(trace.calls, {})});
      else if (i >= 0) untraced.push_back(us);
    }
    return true;
  }

  /// Steps on a device that feed themselves, or chunks of a prompt. `log`: null without a profile.
  /// Kernels of what is logged are added to `kernels`, but for those that `times` still holds in the end.
  bool run_device(gpu::LaunchLog* log, gpu::KernelTimes* times, std::vector<gpu::KernelTime>& kernels,
                  std::vector<double>& walls, Profile& profile) {
    const int n = params_.n_steps + 2;  // the first is not used, the last may be cut off
    if (params_.n_prompt > 0) {
      Session session = open(params_.n_prompt);
      profile.cache = session.kv_report();
      for (int i = -1; i < n; ++i) {
        session.fill(params_.n_depth, params_.seed);
        if (profile.step_read_bytes == 0) profile.step_read_bytes = session.decode_read_bytes();
        const std::vector<int32_t> ids = tokens(params_.n_prompt);
        if (times) times->take();  // those that filled the cache
        const gpu::LogLaunches on(i >= 0 ? log : nullptr);
        const double start = now_us();
        session.prefill(ids);  // waits for the logits
        if (i >= 0) {
          walls.push_back(now_us() - start);
          if (times) append(kernels, times->take());
        }
        if (hooks_.stop()) return false;
        status(log ? "timing kernels" : "timing chunks", std::max(0, i));
      }
      return true;
    }
    Session session = open(kDeviceWarmUp + n + 8);
    profile.cache = session.kv_report();
    session.fill(params_.n_depth, params_.seed);
    if (profile.step_read_bytes == 0) profile.step_read_bytes = session.decode_read_bytes();
    SamplerOptions greedy;
    greedy.temperature = 0;
    const auto generate = [&](int n_tokens) {
      session.generate(greedy, {}, n_tokens, [&](int32_t) { return !hooks_.stop(); });
    };
    session.decode(tokens(1)[0]);
    generate(kDeviceWarmUp);
    if (hooks_.stop()) return false;
    if (times) times->take();
    status(log ? "timing kernels" : "timing steps", 0);
    const gpu::LogLaunches on(log);
    session.decode(tokens(1)[0]);
    const double start = now_us();
    generate(n);  // n - 1 steps: the first token comes from the logits that are there
    walls.push_back((now_us() - start) / std::max(1, n - 1));
    return !hooks_.stop();
  }

 private:
  const ProfileParams& params_;
  const ProfileHooks& hooks_;
  const Model& model_;
  Rng rng_;
};

/// The best repeat; 0 when this arithmetic was not measured.
double rate_of(std::span<const RateResult> rates, std::string_view number) {
  for (const RateResult& rate : rates)
    if (rate.number == number) return rate.gop_s.max;
  return 0;
}

ProfileCeilings profile_ceilings(const ProfileParams& params, const ProfileHooks& hooks) {
  // Profile the first of several devices.
  const std::vector<int> devices = parse_devices(params.load.device);
  const MachineCeilings machine =
      measure_machine_ceilings({.device = devices.empty() ? "cpu" : gpu::device_text(devices[0]),
                                .n_threads = params.load.n_threads,
                                .isa = params.load.isa,
                                .rates = true,
                                .stop = hooks.stop});
  return {.read_gb_s = machine.read_gb_s,
          .int8_gop_s = rate_of(machine.rates, "int8"),
          .float_gop_s = rate_of(machine.rates, devices.empty() ? "f32" : "f16"),
          .cache_bytes = machine.llc_bytes};
}

/// The step whose duration is nearest the median.
const ProfiledStep& median_step(const std::vector<ProfiledStep>& steps, double median_us) {
  return *std::min_element(steps.begin(), steps.end(), [&](const ProfiledStep& a, const ProfiledStep& b) {
    return std::abs(a.us - median_us) < std::abs(b.us - median_us);
  });
}

}  // namespace

std::optional<Profile> run_profile(const ProfileParams& params, const ProfileHooks& hooks) {
  const auto status = [&](const std::string& what) { hooks.on_status(what, 0, params.n_steps); };
  check_layers_are_distinct(params.model, params.load.device);
  status("read bandwidth");
  Profile profile;
  profile.ceilings = profile_ceilings(params, hooks);
  if (hooks.stop()) return std::nullopt;
  status("loading " + params.model);
  const Model model = Model::load(params.model, params.load);
  if (params.check) {
    status("the check against the reference kernels");
    BenchReference reference(params.model);
    profile.check =
        reference.compare(model, {.kv = params.kv, .depth = params.n_depth}, params.seed, params.check_bound);
    if (!profile.check.passed)
      throw_error(ErrorKind::gate, "check failed: NMSE {:.3g} over the bound {:.3g} ({}); no times are given for it",
                  profile.check.nmse, profile.check.bound, profile.check.what);
    if (hooks.stop()) return std::nullopt;
  }
  profile.model = model.info();
  profile.kv = kv_text(params.kv);
  profile.n_depth = params.n_depth;
  profile.prefill = params.n_prompt > 0;
  profile.n_tokens = std::max(1, params.n_prompt);

  ProfileRunner runner(params, hooks, model);
  std::vector<ProfiledStep> steps;
  std::vector<double> untraced;
  if (model.info().device == "cpu") {
    if (!runner.run_host(steps, untraced, profile)) return std::nullopt;
  } else {
    std::vector<gpu::KernelTime> kernels;
    if (!runner.run_device(nullptr, nullptr, kernels, untraced, profile)) return std::nullopt;
    gpu::KernelTimes times(parse_devices(params.load.device)[0]);  // from here on everything is recorded
    gpu::LaunchLog log;
    std::vector<double> traced_walls;
    if (!runner.run_device(&log, &times, kernels, traced_walls, profile)) return std::nullopt;
    append(kernels, times.take());
    steps = device_steps(log, kernels).or_throw();
  }
  if (steps.empty())
    throw Error(ErrorKind::failure, "no step could be profiled in the time (raise max_seconds)", "max_seconds");
  profile.attribution = attribute(steps);
  profile.untraced_us = spread(untraced).median;
  profile.example = median_step(steps, profile.attribution.median_us);
  profile.seed = params.seed;
  profile.date = utc_now();
  return profile;
}

}  // namespace ridge::lab
