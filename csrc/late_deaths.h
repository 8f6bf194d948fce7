// Deaths of storages inside of an allocator's call.
//
// Note [Deaths inside of torch's allocator]
// Torch's CUDA allocator calls others back where it has no block (FreeMemoryCallback: CUDA IPC gives back there what
// its consumers are done with), and it holds its lock meanwhile. A storage of ours that dies there must not wait for
// the core's lock: this thread may hold it, or another one that waits for torch's. So such deaths are put off until the
// call has returned. Until then the storage has no tensor, so nothing moves it, and torch does not give its block away.
#pragma once

namespace chameleon::late_deaths {

using Deleter = void (*)(void*);

// While one lives, deaths on its thread are put off.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

bool put_off(Deleter deleter, void* what);  // false: now is as good a time as any
bool any();
// Those of all threads; returns whether there were any. Without the core's lock.
bool settle();

// So that a child does not inherit a lock that another thread held.
void before_fork();
void after_fork();

}  // namespace chameleon::late_deaths
