#include "gpu/graph.h"

#include <utility>

#include "gpu/launch.h"
#include "ridge/error.h"

namespace ridge::gpu {
namespace {

/// Ends a recording and frees its graph, also when the constructor throws.
struct Recording {
  explicit Recording(StreamHandle s) : stream(s) {
    // Thread-local: other threads of the process may allocate meanwhile.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph recording");
  }
  ~Recording() {
    if (!ended) {
      cudaStreamEndCapture(stream, &graph);
      cudaGetLastError();  // a recording cut short leaves an error that belongs to no later call
    }
    if (graph) cudaGraphDestroy(graph);
  }
  cudaGraph_t end() {
    ended = true;
    check(cudaStreamEndCapture(stream, &graph), "end of graph recording");
    return graph;
  }

  StreamHandle stream;
  cudaGraph_t graph = nullptr;
  bool ended = false;
};

}  // namespace

Graph::Graph(StreamHandle stream, const std::function<void()>& work) {
  Recording recording(stream);
  work();
  check(cudaGraphInstantiate(&exec_, recording.end(), 0), "graph instantiation");
}
Graph::Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(exec_, other.exec_);
  return *this;
}
Graph::~Graph() {
  if (exec_) cudaGraphExecDestroy(exec_);
}
void Graph::launch(StreamHandle stream) const {
  if (!exec_) throw Error(ErrorKind::failure, "CUDA graph launch: nothing was recorded");
  check(cudaGraphLaunch(exec_, stream), "graph launch");
}

Event::Event(bool timed) {
  check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming), "event");
}
Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}
Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}
void Event::record(StreamHandle stream) const { check(cudaEventRecord(event_, stream), "event record"); }
bool Event::done() const {
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) return false;
  check(code, "event query");
  return true;
}
void Event::synchronize() const { check(cudaEventSynchronize(event_), "event wait"); }
double Event::microseconds_since(const Event& start) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, start.event_, event_), "event time");
  return 1000.0 * double(ms);
}

}  // namespace ridge::gpu
