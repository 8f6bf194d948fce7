#include "device/cpu/copy_engine.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

#include "faults.h"

namespace chameleon::cpu {

namespace {

constexpr size_t kChunkBytes = 512 << 10;
// The scheduler wakes a sleeper late by about this much. What is left is not waited for awake: copies end within this
// much of their time, and a thread that never sleeps would take a core from the ops.
constexpr double kSleepSlack_s = 60e-6;
constexpr double kLongestSleep_s = 500e-6;
constexpr double kAwake_s = 2e-3;  // longer waits sleep
constexpr size_t kSmallBytes = 256 << 10;
constexpr size_t kSmallLargerBytes = 512 << 10;
constexpr int kLargerInARow = 64;  // then the thread is tried again

double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Sleeps in short stretches: on a slow link a cancelled copy must not hold up whoever waits for its end.
void sleep_until(double due_s, const std::atomic<bool>& cancelled) {
  while (!cancelled.load(std::memory_order_relaxed)) {
    const double ahead_s = due_s - kSleepSlack_s - monotonic_s();
    if (ahead_s <= 0) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(ahead_s, kLongestSleep_s)));
  }
}

}  // namespace

void CopyEvent::wait_awake() const {
  if (modeled_) return wait();
  const double until_s = monotonic_s() + kAwake_s;
  while (!done() && monotonic_s() < until_s) sched_yield();
  wait();
}

void CopyEvent::wait() const {
  if (in_model()) modeled_time.pass_until(end_ticks_);
  for (uint32_t state; (state = state_.load(std::memory_order_acquire)) != kDone;) state_.wait(state);
}

// A copy that has not begun is done at once: whoever waits must not wait for those queued ahead of it.
void CopyEvent::cancel() {
  if (in_model()) return cancel_in_model();
  cancelled_.store(true, std::memory_order_relaxed);
  uint32_t queued = kQueued;
  if (state_.compare_exchange_strong(queued, kRunning)) {
    start_ticks_ = now_ticks();
    finish();
  }
}

// What was under way has moved in part, as by the engine's thread.
void CopyEvent::cancel_in_model() {
  const Ticks now = modeled_time.now();
  const double share = static_cast<double>(now - start_ticks_) / static_cast<double>(end_ticks_ - start_ticks_);
  copied_bytes_ = now <= start_ticks_ ? 0 : static_cast<size_t>(share * static_cast<double>(copied_bytes_));
  start_ticks_ = std::min(start_ticks_, now);
  end_ticks_ = now;
}

void CopyEvent::finish() {
  end_ticks_ = now_ticks();
  state_.store(kDone, std::memory_order_release);
  state_.notify_all();
}

CopyEngine::~CopyEngine() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::shared_ptr<CopyEvent> CopyEngine::submit(void* to, const void* from, size_t bytes, EventPtr after, bool urgent) {
  if (Faults::hits(faults().refused_copies)) throw std::bad_alloc();
  Job job{to,
          from,
          bytes,
          monotonic_s(),
          std::static_pointer_cast<CopyEvent>(std::move(after)),
          std::make_shared<CopyEvent>(),
          urgent};
  std::shared_ptr<CopyEvent> event = job.event;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (modeled_time.on()) [[unlikely]] {
      copy_in_model(job);
      return event;
    }
    event->made_at_once_ = small(job);
    if (has_thread_ && !event->made_at_once_ && !thread_.joinable()) start();
    if (!has_thread_ || event->made_at_once_) {
      copy(job);
      return event;
    }
    const auto waits = [](const Job& one) { return !one.urgent; };
    queue_.insert(urgent ? std::find_if(queue_.begin(), queue_.end(), waits) : queue_.end(), std::move(job));
  }
  wake_.notify_one();
  return event;
}

void CopyEngine::set_bandwidth(double bytes_per_s) {
  bytes_per_s_ = bytes_per_s;
  larger_left_ = 0;  // what the thread took beside another link says nothing of this one
}

// See Note [Small copies].
bool CopyEngine::small(const Job& job) {
  const bool larger = job.bytes > kSmallBytes && !job.urgent;
  if (job.bytes > kSmallLargerBytes || (larger && larger_left_ == 0) || !queue_.empty() || copying_ ||
      faults().handed_over.load())
    return false;
  if (job.after && !job.after->done()) return false;
  const double bytes_per_s = bytes_per_s_.load();
  if (bytes_per_s <= 0) return true;
  const double ahead_s = std::max(link_free_s_ - job.issue_s, 0.0) + static_cast<double>(job.bytes) / bytes_per_s;
  if (ahead_s > kSleepSlack_s) return false;  // it has to be waited for
  if (larger) --larger_left_;
  return true;
}

