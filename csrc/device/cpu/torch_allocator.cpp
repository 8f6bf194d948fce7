// Torch's CPU allocator while a session is open: blocks come from the runtime's device, under its capacity.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "device/cpu/cpu_device.h"
#include "device/registry.h"
#include "runtime.h"

namespace chameleon {

namespace {

c10::Allocator* original = nullptr;

Runtime& cpu_runtime() {
  static Runtime& runtime = Runtime::of(c10::DeviceType::CPU);
  return runtime;
}

void delete_block(void* block) {
  if (block && !cpu_runtime().release(block)) original->raw_deleter()(block);
}

class TorchAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Runtime& runtime = cpu_runtime();
    if (!runtime.tracks(bytes)) return original->allocate(bytes);
    void* block;
    try {
      block = runtime.allocate(bytes);
    } catch (const c10::OutOfMemoryError&) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw;
    }
    // Context and pointer are the same: raw_allocate, which oneDNN's kernels use, demands it.
    return {block, block, &delete_block, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }

  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

namespace {

const bool registered = register_device(
    c10::DeviceType::CPU, {[](c10::Device) { return std::string(); },
                           [](c10::Device) -> std::unique_ptr<Device> { return std::make_unique<cpu::CpuDevice>(); },
                           {.emulated = true}});

}  // namespace

void cpu::CpuDevice::install_allocator() {
  if (original) return;
  original = c10::GetAllocator(c10::DeviceType::CPU);
  static auto* allocator = new TorchAllocator();
  c10::SetAllocator(c10::DeviceType::CPU, allocator, /*priority=*/255);
}

c10::DeleterFnPtr cpu::CpuDevice::block_deleter() const { return &delete_block; }
c10::DeleterFnPtr cpu::CpuDevice::plain_deleter() const { return original->raw_deleter(); }
c10::DataPtr cpu::CpuDevice::allocate_plain(size_t bytes) { return original->allocate(bytes); }

}  // namespace chameleon
