// Processors and memory that the kernel leaves to this process, by affinity mask, control groups and limits. `root` is
// the folder that has proc/ and sys/; tests have trees of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace ridge {

/// Processors in the affinity mask, which a cpuset narrows too; at least 1.
int affine_processors();
/// Processors' worth of time that the control groups of this process pay for: the least of all levels, of version 1 and
/// 2. Infinite where none limits it.
double processor_quota(const std::filesystem::path& root = "/");
/// Threads that can run at once: affine_processors(), or the whole processors of the quota where those are fewer; at
/// least 1.
int available_processors(const std::filesystem::path& root = "/");
/// Threads of a pool that is not told how many: the available processors, or this process's share of them.
int default_threads();
/// Says that n processes, this one among them, may use the same processors. Before threads are made.
void share_processors(int n);

/// Bytes that can be taken without swapping: what the machine has available, what the control groups leave at every
/// level (files in memory count as free, as they do for the machine), and what RLIMIT_AS and RLIMIT_DATA leave. Nothing
/// where the system does not say.
std::optional<int64_t> available_memory(const std::filesystem::path& root = "/");
/// Bytes that new buffers can take: available_memory() less what this process already counts on. That is its buffers
/// (AlignedBuffer) that are not touched yet, and `mapped` bytes of files that its forward passes read. INT64_MAX where
/// the system does not say.
int64_t free_memory(int64_t mapped, const std::filesystem::path& root = "/");

}  // namespace ridge
