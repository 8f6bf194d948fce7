// The system's memory policies, for tests: which node pages were wished near, on a machine that may have one node alone
// or not let anybody ask. The device under test makes its system calls itself; here they end.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "fake.h"

namespace {

constexpr int kDefault = 0;  // of linux/mempolicy.h
constexpr int kPreferred = 1;
constexpr int kBits = 8 * sizeof(unsigned long);

struct Policy {
  int mode = kDefault;
  unsigned long mask = 0;  // of the first nodes
  int node() const { return mode == kPreferred && mask ? __builtin_ctzl(mask) : -1; }
};

std::mutex mutex;
bool refused = false;
std::map<const char*, std::pair<size_t, Policy>> ranges;
thread_local Policy of_thread;

unsigned long first_word(const unsigned long* mask, unsigned long bits) { return mask && bits >= kBits ? *mask : 0; }

// What is mapped anew, or not any more, has no wish.
void forget(const void* address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto* const begin = static_cast<const char*>(address);
  auto range = ranges.lower_bound(begin);
  if (range != ranges.begin()) {
    const auto before = std::prev(range);
    if (before->first + before->second.first > begin) range = before;
  }
  while (range != ranges.end() && range->first < begin + bytes) range = ranges.erase(range);
}

long fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

namespace fake {

void refuse_policies(bool refuse) { refused = refuse; }

int policy_of_thread() { return of_thread.node(); }

int policy_of(const void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto* wanted = static_cast<const char*>(data);
  auto found = ranges.upper_bound(wanted);
  if (found == ranges.begin()) return -1;
  --found;
  return wanted + bytes <= found->first + found->second.first ? found->second.second.node() : -1;
}

}  // namespace fake

// Before libc's, for what is linked with this.
extern "C" void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  static const auto real = reinterpret_cast<decltype(&mmap)>(dlsym(RTLD_NEXT, "mmap"));
  void* const data = real(address, bytes, protection, flags, file, offset);
  if (data != MAP_FAILED) forget(data, bytes);
  return data;
}

extern "C" int munmap(void* address, size_t bytes) noexcept {
  static const auto real = reinterpret_cast<decltype(&munmap)>(dlsym(RTLD_NEXT, "munmap"));
  forget(address, bytes);
  return real(address, bytes);
}

extern "C" long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& one : a) one = va_arg(list, long);
  va_end(list);
  switch (number) {
    case SYS_mbind: {
      if (refused) return fail(EPERM);
      const std::lock_guard<std::mutex> lock(mutex);
      const auto* mask = reinterpret_cast<const unsigned long*>(a[3]);
      ranges[reinterpret_cast<const char*>(a[0])] = {
          static_cast<size_t>(a[1]), {static_cast<int>(a[2]), first_word(mask, static_cast<unsigned long>(a[4]))}};
      return 0;
    }
    case SYS_set_mempolicy: {
      if (refused) return fail(EPERM);
      const auto* mask = reinterpret_cast<const unsigned long*>(a[1]);
      of_thread = {static_cast<int>(a[0]), first_word(mask, static_cast<unsigned long>(a[2]))};
      return 0;
    }
    case SYS_get_mempolicy: {
      if (refused) return fail(EPERM);
      *reinterpret_cast<int*>(a[0]) = of_thread.mode;
      *reinterpret_cast<unsigned long*>(a[1]) = of_thread.mask;
      return 0;
    }
    default:
      static const auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
      return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
}
