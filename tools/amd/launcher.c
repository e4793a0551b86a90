// The library that test_emulated loads (tests/emulate/launcher.h) to run kernels in an emulator written in Python: it
// starts Python in the process of the tests and hands each launch to it. The loop over the instructions of a block is
// here, because it is the hot one.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- Launches ---

struct ridge_launch;
typedef int (*run_function)(const struct ridge_launch*);

void Py_InitializeEx(int);
int PyRun_SimpleString(const char*);
void* PyEval_SaveThread(void);

uint32_t ridge_shared_bytes = 64 << 10;
static run_function python_run;

/// Called by Python.
void ridge_set_run(run_function run) { python_run = run; }

__attribute__((constructor)) static void start(void) {
  const char* bytes = getenv("RIDGE_AMD_LDS");
  if (bytes) ridge_shared_bytes = (uint32_t)strtoul(bytes, NULL, 10);
}

int ridge_run(const struct ridge_launch* launch) {
  if (!python_run) {
    Py_InitializeEx(0);
    const int failed = PyRun_SimpleString(
        "import os, sys\n"
        "sys.dont_write_bytecode = True\n"
        "sys.path.insert(0, os.environ['RIDGE_AMD_TOOLS'])\n"
        "import amd.machine\n"
        "amd.machine.start()\n");
    if (failed || !python_run) {
      fprintf(stderr, "amd_emulate: the emulator did not start\n");
      exit(70);
    }
    PyEval_SaveThread();  // the callback takes the interpreter again, from any thread
  }
  return python_run(launch);
}

// --- A block's waves ---

enum { kLanes = 32, kScalars = 260, kPc = 256, kScratchStride = 259, kExec = 126, kNull = 124 };
// Flat addresses of a lane's scratch memory.
#define PRIVATE_BASE (0x5B00ull << 32)
enum { kReady, kWaiting, kEnded };
enum { kUnknown, kPlain, kBarrier, kSkip, kGetPc, kSetPc, kSwapPc, kSharedBase, kPrivateBase, kMemory };
enum { kGlobal, kFlat, kScratchMemory, kShared };
enum { kDone, kNeeds, kOutside, kTooMany };
enum { kGroups = 8 };

/// An instruction in one of the emulator's functions.
struct op {
  void (*run)();
  uint8_t kind, n_arguments, bytes;
  uint8_t argument[5];  // which of the wave's buffers
  uint16_t copied;      // 1 + the register that other lanes read (DPP), or 0
  uint8_t group, clocks;  // which unit it keeps busy, and for how long (instructions.py)
  // Of loads and stores (kMemory):
  uint8_t space, is_store, is_signed, half;  // half: 1 the lower 16 bits of a register, 2 the upper ones
  uint8_t size, address, data[2], target, base, has_vector;
  uint8_t n_places;  // 2: at both offsets
  int32_t offset[2];
};

struct wave {
  uint32_t scalars[kScalars];  // registers, inline constants, program counter
  uint32_t vectors[256 * kLanes];
  uint32_t copied[kLanes];  // a register before an instruction that may write it while other lanes still read it
  uint8_t* scratch;  // of all lanes
  int state;
};

struct block {
  uint64_t base, bytes;  // of the code
  struct op* ops;        // one for each 4 bytes
  struct wave* waves;
  uint64_t n_waves, lds, random, most, count;
  uint64_t pc;  // at which it stopped
  uint64_t clocks[kGroups], counts[kGroups];  // of instructions that ran, by their group
};

static struct block* running;

uint64_t ridge_wave_bytes(void) { return sizeof(struct wave); }

static uint64_t next_random(struct block* b) {
  b->random ^= b->random << 13;
  b->random ^= b->random >> 7;
  return b->random ^= b->random << 17;
}

