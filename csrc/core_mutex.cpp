#include "core_mutex.h"

namespace chameleon {

namespace {
thread_local int held = 0;
PythonLock python_lock;
}  // namespace

void CoreMutex::lock() {
  mutex_.lock();
  ++held;
}

bool CoreMutex::try_lock() {
  if (!mutex_.try_lock()) return false;
  ++held;
  return true;
}

void CoreMutex::unlock() {
  --held;
  mutex_.unlock();
}

bool CoreMutex::held_here() { return held > 0; }

void set_python_lock(PythonLock lock) { python_lock = lock; }

WithoutPython::WithoutPython(CoreMutex& mutex)
    : mutex_(mutex), released_(python_lock.release ? python_lock.release() : nullptr) {}

WithoutPython::~WithoutPython() {
  if (!released_) return;
  mutex_.unlock();
  python_lock.take(released_);
  mutex_.lock();
}

}  // namespace chameleon
