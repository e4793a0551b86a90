#include "cli/serve_flags.h"

#include <sys/resource.h>

#include "base/limits.h"
#include "engine/kv_options.h"

namespace ridge::cli {
namespace {

/// Share of the free memory for the cache, and as much again for sequences that wait, kMostSwapGib at most.
constexpr double kShare = 0.25;
constexpr double kMostSwapGib = 4;

/// Bytes for the cache: what all sequences fill, but not more than a part of the memory that is free.
int64_t default_kv_bytes(Engine& engine, const serve::PoolOptions& pool, int n_pools) {
  const auto layers = layer_configs(session_options(pool.kv, pool.n_ctx, 0), engine.plan());
  const auto memory = engine.open_host_memory(layers, 1, 1);
  const PageNumbers pages = pool_pages(layers, pool.n_ctx, pool.max_seqs, pool.batch_tokens);
  const int64_t all = pages.full * memory->page_bytes(PageClass::full) +
                      pages.sliding * memory->page_bytes(PageClass::sliding) +
                      int64_t(pool.max_seqs + pool.n_checkpoints) * memory->slot_bytes() + pool.proposer_bytes() +
                      (pool.proposers ? pool.max_seqs * memory->history_bytes() : 0);
  const double part = engine.on_device() ? 0.8 : kShare;
  return std::min(all * n_pools, int64_t(part * double(engine.backend().free_bytes())));
}

/// A context that the default bytes do not hold becomes the longest one that they do.
void limit_context(Engine& engine, serve::PoolOptions& pool, int n_pools) {
  serve::PoolOptions one = pool;
  one.kv_bytes /= n_pools;
  const int n = serve::longest_context(engine, one);
  if (n == 0 || n == pool.n_ctx) return;  // opening the pool says what is missing
  fmt::print(stderr,
             "warning: the context is {} tokens, not {}: the cache has {:.2f} GiB, {} of the {:.2f} GiB of memory that "
             "are free (--kv-gib N takes more, --kv-quant needs less)\n",
             n, pool.n_ctx, double(pool.kv_bytes) / kGib, engine.on_device() ? "4/5" : "1/4",
             double(engine.backend().free_bytes()) / kGib);
  pool.n_ctx = n;
}

}  // namespace

serve::SchedulerOptions SchedulerFlags::options(
    Engine& engine, const KvChoice& kv, int n_pools,
    const std::function<ProposerMaker(const serve::PoolOptions& pool)>& proposers) const {
  const bool device = engine.on_device();
  serve::PoolOptions pool{.kv = kv};
  pool.n_ctx = n_ctx > 0 ? n_ctx : engine.info().n_ctx_train;
  pool.max_seqs = n_parallel > 0 ? n_parallel : device ? 64 : 16;
  pool.n_checkpoints = checkpoints >= 0 ? checkpoints : pool.max_seqs;
  pool.checkpoint_every = checkpoint_every;
  pool.batch_tokens = batch_tokens > 0 ? batch_tokens : device ? 2048 : 512;
  pool.max_stall_seconds = 1e-3 * stall_ms;
  pool.swap_bytes = swap_gib >= 0 ? int64_t(swap_gib * kGib)
                                  : std::min(int64_t(kMostSwapGib * kGib), int64_t(kShare * double(free_memory(0))));
  const auto set_bytes = [&] {
    pool.kv_bytes = kv_gib > 0 ? int64_t(kv_gib * kGib) : default_kv_bytes(engine, pool, n_pools);
  };
  set_bytes();
  if (kv_gib == 0) limit_context(engine, pool, n_pools);
  if (proposers) pool.proposers = proposers(pool);
  set_bytes();
  return {.pool = pool, .max_queue = queue, .max_pools = n_pools};
}

void add_http_threads(CLI::App& app, SchedulerFlags& flags) {
  add_whole(app, "--http-threads", flags.io_threads, 1, 256, "threads for connections");
}

void add_request_flags(CLI::App& app, SchedulerFlags& flags) {
  add_whole(app, "-c,--ctx-size", flags.n_ctx, 0, 1 << 26,
            "most tokens of a request with its answer; 0: what the model was trained for");
  add_whole(app, "--parallel", flags.n_parallel, 0, 4096, "sequences that run at a time (-np); 0: 16, on a GPU 64");
  add_whole(app, "--queue", flags.queue, 1, 1 << 20, "requests that may wait; beyond, clients get 429");
  add_whole(app, "--batch-tokens", flags.batch_tokens, 0, 65536, "most tokens of a step; 0: 512, on a GPU 2048");
  add_whole(app, "--max-stall-ms", flags.stall_ms, 1, 1000000,
            "how long prompts may hold up a step while other sequences decode");
}

void add_memory_flags(CLI::App& app, SchedulerFlags& flags) {
  add_real(app, "--kv-gib", flags.kv_gib, 0, 1e6,
           "GiB of the cache; 0: what --parallel sequences fill, at most 1/4 of free memory (GPU: 4/5)");
  add_real(app, "--swap-gib", flags.swap_gib, -1, 1e6,
           "GiB of host memory for sequences that wait for room; -1: 4, at most 1/4 of free memory");
  add_whole(app, "--checkpoints", flags.checkpoints, -1, 65536,
            "prefixes kept for later requests; -1: as many as --parallel");
  add_whole(app, "--checkpoint-every", flags.checkpoint_every, 64, 1 << 26, "tokens of a prompt between two of them");
}

void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace ridge::cli
