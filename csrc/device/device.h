// What the core asks of a device: memory under a capacity, copies both ways, and the order between copies and
// compute. Nothing above this interface knows whether the device is a GPU or the embedded CPU device.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "clock.h"

namespace chameleon {

// The completion of a copy. Recorded by the copy engine, waited for by compute or by the host.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
  virtual void cancel() = 0;                // a hint: the bytes are no longer wanted
  virtual size_t copied_bytes() const = 0;  // valid once done; less than asked for if it was cancelled
  virtual Ticks start_ticks() const = 0;    // valid once done
  virtual Ticks end_ticks() const = 0;
};
using EventPtr = std::shared_ptr<Event>;

struct MemoryInfo {
  size_t capacity_bytes;
  size_t resident_bytes;  // blocks that tensors hold
  size_t cached_bytes;    // blocks kept for reuse; they count against the capacity
  size_t peak_resident_bytes;
  size_t peak_reserved_bytes;  // most of resident + cached
};

class Device {
 public:
  virtual ~Device() = default;

  // --- memory, in the program order of the compute stream
  virtual size_t block_bytes(size_t bytes) const = 0;      // what an allocation of `bytes` takes
  virtual void* allocate(size_t block_bytes) = 0;          // nullptr where the capacity does not allow it
  virtual void free(void* block, size_t block_bytes) = 0;  // compute issued later may reuse it at once
  virtual void set_capacity(size_t capacity_bytes) = 0;    // SIZE_MAX: no limit
  virtual MemoryInfo memory_info() const = 0;
  virtual void reset_peaks() = 0;
  virtual void keep_free_blocks(bool keep) = 0;  // for reuse, or give them back to the system at once

  // --- copies, each direction in order of issue, beginning when `after` (null: at once) is done. A copy out comes
  // after what wrote the block, a copy in after what used its memory before: both are record() at the time of issue.
  virtual EventPtr copy_out(void* host, const void* block, size_t bytes, EventPtr after) = 0;
  virtual EventPtr copy_in(void* block, const void* host, size_t bytes, EventPtr after) = 0;
  virtual void set_link(double out_bytes_per_s, double in_bytes_per_s) = 0;  // 0: as fast as it goes

  // --- order
  virtual EventPtr record() = 0;                         // done when the compute issued so far is; null if that is now
  virtual void compute_wait(const EventPtr& event) = 0;  // compute issued from here on comes after the event
  virtual void host_wait(const EventPtr& event) = 0;
  virtual void drain() = 0;  // the host waits for every copy

  // --- host memory that copies can reach
  virtual void* allocate_host(size_t bytes) = 0;  // nullptr where the system has none left
  virtual void free_host(void* data, size_t bytes) = 0;

  // --- torch's side: while a session is open, torch's allocator for this device takes its blocks from the runtime
  virtual c10::Device torch_device() const = 0;
  virtual void install_allocator() = 0;                   // once; it stays, since DataPtrs hold its deleter
  virtual c10::DeleterFnPtr block_deleter() const = 0;    // what DataPtrs of the device's blocks are destroyed with
  virtual c10::DeleterFnPtr plain_deleter() const = 0;    // the same of torch's own allocator: those may be adopted
  virtual c10::DataPtr allocate_plain(size_t bytes) = 0;  // from torch's own allocator

  // --- plain access, for adoption
  virtual void copy_now(void* block, const void* source, size_t bytes) = 0;

  // In a forked child the engines' threads are gone: from here on copies happen in the caller.
  virtual void after_fork_in_child() = 0;
};

}  // namespace chameleon
