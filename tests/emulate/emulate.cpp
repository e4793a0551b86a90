// The scheduler and the runtime API behind cuda_runtime.h.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "emulated_streams.h"
#include "launcher.h"

namespace emulate {

void fail(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

namespace {

constexpr size_t kStackBytes = 256 << 10, kSharedBytes = 227 << 10;

struct Copy {
  void* to;
  const void* from;
  int bytes;
};

/// For the compiler's own setjmp: a function keeps its registers itself, so that a switch costs a few instructions.
using Registers = void* [5];

struct Fiber {
  ucontext_t first;  // entered once; later switches save and restore registers only
  Registers registers;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool started = false, done = false;
  uint3 thread;
  std::deque<std::vector<Copy>> copies;  // groups committed; the last one is open
};

struct Warp {
  std::vector<int> fibers;
  std::array<void*, 32> slots{};
  int arrived = 0;
  uint64_t generation = 0;
};

/// What a word of the block's shared memory waits for.
struct Pieces {
  std::vector<Copy> copies;
  int expected = -1;  // bytes; -1: nobody has said
};
struct Count {
  int wanted, arrived = 0;
};
struct Group {
  int arrived = 0;
  uint64_t generation = 0;
};

struct Block;
/// Blocks that run together: a barrier of their threads, and where each of them is.
struct Cluster {
  std::vector<Block*> blocks;  // null: not begun
  int arrived = 0;
  uint64_t generation = 0;
};

/// Aligned so that kernels which align a place themselves find it at the same distance from the start in every block.
struct alignas(1024) Shared {
  unsigned char bytes[kSharedBytes];
};

struct BlockState {
  uint3 index;
  std::vector<Warp> warps;
  std::vector<size_t> order;  // of warps
  int n_threads = 0, n_alive = 0, arrived = 0;
  uint64_t generation = 0;
  bool all = true, all_result = true;
  uint64_t progress = 0;        // moves with every fiber that ends or comes past something it waited for
  bool waits_for_peer = false;  // in this turn a fiber looked for a packet in vain
  std::map<unsigned long long*, Pieces> pieces;
  std::map<unsigned long long*, Count> counts;
  std::map<int, Group> groups;  // that wait at a barrier of some threads
  Cluster* cluster = nullptr;
  const std::function<void()>* thread = nullptr;
};

/// A block that runs, or room for one: fibers and memory serve one block after another.
struct Block : BlockState {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::unique_ptr<Shared> shared{new Shared};
};

struct Packet {
  uint4* at;
  uint4 words;
};

// Of the host thread that works on a device.
constinit thread_local Block* block = nullptr;
constinit thread_local Fiber* running = nullptr;
constinit thread_local Registers scheduler{};
constinit thread_local uint64_t random_state = 0x9E3779B97F4A7C15u;
thread_local std::vector<std::unique_ptr<Block>> idle_blocks;
thread_local std::vector<Packet> packets;  // under way

uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

/// Compilers see no other code between a switch away and the switch back: that it changes memory has to be said.
void others_ran() { asm volatile("" ::: "memory"); }

/// Never a part of the function that sets up: the compiler's own jumps must leave from another one.
[[noreturn, gnu::noinline]] void go_to(Registers& registers) { __builtin_longjmp(registers, 1); }

[[gnu::noinline]] void yield() {
  if (__builtin_setjmp(running->registers) == 0) go_to(scheduler);
  others_ran();
}

/// A fiber outlives its block and runs a thread of the next one.
void entry() {
  for (;;) {
    (*block->thread)();
    running->done = true;
    --block->n_alive;
    ++block->progress;
    yield();
  }
}

[[gnu::noinline]] void resume(Fiber& fiber) {
  running = &fiber;
  threadIdx = fiber.thread;
  if (__builtin_setjmp(scheduler) != 0) return others_ran();
  if (fiber.started) go_to(fiber.registers);
  fiber.started = true;
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = fiber.stack.get();
  fiber.first.uc_stack.ss_size = kStackBytes;
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, entry, 0);
  setcontext(&fiber.first);
}

std::unique_ptr<Block> begin_block(dim3 dim, size_t shared_bytes, uint3 index, const std::function<void()>& thread) {
  if (idle_blocks.empty()) idle_blocks.push_back(std::make_unique<Block>());
  std::unique_ptr<Block> begun = std::move(idle_blocks.back());
  idle_blocks.pop_back();
  const unsigned n = dim.x * dim.y * dim.z;
  Block& b = *begun;
  static_cast<BlockState&>(b) = {};
  while (b.fibers.size() < n) b.fibers.push_back(std::make_unique<Fiber>());
  b.index = index;
  b.thread = &thread;
  b.n_threads = b.n_alive = int(n);
  b.warps.resize((n + 31) / 32);
  for (unsigned i = 0; i < n; ++i) {
    Fiber& fiber = *b.fibers[i];
    fiber.done = false;
    fiber.copies.assign(1, {});
    fiber.thread = {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
    b.warps[i / 32].fibers.push_back(int(i));
  }
  for (size_t w = 0; w < b.warps.size(); ++w) b.order.push_back(w);
  std::memset(b.shared->bytes, 0xFF, shared_bytes);  // NaN, -1
  return begun;
}

/// Lets every thread of the block run until it waits or ends. False when all of them waited for packets.
bool run_on(Block& b) {
  block = &b;
  blockIdx = b.index;
  const uint64_t before = b.progress;
  b.waits_for_peer = false;
  for (size_t w = b.order.size(); w > 1; --w) std::swap(b.order[w - 1], b.order[next_random() % w]);
  for (const size_t w : b.order)
    for (const int i : b.warps[w].fibers)
      if (!b.fibers[size_t(i)]->done) resume(*b.fibers[size_t(i)]);
  if (b.progress != before) return true;
  if (!b.waits_for_peer) fail("deadlock: the threads of a block wait for different things");
  return false;
}

void end_block(std::unique_ptr<Block> ended) {
  for (int i = 0; i < ended->n_threads; ++i)
    for (const auto& group : ended->fibers[size_t(i)]->copies)
      if (!group.empty()) fail("a thread ended with copies it never waited for");
  idle_blocks.push_back(std::move(ended));
}

/// Some of the packets that are under way arrive, or all, in any order.
void deliver(bool all) {
  for (size_t i = packets.size(); i > 1; --i) std::swap(packets[i - 1], packets[next_random() % i]);
  for (size_t n = all ? packets.size() : (packets.size() + 1) / 2; n > 0; --n) {
    const Packet packet = packets.back();
    packets.pop_back();
    for (unsigned uint4::*word : {&uint4::x, &uint4::y, &uint4::z})
      std::atomic_ref(packet.at->*word).store(packet.words.*word, std::memory_order_relaxed);
    std::atomic_ref(packet.at->w).store(packet.words.w, std::memory_order_release);
  }
}

}  // namespace

void* dynamic_shared() { return block->shared->bytes; }

void sync_block() { (void)sync_block_and(1); }

int sync_block_and(int value) {
  block->all = block->all && value != 0;
  const uint64_t generation = block->generation;
  ++block->arrived;
  // Threads that have returned do not count, as on a GPU.
  while (block->generation == generation) {
    if (block->arrived >= block->n_alive) {
      block->all_result = block->all;
      block->all = true;
      block->arrived = 0;
      ++block->generation;
      ++block->progress;
      break;
    }
    yield();
  }
  return block->all_result;
}

void warp_collective(void* slot, void (*combine)(void* const* slots)) {
  const unsigned index = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  Warp& warp = block->warps[index / 32];
  if (warp.fibers.size() != 32) fail("a warp collective in a warp of less than 32 threads");
  warp.slots[index % 32] = slot;
  const uint64_t generation = warp.generation;
  if (++warp.arrived == 32) {
    combine(warp.slots.data());
    warp.arrived = 0;
    ++warp.generation;
    ++block->progress;
    return;
  }
  while (warp.generation == generation) yield();
  ++block->progress;
}

void start_copy(void* to, const void* from, int bytes) {
  if (reinterpret_cast<uintptr_t>(to) % unsigned(bytes) != 0 ||
      reinterpret_cast<uintptr_t>(from) % unsigned(bytes) != 0)
    fail("an asynchronous copy that is not aligned to its size");
  running->copies.back().push_back({to, from, bytes});
}
void commit_copies() { running->copies.emplace_back(); }
void wait_copies(int groups_left) {
  auto& groups = running->copies;
  while (int(groups.size()) - 1 > groups_left) {
    for (const Copy& c : groups.front()) std::memcpy(c.to, c.from, size_t(c.bytes));
    groups.pop_front();
  }
}

void expect_pieces(unsigned long long* arrival, int bytes) {
  Pieces& pieces = block->pieces[arrival];
  if (pieces.expected >= 0) fail("a piece whose predecessor nobody waited for");
  pieces.expected = bytes;
}
void add_piece(unsigned long long* arrival, void* to, const void* from, int bytes) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0)
    fail("a piece that is not aligned to 16 bytes");
  block->pieces[arrival].copies.push_back({to, from, bytes});
}
void start_piece(unsigned long long* arrival, void* to, const void* from, int bytes) {
  expect_pieces(arrival, bytes);
  add_piece(arrival, to, from, bytes);
}
void wait_for_piece(unsigned long long* arrival, unsigned phase) {
  while (*arrival % 2 == phase) {
    const auto at = block->pieces.find(arrival);
    int bytes = 0;
    if (at != block->pieces.end())
      for (const Copy& copy : at->second.copies) bytes += copy.bytes;
    if (at == block->pieces.end() || bytes < at->second.expected || at->second.expected < 0) {
      yield();  // the lanes that start them have not come so far
      continue;
    }
    if (bytes > at->second.expected) fail("more bytes in pieces than were expected");
    const Pieces pieces = std::move(at->second);
    block->pieces.erase(at);
    for (const Copy& copy : pieces.copies) std::memcpy(copy.to, copy.from, size_t(copy.bytes));
    ++*arrival;
  }
  ++block->progress;
}
void set_up_count(unsigned long long* arrival, int count) {
  *arrival = 0;
  block->counts[arrival] = {count};
}
void arrive(unsigned long long* arrival) {
  const auto at = block->counts.find(arrival);
  if (at == block->counts.end()) fail("an arrival at a word that counts none");
  ++block->progress;
  if (++at->second.arrived < at->second.wanted) return;
  at->second.arrived = 0;
  ++*arrival;
}
void sync_threads(int barrier, int n_threads) {
  Group& group = block->groups[barrier];
  const uint64_t generation = group.generation;
  if (++group.arrived == n_threads) {
    group.arrived = 0;
    ++group.generation;
    ++block->progress;
    return;
  }
  while (group.generation == generation) yield();
  ++block->progress;
}

