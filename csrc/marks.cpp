#include "marks.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

namespace chameleon::marks {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kMostBytes = size_t{1} << 42;
constexpr size_t kLeastBytes = size_t{1} << 36;

char* first = nullptr;
char* last = nullptr;
char* next = nullptr;
bool handles = false;  // faults there
Provider provider = nullptr;
struct sigaction previous;

// Ends by the stretches' beginnings. Never freed: storages may outlive everything else.
std::map<char*, char*>& taken() {
  static auto* stretches = new std::map<char*, char*>();
  return *stretches;
}

// Every device has a core of its own, and each core a lock.
std::mutex& taken_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

// A page more, so that two storages never touch; an empty one has an address too.
size_t stretch_bytes(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kPageBytes; }

bool inaccessible(void* at, size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(at, bytes, PROT_NONE, kFlags, -1, 0) != MAP_FAILED;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto* address = static_cast<const char*>(info->si_addr);
  if (address >= first && address < last && provider(address)) return;
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    sigaction(signal, &previous, nullptr);  // the access faults again
  } else {
    previous.sa_handler(signal);
  }
}

// Who comes after us calls us, and must not be called back: so this is done once, and again only where the handler was
// dropped (Python's faulthandler puts back what it found when it is disabled, and forgets us).
void install_handler() {
  struct sigaction action{};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous);
}

void reinstall_handler_if_dropped() {
  struct sigaction now{};
  sigaction(SIGSEGV, nullptr, &now);
  if (!(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) install_handler();
}

void reserve_addresses() {
  for (size_t bytes = kMostBytes; !first && bytes >= kLeastBytes; bytes /= 2) {
    void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) continue;
    next = first = static_cast<char*>(address);
    last = first + bytes;
  }
  TORCH_CHECK(first,
              "Chameleon Lab: no address space left to mark storages that are away: raise the limit on this process's "
              "address space (`ulimit -v unlimited`)");
}

}  // namespace

// Address space, and no memory; `ulimit -v` may leave less of that. Beside a GPU alone there is no handler: others have
// theirs (debuggers, Java, compute-sanitizer), and ours could not help.
void reserve(bool shown) {
  reserve_addresses();
  if (!shown) return;
  if (handles) {
    reinstall_handler_if_dropped();
  } else {
    install_handler();
    handles = true;
  }
}

void* take(size_t bytes) {
  const std::lock_guard<std::mutex> lock(taken_mutex());
  bytes = stretch_bytes(bytes);
  for (bool again = false;;) {
    if (bytes > static_cast<size_t>(last - next)) {
      TORCH_CHECK(!again, "Chameleon Lab: no address space left to mark a storage that is away");
      again = true;
      next = first;
      continue;
    }
    // The first stretch that ends behind `next` is in the way, if it begins before our end.
    auto after = taken().lower_bound(next);
    if (after != taken().begin() && std::prev(after)->second > next) {
      next = std::prev(after)->second;
    } else if (after != taken().end() && after->first < next + bytes) {
      next = after->second;
    } else {
      break;
    }
  }
  char* mark = next;
  next += bytes;
  taken().emplace(mark, next);
  return mark;
}

void give_back(void* mark) {
  const std::lock_guard<std::mutex> lock(taken_mutex());
  taken().erase(static_cast<char*>(mark));
}

void hide(void* mark, size_t bytes) { inaccessible(mark, stretch_bytes(bytes)); }

void set_provider(Provider p) { provider = p; }

bool show(void* mark, size_t bytes, c10::function_ref<bool(void*)> fill) {
  const size_t size = stretch_bytes(bytes) - kPageBytes;
  // Filled elsewhere and moved there at once: other threads may be reading too.
  void* copy = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  if (!fill(copy)) {
    munmap(copy, size);
    return false;
  }
  mprotect(copy, size, PROT_READ);
  if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, mark) != MAP_FAILED) return true;
  munmap(copy, size);
  return false;
}

}  // namespace chameleon::marks
