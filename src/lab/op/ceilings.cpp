#include "lab/op/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>

#include "op/rate/rate.h"

namespace ridge::lab {
namespace {

constexpr int64_t kPart = 4 << 20;  // bytes a thread takes at a time: long streams, yet the threads end together

/// The three buffers and who works on them.
class Streams {
 public:
  Streams(CpuContext& context, const StreamVariant& kernel, int64_t bytes, bool read_only)
      : context_(context), kernel_(kernel), bytes_(bytes), a_(bytes) {
    if (!read_only) b_ = AlignedBuffer(bytes), c_ = AlignedBuffer(bytes);
    // Committed before anything is timed, by the threads that will use them.
    each_part([&](int64_t at) {
      for (AlignedBuffer* buffer : {&a_, &b_, &c_})
        if (buffer->data()) kernel_.write(buffer->data() + at, kPart, 1);
    });
  }

  void read() {
    each_part([&](int64_t at) { sink_.fetch_add(kernel_.read(a_.data() + at, kPart), std::memory_order_relaxed); });
  }
  void write() {
    each_part([&](int64_t at) { kernel_.write(a_.data() + at, kPart, 2); });
  }
  void write_nt() {
    each_part([&](int64_t at) { kernel_.write_nt(a_.data() + at, kPart, 3); });
  }
  void copy() {
    each_part([&](int64_t at) { kernel_.copy(a_.data() + at, b_.data() + at, kPart); });
  }
  void copy_nt() {
    each_part([&](int64_t at) { kernel_.copy_nt(a_.data() + at, b_.data() + at, kPart); });
  }
  void triad() {
    each_part([&](int64_t at) { kernel_.triad(a_.data() + at, b_.data() + at, c_.data() + at, kPart); });
  }

 private:
  template <class Body>
  void each_part(const Body& body) {
    context_.pool.for_each(bytes_ / kPart, [&](int64_t part, int) { body(part * kPart); });
  }

  CpuContext& context_;
  const StreamVariant& kernel_;
  const int64_t bytes_;
  AlignedBuffer a_, b_, c_;
  std::atomic<uint64_t> sink_{0};
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

StreamResult measure(std::string name, int64_t bytes_moved, const CeilingOptions& options,
                     const std::function<void()>& work) {
  constexpr int kFewestRepeats = 3;
  work();  // warm-up: page tables, clocks
  std::vector<double> gb_s;
  double total = 0;
  while (int(gb_s.size()) < std::max(kFewestRepeats, options.repeats)) {
    const bool enough = int(gb_s.size()) >= kFewestRepeats;
    if (enough && (total > options.max_seconds || (options.stop && options.stop()))) break;
    const double seconds = seconds_of(work);
    total += seconds;
    gb_s.push_back(seconds > 0 ? double(bytes_moved) / seconds / 1e9 : std::numeric_limits<double>::quiet_NaN());
  }
  const int repeats = int(gb_s.size());
  return {std::move(name), bytes_moved, spread(std::move(gb_s)), repeats};
}

}  // namespace

Spread spread(std::vector<double> samples) {
  if (samples.empty()) return {};
  for (const double sample : samples)
    if (!(sample >= 0)) return {NAN, NAN, NAN, NAN, NAN};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double fraction) {
    const double place = fraction * double(samples.size() - 1);
    const auto below = size_t(place);
    const double rest = place - double(below);
    return (1 - rest) * samples[below] + rest * samples[std::min(below + 1, samples.size() - 1)];
  };
  return {at(0.5), at(0.25), at(0.75), samples.front(), samples.back()};
}

StreamSize choose_stream_size(int64_t cache_bytes, int64_t available_bytes) {
  constexpr int64_t kGib = int64_t(1) << 30;
  const auto whole_parts = [](int64_t bytes) { return std::max(kPart, bytes / kPart * kPart); };
  const int64_t wanted = std::max(kGib, 4 * cache_bytes);
  const int64_t allowed = available_bytes > 0 ? available_bytes / 8 : wanted;
  const double cache_mib = double(cache_bytes) / 1048576;
  if (wanted <= allowed) {
    const std::string_view rule =
        4 * cache_bytes > kGib ? "4 x the last-level cache" : "1 GiB, at least 4 x the last-level cache";
    return {whole_parts(wanted), cache_bytes > 0 ? fmt::format("{} of {:.0f} MiB", rule, cache_mib)
                                                 : "1 GiB; the last-level cache is unknown"};
  }
  return {
      whole_parts(allowed),
      fmt::format("an eighth of the available memory; 4 x the last-level cache of {:.0f} MiB would be {:.0f} MiB, so "
                  "caches may flatter this figure",
                  cache_mib, 4 * cache_mib)};
}

double Ceilings::read_gb_s() const {
  for (const StreamResult& stream : streams)
    if (stream.name == "read") return stream.gb_s.max;
  return 0;
}

int64_t cache_buffer_bytes(const MachineInfo& machine, int level, int n_threads) {
  const auto share = [&](int of_level) -> int64_t {
    for (const CacheInfo& cache : machine.caches)
      // The lower levels belong to a core; the last one is shared by all threads.
      if (cache.level == of_level && cache.type != "Instruction")
        return of_level < 3 ? cache.bytes : cache.bytes / std::max(1, n_threads);
    return 0;
  };
  const int64_t bytes = share(level) / 2 / kStreamUnit * kStreamUnit;
  return level > 1 && bytes <= share(level - 1) ? 0 : bytes;
}

double RateResult::ridge_op_per_byte(double gb_s) const {
  return gb_s > 0 && gop_s.max > 0 ? gop_s.max / gb_s : std::numeric_limits<double>::quiet_NaN();
}

namespace {

constexpr double kSampleSeconds = 2e-3;

/// So many of `work` that they take a sample's time together.
int64_t choose_rounds(int64_t most, const std::function<void(int64_t)>& work) {
  int64_t rounds = 1;
  const auto fastest = [&] {  // of three: a thread that was not scheduled says nothing about the work
    double seconds = seconds_of([&] { work(rounds); });
    for (int i = 0; i < 2 && seconds >= kSampleSeconds; ++i)
      seconds = std::min(seconds, seconds_of([&] { work(rounds); }));
    return seconds;
  };
  for (work(1); rounds < most && fastest() < kSampleSeconds;) rounds = std::min(most, 2 * rounds);
  return rounds;
}

void measure_caches(CpuContext& context, const StreamVariant& kernel, const CeilingOptions& options, Ceilings& result) {
  const MachineInfo machine = machine_info();
  const int n_threads = context.pool.size();
  for (const int level : {1, 2, 3}) {
    const int64_t bytes = cache_buffer_bytes(machine, level, n_threads);
    if (bytes == 0 || (options.stop && options.stop())) continue;
    std::vector<AlignedBuffer> buffers;
    for (int i = 0; i < n_threads; ++i) {
      buffers.emplace_back(bytes);
      kernel.write(buffers.back().data(), bytes, 1);
    }
    const uint64_t right = kernel.read(buffers[0].data(), bytes);
    std::atomic<bool> wrong{false};
    const auto read = [&](int64_t rounds) {
      context.pool.for_each(n_threads, [&](int64_t, int thread) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < rounds; ++i) sum += kernel.read(buffers[size_t(thread)].data(), bytes);
        if (sum != right * uint64_t(rounds)) wrong = true;
      });
    };
    const int64_t rounds = choose_rounds(1 << 20, read);
    result.caches.push_back(
        {level, bytes,
         measure(fmt::format("read-l{}", level), rounds * n_threads * bytes, options, [&] { read(rounds); })});
    if (wrong) throw_error(ErrorKind::gate, "stream read-l{}: a sum is wrong: no bandwidth is given", level);
  }
}

