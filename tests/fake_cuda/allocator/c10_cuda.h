// What the CUDA device's allocator needs of libc10_cuda, for tests: two GPUs whose memory is host memory, and torch's
// caching allocator (segments.h), of which a fraction of the GPU may be taken.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fake::c10_cuda {

constexpr int kDevices = 2;

struct Figures {
  size_t allocated_bytes, reserved_bytes, held_segment_bytes;  // of segments with a block that nobody can move
  size_t expandable_bytes;
  size_t total_bytes;
  double fraction;
  long recorded_streams, out_of_memory, retries, device_allocs, device_frees, synchronizations, pools;
  long requests, looked_at;  // for blocks, and at free blocks, for cacheInfo()
  long memory_questions;     // to the driver, of both GPUs: cudaMemGetInfo
  long statistics;           // how often torch's were asked for, of both GPUs: each time takes a lock and a copy
};

// Of the memory history, as torch's snapshots show it.
struct Event {
  std::string action;
  size_t bytes;
  std::shared_ptr<c10::GatheredContext> context;
  std::string user_metadata;
};

std::vector<Event> take_events();

Figures figures(int device);
void set_total_bytes(int device, size_t bytes);
void set_others_bytes(int device, size_t bytes);  // taken by other processes
void hold(void* block, bool held);                // nobody can move it: counts for held_segment_bytes
void set_nvml(bool works);  // false: torch's out-of-memory path ends in an assertion, as where NVML is restricted
void set_rejects(bool by_policy);  // torch's observers of rejections are told of what it refuses, and no others
std::string annotation();          // the last one of a block's, which torch's memory snapshots show
void set_while_recording(std::function<void()> what);  // where a stream is about to be recorded for a block
bool is_waited_for();                                  // does a thread wait for the allocator's lock?

// What install() looks at.
void set_name(const std::string& name);
void set_initialized(bool initialized);
void set_history(bool recorded);
void set_capturing(bool capturing);

}  // namespace fake::c10_cuda
