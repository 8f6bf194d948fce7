// What the core asks of a device: memory under a capacity, copies both ways, and the order between copies and
// compute. Nothing above this interface knows whether the device is a GPU or the embedded CPU device.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "order.h"

namespace chameleon {

enum class Direction : uint8_t { Out, In };

inline constexpr Ticks kNoTime = INT64_MIN;  // of what the device could not tell

// A stretch of work: a copy, or a wait of the compute for one. Its times are on the host's clock.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
  virtual void cancel() = 0;                // a hint: the bytes are no longer wanted
  virtual size_t copied_bytes() const = 0;  // valid once done; less than asked for if it was cancelled
  virtual Ticks start_ticks() const = 0;    // valid once done; kNoTime where nobody knows
  virtual Ticks end_ticks() const = 0;
  virtual bool made_at_once() const { return false; }  // did the thread that asked for the copy make it itself?
};
using EventPtr = std::shared_ptr<Event>;

// Compute goes along lanes (a GPU's streams), numbered as they appear; each is in order, and nothing orders two of them
// but what waits. Where there is one, it is lane 0. A set of them has a bit each.
using Lanes = uint32_t;
inline Lanes lane_bit(int lane) { return Lanes{1} << lane; }

// How much a request for memory may cost.
enum class Effort : uint8_t {
  Cheap,  // only what is to be had without keeping the host waiting
  Usual,  // not where it is known that there is none
  Last,   // whatever is known: nothing more can leave
};

// What the device's allocator has done, as counts since the process began.
// - refusals: requests under the capacity that found no room in one piece
// - soft_ooms: of those, the ones that it was asked for and ran out of memory over; nobody else sees those
// - alloc_retries: times that it gave back what it kept for reuse and tried again, here or for anybody
// - device_allocs: of memory from the GPU
// - device_frees: back to the GPU; each keeps the host waiting for it
// - device_syncs: of all streams
// clang-format off
#define CHAMELEON_ALLOCATOR_EVENTS(X) \
  X(refusals) X(soft_ooms) X(alloc_retries) X(device_allocs) X(device_frees) X(device_syncs)
// clang-format on
struct AllocatorEvents {
#define CHAMELEON_COUNTER(name) int64_t name = 0;
  CHAMELEON_ALLOCATOR_EVENTS(CHAMELEON_COUNTER)
#undef CHAMELEON_COUNTER
};

struct MemoryInfo {
  size_t capacity_bytes;
  size_t resident_bytes;  // blocks that tensors hold
  size_t cached_bytes;    // blocks kept for reuse; they count against the capacity
  size_t peak_resident_bytes;
  size_t peak_reserved_bytes;  // most of resident + cached
  size_t other_bytes = 0;      // taken from the same device by what the runtime does not know
  size_t split_bytes = 0;      // of the cached: free parts of segments whose rest is in use
};

class Device {
 public:
  virtual ~Device() = default;

  // --- memory, in the program order of the lane it belongs to
  virtual size_t block_bytes(size_t bytes) const = 0;  // what an allocation of `bytes` takes
  // nullptr where the capacity does not allow it
  virtual void* allocate(size_t block_bytes, int lane, Effort effort = Effort::Usual) = 0;
  virtual void free(void* block, size_t block_bytes) = 0;  // what its lane is given later may reuse it at once
  // The same of a block that was taken over, which may belong to another lane: it is reused when this one has done what
  // it was given.
  virtual void free_behind(void* block, size_t block_bytes, int /*lane*/) { free(block, block_bytes); }
  virtual bool has_room(size_t block_bytes) const = 0;   // under the capacity
  virtual void set_capacity(size_t capacity_bytes) = 0;  // SIZE_MAX: no limit
  virtual size_t total_bytes() const = 0;                // of the device itself; SIZE_MAX: there is no such limit
  virtual size_t resident_bytes() const = 0;             // asked at every op
  virtual MemoryInfo memory_info() const = 0;
  virtual void reset_peaks() = 0;
  // What the allocator below has done; all zero where there is none. A step ends here: what was learnt of it is old.
  virtual AllocatorEvents end_allocator_step() { return {}; }
  // Since this was asked last: the most bytes that were free, and of no use to who asked for less.
  virtual size_t take_useless_bytes() { return 0; }
  // Is it known that memory of such a size cannot be had, although the capacity leaves room for it?
  virtual bool refuses(size_t /*bytes*/) const { return false; }
  virtual const char* allocator_setting() const { return ""; }  // of the allocator below, in its own words
  virtual void keep_free_blocks(bool keep) = 0;                 // for reuse, or give them back to the system at once

  // --- copies, each direction in order of issue, beginning when `after` (null: at once) is done. A copy out comes
  // after what wrote the block, a copy in after what used its memory before: both are record() at the time of issue.
  // An urgent one, which an op waits for already, overtakes those in that have not begun.
  virtual EventPtr copy_out(void* host, const void* block, size_t bytes, EventPtr after) = 0;
  virtual EventPtr copy_in(void* block, const void* host, size_t bytes, EventPtr after, bool urgent = false) = 0;
  virtual void set_link(double out_bytes_per_s, double in_bytes_per_s) = 0;  // 0: as fast as it goes