void measure_rates(CpuContext& context, const CeilingOptions& options, Ceilings& result) {
  for (const std::string_view number : {"f32", "int8", "bf16", "f16"}) {
    if (options.stop && options.stop()) return;
    RateResult& rate = result.rates.emplace_back();
    rate.number = number;
    rate.why_not = fmt::format("no kernel for {} on this kind of processor", number);
    const RateVariant* best = nullptr;
    for (const RateVariant& variant : rate_variants()) {
      if (variant.number != number) continue;
      const Support support = variant.supports();
      if (variant.isa > context.isa) rate.why_not = fmt::format("{} needs {}", variant.name, isa_name(variant.isa));
      else if (!support.ok) rate.why_not = support.why_not;
      else best = &variant;
    }
    if (!best) continue;
    rate.why_not.clear();
    rate.kernel = best->name;
    const int n_tasks = 8 * context.pool.size();  // so that threads end together
    std::atomic<bool> wrong{false};
    const auto run = [&](int64_t rounds) {
      context.pool.for_each(n_tasks, [&](int64_t, int) {
        if (best->run(rounds) != rounds * best->result) wrong = true;
      });
    };
    const int64_t rounds = choose_rounds(kMostRateRounds, run);
    // Operations take the bytes' place: 10^9 a second either way.
    const StreamResult measured = measure("", rounds * n_tasks * best->ops, options, [&] { run(rounds); });
    if (wrong) throw_error(ErrorKind::gate, "rate {}: the result is wrong: no rate is given", best->name);
    rate.gop_s = measured.gb_s;
    rate.repeats = measured.repeats;
  }
}

}  // namespace