int cluster_rank() { return int(blockIdx.x % block->cluster->blocks.size()); }
void sync_cluster() {
  Cluster& cluster = *block->cluster;
  const uint64_t generation = cluster.generation;
  ++cluster.arrived;
  while (cluster.generation == generation) {
    int alive = 0;
    for (const Block* b : cluster.blocks) alive = b && alive >= 0 ? alive + b->n_alive : -1;
    if (alive >= 0 && cluster.arrived >= alive) {
      cluster.arrived = 0;
      ++cluster.generation;
      break;
    }
    block->waits_for_peer = true;
    yield();
  }
  ++block->progress;
}
const void* peer_shared(const void* own, int rank) {
  const auto at = static_cast<const unsigned char*>(own) - block->shared->bytes;
  if (at < 0 || at >= ptrdiff_t(kSharedBytes)) fail("a place that is not in the block's dynamic shared memory");
  const Block* peer = block->cluster->blocks[size_t(rank)];
  if (!peer || peer->n_alive == 0) fail("shared memory of a block that does not run");
  return peer->shared->bytes + at;
}

void send_packet(uint4* at, uint4 packet) {
  if (reinterpret_cast<uintptr_t>(at) % 16 != 0) fail("a packet that is not aligned to 16 bytes");
  packets.push_back({at, packet});
}
void wait_for_packet() {
  block->waits_for_peer = true;
  yield();
}

