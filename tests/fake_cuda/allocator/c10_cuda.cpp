#include "c10_cuda.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <sys/mman.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fake.h"

namespace fake::c10_cuda {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

constexpr size_t kUnit = 512, kSmall = 1 << 20, kMiB = 1 << 20;

thread_local DeviceIndex current_index = 0;
bool capturing = false;

struct Block {
  size_t bytes;
  char* segment;
  bool free = false, held = false;
};

struct Segment {
  size_t bytes;
  bool small;
  cudaStream_t stream;
};

// One GPU's part. Blocks of a segment follow each other without a gap, and two free ones never do.
class Pool {
 public:
  size_t total_bytes = size_t{1} << 36;
  double fraction = 1;
  size_t allocated_bytes = 0, reserved_bytes = 0, peak_reserved_bytes = 0;
  long recorded_streams = 0, out_of_memory = 0;

  void* allocate(size_t bytes, cudaStream_t stream) {
    bytes = std::max((bytes + kUnit - 1) / kUnit * kUnit, kUnit);
    char* data = find(bytes, stream);
    if (!data && !add_segment(bytes, stream)) {
      release_cached();
      if (!add_segment(bytes, stream)) {
        ++out_of_memory;
        TORCH_CHECK_WITH(OutOfMemoryError, false, "fake CUDA out of memory: ", bytes, " bytes asked for");
      }
    }
    if (!data) data = find(bytes, stream);
    Block& block = blocks_.at(data);
    const Segment& segment = segments_.at(block.segment);
    const size_t rest = block.bytes - bytes;
    if (segment.small ? rest >= kUnit : rest > kSmall) {
      blocks_.emplace(data + bytes, Block{rest, block.segment, true});
      block.bytes = bytes;
    }
    block.free = false;
    allocated_bytes += block.bytes;
    return data;
  }

  bool owns(void* data) const {
    const auto found = blocks_.find(static_cast<char*>(data));
    return found != blocks_.end() && !found->second.free;
  }
  Block& at(void* data) { return blocks_.at(static_cast<char*>(data)); }

  void free(void* data) {
    auto block = blocks_.find(static_cast<char*>(data));
    allocated_bytes -= block->second.bytes;
    block->second.free = true;
    block->second.held = false;
    poison(block->first, std::min<size_t>(block->second.bytes, 4096));
    if (auto next = std::next(block); joins(block, next)) {
      block->second.bytes += next->second.bytes;
      blocks_.erase(next);
    }
    if (block == blocks_.begin()) return;
    if (auto before = std::prev(block); joins(before, block)) {
      before->second.bytes += block->second.bytes;
      blocks_.erase(block);
    }
  }

  void release_cached() {
    for (auto segment = segments_.begin(); segment != segments_.end();) {
      const auto block = blocks_.find(segment->first);
      if (!block->second.free || block->second.bytes != segment->second.bytes) {
        ++segment;
        continue;
      }
      blocks_.erase(block);
      munmap(segment->first, segment->second.bytes);
      reserved_bytes -= segment->second.bytes;
      segment = segments_.erase(segment);
    }
  }

  size_t held_segment_bytes() const {
    size_t bytes = 0;
    const char* last = nullptr;
    for (const auto& [data, block] : blocks_) {
      if (block.free || !block.held || block.segment == last) continue;
      last = block.segment;
      bytes += segments_.at(block.segment).bytes;
    }
    return bytes;
  }

  size_t split_bytes() const {
    size_t bytes = 0;
    for (const auto& [data, block] : blocks_) {
      if (block.free && block.bytes != segments_.at(block.segment).bytes) bytes += block.bytes;
    }
    return bytes;
  }

 private:
  using Blocks = std::map<char*, Block>;

  bool joins(Blocks::iterator a, Blocks::iterator b) const {
    return b != blocks_.end() && a->second.free && b->second.free && a->second.segment == b->second.segment;
  }

