#include "late_deaths.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace chameleon::late_deaths {

namespace {

thread_local int scopes = 0;
std::mutex mutex;
std::vector<std::pair<Deleter, void*>>& waiting() {
  static auto* deaths = new std::vector<std::pair<Deleter, void*>>();
  return *deaths;
}
std::atomic<bool> some{false};

}  // namespace

Scope::Scope() { ++scopes; }
Scope::~Scope() { --scopes; }

bool put_off(Deleter deleter, void* what) {
  if (scopes == 0) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  waiting().emplace_back(deleter, what);
  some.store(true, std::memory_order_relaxed);
  return true;
}

bool any() { return some.load(std::memory_order_relaxed); }

bool settle() {
  if (!any() || scopes > 0) return false;
  std::vector<std::pair<Deleter, void*>> deaths;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    deaths.swap(waiting());
    some.store(false, std::memory_order_relaxed);
  }
  for (const auto& [deleter, what] : deaths) deleter(what);
  return !deaths.empty();
}

}  // namespace chameleon::late_deaths
