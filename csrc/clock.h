// Host time: read cheaply as ticks, turned into seconds when a trace is read.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace chameleon {

using Ticks = int64_t;

// Note [Modeled time]
// Tests have time pass as a model says, whatever the machine does (chameleon_lab.testing.modeled_time). While it is on,
// a tick is a nanosecond, and only two things take any: an op, as it ends, and a wait for a copy, which lasts until the
// copy's end. The CPU device's copies move their bytes when they are asked for, and count as under way until their
// modeled end: a copy that somebody forgets to wait for is not seen in modeled time. It is turned on and off while no
// session is open.
class ModeledTime {
 public:
  // What ops and copies take.
  struct Model {
    double op_s;
    double op_bytes_per_s;    // of all that an op uses; 0: only op_s counts
    double link_bytes_per_s;  // each way, where a session names no link
  };

  bool on() const { return on_.load(std::memory_order_relaxed); }
  Ticks now() const { return now_.load(std::memory_order_acquire); }
  const Model& model() const { return model_; }

  void begin(const Model& model) {  // or change it
    model_ = model;
    on_ = true;
  }
  void end() { on_ = false; }

  void pass_op(size_t bytes) {
    if (!on()) [[likely]]
      return;
    double seconds = model_.op_s;
    if (model_.op_bytes_per_s > 0) seconds += static_cast<double>(bytes) / model_.op_bytes_per_s;
    now_.fetch_add(ticks(seconds), std::memory_order_acq_rel);
  }
  void pass_until(Ticks moment) {
    Ticks now = now_.load(std::memory_order_relaxed);
    while (now < moment && !now_.compare_exchange_weak(now, moment)) {
    }
  }

  static Ticks ticks(double seconds) { return std::llround(seconds * 1e9); }

 private:
  std::atomic<bool> on_{false};
  std::atomic<Ticks> now_{1'000'000'000};  // 0 is no time in many a field; it goes on from model to model
  Model model_{};
};

inline ModeledTime modeled_time;

inline Ticks now_ticks() {
  if (modeled_time.on()) [[unlikely]]
    return modeled_time.now();
  return static_cast<Ticks>(c10::getApproximateTime());
}

// Pairs of (ticks, Unix time) from two moments give the rate; the further apart, the better.
class Clock {
 public:
  Clock() { mark(&first_); }

  // Unix time in seconds of a tick count.
  double seconds(Ticks ticks) const {
    if (modeled_time.on()) return duration(ticks);
    return first_.unix_s + static_cast<double>(ticks - first_.ticks) * rate();
  }

  // Seconds that a number of ticks lasts.
  double duration(Ticks ticks) const { return static_cast<double>(ticks) * rate(); }

 private:
  struct Mark {
    Ticks ticks;
    int64_t monotonic_ns;
    double unix_s;
  };

  static void mark(Mark* m) {
    m->ticks = now_ticks();
    m->monotonic_ns = c10::getTime(/*allow_monotonic=*/true);
    m->unix_s = static_cast<double>(c10::getTimeSinceEpoch()) * 1e-9;
  }

  double rate() const {
    if (modeled_time.on()) return 1e-9;
    Mark last;
    do {
      mark(&last);
    } while (last.monotonic_ns - first_.monotonic_ns < 2'000'000);
    return static_cast<double>(last.monotonic_ns - first_.monotonic_ns) * 1e-9 /
           static_cast<double>(last.ticks - first_.ticks);
  }

  Mark first_;
};

}  // namespace chameleon
