// Streams where devices are emulated: work runs when it is queued, unless it waits for another device. It is then
// behind other such work in the stream until somebody asks the stream, or an event of it, how far it is.
#pragma once

#include <functional>

namespace emulate {

/// Returns false while it waits for another device; it is called again then.
using Work = std::function<bool()>;
void on_stream_when(void* stream, Work work);
/// Returns when nothing waits on the streams of a device.
void drain(int device);
/// Whether this thread records a graph.
bool captures();

[[noreturn]] void fail(const char* what);

}  // namespace emulate
