// Which GPU is a rank's, where each rank of an MPI job has one.
#pragma once

#include <string>

#include "rank/ranks.h"

namespace ridge {

/// The host's name, and what tells it from others of that name: containers of one machine, whose GPUs may differ.
std::string machine_name();

/// The number of this rank's CUDA device: of "cuda" its place among the ranks of its machine, of "cuda:N" N. All ranks
/// call it. Throws the same Error on all of them: usage for several devices of one rank, stages, and a device that two
/// ranks have; no_device for a rank that has none, or no NCCL.
int device_of_rank(Ranks& ranks, const std::string& device);

}  // namespace ridge
