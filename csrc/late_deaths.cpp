#include "late_deaths.h"

#include <atomic>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace chameleon::late_deaths {

namespace {

thread_local int scopes = 0;
std::mutex mutex;
std::vector<std::pair<Deleter, void*>>& waiting() {
  static auto* deaths = [] {
    auto* none = new std::vector<std::pair<Deleter, void*>>();
    none->reserve(1024);  // where one is put off, nothing may be thrown
    return none;
  }();
  return *deaths;
}
std::atomic<bool> some{false};

}  // namespace

Scope::Scope() {
  waiting();
  ++scopes;
}
Scope::~Scope() { --scopes; }

bool put_off(Deleter deleter, void* what) {
  if (scopes == 0) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  try {
    waiting().emplace_back(deleter, what);
    some.store(true, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {  // more than there is room for, and no memory: theirs is lost
  }
  return true;
}

void before_fork() { mutex.lock(); }
void after_fork() { mutex.unlock(); }

bool any() { return some.load(std::memory_order_relaxed); }

bool settle() {
  if (!any() || scopes > 0) return false;
  for (bool died = false;; died = true) {
    std::pair<Deleter, void*> death;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (waiting().empty()) {
        some.store(false, std::memory_order_relaxed);
        return died;
      }
      death = waiting().front();
      waiting().erase(waiting().begin());
    }
    death.first(death.second);
  }
}

}  // namespace chameleon::late_deaths
