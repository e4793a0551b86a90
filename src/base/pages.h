// Hints to the system about pages of memory.
#pragma once

#include <cstddef>
#include <span>

namespace ridge {

/// These bytes are read soon: those of a mapped file that are not in memory are fetched meanwhile. Others stay as they
/// are.
void fetch_pages(std::span<const std::byte> bytes);
/// Takes whole pages of a mapped file out of this process's memory. They come back when they are read.
void release_pages(std::span<const std::byte> mapped);

/// Pages of 2 MiB would serve this memory better: less is spent on making and finding them.
void want_huge_pages(std::span<std::byte> bytes);

}  // namespace ridge