static void call(const struct op* op, struct wave* w, uint64_t lds) {
  void* const buffers[] = {w->scalars, w->vectors, NULL, (void*)lds, w->scratch, w->copied};
  if (op->copied) memcpy(w->copied, w->vectors + (op->copied - 1) * kLanes, sizeof w->copied);
  void* a[5];
  for (int i = 0; i < op->n_arguments; ++i) a[i] = buffers[op->argument[i]];
  switch (op->n_arguments) {
    case 1: op->run(a[0]); break;
    case 2: op->run(a[0], a[1]); break;
    case 3: op->run(a[0], a[1], a[2]); break;
    case 4: op->run(a[0], a[1], a[2], a[3]); break;
    case 5: op->run(a[0], a[1], a[2], a[3], a[4]); break;
  }
}

/// Where a lane's load or store lies; in shared and scratch memory addresses have 32 bits.
static uint64_t place(const struct op* op, const struct wave* w, int lane, uint64_t lds, int32_t offset) {
  const uint32_t low = w->vectors[op->address * kLanes + lane];
  if (op->space == kShared) return lds + (uint32_t)(low + (uint32_t)offset);
  const uint64_t own = (uint64_t)w->scratch + (uint64_t)lane * w->scalars[kScratchStride];
  if (op->space == kScratchMemory)
    return own + (uint32_t)((op->has_vector ? low : 0) + (op->base == kNull ? 0 : w->scalars[op->base]) + (uint32_t)offset);
  const uint64_t far = (uint64_t)(int64_t)offset;
  if (op->base != kNull) return (w->scalars[op->base] | (uint64_t)w->scalars[op->base + 1] << 32) + low + far;
  const uint64_t address = (low | (uint64_t)w->vectors[(op->address + 1) * kLanes + lane] << 32) + far;
  return op->space == kFlat && address >> 32 == PRIVATE_BASE >> 32 ? own + (uint32_t)address : address;
}

/// Loads and stores of lanes that are on: at any address, byte by byte as the hardware is set to do them.
static void move_memory(const struct op* op, struct wave* w, uint64_t lds) {
  const int words = op->size < 4 ? 1 : op->size / 4;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(w->scalars[kExec] >> lane & 1)) continue;
    uint64_t places[2];  // both before a load writes the address's register
    for (int k = 0; k < op->n_places; ++k) places[k] = place(op, w, lane, lds, op->offset[k]);
    for (int k = 0; k < op->n_places; ++k) {
      void* const at = (void*)places[k];
      uint32_t all[4] = {0};
      if (op->is_store) {
        for (int i = 0; i < words; ++i) all[i] = w->vectors[(op->data[k] + i) * kLanes + lane];
        if (op->half == 2) all[0] >>= 16;
        memcpy(at, all, op->size);
        continue;
      }
      memcpy(all, at, op->size);
      if (op->is_signed && op->size < 4) all[0] = (uint32_t)((int32_t)(all[0] << (32 - 8 * op->size)) >> (32 - 8 * op->size));
      uint32_t* const to = &w->vectors[(op->target + k * words) * kLanes + lane];
      if (op->half) all[0] = op->half == 2 ? (*to & 0xFFFF) | all[0] << 16 : (*to & 0xFFFF0000) | (all[0] & 0xFFFF);
      for (int i = 0; i < words; ++i) to[i * kLanes] = all[i];
    }
  }
  const uint64_t next = running->pc + op->bytes;
  memcpy(&w->scalars[kPc], &next, 8);
}

/// Instructions that tinygrad's emulator lacks; `next` is the address of the instruction behind.
static void move_pc(const struct op* op, struct wave* w, uint64_t next, uint64_t lds) {
  uint32_t* const target = &w->scalars[op->argument[0]];
  uint64_t jump = next;
  if (op->kind == kSetPc || op->kind == kSwapPc) memcpy(&jump, &w->scalars[op->argument[1]], 8);
  if (op->kind == kGetPc || op->kind == kSwapPc) memcpy(target, &next, 8);
  const uint64_t private_base = PRIVATE_BASE;
  if (op->kind == kSharedBase) memcpy(target, &lds, 8);
  if (op->kind == kPrivateBase) memcpy(target, &private_base, 8);
  memcpy(&w->scalars[kPc], &jump, 8);
}

