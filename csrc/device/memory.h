// A device's role: memory under a capacity, in the program order of the lane that each block belongs to.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chameleon {

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

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

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
  // What the allocator below has done; all zero where there is none. A step ends here: what was learned of it is old.
  virtual AllocatorEvents end_allocator_step() { return {}; }
  // Since this was asked last: the most bytes that were free, and of no use to who asked for less.
  virtual size_t take_useless_bytes() { return 0; }
  // Is it known that memory of such a size cannot be had, although the capacity leaves room for it?
  virtual bool refuses(size_t /*bytes*/) const { return false; }
  virtual const char* allocator_setting() const { return ""; }  // of the allocator below, in its own words
  virtual void keep_free_blocks(bool keep) = 0;                 // for reuse, or give them back to the system at once
};

}  // namespace chameleon
