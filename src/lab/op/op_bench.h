// Benches of single ops, on the CPU or on a GPU: attention over a cache, matmuls with weight matrices, rows coded into
// a cache.
//
// A problem is a shape and its formats; a kernel is a row of op_kernels(), worst to best, and runs on one kind of
// device. The last kernel of the table that supports a problem is measured, or those that are asked for, in turns
// (a replay of a graph of calls on a GPU, a sample of calls on the CPU). First, in the same run, the result is held
// against a reference in double, and again what the timed calls left behind: a row whose check fails has no times.
// Bytes are the op's declared work, whatever the kernel moves; percent of roof (a row's field) is of the read bandwidth
// measured in the same run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "engine/kv_choice.h"
#include "gpu/device.h"
#include "gpu/device_query.h"
#include "lab/op/ceilings.h"
#include "lab/rows/columns.h"
#include "lab/rows/gpu_state.h"
#include "lab/rows/run_hooks.h"
#include "op/cache/layout.h"
#include "op/cpu.h"

namespace ridge::lab {

enum class Op : uint8_t { attention, gemv, append };
std::string_view op_name(Op op);

/// One call: fields of other ops are 0 or null.
struct OpProblem {
  Op op = Op::attention;
  // attention: the n_new newest of n_keys cached positions are queries, of each of n_seq equal sequences.
  // append: n_new tokens of each sequence are coded, at positions from n_keys on.
  int n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int n_seq = 0;
  int n_keys = 0;
  int n_new = 0;
  KvChoice kv;
  KvSideConfig k, v;  ///< what kv means here, policies included
  // gemv: y [n_tokens, n_out] = x [n_tokens, n_in] times the weights [n_out, n_in].
  int n_out = 0, n_in = 0, n_tokens = 0;
  const WeightFormat* weights = nullptr;

  /// "64/8/128, 8 x 32768 keys", "4096x14336, 8 tokens", "64/8/128, 1 x 1 rows".
  std::string shape_text() const;
  KvLayerConfig layer() const { return {k, v, n_kv_heads, head_dim}; }
  /// Layer with the same caches, rounded to nearest.
  KvLayerConfig nearest_layer() const;
  /// "f16", "q8_0/rotor-3", "int4_g128".
  std::string format_text() const;
};

/// Least traffic of one call: cache rows or weights once in their format, activations once as float32.
Work op_work(const OpProblem& problem);

/// A result against the reference.
struct OpCheck {
  std::string metric;  ///< "NMSE", or what is counted: "different bytes"
  double error = 0;    ///< passes when at most `bound`; NaN never does
  double bound = 0;
  Comparison comparison;  ///< of float results
  bool has_comparison = false;
  std::string what;  ///< "all 64 heads against softmax in double"

  bool passed() const { return error <= bound && comparison.same_nonfinite; }
};
/// NMSE of floats against the reference.
OpCheck check_nmse(std::span<const float> actual, std::span<const float> expected, double bound, std::string what);

/// A problem with its buffers on a GPU: n_sets sets with equal contents.
class OpRun {
 public:
  virtual ~OpRun() = default;
  /// Queues one call on the buffers of `set`; the rules are DeviceWork::queue's.
  virtual void queue(gpu::StreamHandle stream, int set) = 0;
  /// Looks at what the last call on `set` left, with all work of the stream done.
  virtual OpCheck check(const gpu::Stream& stream, int set) = 0;
};

/// A problem with its buffers in memory: n_sets sets with equal contents.
class CpuOpRun {
 public:
  virtual ~CpuOpRun() = default;
  /// Before `calls` timed calls, which take the sets in turn from `first_set` on. Not timed.
  virtual void prepare(int first_set, int calls);
  /// Most calls that prepare() can prepare for.
  virtual int most_calls() const;
  /// So many calls, or a multiple, take the same time again.
  virtual int calls_multiple() const;
  /// One call on the buffers of `set`.
  virtual void call(int set) = 0;
  /// Looks at what the calls on `set` left.
  virtual OpCheck check(int set) = 0;
};

/// The device that rows are measured on: the CPU, or one GPU.
struct OpDevice {
  int index = kCpu;  ///< of a GPU
  // GPU only.
  gpu::Device device;
  int driver_version = 0, runtime_version = 0;
  // CPU only.
  Isa isa = Isa::scalar;  ///< highest that kernels may use
  int n_threads = 0;
  int64_t cache_bytes = 0;  ///< last-level cache; 0: unknown