  char* find(size_t bytes, cudaStream_t stream) const {
    char* best = nullptr;
    size_t best_bytes = SIZE_MAX;
    for (const auto& [data, block] : blocks_) {
      const Segment& segment = segments_.at(block.segment);
      if (!block.free || block.bytes < bytes || block.bytes >= best_bytes) continue;
      if (segment.stream != stream || segment.small != (bytes <= kSmall)) continue;
      best = data;
      best_bytes = block.bytes;
    }
    return best;
  }

  bool add_segment(size_t bytes, cudaStream_t stream) {
    const size_t taken = segment_bytes(bytes);
    const auto limit = static_cast<size_t>(static_cast<double>(total_bytes) * fraction);
    if (reserved_bytes + taken > limit) return false;
    auto* data = static_cast<char*>(
        mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    segments_.emplace(data, Segment{taken, bytes <= kSmall, stream});
    blocks_.emplace(data, Block{taken, data, true});
    reserved_bytes += taken;
    peak_reserved_bytes = std::max(peak_reserved_bytes, reserved_bytes);
    return true;
  }

  std::map<char*, Segment> segments_;
  Blocks blocks_;
};

std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;
std::array<Pool, kDevices> pools;

void delete_natively(void* data);

class Native final : public caching::CUDAAllocator {
 public:
  std::string name_ = "native";
  bool initialized_ = true, history_ = false;
  long observers = 0, pools_begun = 0;

  c10::DataPtr allocate(size_t bytes) override {
    void* data = raw_alloc(bytes);
    return {data, data, &delete_natively, c10::Device(c10::DeviceType::CUDA, current_index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_natively; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  void* raw_alloc(size_t bytes) override { return raw_alloc_with_stream(bytes, fake::current()); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    if (bytes == 0) return nullptr;
    Lock lock(mutex);
    return pools[current_index].allocate(bytes, stream);
  }
  void raw_delete(void* data) override {
    if (!data) return;
    Lock lock(mutex);
    for (Pool& pool : pools) {
      if (pool.owns(data)) return pool.free(data);
    }
    TORCH_CHECK(false, "fake CUDA: an invalid device pointer is freed");
  }
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream) override {
    if (!pointer.get() || pointer.get_deleter() != &delete_natively) return;  // as torch's own does
    Lock lock(mutex);
    Pool& pool = pools[pointer.device().index()];
    TORCH_CHECK(pool.owns(pointer.get()), "fake CUDA: a stream is recorded for a block that is none");
    ++pool.recorded_streams;
  }
  std::string name() override { return name_; }
  bool initialized() override { return initialized_; }
  bool isHistoryEnabled() override { return history_; }
  void recordHistory(bool enabled, caching::CreateContextFn, size_t, caching::RecordContext, bool,
                     const std::vector<std::string>&) override {
    history_ = enabled;
  }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver) override { ++observers; }
  void beginAllocateToPool(DeviceIndex, MempoolId_t, std::function<bool(cudaStream_t)>) override { ++pools_begun; }
  double getMemoryFraction(DeviceIndex device) override { return pools[device].fraction; }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "fake CUDA: invalid fraction ", fraction);
    pools[device].fraction = fraction;
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    Lock lock(mutex);
    const Pool& pool = pools[device];
    c10::CachingDeviceAllocator::DeviceStats stats;
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    stats.allocated_bytes[kAll].current = static_cast<int64_t>(pool.allocated_bytes);
    stats.reserved_bytes[kAll].current = static_cast<int64_t>(pool.reserved_bytes);
    stats.reserved_bytes[kAll].peak = static_cast<int64_t>(pool.peak_reserved_bytes);
    stats.inactive_split_bytes[kAll].current = static_cast<int64_t>(pool.split_bytes());
    return stats;
  }
  void emptyCache(MempoolId_t) override {
    Lock lock(mutex);
    for (Pool& pool : pools) pool.release_cached();
  }

