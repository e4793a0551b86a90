#include "gpu/graph.h"

#include <string>

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

void Destroy::operator()(GraphType* exec) const { cudaGraphExecDestroy(exec); }
void Destroy::operator()(EventType* event) const { cudaEventDestroy(event); }

Graph::Graph(StreamHandle stream, const std::function<void()>& work) {
  Recording recording(stream);
  work();
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, recording.end(), 0), "graph instantiation");
  exec_.reset(exec);
}
void Graph::launch(StreamHandle stream) const {
  if (!exec_) throw Error(ErrorKind::failure, std::string(kRuntimeName) + " graph launch: nothing was recorded");
  check(cudaGraphLaunch(exec_.get(), stream), "graph launch");
}

Event::Event(bool timed) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming), "event");
  event_.reset(event);
}
void Event::record(StreamHandle stream) const { check(cudaEventRecord(event_.get(), stream), "event record"); }
bool Event::done() const {
  const cudaError_t code = cudaEventQuery(event_.get());
  if (code == cudaErrorNotReady) return false;
  check(code, "event query");
  return true;
}
void Event::synchronize() const { check(cudaEventSynchronize(event_.get()), "event wait"); }
void Event::hold(StreamHandle stream) const {
  check(cudaStreamWaitEvent(stream, event_.get(), 0), "stream waiting for an event");
}
double Event::microseconds_since(const Event& start) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, start.event_.get(), event_.get()), "event time");
  return 1000.0 * double(ms);
}

}  // namespace ridge::gpu
