// What the runtime's parts share: runtime.cpp (the session's calls), runtime_memory.cpp (the allocator's requests, raw
// access, pressure) and runtime_ops.cpp (the dispatcher's hook).
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core_mutex.h"
#include "runtime.h"
#include "storage_access.h"

namespace chameleon {

// Storages made before a step's first op are told apart from those of that op.
inline constexpr int32_t kBeforeFirstOp = 1 << 16;

std::string human(size_t bytes);         // "93.4 MiB"
std::string human_enough(size_t bytes);  // the same, never less than it is

// The core's lock; what was kept while it was held is released after it. A thread never holds those of two runtimes,
// but for a fork.
class Lock {
 public:
  explicit Lock(CoreMutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() {
    mutex_.unlock();
    access::release_kept();
    collectives::release_kept();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  CoreMutex& mutex_;
};

// While it lives, the lock is not held: for ops that are replayed, whose kernels and worker threads allocate, and for
// what takes long.
class Unlocked {
 public:
  explicit Unlocked(CoreMutex& mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  CoreMutex& mutex_;
};

// What a thread runs, whichever sessions it concerns.
struct Runtime::CallStack {
  struct Frame {
    const OpInfo* info;
    Places concerned;  // whose op it is
  };

  OpTable ops;
  std::vector<Frame> frames;                               // every RecordFunction on this thread's stack
  std::vector<std::pair<size_t, c10::StorageImpl*>> held;  // held_argument of those seen through: height of `frames`
  std::vector<std::pair<uint64_t, int64_t>> nodes;  // autograd nodes being evaluated: forward thread, sequence number
  int replaying = 0;                                // ops that run again: they belong to no step
  bool of_backend = false;                          // is the thread a communication library's?
  size_t leaf_frame = 0;  // of a trace without memory: height of `frames` at the leaf op; 0 outside
  Runtime* leaf_of = nullptr;
  LeafCall leaf_call;
  c10::StorageImpl* accumulated = nullptr;  // what the leaf adds to in place
  Places last = 0;                          // whose device the last op named first

  // A frame or a node that finds no room would end what is around it early.
  CallStack() {
    frames.reserve(256);
    nodes.reserve(64);
    held.reserve(64);
  }
  static CallStack& here();
  ThreadState& of(const Runtime& runtime);

 private:
  std::vector<std::unique_ptr<ThreadState>> states_;  // by place
};

// What it runs for one of them.
struct Runtime::ThreadState {
  explicit ThreadState(CallStack& stack) : stack(stack) {}

  CallStack& stack;
  int depth = 0;        // ops of this session on the thread's stack
  int lane = 0;         // that its compute goes along
  uint64_t serial = 0;  // of its outermost op; 0 outside
  int32_t index = -1;   // in order of appearance
  ModuleStack modules;
  int64_t epoch = 0;    // the session that they belong to
  int64_t seen = 0;     // the session since whose begin every op on the thread's stack is known
  bool unseen = false;  // does its outermost op run inside of one that nobody saw begin?
  std::vector<std::pair<Storage*, int64_t>> pinned;  // with their uids: records are reused
  std::vector<Maker> makers;     // ops on the stack that storages are made by, while producers are kept
  std::optional<Maker> ended;    // of the op that ends now
  size_t lost_frame = 0;         // height of `frames` at an op that could not be followed; 0: there is none
  int replays = 0;               // storages that the thread is making again
  std::vector<Flight> boarding;  // of the collectives whose launches are on the stack
  std::vector<int64_t> waited;   // ids of the flights that end with the op, a wait
  const char* op_name = nullptr;
  size_t parts = 0;  // elements of the outermost op's lists, if it may run in parts
  OpPlace place;     // of the outermost op
  EventPtr began;    // the same on the device, where its time is taken
  int began_lane = 0;
  uint32_t token = 0;        // of the outermost op, as far as its inputs have been looked at
  bool in_graph = false;     // does the op read a parameter or an activation?
  size_t refused_bytes = 0;  // not to be had, and nobody has been told yet

  // What an op on the stack overwrites: see Note [Overwriting].
  Storage* blank = nullptr;
  int64_t blank_uid = -1;
  int blank_depth = 0;       // of the op
  int blank_exceptions = 0;  // that were under way when it began

  // Does the outermost op use it? Another thread's op may have pinned it since, and let go of it.
  bool has_pinned(const Storage& storage) const {
    if (depth == 0 || storage.pins == 0) return false;
    return storage.pinned_by == serial || std::any_of(pinned.begin(), pinned.end(), [&](const auto& one) {
             return one.first == &storage && one.second == storage.uid;
           });
  }
};

// Declared before a Lock. When that is gone, what the thread was refused is told to those who watch the device's
// allocator: they may ask for Python's lock. Inside of a replay it is left to who wanted that.
class Runtime::Refusals {
 public:
  Refusals(Runtime& runtime, ThreadState& thread) : runtime_(runtime), thread_(thread) {
    if (thread_.stack.replaying == 0) thread_.refused_bytes = 0;
  }
  ~Refusals() {
    if (C10_LIKELY(thread_.refused_bytes == 0) || thread_.stack.replaying > 0) return;
    runtime_.device_->out_of_memory(std::exchange(thread_.refused_bytes, 0));
  }
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

 private:
  Runtime& runtime_;
  ThreadState& thread_;
};

inline Runtime::ThreadState& Runtime::CallStack::of(const Runtime& runtime) {
  if (C10_UNLIKELY(runtime.place_ >= states_.size())) states_.resize(runtime.place_ + 1);
  std::unique_ptr<ThreadState>& state = states_[runtime.place_];
  if (C10_UNLIKELY(!state)) state = std::make_unique<ThreadState>(*this);
  return *state;
}

}  // namespace chameleon