  static constexpr int kCpu = -1;
  bool is_cpu() const { return index == kCpu; }
};

/// One row of the table of benched kernels. It runs where it can be opened: on a GPU or on the CPU.
struct OpKernel {
  Op op;
  std::string_view name;  ///< for --kernel; unique within the op and kind of device
  std::function<Support(const OpProblem& problem, const OpDevice& device)> supports;
  std::function<int64_t(const OpProblem& problem)> set_bytes;  ///< memory of one set of buffers
  std::function<std::unique_ptr<OpRun>(const OpProblem& problem, const gpu::Stream& stream, int n_sets, uint64_t seed)>
      open = nullptr;
  std::function<std::unique_ptr<CpuOpRun>(const OpProblem& problem, CpuContext& context, int n_sets, uint64_t seed)>
      open_cpu = nullptr;
  /// Bytes the kernel moves by design where these are more than the op's declared work; such a kernel is a baseline:
  /// measured only when it is asked for.
  std::function<int64_t(const OpProblem& problem)> moved_bytes = nullptr;
  bool is_baseline = false;

  bool on_cpu() const { return open_cpu != nullptr; }
};
/// By the kernel's design; the work's bytes where it says nothing.
int64_t moved_bytes_of(const OpKernel& kernel, const OpProblem& problem);
/// Every kernel of this build, those of an op and kind of device worst to best.
std::span<const OpKernel> op_kernels();

/// A pair of head counts, or a matrix.
struct OpShape {
  int first = 0, second = 0;
};

struct OpBenchParams {
  Op op = Op::attention;
  std::vector<OpShape> heads{{20, 5}, {64, 8}, {12, 2}};  ///< n_heads, n_kv_heads
  int head_dim = 128;
  /// n_keys; empty with an empty `batch`: the lengths of one sequence, and 8 x 8k, 8 x 32k.
  std::vector<int> seq;
  std::vector<int> batch;  ///< sequences (attention, append), tokens (gemv); empty: the op's own list
  std::vector<int> n_new{1};
  std::vector<OpShape> shapes{{1536, 1536},  {8960, 1536},  {1536, 8960}, {28672, 4096},
                              {4096, 14336}, {57344, 8192}, {8192, 28672}};  ///< n_out, n_in
  std::vector<KvChoice> kv;                                                  ///< empty: the op's own list
  std::vector<const WeightFormat*> weights;                                  ///< empty: the op's own list
  std::vector<std::string> kernels;  ///< by name; empty: the best; "all": all that support the problem
  int replays = 60;                  ///< of a graph of calls; on the CPU samples
  double max_seconds = 10;           ///< of a problem
  int max_sets = 512;                ///< of buffers; 1 gives figures of a warm cache
  int64_t roof_bytes = 0;            ///< buffer of the measurement of memory bandwidth; 0 chooses
  uint64_t seed = 42;
  int device = OpDevice::kCpu;  ///< or a GPU's index
  int n_threads = 0;            ///< of the CPU; 0: one per processor
  std::string isa;              ///< of the CPU: highest instruction set, empty for the best

