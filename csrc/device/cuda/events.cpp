#include "device/cuda/events.h"

#include <algorithm>
#include <new>
#include <utility>

#include "device/cuda/check.h"

namespace chameleon::cuda {

cudaEvent_t EventPool::take(bool timed) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<cudaEvent_t>& spare = spare_[timed];
    if (!spare.empty()) {
      const cudaEvent_t event = spare.back();
      spare.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  if (health_.gone()) return event;
  CHAMELEON_CUDA_CALL(health_.check, cudaEventCreateWithFlags, &event,
                      timed ? cudaEventDefault : cudaEventDisableTiming);
  return event;
}

void EventPool::give(cudaEvent_t event, bool timed) {
  if (health_.gone()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    spare_[timed].push_back(event);
  } catch (const std::bad_alloc&) {  // nobody records it any more
  }
}

Mark::Mark(EventPool& pool, cudaStream_t stream, bool timed) : Mark(pool, timed) { record(stream); }
Mark::Mark(EventPool& pool, bool timed) : pool_(pool), timed_(timed), event_(pool.take(timed)) {}
Mark::~Mark() { pool_.give(event_, timed_); }

void Mark::record(cudaStream_t stream) {
  if (!pool_.health().gone()) CHAMELEON_CUDA_CALL(pool_.health().check, cudaEventRecord, event_, stream);
}

bool Mark::done() const {
  if (done_.load(std::memory_order_relaxed) || pool_.health().gone()) return true;
  const cudaError_t state = cudaEventQuery(event_);
  // What CUDA does not say now it may say when it is asked again.
  if (state != cudaSuccess) return pool_.health().lost(state, "cudaEventQuery");
  done_.store(true, std::memory_order_relaxed);
  return true;
}

// Where the event has passed there is nothing to wait for: whatever is given to a stream later comes after it.
void Mark::block(cudaStream_t stream) const {
  if (!done()) CHAMELEON_CUDA_CALL(pool_.health().check, cudaStreamWaitEvent, stream, event_, 0);
}

// Once the event has passed, the host reads what was written before it.
void Mark::wait() const {
  if (!done()) CHAMELEON_CUDA_CALL(pool_.health().check, cudaEventSynchronize, event_);
}

std::optional<double> Mark::since_ms(const Mark& earlier) const {
  if (pool_.health().gone()) return 0;
  float ms = 0;
  if (cudaEventElapsedTime(&ms, earlier.event_, event_) == cudaSuccess) return ms;
  (void)cudaGetLastError();  // torch would take it for its own kernel's
  return std::nullopt;
}

std::atomic<double> Timeline::anchor_every_s{5};

struct Timeline::Anchor {
  Anchor(EventPool& pool, cudaStream_t stream, std::shared_ptr<Anchor> before_it)
      : mark(pool, stream, /*timed=*/true), before(std::move(before_it)) {}

  const Mark mark;
  std::shared_ptr<Anchor> before;  // until the time between them is known
  Ticks ticks = 0;                 // of the mark
  double ticks_per_ms = 0;         // one for all that is counted from here: what comes first stays first. 0: not placed
};

Timeline::Timeline(EventPool& pool, cudaStream_t stream)
    : pool_(pool), stream_(stream), newest_(std::make_shared<Anchor>(pool, stream, nullptr)) {
  newest_->mark.wait();
  newest_->ticks = anchored_ticks_ = now_ticks();
}

bool Timeline::passed(const Anchor& anchor) { return anchor.mark.done(); }

std::shared_ptr<Timeline::Anchor> Timeline::anchor() {
  std::lock_guard<std::mutex> lock(mutex_);
  const Ticks now = now_ticks();
  if (clock_.duration(now - anchored_ticks_) > anchor_every_s) {
    if (passed(*newest_)) place(newest_);  // also where nobody reads any time: no line of them grows
    newest_ = std::make_shared<Anchor>(pool_, stream_, newest_);
    anchored_ticks_ = now;
  }
  return newest_;
}

Ticks Timeline::ticks(const std::shared_ptr<Anchor>& anchor, const Mark& mark) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!place(anchor)) return kNoTime;
  const std::optional<double> ms = mark.since_ms(anchor->mark);
  return ms ? anchor->ticks + static_cast<Ticks>(*ms * anchor->ticks_per_ms) : kNoTime;
}

// Oldest first: each is counted from the one before. What fails is as it was, and may be tried again.
bool Timeline::place(const std::shared_ptr<Anchor>& anchor) {
  std::vector<Anchor*> open;
  for (Anchor* one = anchor.get(); one && one->ticks_per_ms == 0; one = one->before.get()) open.push_back(one);
  if (open.empty()) return true;
  constexpr Ticks kMany = 1'000'000'000;
  const double ticks_per_ms = 1e-3 / clock_.duration(kMany) * kMany;
  for (; !open.empty(); open.pop_back()) {
    Anchor& one = *open.back();
    if (one.before) {  // not the first
      const std::optional<double> ms = one.mark.since_ms(one.before->mark);
      if (!ms) return false;
      one.ticks = one.before->ticks + static_cast<Ticks>(*ms * ticks_per_ms);
      one.before.reset();
    }
    one.ticks_per_ms = ticks_per_ms;
  }
  return true;
}

Copy::Copy(EventPool& pool, Timeline& timeline, cudaStream_t stream, size_t link, uint64_t number, size_t bytes)
    : timeline_(timeline),
      anchor_(timeline.anchor()),
      link_(link),
      number_(number),
      bytes_(bytes),
      start_(pool, stream, /*timed=*/true),
      end_(pool, /*timed=*/true) {}

Ticks Wait::end_ticks() const {
  const Ticks start = start_ticks(), end = copy_->end_ticks();
  return start == kNoTime || end == kNoTime ? kNoTime : std::max(start, end);
}

void Moment::block(cudaStream_t stream) const {
  for (const auto& mark : marks_) mark->block(stream);
}

void Moment::wait() const {
  for (const auto& mark : marks_) mark->wait();
}

bool Moment::done() const {
  return std::all_of(marks_.begin(), marks_.end(), [](const auto& mark) { return mark->done(); });
}

}  // namespace chameleon::cuda
