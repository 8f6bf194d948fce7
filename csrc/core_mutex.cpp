#include "core_mutex.h"

namespace chameleon {

namespace {
thread_local int held = 0;
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

}  // namespace chameleon
