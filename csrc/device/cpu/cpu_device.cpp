#include "device/cpu/cpu_device.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "faults.h"

namespace chameleon::cpu {

// torch.profiler is told of blocks as torch's own allocator tells it (c10/core/CPUAllocator.cpp), and as on a GPU: what
// leaves the device is freed there, and what comes back is allocated.
void* CpuDevice::allocate(size_t block_bytes, int, Effort) {
  if (Faults::hits(faults().refused_blocks)) return nullptr;
  void* block = pool_.allocate(block_bytes);
  try {
    if (block) c10::profiledCPUMemoryReporter().New(block, block_bytes);
  } catch (const std::exception&) {  // no memory for the profiler's books
  }
  return block;
}

void CpuDevice::free(void* block, size_t block_bytes) {
  try {
    c10::profiledCPUMemoryReporter().Delete(block);
  } catch (const std::exception&) {
  }
  pool_.free(block, block_bytes);
}

EventPtr CpuDevice::copy_out(void* host, const void* block, size_t bytes, EventPtr after) {
  return out_.submit(host, block, bytes, std::move(after));
}

EventPtr CpuDevice::copy_in(void* block, const void* host, size_t bytes, EventPtr after, bool urgent) {
  return in_.submit(block, host, bytes, std::move(after), urgent);
}

void CpuDevice::set_link(double out_bytes_per_s, double in_bytes_per_s) {
  out_.set_bandwidth(out_bytes_per_s);
  in_.set_bandwidth(in_bytes_per_s);
}

namespace {
// A wait that is over.
class Span final : public Event {
 public:
  Span(Ticks start, Ticks end) : start_ticks_(start), end_ticks_(end) {}
  bool done() const override { return true; }
  void cancel() override {}
  size_t copied_bytes() const override { return 0; }
  Ticks start_ticks() const override { return start_ticks_; }
  Ticks end_ticks() const override { return end_ticks_; }

 private:
  const Ticks start_ticks_, end_ticks_;
};
}  // namespace

EventPtr CpuDevice::compute_wait(const EventPtr& copy, int) {
  const Ticks start = now_ticks();
  static_cast<const CopyEvent&>(*copy).wait_awake();
  return std::make_shared<Span>(start, now_ticks());
}

std::pair<double, double> CpuDevice::measure_link() {
  constexpr size_t kBytes = 4 << 20;
  constexpr int kCopies = 4;
  const auto unmap = [](void* data) { BufferCache::unmap(data, kBytes); };
  const std::unique_ptr<void, decltype(unmap)> here(BufferCache::map(kBytes)), there(BufferCache::map(kBytes));
  TORCH_CHECK(here && there, "Chameleon Lab: no host memory left to measure the link");
  const Clock clock;
  const auto best = [&](auto copy) {
    Ticks best_ticks = INT64_MAX;
    for (int i = 0; i < kCopies; ++i) {  // the first one touches the pages
      const EventPtr event = copy();
      host_wait(event, Order::HostRead);
      best_ticks = std::min(best_ticks, event->end_ticks() - event->start_ticks());
    }
    return kBytes / clock.duration(std::max<Ticks>(best_ticks, 1));
  };
  const double out = best([&] { return copy_out(there.get(), here.get(), kBytes, nullptr); });
  const double in = best([&] { return copy_in(here.get(), there.get(), kBytes, nullptr); });
  return {out, in};
}

void CpuDevice::host_wait(const EventPtr& event, Order) { static_cast<const CopyEvent&>(*event).wait(); }

void CpuDevice::drain() {
  out_.drain();
  in_.drain();
}

void CpuDevice::copy_now(void* block, const void* source, size_t bytes) { std::memcpy(block, source, bytes); }

void CpuDevice::after_fork_in_child() {
  out_.abandon_thread();
  in_.abandon_thread();
}

}  // namespace chameleon::cpu
