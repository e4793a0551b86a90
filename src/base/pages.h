// Hints to the system about pages of memory.
#pragma once

#include <cstddef>
#include <span>

namespace ridge {

/// These bytes are read soon: those of a mapped file that are not in memory are fetched meanwhile. Others stay as they are.
void fetch_pages(std::span<const std::byte> bytes);
/// Takes whole pages of a mapped file out of this process's memory. They come back when they are read.
void release_pages(std::span<const std::byte> mapped);

}  // namespace ridge