void run_grid(dim3 grid, dim3 dim, size_t shared_bytes, unsigned cluster, const std::function<void()>& thread) {
  if (shared_bytes > kSharedBytes || shared_bytes > most_shared_bytes())
    fail("more shared memory than a block may have");
  if (dim.x * dim.y * dim.z > 1024 || grid.y > 65535 || grid.z > 65535 || grid.x % cluster != 0)
    fail("a grid no GPU takes");
  blockDim = dim;
  gridDim = grid;
  // Blocks come in any order: which one is the last to arrive somewhere must not matter.
  std::vector<uint32_t> order(size_t(grid.x) * grid.y * grid.z);
  for (size_t i = 0; i < order.size(); ++i) order[i] = uint32_t(i);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
  std::vector<std::unique_ptr<Block>> begun;
  std::vector<Cluster> clusters(order.size() / cluster, Cluster{.blocks = std::vector<Block*>(cluster)});
  size_t n_begun = 0;
  for (bool stuck = true; n_begun < order.size() || !begun.empty();) {
    if (stuck && n_begun < order.size()) {
      const uint32_t i = order[n_begun++];
      begun.push_back(begin_block(dim, shared_bytes, {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y}, thread));
      begun.back()->cluster = &clusters[i / cluster];
      clusters[i / cluster].blocks[i % cluster] = begun.back().get();
    } else if (stuck) {
      deliver(false);
      std::this_thread::yield();  // to the other devices
    }
    stuck = true;
    for (auto& b : begun) {
      if (run_on(*b)) stuck = false;
      if (b->n_alive == 0) end_block(std::move(b));
    }
    std::erase(begun, nullptr);
    if (begun.empty()) stuck = true;
  }
  deliver(true);
}

}  // namespace emulate

