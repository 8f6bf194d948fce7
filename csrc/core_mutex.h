// A runtime's mutex, which knows whether the calling thread holds it.
//
// Note [Python's lock under the core's]
// Whoever holds Python's lock may wait for the core's: tensors die under it. So a thread that holds the core's lock
// must never ask for Python's. Torch's CUDA allocator calls functions of Python: the stacks of its memory history and
// the observers of out-of-memory. Those are called without the core's lock, or not at all
// (csrc/device/cuda/callbacks.h).
#pragma once

#include <mutex>

namespace chameleon {

class CoreMutex {
 public:
  void lock();
  bool try_lock();
  void unlock();

  static bool held_here();  // does the calling thread hold one, of whichever runtime?

 private:
  std::mutex mutex_;
};

}  // namespace chameleon
