// Events of the GPU, reused, and what they say on the host's clock.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "clock.h"
#include "device/cuda/health.h"
#include "device/device.h"

namespace chameleon::cuda {

// Events are handed back by whoever reads a trace last, on any thread. Outlives everything that holds one.
class EventPool {
 public:
  // Where the GPU is gone every event counts as done, and its time as zero.
  explicit EventPool(Health& health) : health_(health) {}

  cudaEvent_t take(bool timed);  // null where the GPU is gone
  void give(cudaEvent_t event, bool timed);
  Health& health() { return health_; }

 private:
  Health& health_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> spare_[2];  // untimed, timed
};

// A moment of a stream: done when what the stream was given before it is.
class Mark {
 public:
  Mark(EventPool& pool, cudaStream_t stream, bool timed);
  Mark(EventPool& pool, bool timed);  // to be recorded later: all that it takes is there
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  void record(cudaStream_t stream);
  bool done() const;
  void block(cudaStream_t stream) const;                      // what the stream is given from here on comes after it
  void wait() const;                                          // the host does
  std::optional<double> since_ms(const Mark& earlier) const;  // both timed, and done; null: CUDA does not say

 private:
  EventPool& pool_;
  const bool timed_;
  const cudaEvent_t event_;
  mutable std::atomic<bool> done_{false};
};

// Places the moments around a stream's copies on the host's clock.
//
// CUDA tells the time between two events, as a float of milliseconds: after a few minutes that is coarser than a short
// copy. So every few seconds an anchor is recorded, and times are counted from the anchor before.
class Timeline {
 public:
  struct Anchor;

  Timeline(EventPool& pool, cudaStream_t stream);  // waits for the stream
  std::shared_ptr<Anchor> anchor();                // of what is given to the stream next
  // When all that is counted from it may be read: what is on the stream itself comes after it, and what is elsewhere
  // may not.
  static bool passed(const Anchor& anchor);
  Ticks ticks(const std::shared_ptr<Anchor>& anchor, const Mark& mark);  // kNoTime where CUDA does not say

  static std::atomic<double> anchor_every_s;

 private:
  bool place(const std::shared_ptr<Anchor>& anchor);

  EventPool& pool_;
  const cudaStream_t stream_;
  std::mutex mutex_;
  Clock clock_;
  Ticks anchored_ticks_ = 0;
  std::shared_ptr<Anchor> newest_;
};

class Copy final : public Event {
 public:
  Copy(EventPool& pool, Timeline& timeline, cudaStream_t stream, size_t link, uint64_t number, size_t bytes);
  void end(cudaStream_t stream) { end_.record(stream); }  // call once the copy has been given to the stream

  size_t link() const { return link_; }        // which of the device's streams of copies it goes along
  uint64_t number() const { return number_; }  // of those, from 1 on; a later one ends later
  const Mark& end_mark() const { return end_; }
  Ticks ticks(const Mark& mark) const { return timeline_.ticks(anchor_, mark); }

  bool done() const override { return end_.done(); }
  void cancel() override {}  // a copy that the GPU has been given takes place
  size_t copied_bytes() const override { return bytes_; }
  Ticks start_ticks() const override { return ticks(start_); }
  Ticks end_ticks() const override { return ticks(end_); }

 private:
  Timeline& timeline_;
  const std::shared_ptr<Timeline::Anchor> anchor_;
  const size_t link_;
  const uint64_t number_;
  const size_t bytes_;
  const Mark start_;
  Mark end_;
};

// How long a stream stood still for a copy.
class Wait final : public Event {
 public:
  Wait(EventPool& pool, cudaStream_t stream, std::shared_ptr<const Copy> copy)
      : before_(pool, stream, /*timed=*/true), copy_(std::move(copy)) {}

  bool done() const override { return copy_->done() && before_.done(); }
  void cancel() override {}
  size_t copied_bytes() const override { return 0; }
  Ticks start_ticks() const override { return copy_->ticks(before_); }
  Ticks end_ticks() const override;

 private:
  const Mark before_;
  const std::shared_ptr<const Copy> copy_;
};

// A moment of a stream with its time.
class Instant final : public Event {
 public:
  Instant(EventPool& pool, Timeline& timeline, cudaStream_t stream)
      : timeline_(timeline), anchor_(timeline.anchor()), mark_(pool, stream, /*timed=*/true) {}

  // The anchor lies on another stream, which may be far behind this one's.
  bool done() const override { return mark_.done() && Timeline::passed(*anchor_); }
  void cancel() override {}
  size_t copied_bytes() const override { return 0; }
  Ticks start_ticks() const override { return timeline_.ticks(anchor_, mark_); }
  Ticks end_ticks() const override { return start_ticks(); }

 private:
  Timeline& timeline_;
  const std::shared_ptr<Timeline::Anchor> anchor_;
  const Mark mark_;
};

// A moment of one or several streams.
class Moment final : public Event {
 public:
  void add(std::unique_ptr<const Mark> mark) { marks_.push_back(std::move(mark)); }
  void block(cudaStream_t stream) const;
  void wait() const;  // the host does

  bool done() const override;
  void cancel() override {}
  size_t copied_bytes() const override { return 0; }
  Ticks start_ticks() const override { return 0; }
  Ticks end_ticks() const override { return 0; }

 private:
  std::vector<std::unique_ptr<const Mark>> marks_;
};

}  // namespace chameleon::cuda
