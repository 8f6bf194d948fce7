// What the CUDA device needs of torch: its caching allocator and its current stream. Nothing else here names torch's
// CUDA libraries, so that the device is tested on a machine that has none.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/cuda/free_pieces.h"
#include "device/memory.h"

namespace chameleon::cuda::torch_side {

std::string missing(c10::Device device);  // why there is no such GPU here; empty if there is one

struct Stats {
  size_t allocated_bytes;  // blocks that are in use, by anybody
  size_t reserved_bytes;   // taken from the GPU
  size_t peak_reserved_bytes;
  size_t split_bytes;      // free parts of segments whose rest is in use
  AllocatorEvents events;  // as far as torch counts them
};

// Where memory for a block would come from.
enum class Source : uint8_t {
  AtHand,  // what is kept for reuse, or the GPU, under the limit
  Flush,   // all that is kept for reuse has to go back to the GPU first, which waits for it
  None,
};

struct Outlook {
  Source source;
  bool cached;           // at hand, and under the limit only as it is kept for reuse: a guess, by sizes alone
  size_t useless_bytes;  // free, and yet not for this block: in pieces, or lost by rounding
  size_t flushed_bytes;  // and what is kept in other sizes
  int64_t retries;       // as torch counts them
};

// Puts a forwarding allocator in front of torch's, once; it asks the runtime of each device that was installed. Raises
// an error that says why where that cannot work.
void install(int index);

// Replaces torch's allocator by ours if it is the native one and initialized; else does nothing. Before others have it
// call them.
void stand_in_front();

c10::Device device(int index);  // of the tensors
size_t total_bytes(int index);
Stats stats(int index);
void limit(int index, size_t bytes);  // what may be reserved; SIZE_MAX: what it was before
// What would come of asking for a block. `ceiling_bytes`: that more cannot be reserved in all. `stuck_bytes`: so many
// are free that a flush does not give back, beside what torch counts as split: parts of pages of expandable segments.
// `pieces`: where one is large enough, torch is not asked for its largest.
Outlook outlook(int index, size_t bytes, size_t ceiling_bytes, size_t stuck_bytes, FreePieces& pieces);
uint64_t frees();            // how often memory has gone back to torch past the runtime, or the limit has changed
bool expandable_segments();  // are they in force?
cudaStream_t current_stream(int index);

// A block that belongs to the stream; nullptr where there is none, if that may be.
void* allocate(int index, size_t bytes, cudaStream_t stream, bool may_fail);
void free(void* block);
// The block is not reused before the stream has done what it is given until the block is freed.
void used_on(int index, void* block, cudaStream_t stream);

c10::DeleterFnPtr block_deleter();  // of blocks that are the runtime's
c10::DeleterFnPtr plain_deleter();
c10::DataPtr allocate_plain(int index, size_t bytes);

// The program is refused so many bytes: observers of out-of-memory are told. What they raise is a warning: the error is
// raised all the same.
void out_of_memory(int index, size_t bytes) noexcept;

// Makes the GPU the calling thread's while it lives.
class Guard {
 public:
  explicit Guard(int index);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  int index_, before_;
};

}  // namespace chameleon::cuda::torch_side
