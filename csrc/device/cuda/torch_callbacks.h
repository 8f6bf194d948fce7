// What others have torch's CUDA allocator call: the stacks of its memory history, and the observers of out-of-memory.
// Both are functions of Python for most, which a session must not wait for: see Note [Python's lock under the core's].
//
// Note [Stacks of the memory history]
// Torch takes a stack at each request and each free, before it takes its own lock. For what the program asks for or
// lets go of, it is taken before the core's lock as well (Stack), and torch is given that one (Call). What the session
// moves by itself has no line of the program: torch shows no frames of it, and kLabel as its user metadata.
//
// Note [Observers of out-of-memory]
// Torch calls them wherever it refuses. A session makes room then and asks again, of which they hear nothing. Where the
// program is refused, they are told once, without the core's lock, with the bytes that are missing.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace chameleon::cuda::callbacks {

namespace caching = c10::cuda::CUDACachingAllocator;

inline constexpr const char* kLabel = "Chameleon Lab";

// As CUDAAllocator::recordHistory(), with stacks that may be taken while a session is open.
void record_history(caching::CUDAAllocator& torch, bool enabled, caching::CreateContextFn context, size_t most_entries,
                    caching::RecordContext when, bool clear, const std::vector<std::string>& skip);
bool history_is_ours();  // was the history that torch records, if any, begun through here?

enum class What : uint8_t { Request, Free };

// The program asks for memory, or lets go of some: the stack of the Call that this leads to. Made without the core's
// lock.
class Stack {
 public:
  explicit Stack(What what);
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

 private:
  friend class Call;
  const What what_;
  bool waits_ = false;  // for its Call
  std::shared_ptr<c10::GatheredContext> context_;
  Stack* const before_;
};

// Around what a session asks of torch's allocator: the program's doing if a Stack waits for it, and else its own.
class Call {
 public:
  Call(caching::CUDAAllocator& torch, What what);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  caching::CUDAAllocator& torch_;
  std::shared_ptr<c10::GatheredContext>* const before_;
  std::optional<std::string> metadata_;  // of the user's, while it is labeled as the session's
};

// While one lives, observers hear nothing of what this thread is refused.
class Silence {
 public:
  explicit Silence(bool wanted);
  ~Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  const bool wanted_;
};

// What to attach in its place.
caching::OutOfMemoryObserver standing_for(caching::OutOfMemoryObserver observer);
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 212
caching::OomRejectionObserver standing_for_rejection(caching::OomRejectionObserver observer);
#endif

// The program is refused so many bytes. `total_bytes`: that torch may reserve of the GPU, `free_bytes`: that the driver
// has. If torch refused by its policy (throw_on_cudamalloc_oom), observers of that are told.
void tell(int device, size_t bytes, size_t total_bytes, size_t free_bytes);

}  // namespace chameleon::cuda::callbacks