  // What no test here comes to.
  void init(int) override {}
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {}
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }
  void cacheInfo(DeviceIndex, size_t*) override {}
  void* getBaseAllocation(void* block, size_t*) override { return block; }
  caching::SnapshotInfo snapshot(MempoolId_t, bool) override { return {}; }
  void endAllocateToPool(DeviceIndex, MempoolId_t) override {}
  void releasePool(DeviceIndex, MempoolId_t) override {}
  caching::ShareableHandle shareIpcHandle(void*) override { return {}; }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { return nullptr; }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker) override {}
  void enablePeerAccess(DeviceIndex, DeviceIndex) override {}
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t, bool) override { return cudaSuccess; }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex, MempoolId_t) override { return nullptr; }
  caching::CheckpointDelta setCheckpointPoolState(DeviceIndex, std::shared_ptr<caching::AllocatorState>) override {
    return {};
  }
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 212
  void attachOomRejectionObserver(caching::OomRejectionObserver) override {}
#endif
};

Native& native() {
  static auto* allocator = new Native();
  return *allocator;
}

void delete_natively(void* data) { native().raw_delete(data); }

const bool registered = [] {
  caching::allocator.store(&native());
  c10::SetAllocator(c10::DeviceType::CUDA, &native());
  return true;
}();

c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
const c10::impl::DeviceGuardImplRegistrar guard_registered(c10::DeviceType::CUDA, &guard);

}  // namespace

Figures figures(int device) {
  Lock lock(mutex);
  const Pool& pool = pools[device];
  return {pool.allocated_bytes,  pool.reserved_bytes, pool.held_segment_bytes(), pool.total_bytes,    pool.fraction,
          pool.recorded_streams, pool.out_of_memory,  native().observers,        native().pools_begun};
}

void set_total_bytes(int device, size_t bytes) { pools[device].total_bytes = bytes; }

void hold(void* block, bool held) {
  Lock lock(mutex);
  for (Pool& pool : pools) {
    if (pool.owns(block)) pool.at(block).held = held;
  }
}

size_t segment_bytes(size_t bytes) {
  if (bytes <= kSmall) return 2 * kMiB;
  if (bytes < 10 * kMiB) return 20 * kMiB;
  return (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
}

void set_name(const std::string& name) { native().name_ = name; }
void set_initialized(bool initialized) { native().initialized_ = initialized; }
void set_history(bool recorded) { native().history_ = recorded; }
void set_capturing(bool on) { capturing = on; }

}  // namespace fake::c10_cuda

// ------------------------------------------------------------------------- what libc10_cuda and libcudart would define

namespace c10::cuda {

namespace CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator;
}

DeviceIndex device_count() noexcept { return fake::c10_cuda::kDevices; }
DeviceIndex current_device() { return fake::c10_cuda::current_index; }
void set_device(DeviceIndex device, bool) { fake::c10_cuda::current_index = device; }

namespace {
CUDAStream stream_of(cudaStream_t stream, DeviceIndex device) {
  return CUDAStream(CUDAStream::UNCHECKED, Stream(Stream::UNSAFE, Device(DeviceType::CUDA, device),
                                                  static_cast<StreamId>(reinterpret_cast<intptr_t>(stream))));
}
}  // namespace

CUDAStream getCurrentCUDAStream(DeviceIndex device) {
  return stream_of(fake::current(), device < 0 ? current_device() : device);
}
CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex device) { return stream_of(stream, device); }
cudaStream_t CUDAStream::stream() const { return reinterpret_cast<cudaStream_t>(static_cast<intptr_t>(id())); }

void c10_cuda_check_implementation(const int32_t error, const char*, const char*, const uint32_t, const bool) {
  TORCH_CHECK(error == cudaSuccess, "fake CUDA: error ", error);
}

}  // namespace c10::cuda

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const fake::c10_cuda::Figures figures = fake::c10_cuda::figures(c10::cuda::current_device());
  *total = figures.total_bytes;
  *free = figures.total_bytes - std::min(figures.total_bytes, figures.reserved_bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus* status) {
  *status = fake::c10_cuda::capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

}  // extern "C"
