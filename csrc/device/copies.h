// A device's role: copies between its memory and the host's.
#pragma once

#include <cstddef>
#include <utility>

#include "device/event.h"

namespace chameleon {

// Each direction is in order of issue. A copy begins when `after` (null: at once) is done: a copy out comes after what
// wrote the block, a copy in after what used its memory before. Both are record() at the time of issue. An urgent copy
// in, which an op waits for already, overtakes those that have not begun. Where asking for a copy throws, none is under
// way, and both memories are the caller's.
class Copies {
 public:
  virtual ~Copies() = default;

  virtual EventPtr copy_out(void* host, const void* block, size_t bytes, EventPtr after) = 0;
  virtual EventPtr copy_in(void* block, const void* host, size_t bytes, EventPtr after, bool urgent = false) = 0;
  virtual void set_link(double out_bytes_per_s, double in_bytes_per_s) = 0;  // 0: as fast as it goes

  // How fast the link carries bytes out and in, in bytes per second. Where it was set, that is found.
  virtual std::pair<double, double> measure_link() = 0;
  virtual void drain() = 0;                                                  // the host waits for every copy
  virtual void copy_now(void* block, const void* source, size_t bytes) = 0;  // the host waits for it
};

}  // namespace chameleon
