// A runtime's mutex, which knows whether the calling thread holds it.
//
// Note [Python's lock under the core's]
// Whoever holds Python's lock (the GIL) may wait for the core's: tensors die under it. So a thread that holds the
// core's lock must never ask for Python's. Torch's CUDA allocator calls functions of Python: the stacks of its memory
// history and the observers of out-of-memory. Those are called without the core's lock, or not at all
// (csrc/device/cuda/torch_callbacks.h). And who waits until other threads' ops or replays have ended lets go of
// Python's lock meanwhile (WithoutPython), since these may ask for it.
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

// What knows Python (csrc/bindings.cpp) says how its lock is let go of: `release` gives what `take` gets, or null where
// the thread does not hold it.
struct PythonLock {
  void* (*release)() = nullptr;
  void (*take)(void* released) = nullptr;
};
void set_python_lock(PythonLock lock);

// While one lives, the thread does not hold Python's lock. If it did, the core's lock, which it holds, is given up for
// a moment at the end.
class WithoutPython {
 public:
  explicit WithoutPython(CoreMutex& mutex);
  ~WithoutPython();
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  CoreMutex& mutex_;
  void* const released_;
};

}  // namespace chameleon
