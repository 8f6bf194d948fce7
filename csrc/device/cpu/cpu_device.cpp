#include "device/cpu/cpu_device.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace chameleon::cpu {

EventPtr CpuDevice::copy_out(void* host, const void* block, size_t bytes, EventPtr after) {
  return out_.submit(host, block, bytes, std::move(after));
}

EventPtr CpuDevice::copy_in(void* block, const void* host, size_t bytes, EventPtr after) {
  return in_.submit(block, host, bytes, std::move(after));
}

void CpuDevice::set_link(double out_bytes_per_s, double in_bytes_per_s) {
  out_.set_bandwidth(out_bytes_per_s);
  in_.set_bandwidth(in_bytes_per_s);
}

void CpuDevice::host_wait(const EventPtr& event) { static_cast<const CopyEvent&>(*event).wait(); }

void CpuDevice::drain() {
  out_.drain();
  in_.drain();
}

// Private, not shared: a forked child must keep reading its own copy whatever the parent writes later.
void* CpuDevice::allocate_host(size_t bytes) {
  if (Faults::hits(faults().refused_buffers)) return nullptr;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

void CpuDevice::free_host(void* data, size_t bytes) { munmap(data, bytes); }

void CpuDevice::copy_now(void* block, const void* source, size_t bytes) { std::memcpy(block, source, bytes); }

void CpuDevice::after_fork_in_child() {
  out_.abandon_thread();
  in_.abandon_thread();
}

}  // namespace chameleon::cpu