  /// Formats that were not asked for may lack a kernel.
  bool formats_given() const { return op == Op::gemv ? !weights.empty() : !kv.empty(); }
};

/// "64/8,20/5" or "8960x1536,..."; the failure names `flag`.
Result<std::vector<OpShape>> parse_op_shapes(std::string_view flag, std::string_view text, char separator);

/// The cross product, in the order it runs. Throws usage for shapes that a format cannot hold.
std::vector<OpProblem> op_problems(const OpBenchParams& params);

/// The kernels that are measured on a problem, best last; or why there is none.
struct KernelChoice {
  std::vector<const OpKernel*> kernels;
  std::string why_none;  ///< "rows: head_dim 512 is larger than 256"
};
/// Throws usage when a name of params.kernels is in no row of the op for such a device, naming those there are.
KernelChoice choose_kernels(const OpBenchParams& params, const OpProblem& problem, std::span<const OpKernel> table,
                            const OpDevice& device);

/// How many sets of buffers a work of `set_bytes` gets, and whether a call then finds its data in memory: the sets
/// together are four times the last-level cache, as far as `budget_bytes` and `most` allow. With an unknown cache
/// (0 bytes) nothing is called cold.
struct BufferSets {
  int n = 0;  ///< 0: not even one fits
  bool cold = false;
};
BufferSets choose_buffer_sets(int64_t set_bytes, int64_t cache_bytes, int64_t budget_bytes, int most);

/// Microseconds of samples in seconds; NaN where the clock gave nothing usable.
Spread spread_us(const std::vector<double>& seconds);

/// Calls that were checked and timed.
struct Timed {
  OpCheck check;                ///< the first that failed, else the one before the replays
  bool after_replays = false;   ///< `check` is of what the replays left
  int calls = 0;                ///< in a replay or sample
  std::vector<double> seconds;  ///< of a call, one a replay or sample; none where the check failed

  bool failed() const { return !check.passed(); }
  Spread us() const { return spread_us(seconds); }
  std::vector<double> samples_us() const;
};
Columns<Timed> timed_columns();

/// One kernel on one problem.
struct OpRow : Timed {
  std::string kind = "op";
  OpProblem problem;
  std::string kernel;
  Work work;
  int64_t moved_bytes = 0;  ///< by the kernel's design; the work's bytes, or more
  BufferSets sets;
  int64_t set_bytes = 0;
  double roof_gb_s = 0;
  std::string roof_kernel;
  std::optional<GpuState> before, after;
  OpDevice device;
  uint64_t seed = 0;
  std::string date;

  double bytes() const { return double(work.read_bytes + work.write_bytes); }
  /// Bandwidth of the median call, GB/s (10^9); NaN without times.
  double gb_s() const;
  double pct_of_roof() const;
  /// Time of moved_bytes at memory bandwidth; NaN without it.
  double predicted_us() const;
};

struct OpBenchHooks : RunHooks {
  /// Before a kernel is timed: a row with its work, bytes and memory bandwidth, and without times.
  std::function<void(const OpRow& row)> on_predicted;
  std::function<void(const OpRow& row)> on_row;  ///< failed ones too: they hold no times
  /// A problem of a default list that no kernel takes. One that was asked for is an error before anything runs.
  std::function<void(const OpProblem& problem, const std::string& why)> on_skipped;
};

/// Runs everything in order on params.device. Returns the number of rows whose check failed. Throws Error: no_device
/// when there is no such device, usage when a problem that was asked for has no kernel, no_memory when one does not
/// fit.
int run_op_bench(const OpBenchParams& params, std::span<const OpKernel> table, const OpBenchHooks& hooks);
/// The two that it is made of.
int run_op_bench_on_cpu(const OpBenchParams& params, std::span<const OpKernel> table, const OpBenchHooks& hooks);
int run_op_bench_on_gpu(const OpBenchParams& params, std::span<const OpKernel> table, const OpBenchHooks& hooks);

Columns<OpRow> op_columns();
/// One line for people before a kernel is timed: its bytes, and their time at memory bandwidth.
std::string op_prediction(const OpRow& row);

}  // namespace ridge::lab