void CopyEngine::start() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // the system has no thread left
    has_thread_ = false;
  }
}

void CopyEngine::run() {
  prctl(PR_SET_NAME, "chameleon-copy");
  prctl(PR_SET_TIMERSLACK, 1);
  for (;;) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      copying_ = true;
    }
    try {
      if (faults().copy_fails()) throw std::runtime_error("a fault on purpose");
      copy(job);
    } catch (const std::exception&) {
      retire(job);
      return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    copying_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

void CopyEngine::copy(const Job& job) {
  if (job.after) job.after->wait();
  CopyEvent& event = *job.event;
  uint32_t queued = CopyEvent::kQueued;
  if (!event.state_.compare_exchange_strong(queued, CopyEvent::kRunning)) return;  // cancelled
  event.start_ticks_ = now_ticks();
  const double bytes_per_s = has_thread_ ? bytes_per_s_.load() : 0;
  // From when it could have started: a copy that is queued behind another pays nothing for this thread waking late.
  link_free_s_ = std::max(link_free_s_, job.after ? monotonic_s() : job.issue_s);
  for (size_t offset = 0; offset < job.bytes; offset += kChunkBytes) {
    if (event.cancelled_.load(std::memory_order_relaxed)) break;
    const size_t bytes = std::min(kChunkBytes, job.bytes - offset);
    const double begin_s = monotonic_s();
    std::memcpy(static_cast<char*>(job.to) + offset, static_cast<const char*>(job.from) + offset, bytes);
    event.copied_bytes_ += bytes;
    if (bytes_per_s <= 0) continue;
    const double link_s = static_cast<double>(bytes) / bytes_per_s;
    if (!event.made_at_once_ && monotonic_s() - begin_s > link_s) larger_left_ = kLargerInARow;
    link_free_s_ += link_s;
    sleep_until(link_free_s_, event.cancelled_);
  }
  event.finish();
}

// See Note [Modeled time]. Only when it begins and ends is the model's: after what is queued, an urgent copy after what
// has begun.
void CopyEngine::copy_in_model(const Job& job) {
  std::memcpy(job.to, job.from, job.bytes);
  CopyEvent& event = *job.event;
  event.modeled_ = true;
  event.copied_bytes_ = job.bytes;
  event.state_.store(CopyEvent::kDone, std::memory_order_release);
  const double given = bytes_per_s_.load();
  const double bytes_per_s = given > 0 ? given : modeled_time.model().link_bytes_per_s;
  const Ticks now = modeled_time.now();
  const Ticks from = std::max(now, job.after ? job.after->end_ticks_ : now);
  const auto over = [now](const Modeled& one) { return one.event->end_ticks_ <= now; };  // cancelled copies too
  modeled_.erase(std::remove_if(modeled_.begin(), modeled_.end(), over), modeled_.end());
  const auto comes_after = [&](const Modeled& one) {
    return job.urgent && !one.urgent && one.event->start_ticks_ > now;
  };
  auto next =
      modeled_.insert(std::find_if(modeled_.begin(), modeled_.end(), comes_after),
                      {job.event, from, ModeledTime::ticks(static_cast<double>(job.bytes) / bytes_per_s), job.urgent});
  for (Ticks free = next == modeled_.begin() ? now : std::prev(next)->event->end_ticks_; next != modeled_.end();
       ++next) {
    CopyEvent& moved = *next->event;
    moved.start_ticks_ = std::max(free, next->from);
    free = moved.end_ticks_ = moved.start_ticks_ + next->takes;
  }
}

// The thread ends here. It makes the copies that wait, this one first; those to come are made by whoever asks for them.
void CopyEngine::retire(const Job& failed) {
  std::lock_guard<std::mutex> lock(mutex_);
  has_thread_ = false;
  copy(failed);
  for (const Job& job : queue_) copy(job);
  queue_.clear();
  copying_ = false;
  idle_.notify_all();
}

void CopyEngine::drain() {
  if (modeled_time.on()) {
    for (const Modeled& one : modeled_) modeled_time.pass_until(one.event->end_ticks_);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && !copying_; });
}

void CopyEngine::abandon_thread() {
  if (!thread_.joinable()) {
    has_thread_ = false;
    return;
  }
  // The thread lives on in the parent only: forget the handle, and the lock and the condition that it sleeps on.
  has_thread_ = false;
  new (&thread_) std::thread();
  new (&mutex_) std::mutex();
  new (&wake_) std::condition_variable();
  new (&idle_) std::condition_variable();
}

}  // namespace chameleon::cpu
