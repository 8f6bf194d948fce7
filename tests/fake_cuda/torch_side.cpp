// Torch's side of the fake GPU: a caching allocator whose blocks are host memory, and belong to a stream each. Tensors
// on it are CPU tensors, so that a real training runs on the device under test.
#include "device/cuda/torch_side.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fake.h"
#include "runtime.h"

namespace chameleon {

namespace {

c10::Allocator* original = nullptr;
Runtime* fake_runtime = nullptr;

std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

struct Block {
  size_t bytes;
  cudaStream_t stream;
  std::vector<cudaStream_t> used_on = {};
};
struct Freed {  // not reused before the marks are reached
  void* data;
  Block block;
  std::vector<fake::MarkPtr> marks;
};
std::unordered_map<void*, Block> in_use;
std::map<std::pair<cudaStream_t, size_t>, std::vector<void*>> spare;
std::vector<Freed> pending;
size_t reserved_bytes = 0, allocated_bytes = 0, peak_reserved_bytes = 0, limit_bytes = SIZE_MAX;
long recorded_streams = 0;

void delete_block(void* block) {
  if (block && !(fake_runtime && fake_runtime->release(block))) cuda::torch_side::free(block);
}

void delete_plain(void* block) {
  if (block) cuda::torch_side::free(block);
}

class TorchAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (fake_runtime && fake_runtime->tracks(bytes)) {
      void* block = fake_runtime->allocate(bytes);
      fake::catch_up();
      return {block, block, &delete_block, cpu};
    }
    if (bytes < 512) return original->allocate(bytes);
    void* block = cuda::torch_side::allocate(0, (bytes + 511) / 512 * 512, fake::current(), /*may_fail=*/false);
    fake::catch_up();
    return {block, block, &delete_plain, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

void make_spare(void* data, const Block& block) {
  spare[{block.stream, block.bytes}].push_back(data);
  fake::launch(block.stream, [=, bytes = block.bytes] { fake::poison(data, bytes); });  // whoever gets it next
}

void settle_pending() {
  const auto waits = [](const Freed& freed) {
    return !std::all_of(freed.marks.begin(), freed.marks.end(), fake::reached);
  };
  const auto over = std::stable_partition(pending.begin(), pending.end(), waits);
  const std::vector<Freed> ready(over, pending.end());
  pending.erase(over, pending.end());
  for (const Freed& freed : ready) make_spare(freed.data, freed.block);
}

// As cudaFree does, it waits for everything.
void release_spare() {
  fake::run_all();
  settle_pending();
  fake::run_all();
  for (auto& [key, blocks] : spare) {
    for (void* block : blocks) {
      reserved_bytes -= key.second;
      original->raw_deleter()(block);
    }
  }
  spare.clear();
}

}  // namespace

namespace cuda::torch_side {

std::string missing(c10::Device device) { return device.index() == 0 ? "" : "the fake has one GPU"; }

void install(int index) {
  Lock lock(mutex);
  if (original) return;
  original = c10::GetAllocator(c10::DeviceType::CPU);
  fake_runtime = &Runtime::of(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
  static auto* allocator = new TorchAllocator();
  c10::SetAllocator(c10::DeviceType::CPU, allocator, /*priority=*/255);
}

c10::Device device(int) { return c10::DeviceType::CPU; }
size_t total_bytes(int) { return fake::total_bytes(); }
Stats stats(int) {
  Lock lock(mutex);
  return {allocated_bytes, reserved_bytes, peak_reserved_bytes, 0, {}};
}
// Its blocks have no segments: whatever fits by its bytes is there, once what is spare has been given back.
Outlook outlook(int, size_t, size_t, size_t, FreePieces&) { return {Source::AtHand, false, 0, 0, 0}; }
uint64_t frees() { return 0; }
bool expandable_segments() { return false; }
void limit(int, size_t bytes) { limit_bytes = bytes; }
cudaStream_t current_stream(int) { return fake::current(); }

void* allocate(int, size_t bytes, cudaStream_t stream, bool may_fail) {
  Lock lock(mutex);
  settle_pending();
  void* block = nullptr;
  auto found = spare.find({stream, bytes});
  if (found != spare.end() && !found->second.empty()) {
    block = found->second.back();
    found->second.pop_back();
  } else {
    TORCH_CHECK(!fake::dead(), "CUDA error: an illegal memory access was encountered");
    if (bytes > limit_bytes || reserved_bytes > limit_bytes - bytes) release_spare();
    if (bytes > limit_bytes || reserved_bytes > limit_bytes - bytes) {
      TORCH_CHECK_WITH(OutOfMemoryError, may_fail, "fake GPU: out of memory");
      return nullptr;
    }
    block = original->allocate(bytes).release_context();
    reserved_bytes += bytes;
    peak_reserved_bytes = std::max(peak_reserved_bytes, reserved_bytes);
  }
  allocated_bytes += bytes;
  in_use[block] = {bytes, stream, {}};
  fake::launch(stream, [=] { fake::poison(block, bytes); });  // whatever was there before
  return block;
}

void free(void* block) {
  Lock lock(mutex);
  const auto found = in_use.find(block);
  if (found == in_use.end()) {  // made before the fake was there, or small
    original->raw_deleter()(block);
    return;
  }
  const Block freed = found->second;
  in_use.erase(found);
  allocated_bytes -= freed.bytes;
  if (freed.used_on.empty()) return make_spare(block, freed);
  std::vector<fake::MarkPtr> marks;
  for (const cudaStream_t stream : freed.used_on) {
    TORCH_CHECK(!fake::is_destroyed(stream), "CUDA error: invalid resource handle");  // in a deleter: the process ends
    marks.push_back(fake::record(stream));
  }
  pending.push_back({block, freed, std::move(marks)});
}

void used_on(int, void* block, cudaStream_t stream) {
  Lock lock(mutex);
  const auto found = in_use.find(block);
  if (found == in_use.end() || found->second.stream == stream) return;
  ++recorded_streams;
  found->second.used_on.push_back(stream);
}

void stand_in_front() {}
void out_of_memory(int, size_t) noexcept {}

c10::DeleterFnPtr block_deleter() { return &delete_block; }
c10::DeleterFnPtr plain_deleter() { return &delete_plain; }
c10::DataPtr allocate_plain(int, size_t bytes) { return original->allocate(bytes); }

// Torch asks CUDA where another GPU is the thread's, and raises what that says.
Guard::Guard(int index) : index_(index), before_(fake::device()) {
  if (before_ == index_) return;
  const cudaError_t error = fake::failing();
  (void)cudaGetLastError();
  TORCH_CHECK(error == cudaSuccess, "CUDA error: ", cudaGetErrorString(error));
  fake::set_device(index_);
}
Guard::~Guard() { fake::set_device(before_); }

}  // namespace cuda::torch_side

}  // namespace chameleon

void fake::record_stream(const c10::DataPtr& pointer, cudaStream_t stream) {
  const auto tell_torch = [&] {
    const chameleon::Lock lock(chameleon::mutex);
    const auto found = chameleon::in_use.find(pointer.get());
    if (found != chameleon::in_use.end() && found->second.stream != stream) found->second.used_on.push_back(stream);
  };
  if (chameleon::fake_runtime) {
    chameleon::fake_runtime->recorded(pointer, stream, tell_torch);
  } else {
    tell_torch();
  }
}

void fake::release_spare() {
  chameleon::Lock lock(chameleon::mutex);
  chameleon::release_spare();
}

long fake::record_streams() {
  chameleon::Lock lock(chameleon::mutex);
  return chameleon::recorded_streams;
}
