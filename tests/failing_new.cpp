// An `operator new` for tests, to be preloaded: where it is told to, a request of the core gets no memory. Requests of
// PyTorch and of the C++ library are always served.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<uintptr_t> core_begin{0}, core_end{0};
std::atomic<int64_t> asked{0};
std::atomic<int64_t> first{INT64_MAX}, last{INT64_MAX};  // of the requests that are refused
std::atomic<int64_t> refused{0};

bool refuses(const void* caller) {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  if (address < core_begin || address >= core_end) return false;
  const int64_t number = asked.fetch_add(1);
  if (number < first || number > last) return false;
  ++refused;
  return true;
}

void* allocate(std::size_t bytes, const void* caller) {
  for (;;) {
    if (void* data = refuses(caller) ? nullptr : std::malloc(bytes ? bytes : 1)) return data;
    const std::new_handler handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    handler();
  }
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return allocate(bytes, __builtin_return_address(0)); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }

// For ctypes.
extern "C" {

void failing_new_watch(uintptr_t begin, uintptr_t end) {
  core_begin = begin;
  core_end = end;
}

// From now on, the request behind `after` others, and those that follow it: so many in a row.
void failing_new_refuse(int64_t after, int64_t in_a_row) {
  first = last = INT64_MAX;
  asked = 0;
  last = after + in_a_row - 1;
  first = after;
}

// Since that was called.
int64_t failing_new_requests() { return asked; }
int64_t failing_new_refused() { return refused.exchange(0); }
}