  // How fast the link carries bytes out and in, in bytes per second. Where it was set, that is found.
  virtual std::pair<double, double> measure_link() = 0;

  // --- order
  // The lane that the calling thread's compute goes along. What it is given from here on comes after every copy that
  // any lane was told to wait for.
  virtual int lane() = 0;
  virtual EventPtr record(Lanes lanes) = 0;  // done when the compute they were given so far is; null if that is now
  // What the lane is given from here on comes after the copy. Returns how long it stood still; null: not at all.
  virtual EventPtr compute_wait(const EventPtr& copy, int lane) = 0;
  // What the lane is given from here on comes after what those were given; `why` is for those who leave one out.
  virtual void join(int lane, Lanes lanes, Order why) = 0;
  virtual void host_wait(const EventPtr& event, Order why) = 0;
  virtual void host_wait_for_arrivals() {}  // the host waits for the copies in that any lane was told to wait for
  virtual void host_wait_for_compute() {}   // and for all that the device was given, by anybody
  // The lane of a stream, which somebody else names; -1 where it is not the device's.
  virtual int lane_of(const void* /*stream*/) { return -1; }
  // A moment of the lane's compute, with its time. Null where ops are over when their calls return: the host's time is
  // the op's.
  virtual EventPtr moment(int) { return nullptr; }
  virtual void drain() = 0;  // the host waits for every copy

  // --- host memory that copies can reach
  virtual void* allocate_host(size_t bytes) = 0;  // nullptr where the system has none left
  virtual void free_host(void* data, size_t bytes) = 0;
  // Does the device keep host memory for reuse itself? Such memory is reserved ahead, up to a limit, and kept for later
  // sessions.
  virtual bool pools_host_memory() const { return false; }
  virtual size_t pooled_host_bytes() const { return 0; }
  virtual size_t pageable_host_bytes() const { return 0; }  // of those: where copies are slow, for want of better
  virtual void set_host_capacity(size_t) {}
  // Getting that from the system and giving it back takes long. So it is begun under the runtime's lock, had without
  // any, and added, or given up by its destructor, under the lock again: what fails between leaves nothing counted.
  class Growth {
   public:
    virtual ~Growth() = default;
    virtual void have() = 0;
    virtual void add() = 0;
  };
  // For so many bytes in all, a piece at a time; null: nothing is to be had.
  virtual std::unique_ptr<Growth> grow_host(size_t /*bytes*/) { return nullptr; }
  // The same for one buffer of such a size, where none is free: allocate_host() would have to get it under the lock.
  virtual bool lacks_host(size_t /*bytes*/) const { return false; }
  virtual std::unique_ptr<Growth> grow_host_for(size_t /*bytes*/) { return nullptr; }
  virtual std::function<void()> release_host() { return nullptr; }  // what is not in use
  // Of what copies are slow from: all that is not in use, or what is more than was ever in use at once.
  virtual std::function<void()> trim_host(bool /*all*/) { return nullptr; }
  virtual void place_plans(size_t /*bytes*/) {}  // plans give the places of the first so many bytes to their storages
  virtual void* allocate_host_at(size_t /*place*/, size_t /*bytes*/) { return nullptr; }  // nullptr where it is taken
  virtual size_t host_pins() const { return 0; }  // how often memory was had from the system for that
  // Seconds that it takes to touch, pin and unpin so many bytes in a way of the device's; empty where it has none.
  virtual std::vector<double> measure_pinning(const std::string& /*way*/, size_t /*bytes*/) { return {}; }

  // --- torch's side: while a session is open, torch's allocator for this device takes its blocks from the runtime
  virtual c10::Device torch_device() const = 0;
  virtual void install_allocator() = 0;                   // once; it stays, since DataPtrs hold its deleter
  virtual c10::DeleterFnPtr block_deleter() const = 0;    // what DataPtrs of the device's blocks are destroyed with
  virtual c10::DeleterFnPtr plain_deleter() const = 0;    // the same of torch's own allocator: those may be adopted
  virtual c10::DataPtr allocate_plain(size_t bytes) = 0;  // from torch's own allocator
  // Where torch's own allocator makes the device's blocks too, they change hands as they are. False: they are copied.
  virtual bool take_over(void*, size_t) { return false; }
  virtual bool hand_over(void*, size_t) { return false; }
  // The block of a storage that has moved, before it is handed over: it is not reused before all lanes have done what
  // they are given until it is freed.
  virtual void used_by_all(void*) {}

  // --- plain access, for adoption
  virtual void copy_now(void* block, const void* source, size_t bytes) = 0;

  // In a forked child the engines' threads are gone: from here on copies happen in the caller.
  virtual void after_fork_in_child() = 0;
};

}  // namespace chameleon
