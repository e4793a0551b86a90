// Flags of a server's scheduler: of ridge serve, and of the server that ridge bench serve starts.
#pragma once

#include "cli/options.h"
#include "serve/scheduler.h"

namespace ridge::cli {

struct SchedulerFlags {
  int n_ctx = 0, n_parallel = 0, batch_tokens = 0, queue = 256, stall_ms = 200, io_threads = 2;
  int checkpoints = -1, checkpoint_every = 1024;
  double kv_gib = 0, swap_gib = -1;

  /// With what the flags leave to the model and its device; `n_pools` share the bytes of the cache. `proposers` opens
  /// those of a pool whose sizes are set, whose caches are part of its bytes.
  serve::SchedulerOptions options(
      Engine& engine, const KvChoice& kv, int n_pools,
      const std::function<ProposerMaker(const serve::PoolOptions& pool)>& proposers = nullptr) const;
};
/// In the caller's group.
void add_http_threads(CLI::App& app, SchedulerFlags& flags);
void add_request_flags(CLI::App& app, SchedulerFlags& flags);
void add_memory_flags(CLI::App& app, SchedulerFlags& flags);

/// Ten thousand clients are ten thousand open files.
void allow_many_files();

}  // namespace ridge::cli
