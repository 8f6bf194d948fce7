#include "device/cuda/torch_callbacks.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <type_traits>
#include <utility>

#include "core_mutex.h"

namespace chameleon::cuda::callbacks {

namespace {

// As torch was last told; it takes stacks of a history that has ended a moment longer.
std::atomic<caching::CreateContextFn> context_fn{nullptr};
std::atomic<caching::RecordContext> level{caching::RecordContext::NEVER};
std::atomic<bool> recording{false};

thread_local Stack* waiting = nullptr;                                // the innermost
thread_local std::shared_ptr<c10::GatheredContext>* given = nullptr;  // of the Call that this thread is in
thread_local int silences = 0;

using Observer = std::function<void(int64_t, size_t, size_t, size_t)>;  // both kinds
static_assert(std::is_same_v<Observer, caching::OutOfMemoryObserver>);

// Torch keeps observers for the process's life, and so do these.
class Observers {
 public:
  void add(std::shared_ptr<const Observer> observer) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(observer));
  }
  void tell(int64_t device, size_t first, size_t second, size_t third) {
    for (const auto& observer : here()) (*observer)(device, first, second, third);
  }

 private:
  std::vector<std::shared_ptr<const Observer>> here() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<const Observer>> all_;
};
Observers& observers() {
  static auto* all = new Observers();
  return *all;
}
Observers& rejection_observers() {
  static auto* all = new Observers();
  return *all;
}

struct Rejection {
  int64_t device;
  size_t bytes, allocated_bytes, total_bytes;
};
thread_local std::optional<Rejection> rejection;  // that observers have not heard of yet

std::shared_ptr<c10::GatheredContext> stack() {
  if (given) return *given;
  return CoreMutex::held_here() ? nullptr : context_fn.load()();
}

bool silent() { return silences > 0 || CoreMutex::held_here(); }

}  // namespace

void record_history(caching::CUDAAllocator& torch, bool enabled, caching::CreateContextFn context, size_t most_entries,
                    caching::RecordContext when, bool clear, const std::vector<std::string>& skip) {
  if (context) context_fn = context;
  torch.recordHistory(enabled, context ? &stack : nullptr, most_entries, when, clear, skip);
  level = enabled && context ? when : caching::RecordContext::NEVER;
  recording = enabled;
}

bool history_is_ours() { return recording; }

Stack::Stack(What what) : what_(what), before_(waiting) {
  if (what == What::Request) rejection.reset();
  if (!recording.load(std::memory_order_relaxed)) return;
  const auto least = what == What::Request ? caching::RecordContext::STATE : caching::RecordContext::ALL;
  try {
    if (level.load(std::memory_order_relaxed) >= least && !CoreMutex::held_here()) context_ = context_fn.load()();
  } catch (const std::exception&) {  // a free must not fail for want of its stack
  }
  waits_ = true;
  waiting = this;
}

Stack::~Stack() { waiting = before_; }

Call::Call(caching::CUDAAllocator& torch, What what) : torch_(torch), before_(given) {
  if (what == What::Request) rejection.reset();
  if (!recording.load(std::memory_order_relaxed)) return;
  if (waiting && waiting->waits_ && waiting->what_ == what) {
    waiting->waits_ = what == What::Request;  // torch may refuse, and is asked again when there is room
    given = &waiting->context_;
    return;
  }
  try {
    metadata_ = torch.getUserMetadata();
    torch.setUserMetadata(metadata_->empty() ? kLabel : *metadata_ + ", " + kLabel);
  } catch (const std::exception&) {  // nor for its label
    metadata_.reset();
  }
}

Call::~Call() {
  given = before_;
  try {
    if (metadata_) torch_.setUserMetadata(*metadata_);
  } catch (const std::exception&) {
  }
}

Silence::Silence(bool wanted) : wanted_(wanted) {
  rejection.reset();
  silences += wanted_;
}
Silence::~Silence() { silences -= wanted_; }

caching::OutOfMemoryObserver standing_for(caching::OutOfMemoryObserver observer) {
  const auto kept = std::make_shared<const Observer>(std::move(observer));
  observers().add(kept);
  return [kept](int64_t device, size_t bytes, size_t total_bytes, size_t free_bytes) {
    if (!silent()) (*kept)(device, bytes, total_bytes, free_bytes);
  };
}

#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 212
caching::OomRejectionObserver standing_for_rejection(caching::OomRejectionObserver observer) {
  const auto kept = std::make_shared<const Observer>(std::move(observer));
  rejection_observers().add(kept);
  return [kept](int64_t device, size_t bytes, size_t allocated_bytes, size_t total_bytes) {
    if (silent()) {
      rejection = {device, bytes, allocated_bytes, total_bytes};
    } else {
      (*kept)(device, bytes, allocated_bytes, total_bytes);
    }
  };
}
#endif

void tell(int device, size_t bytes, size_t total_bytes, size_t free_bytes) {
  const struct Disarmed {  // what they ask for has stacks of its own
    Stack* const before = std::exchange(waiting, nullptr);
    ~Disarmed() { waiting = before; }
  } disarmed;
  const auto rejected = std::exchange(rejection, std::nullopt);
  if (rejected && rejected->device == device && rejected->bytes >= bytes) {
    rejection_observers().tell(rejected->device, rejected->bytes, rejected->allocated_bytes, rejected->total_bytes);
  } else {
    observers().tell(device, bytes, total_bytes, free_bytes);
  }
}

}  // namespace chameleon::cuda::callbacks
