// Rows of a tensor coded by several threads.
#pragma once

#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"

namespace ridge {

/// Calls body(r, row) for every r in [0, n_rows); `row` has n_in floats, the thread's own. Returns the failure of the
/// first row that fails, whatever the number of threads.
template <class Body>
Status for_each_row(ThreadPool& pool, int64_t n_rows, int64_t n_in, const Body& body) {
  struct Worker {
    std::vector<float> row;
    int64_t failed;  ///< the first of its rows that did; n_rows: none
    Status status = {};
  };
  std::vector<Worker> workers(size_t(pool.size()), {.row = std::vector<float>(size_t(n_in)), .failed = n_rows});
  pool.for_each(n_rows, [&](int64_t r, int thread) {
    Worker& worker = workers[size_t(thread)];
    if (worker.failed < r) return;
    Status status = body(r, worker.row);
    if (!status) worker.failed = r, worker.status = std::move(status);
  });
  Worker* first = &workers[0];
  for (Worker& worker : workers)
    if (worker.failed < first->failed) first = &worker;
  return std::move(first->status);
}

}  // namespace ridge
