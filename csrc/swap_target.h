// Where the bytes of storages lie while they are away: the host's memory (host_target.h), or a disk (disk_target.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "device/event.h"

namespace chameleon {

class SwapTarget {
 public:
  virtual ~SwapTarget() = default;

  // A buffer at a place that the plan has reserved, if that is free (-1: anywhere); nullptr where the capacity or the
  // system has no room. `planned`: does the plan count on the place? `at_hand`: nullptr as well where it lacks() room.
  virtual void* allocate(size_t bytes, int64_t place, bool planned, bool at_hand) = 0;
  virtual void free(void* data, size_t bytes) = 0;
  virtual size_t buffer_bytes(size_t bytes) const = 0;  // what a buffer takes
  // Would memory have to be had from the system for it, which takes long?
  virtual bool lacks(size_t bytes) const = 0;
  // Does the capacity allow for so many bytes more, once so many others are freed?
  virtual bool allows(size_t bytes, size_t freed_bytes) const = 0;
  virtual void set_capacity(size_t bytes) = 0;  // SIZE_MAX: no limit
  // Why it takes nothing more, beyond its capacity; empty where that is the only limit.
  virtual std::string refusal() const { return {}; }

  virtual size_t used_bytes() const = 0;
  virtual size_t peak_bytes() const = 0;
  virtual size_t reserved_bytes() const = 0;  // had from the system
  virtual void reset_peak() = 0;

  // As a device's copies, see Copies.
  virtual EventPtr copy_out(void* to, const void* block, size_t bytes, EventPtr after) = 0;
  virtual EventPtr copy_in(void* block, const void* from, size_t bytes, EventPtr after, bool urgent) = 0;
  // The bytes, for who reads without an op, at once and in the calling thread. False: they cannot be had.
  virtual bool read_now(void* to, const void* from, size_t bytes) = 0;
  virtual std::pair<double, double> measure_bandwidth() = 0;  // bytes per second out and in
};

}  // namespace chameleon