Ceilings measure_ceilings(const CeilingOptions& options) {
  CpuContext context(options.n_threads, find_isa(options.isa).or_throw());
  const StreamVariant& kernel = select_variant(context, "stream", stream_variants());
  Ceilings result;
  result.kernel = kernel.name;
  result.n_threads = context.pool.size();
  const MachineInfo machine = machine_info();
  result.size = options.bytes > 0 ? StreamSize{std::max(kPart, options.bytes / kPart * kPart), "as asked"}
                                  : choose_stream_size(machine.last_level_cache_bytes(), machine.available_bytes);
  const int64_t n = result.size.bytes;
  const int64_t needed = (options.read_only ? 1 : 3) * n;
  if (machine.available_bytes > 0 && needed > machine.available_bytes)
    throw Error(ErrorKind::no_memory,
                fmt::format("the streams need {:.0f} MiB, {:.0f} MiB are available (use smaller ones)",
                            double(needed) / 1048576, double(machine.available_bytes) / 1048576),
                "bytes");
  Streams streams(context, kernel, n, options.read_only);
  const auto add = [&](std::string_view name, int64_t bytes_moved, auto method) {
    if (options.stop && options.stop()) return;
    result.streams.push_back(measure(std::string(name), bytes_moved, options, [&] { (streams.*method)(); }));
  };
  add("read", n, &Streams::read);
  if (options.read_only && options.rates) measure_rates(context, options, result);
  if (options.read_only) return result;
  add("write", n, &Streams::write);
  if (kernel.write_nt) add("write-nt", n, &Streams::write_nt);
  add("copy", 2 * n, &Streams::copy);
  if (kernel.copy_nt) add("copy-nt", 2 * n, &Streams::copy_nt);
  add("triad", 3 * n, &Streams::triad);
  measure_caches(context, kernel, options, result);
  measure_rates(context, options, result);
  return result;
}

Columns<StreamResult> stream_columns() {
  return {
      {"name", "-", "what the kernel does", &StreamResult::name, "stream"},
      {"bytes_moved", "bytes", "loaded and stored by a repeat", &StreamResult::bytes_moved},
      {"median_gb_s", "GB/s", "of the repeats", [](auto& s) { return s.gb_s.median; }, ">GB/s median", "{:.2f}"},
      {"", "GB/s", "quartiles", [](auto& s) { return s.gb_s.quartiles(2); }, ">quartiles"},
      {"lower_quartile_gb_s", "GB/s", "of the repeats", [](auto& s) { return s.gb_s.lower; }},
      {"upper_quartile_gb_s", "GB/s", "of the repeats", [](auto& s) { return s.gb_s.upper; }},
      {"max_gb_s", "GB/s", "of the repeats", [](auto& s) { return s.gb_s.max; }, ">max", "{:.2f}"},
      {"repeats", "repeats", "measured", &StreamResult::repeats, ">repeats"},
  };
}

Columns<RateResult> rate_columns(double read_gb_s) {
  const auto gop_s = [](double Spread::*of) {
    return [of](const RateResult& r) { return when(!r.is_none(), r.gop_s.*of); };
  };

  return {
      {"number", "-", "what is multiplied", &RateResult::number, "multiply-adds"},
      {"kernel", "-", "that multiplies", &RateResult::kernel},
      {"", "-", "that multiplies", [](auto& r) { return r.is_none() ? "none: " + r.why_not : r.kernel; }, "kernel"},
      {"why_not", "-", "why there is none", [](auto& r) { return when(r.is_none(), r.why_not); }},
      {"median_gop_s", "Gop/s", "of the repeats", gop_s(&Spread::median), ">Gop/s median", "{:.1f}"},
      {"", "Gop/s", "quartiles", [](auto& r) { return when(!r.is_none(), r.gop_s.quartiles(1)); }, ">quartiles"},
      {"lower_quartile_gop_s", "Gop/s", "of the repeats", gop_s(&Spread::lower)},
      {"upper_quartile_gop_s", "Gop/s", "of the repeats", gop_s(&Spread::upper)},
      {"max_gop_s", "Gop/s", "of the repeats", gop_s(&Spread::max), ">max", "{:.1f}"},
      {"ridge_op_per_byte", "op/byte", "from here on arithmetic is the limit",
       [=](auto& r) { return r.ridge_op_per_byte(read_gb_s); }, ">ridge op/byte", "{:.1f}"},
      {"repeats", "repeats", "measured", &RateResult::repeats},
      {"", "repeats", "measured", [](auto& r) { return when(!r.is_none(), r.repeats); }, ">repeats"},
  };
}

Columns<CacheResult> cache_columns(std::string_view bytes_key) {
  return {
      part_of<CacheResult>(stream_columns(), &CacheResult::stream),
      {"level", "-", "of the cache", &CacheResult::level},
      {bytes_key, "bytes", "that are read over and over", &CacheResult::bytes},
  };
}

Columns<Ceilings> ceiling_columns() {
  const Columns<Ceilings> columns = {{"kernel", "-", "that moves the bytes", &Ceilings::kernel},
                                     {"n_threads", "threads", "that were measured", &Ceilings::n_threads}};
  return columns.with(bandwidth_columns<Ceilings>("thread_bytes"));
}

}  // namespace ridge::lab
