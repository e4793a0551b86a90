// Ranks as processes of an MPI job: one that `mpirun -np N ridge ...` started, on one machine or several.
#pragma once

#include <string>

#include "rank/ranks.h"

namespace ridge {

/// The library's name and version; empty where this build has no MPI.
std::string mpi_version();

/// Whether an MPI job started this process.
bool in_mpi_job();

/// Makes this process a rank of its job, which must have tp * pp ranks of the same program, in pp stages. Once a
/// process; the ranks live to the process's end. Throws Error: no_device without MPI in this build, usage when the job
/// has another number of ranks or a rank runs another build. When other ranks have not started within `timeout_s`, the
/// process says so and ends with exit code 1.
Ranks& join_mpi(int tp, int pp, double timeout_s);

/// The ranks that this process joined; null when it is alone. Ranks that may use the same processors share them
/// (default_threads()).
Ranks* joined_ranks();

/// Leaves the job in good order: every rank calls it. Nothing for a process that is alone.
void leave_mpi();

}  // namespace ridge
