// What the CUDA device's allocator needs of libc10_cuda, for tests: two GPUs whose memory is host memory, and torch's
// caching allocator in short: segments in its sizes, blocks cut from them, a fraction of the GPU that it may take.
#pragma once

#include <cstddef>
#include <string>

namespace fake::c10_cuda {

constexpr int kDevices = 2;

struct Figures {
  size_t allocated_bytes, reserved_bytes, held_segment_bytes;  // of segments with a block that nobody can move
  size_t total_bytes;
  double fraction;
  long recorded_streams, out_of_memory, observers, pools;
};

Figures figures(int device);
void set_total_bytes(int device, size_t bytes);
void hold(void* block, bool held);   // nobody can move it: counts for held_segment_bytes
size_t segment_bytes(size_t bytes);  // what a block of so many bytes takes from the GPU if nothing is cached

// What install() looks at.
void set_name(const std::string& name);
void set_initialized(bool initialized);
void set_history(bool recorded);
void set_capturing(bool capturing);

}  // namespace fake::c10_cuda
