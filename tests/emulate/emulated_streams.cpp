#include "emulated_streams.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_runtime.h"

namespace {

using emulate::Work;

/// What waits on a stream. Whoever drives it holds it: a stream's work runs one after another.
struct Queue {
  explicit Queue(int of_device) : device(of_device) {}
  /// Whether nothing waits any more.
  bool drive() {
    const std::scoped_lock lock(mutex);
    while (!waiting.empty() && waiting.front()()) waiting.pop_front();
    return waiting.empty();
  }
  void add(Work work) {
    const std::scoped_lock lock(mutex);
    if (!drive() || !work()) waiting.push_back(std::move(work));
  }
  void wait() {
    while (!drive()) std::this_thread::yield();
  }

  const int device;
  std::recursive_mutex mutex;
  std::deque<Work> waiting;
};

/// Never destroyed: streams with static storage end late.
struct Queues {
  std::mutex mutex;
  std::vector<std::shared_ptr<Queue>> all;
};
Queues& queues() {
  static auto* const the_only = new Queues;
  return *the_only;
}

constinit thread_local int n_captures = 0;

}  // namespace

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  std::unique_ptr<CUgraph_st> capture;
  std::shared_ptr<Queue> queue;
};
struct CUevent_st {
  struct Mark {
    std::atomic<bool> passed = true;
    std::chrono::steady_clock::time_point at;
  };
  std::shared_ptr<Mark> mark = std::make_shared<Mark>();
  std::shared_ptr<Queue> queue;  // of the stream that it was recorded on
};

namespace emulate {

bool captures() { return n_captures > 0; }

void on_stream_when(void* stream, Work work) {
  auto* s = static_cast<CUstream_st*>(stream);
  if (s && s->capture) s->capture->work.push_back(std::move(work));
  else if (s) s->queue->add(std::move(work));
  else if (!work()) fail("work that waits for another device on the default stream");
}

void on_stream(void* stream, std::function<void()> work) {
  on_stream_when(stream, [work = std::move(work)] { return work(), true; });
}

void drain(int device) {
  std::vector<std::shared_ptr<Queue>> of_device;
  {
    const std::scoped_lock lock(queues().mutex);
    std::ranges::copy_if(queues().all, std::back_inserter(of_device), [&](auto& q) { return q->device == device; });
  }
  for (const auto& queue : of_device) queue->wait();
}

}  // namespace emulate

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  int device = 0;
  cudaGetDevice(&device);
  *stream = new CUstream_st{.capture = nullptr, .queue = std::make_shared<Queue>(device)};
  const std::scoped_lock lock(queues().mutex);
  queues().all.push_back((*stream)->queue);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream->queue->drive();  // what still waits is forgotten
  const std::scoped_lock lock(queues().mutex);
  std::erase(queues().all, stream->queue);
  return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream && stream->capture) return cudaErrorStreamCaptureUnsupported;
  if (stream) stream->queue->wait();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream && stream->capture) return cudaErrorStreamCaptureUnsupported;
  return !stream || stream->queue->drive() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capture) return cudaErrorInvalidValue;
  stream->capture = std::make_unique<CUgraph_st>();
  ++n_captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream->capture) return cudaErrorInvalidValue;
  --n_captures;
  return *graph = stream->capture.release(), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return *exec = new CUgraphExec_st{*graph}, cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& work : exec->work) emulate::on_stream_when(stream, work);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  emulate::on_stream(stream, [=] { function(data); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!stream || !stream->capture) {
    event->mark = std::make_shared<CUevent_st::Mark>();
    event->mark->passed = false;
    event->queue = stream ? stream->queue : nullptr;
  }
  emulate::on_stream(stream, [mark = event->mark] {
    mark->at = std::chrono::steady_clock::now();
    mark->passed = true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->queue) event->queue->drive();
  return event->mark->passed ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  while (cudaEventQuery(event) != cudaSuccess) std::this_thread::yield();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (stream && stream->capture) return cudaErrorStreamCaptureUnsupported;
  emulate::on_stream_when(stream, [mark = event->mark] { return mark->passed.load(); });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(to->mark->at - from->mark->at).count();
  return cudaSuccess;
}