/// A wave that can go on, chosen at random; all are at a barrier or ended: opens the barrier. Null when all have ended.
static struct wave* choose(struct block* b) {
  for (int again = 0; again < 2; ++again) {
    uint64_t n_ready = 0;
    for (uint64_t i = 0; i < b->n_waves; ++i) n_ready += b->waves[i].state == kReady;
    if (n_ready) {
      uint64_t k = next_random(b) % n_ready;
      for (uint64_t i = 0;; ++i)
        if (b->waves[i].state == kReady && k-- == 0) return &b->waves[i];
    }
    for (uint64_t i = 0; i < b->n_waves; ++i)
      if (b->waves[i].state == kWaiting) b->waves[i].state = kReady;
  }
  return NULL;
}

/// A guard page: says which instruction touched it, and ends as the signal would.
static void stop(int number, siginfo_t* info, void* context) {
  (void)context;
  char text[160];
  const int n = snprintf(text, sizeof text, "\n@amd {\"error\": \"signal %d: the instruction at %#llx touched %p\"}\n", number,
                         (unsigned long long)(running->pc - running->base), info->si_addr);
  if (write(STDOUT_FILENO, text, (size_t)n) == n) _exit(70);
  abort();
}
static void signal_at(int number) {
  struct sigaction action = {.sa_flags = SA_SIGINFO};
  action.sa_sigaction = stop;
  sigaction(number, &action, NULL);
}

/// Runs until all waves have ended (kDone), a wave comes to an instruction that is not known yet (kNeeds; b->pc), leaves
/// the code (kOutside) or the block has run b->most instructions (kTooMany).
int ridge_run_block(struct block* b) {
  running = b;
  signal_at(SIGSEGV);
  signal_at(SIGBUS);
  for (struct wave* w = choose(b); w; w = choose(b)) {
    for (uint64_t left = 1 + next_random(b) % 4096; left > 0 && w->state == kReady; --left) {
      memcpy(&b->pc, &w->scalars[kPc], 8);
      if (b->pc == UINT64_MAX) {
        w->state = kEnded;
        break;
      }
      const uint64_t at = b->pc - b->base;
      if (at >= b->bytes || at % 4) return kOutside;
      const struct op* op = &b->ops[at / 4];
      if (op->kind == kUnknown) return kNeeds;
      if (b->count++ == b->most) return kTooMany;
      b->clocks[op->group] += op->clocks;
      ++b->counts[op->group];
      if (op->kind <= kBarrier) call(op, w, b->lds);
      else if (op->kind == kMemory) move_memory(op, w, b->lds);
      else move_pc(op, w, b->pc + op->bytes, b->lds);
      if (op->kind == kBarrier) w->state = kWaiting;
    }
  }
  return kDone;
}

/// Puts every wave of a block to its start. `scalars` are the user registers and the block's index.
void ridge_begin_block(struct block* b, const uint32_t* constants, const uint32_t* scalars, uint32_t n_scalars,
                       uint64_t entry, const uint32_t* dim, uint32_t scratch_stride, uint8_t* scratch) {
  const uint32_t n_threads = dim[0] * dim[1] * dim[2];
  for (uint64_t i = 0; i < b->n_waves; ++i) {
    struct wave* w = &b->waves[i];
    memset(w->vectors, 0xA5, sizeof w->vectors);  // registers start with anything
    memset(w->scalars, 0xA5, sizeof w->scalars);
    memcpy(w->scalars + 128, constants, 128 * 4);
    memcpy(w->scalars, scalars, n_scalars * 4);
    memcpy(&w->scalars[kPc], &entry, 8);
    w->scalars[kScratchStride] = scratch_stride;
    w->scratch = scratch + i * kLanes * scratch_stride;
    const uint32_t first = (uint32_t)i * kLanes, n = n_threads - first < kLanes ? n_threads - first : kLanes;
    w->scalars[kExec] = n == kLanes ? UINT32_MAX : (1u << n) - 1;
    w->scalars[kExec + 1] = w->scalars[kNull] = 0;
    for (uint32_t lane = 0; lane < n; ++lane) {
      const uint32_t t = first + lane;
      w->vectors[lane] = t % dim[0] | t / dim[0] % dim[1] << 10 | t / dim[0] / dim[1] << 20;
    }
    w->state = kReady;
  }
}
