#include "device/cuda/events.h"

#include <algorithm>
#include <utility>

#include "device/cuda/check.h"

namespace chameleon::cuda {

namespace {
constexpr double kAnchorEvery_s = 5;
}

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
  cudaEvent_t event;
  CHAMELEON_CUDA_CALL(cudaEventCreateWithFlags, &event, timed ? cudaEventDefault : cudaEventDisableTiming);
  return event;
}

void EventPool::give(cudaEvent_t event, bool timed) {
  if (forked()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  spare_[timed].push_back(event);
}

void EventPool::after_fork_in_child() { forked_ = true; }

Mark::Mark(EventPool& pool, cudaStream_t stream, bool timed) : pool_(pool), timed_(timed), event_(pool.take(timed)) {
  CHAMELEON_CUDA_CALL(cudaEventRecord, event_, stream);
}

Mark::~Mark() { pool_.give(event_, timed_); }

bool Mark::done() const {
  if (done_.load(std::memory_order_relaxed) || pool_.forked()) return true;
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  check(state, "cudaEventQuery");
  done_.store(true, std::memory_order_relaxed);
  return true;
}

void Mark::block(cudaStream_t stream) const {
  if (!done()) CHAMELEON_CUDA_CALL(cudaStreamWaitEvent, stream, event_, 0);
}

void Mark::wait() const {
  if (!done()) CHAMELEON_CUDA_CALL(cudaEventSynchronize, event_);
}

double Mark::since_ms(const Mark& earlier) const {
  if (pool_.forked()) return 0;
  float ms = 0;
  CHAMELEON_CUDA_CALL(cudaEventElapsedTime, &ms, earlier.event_, event_);
  return ms;
}

struct Timeline::Anchor {
  Anchor(EventPool& pool, cudaStream_t stream, std::shared_ptr<Anchor> before_it)
      : mark(pool, stream, /*timed=*/true), before(std::move(before_it)) {}

  const Mark mark;
  std::shared_ptr<Anchor> before;  // until the time between them is known
  Ticks ticks = 0;                 // of the mark
  double ticks_per_ms = 0;         // one for all that is counted from here: what comes first stays first
};

Timeline::Timeline(EventPool& pool, cudaStream_t stream)
    : pool_(pool), stream_(stream), newest_(std::make_shared<Anchor>(pool, stream, nullptr)) {
  newest_->mark.wait();
  newest_->ticks = anchored_ticks_ = now_ticks();
}

std::shared_ptr<Timeline::Anchor> Timeline::anchor() {
  std::lock_guard<std::mutex> lock(mutex_);
  const Ticks now = now_ticks();
  if (clock_.duration(now - anchored_ticks_) > kAnchorEvery_s) {
    newest_ = std::make_shared<Anchor>(pool_, stream_, newest_);
    anchored_ticks_ = now;
  }
  return newest_;
}

Ticks Timeline::ticks(const std::shared_ptr<Anchor>& anchor, const Mark& mark) {
  std::lock_guard<std::mutex> lock(mutex_);
  place(*anchor);
  return anchor->ticks + static_cast<Ticks>(mark.since_ms(anchor->mark) * anchor->ticks_per_ms);
}

void Timeline::place(Anchor& anchor) {
  if (anchor.ticks_per_ms > 0) return;
  constexpr Ticks kMany = 1'000'000'000;
  anchor.ticks_per_ms = 1e-3 / clock_.duration(kMany) * kMany;
  if (!anchor.before) return;  // the first
  place(*anchor.before);
  const double ms = anchor.mark.since_ms(anchor.before->mark);
  anchor.ticks = anchor.before->ticks + static_cast<Ticks>(ms * anchor.ticks_per_ms);
  anchor.before.reset();
}

Copy::Copy(EventPool& pool, Timeline& timeline, cudaStream_t stream, Direction direction, uint64_t number, size_t bytes)
    : pool_(pool),
      timeline_(timeline),
      anchor_(timeline.anchor()),
      direction_(direction),
      number_(number),
      bytes_(bytes),
      start_(pool, stream, /*timed=*/true) {}

void Copy::end(cudaStream_t stream) { end_ = std::make_unique<Mark>(pool_, stream, /*timed=*/true); }

Ticks Wait::end_ticks() const { return std::max(start_ticks(), copy_->end_ticks()); }

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
