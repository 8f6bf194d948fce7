// Host time: read cheaply as ticks, turned into seconds when a trace is read.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <cstdint>

namespace chameleon {

using Ticks = int64_t;

inline Ticks now_ticks() { return static_cast<Ticks>(c10::getApproximateTime()); }

// Pairs of (ticks, Unix time) from two moments give the rate; the further apart, the better.
class Clock {
 public:
  Clock() { mark(&first_); }

  // Unix time in seconds of a tick count.
  double seconds(Ticks ticks) const { return first_.unix_s + static_cast<double>(ticks - first_.ticks) * rate(); }

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