// --- The runtime API ---

namespace {

constexpr int kDevices = 8;
constinit thread_local int current_device = 0;
bool is_hopper() { return emulate::most_shared_bytes() >= 227u << 10; }
std::atomic<bool> peers[kDevices][kDevices];

/// Memory in pages of its own: reading or writing past its end, or after it was freed, ends the program at that place.
struct Pages {
  unsigned char* first;
  size_t bytes;

  /// Behind them lies a page that nobody may touch.
  static constexpr size_t kPage = 4096;
  static Pages map(size_t bytes) {
    const size_t whole = (bytes + kPage - 1) / kPage * kPage;
    void* first = mmap(nullptr, whole + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (first == MAP_FAILED) return {nullptr, 0};
    if (mprotect(first, whole, PROT_READ | PROT_WRITE) != 0) return munmap(first, whole + kPage), Pages{nullptr, 0};
    return {static_cast<unsigned char*>(first), whole};
  }
  /// Gives the memory back and keeps the addresses.
  void close() const { mmap(first, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0); }
  void unmap() const { munmap(first, bytes + kPage); }
};

/// What is allocated, and the last of what was. Never destroyed: buffers with static storage are freed at the end.
struct Memory {
  std::mutex mutex;
  std::map<void*, Pages> used;
  std::deque<Pages> freed;
};
Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}
constexpr size_t kMostFreed = 8192;  // maps of a process are limited

}  // namespace

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = kDevices, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  *p = {.name = "emulated",
        .major = is_hopper() ? 9 : 8,
        .minor = is_hopper() ? 0 : 9,
        .multiProcessorCount = 4,
        .l2CacheSize = 1 << 20,
        .totalGlobalMem = size_t(4) << 30,
        .sharedMemPerBlockOptin = emulate::most_shared_bytes()};
  return cudaSuccess;
}
cudaError_t allow_shared_bytes(int bytes) {
  return size_t(bytes) <= emulate::most_shared_bytes() ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int) {
  return std::snprintf(id, size_t(bytes), "%s", ""), cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  *value = attribute == cudaDevAttrMultiProcessorCount         ? p.multiProcessorCount
           : attribute == cudaDevAttrL2CacheSize               ? p.l2CacheSize
           : attribute == cudaDevAttrComputeCapabilityMajor    ? p.major
           : attribute == cudaDevAttrMaxAccessPolicyWindowSize ? 1 << 27
                                                               : int(p.sharedMemPerBlockOptin);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) { return *value = 1, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int to, unsigned) {
  if (to < 0 || to >= kDevices || to == current_device) return cudaErrorInvalidDevice;
  return peers[current_device][to].exchange(true) ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  return current_device = device, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = current_device, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t(4) << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (emulate::captures()) return cudaErrorStreamCaptureUnsupported;
  return emulate::drain(current_device), cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (emulate::captures()) return cudaErrorStreamCaptureUnsupported;
  if (bytes > size_t(4) << 30) return cudaErrorMemoryAllocation;
  const size_t aligned = (bytes + 255) / 256 * 256;
  const Pages pages = Pages::map(aligned);
  if (!pages.first) return cudaErrorMemoryAllocation;
  *data = pages.first + (pages.bytes - aligned);
  std::memset(*data, 0xFF, aligned);
  Memory& m = memory();
  const std::scoped_lock lock(m.mutex);
  m.used[*data] = pages;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  if (emulate::captures()) return cudaErrorStreamCaptureUnsupported;
  emulate::drain(current_device);
  Memory& m = memory();
  const std::scoped_lock lock(m.mutex);
  const auto found = m.used.find(data);
  if (found == m.used.end()) return cudaErrorInvalidValue;
  found->second.close();
  m.freed.push_back(found->second);
  m.used.erase(found);
  if (m.freed.size() > kMostFreed) m.freed.front().unmap(), m.freed.pop_front();
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) { return cudaMalloc(data, bytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemset(void* data, int value, size_t bytes) { return cudaMemsetAsync(data, value, bytes, nullptr); }
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  emulate::on_stream(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
/// Where the allocation of a byte ends, if the byte is memory of this header: device memory, or page-locked; null else.
static const unsigned char* end_of_allocation(const void* data) {
  Memory& m = memory();
  const std::scoped_lock lock(m.mutex);
  const auto behind = m.used.upper_bound(const_cast<void*>(data));
  if (behind == m.used.begin()) return nullptr;
  const Pages& pages = std::prev(behind)->second;
  const unsigned char* const end = pages.first + pages.bytes;
  return data < end ? end : nullptr;
}
static bool is_allocated(const void* data) { return end_of_allocation(data) != nullptr; }
unsigned emulate::cluster_of(const cudaLaunchConfig_t& config) {
  unsigned cluster = 1;
  for (const cudaLaunchAttribute& of : std::span(config.attrs, config.numAttrs))
    if (of.id == cudaLaunchAttributeClusterDimension) cluster = of.val.clusterDim.x;
  return cluster == 1 || (is_hopper() && cluster <= 8 && config.gridDim.x % cluster == 0) ? cluster : 0;
}
bool emulate::has_valid_window(const cudaLaunchConfig_t& config) {
  for (const cudaLaunchAttribute& a : std::span(config.attrs, config.numAttrs)) {
    if (a.id != cudaLaunchAttributeAccessPolicyWindow) continue;
    const auto& window = a.val.accessPolicyWindow;
    const unsigned char* const end = end_of_allocation(window.base_ptr);
    if (window.num_bytes == 0 || !end || window.num_bytes > size_t(end - static_cast<unsigned char*>(window.base_ptr)))
      return false;
  }
  return true;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice && cudaStreamQuery(stream) == cudaErrorNotReady && !is_allocated(from)) {
    const auto* const first = static_cast<const char*>(from);  // may be reused when this returns
    emulate::on_stream(stream,
                       [=, copy = std::vector<char>(first, first + bytes)] { std::memcpy(to, copy.data(), bytes); });
    return cudaSuccess;
  }
  emulate::on_stream(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
