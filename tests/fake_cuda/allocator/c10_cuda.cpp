#include "c10_cuda.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "fake.h"
#include "segments.h"

namespace fake::c10_cuda {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

thread_local DeviceIndex current_index = 0;
bool capturing = false, nvml_works = true, rejects = false;
std::atomic<int> waiting{0};
std::atomic<long> memory_questions{0}, statistics{0};

std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;
std::array<Segments, kDevices> pools;

void delete_natively(void* data);

constexpr const char* kNoNvml =
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1131, please report a "
    "bug "
    "to PyTorch. ";

class Native final : public caching::CUDAAllocator {
 public:
  std::string name_ = "native";
  std::string annotation_;
  bool initialized_ = true, history_ = false;
  long pools_begun = 0;
  std::function<void()> while_recording;

  c10::DataPtr allocate(size_t bytes) override {
    void* data = raw_alloc(bytes);
    return {data, data, &delete_natively, c10::Device(c10::DeviceType::CUDA, current_index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_natively; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  void* raw_alloc(size_t bytes) override { return raw_alloc_with_stream(bytes, fake::current()); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    if (bytes == 0) return nullptr;
    const auto context = context_at(caching::RecordContext::STATE);
    ++waiting;
    std::unique_lock lock(mutex);
    --waiting;
    Segments& gpu = pools[current_index];
    if (void* data = gpu.allocate(bytes, stream)) {
      note("alloc", bytes, context);
      return data;
    }
    // Torch asks NVML who uses the memory before it counts the error. Its own assertions end that where NVML does not
    // say.
    if (!nvml_works) TORCH_CHECK(false, kNoNvml);
    ++gpu.out_of_memory;
    note("oom", bytes, context);
    const size_t allocated_bytes = gpu.allocated_bytes;
    const auto observers = observers_, rejection_observers = rejection_observers_;
    lock.unlock();
    for (const auto& observer : rejects ? std::vector<Observer>() : observers) {
      observer(current_index, bytes, gpu.total_bytes, 0);
    }
    for (const auto& observer : rejects ? rejection_observers : std::vector<Observer>()) {
      observer(current_index, bytes, allocated_bytes, gpu.total_bytes);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, "fake CUDA out of memory: ", bytes, " bytes asked for");
  }
  void raw_delete(void* data) override {
    if (!data) return;
    const auto context = context_at(caching::RecordContext::ALL);
    Lock lock(mutex);
    for (Segments& pool : pools) {
      if (!pool.owns(data)) continue;
      note("free_requested", pool.at(data).bytes, context);
      return pool.free(data);
    }
    TORCH_CHECK(false, "fake CUDA: an invalid device pointer is freed");
  }
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream) override {
    void* const block = pointer.get();
    if (!block || pointer.get_deleter() != &delete_natively) return;  // as torch's own does
    if (while_recording) while_recording();
    Lock lock(mutex);
    Segments& pool = pools[pointer.device().index()];
    TORCH_CHECK(pool.owns(block), "fake CUDA: a stream is recorded for a block that is none");
    ++pool.recorded_streams;
  }
  std::string name() override { return name_; }
  bool initialized() override { return initialized_; }
  bool isHistoryEnabled() override { return history_; }
  void recordHistory(bool enabled, caching::CreateContextFn context, size_t, caching::RecordContext when, bool clear,
                     const std::vector<std::string>&) override {
    Lock lock(mutex);
    TORCH_CHECK(when == caching::RecordContext::NEVER || context, "fake CUDA: a context is to be recorded by nothing");
    history_ = enabled;
    context_ = context;
    when_ = enabled ? when : caching::RecordContext::NEVER;
    if (!enabled || clear) events_.clear();
  }
  void setUserMetadata(const std::string& metadata) override { user_metadata() = metadata; }
  std::string getUserMetadata() override { return user_metadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    observers_.push_back(std::move(observer));
  }
  using Observer = caching::OutOfMemoryObserver;  // of both kinds
  std::vector<Observer> observers_, rejection_observers_;
  std::vector<Event> events_;
  void beginAllocateToPool(DeviceIndex, MempoolId_t, std::function<bool(cudaStream_t)>) override { ++pools_begun; }
  double getMemoryFraction(DeviceIndex device) override { return pools[device].fraction; }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "fake CUDA: invalid fraction ", fraction);
    pools[device].fraction = fraction;
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    ++statistics;
    Lock lock(mutex);
    const Segments& pool = pools[device];
    c10::CachingDeviceAllocator::DeviceStats stats;
    using c10::CachingAllocator::StatType;
    constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);
    for (const bool small : {true, false}) {
      const auto kind = static_cast<size_t>(small ? StatType::SMALL_POOL : StatType::LARGE_POOL);
      stats.reserved_bytes[kind].current = static_cast<int64_t>(pool.reserved_bytes_of(small));
      stats.active_bytes[kind].current = static_cast<int64_t>(pool.allocated_bytes_of(small));
      stats.inactive_split[kind].current = pool.split_blocks_of(small);
    }
    stats.active_bytes[kAll].current = static_cast<int64_t>(pool.allocated_bytes);
    stats.num_alloc_retries = pool.retries;
    stats.num_ooms = pool.out_of_memory;
    stats.num_device_alloc = pool.device_allocs;
    stats.num_device_free = pool.device_frees;
    stats.num_sync_all_streams = pool.synchronizations;
    stats.allocated_bytes[kAll].current = static_cast<int64_t>(pool.allocated_bytes);
    stats.reserved_bytes[kAll].current = static_cast<int64_t>(pool.reserved_bytes);
    stats.reserved_bytes[kAll].peak = static_cast<int64_t>(pool.peak_reserved_bytes);
    stats.inactive_split_bytes[kAll].current = static_cast<int64_t>(pool.split_bytes());
    return stats;
  }
  void emptyCache(MempoolId_t) override {
    Lock lock(mutex);
    for (Segments& pool : pools) pool.release_cached();
  }

  void cacheInfo(DeviceIndex device, size_t* largest) override {
    Lock lock(mutex);
    *largest = std::max(*largest, pools[device].largest_free_bytes());
  }

  // What no test here comes to.
  void init(int) override {}
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {}
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }
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
  void attachOomRejectionObserver(caching::OomRejectionObserver observer) override {
    rejection_observers_.push_back(std::move(observer));
  }
#endif
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 214
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void*, const std::string& metadata) override { annotation_ = metadata; }
#endif

 private:
  // Torch calls what others have given it without its own lock, since it may ask for Python's.
  std::shared_ptr<c10::GatheredContext> context_at(caching::RecordContext least) const {
    return when_ < least ? nullptr : context_();
  }
  void note(const char* action, size_t bytes, const std::shared_ptr<c10::GatheredContext>& context) {
    if (history_) events_.push_back({action, bytes, context, user_metadata()});
  }
  static std::string& user_metadata() {
    static thread_local std::string metadata;
    return metadata;
  }

  caching::CreateContextFn context_ = nullptr;
  caching::RecordContext when_ = caching::RecordContext::NEVER;
};

Native& native() {
  static auto* allocator = new Native();
  return *allocator;
}

void delete_natively(void* data) { native().raw_delete(data); }

const bool registered = [] {
  caching::allocator.store(&native());
  // Below that of a session, and above torch's own: a torch with CUDA has that in this process, too.
  c10::SetAllocator(c10::DeviceType::CUDA, &native(), /*priority=*/254);
  return true;
}();

c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
const c10::impl::DeviceGuardImplRegistrar guard_registered(c10::DeviceType::CUDA, &guard);

}  // namespace

Figures figures(int device) {
  Lock lock(mutex);
  const Segments& pool = pools[device];
  return {pool.allocated_bytes,    pool.reserved_bytes, pool.held_segment_bytes(),
          pool.expandable_bytes(), pool.total_bytes,    pool.fraction,
          pool.recorded_streams,   pool.out_of_memory,  pool.retries,
          pool.device_allocs,      pool.device_frees,   pool.synchronizations,
          native().pools_begun,    pool.requests,       pool.looked_at,
          memory_questions,        statistics};
}

void set_total_bytes(int device, size_t bytes) { pools[device].total_bytes = bytes; }
void set_others_bytes(int device, size_t bytes) { pools[device].others_bytes = bytes; }

void hold(void* block, bool held) {
  Lock lock(mutex);
  for (Segments& pool : pools) {
    if (pool.owns(block)) pool.at(block).held = held;
  }
}

void set_name(const std::string& name) { native().name_ = name; }
void set_initialized(bool initialized) { native().initialized_ = initialized; }
void set_history(bool recorded) { native().history_ = recorded; }
std::vector<Event> take_events() {
  Lock lock(mutex);
  return std::exchange(native().events_, {});
}
void set_capturing(bool on) { capturing = on; }
void set_nvml(bool works) { nvml_works = works; }
void set_rejects(bool by_policy) { rejects = by_policy; }
std::string annotation() { return native().annotation_; }
void set_while_recording(std::function<void()> what) { native().while_recording = std::move(what); }
bool is_waited_for() { return waiting > 0; }

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

#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 214
CUDAErrorLogCapture::CUDAErrorLogCapture() noexcept = default;
void c10_cuda_check_implementation(const int32_t error, const char*, const char*, const uint32_t, const bool,
                                   CUDAErrorLogCapture*) {
#else
void c10_cuda_check_implementation(const int32_t error, const char*, const char*, const uint32_t, const bool) {
#endif
  if (error != cudaSuccess) (void)cudaGetLastError();
  TORCH_CHECK(error == cudaSuccess, "fake CUDA: error ", error);
}

}  // namespace c10::cuda

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  ++fake::c10_cuda::memory_questions;
  if (const cudaError_t error = fake::failing(); error != cudaSuccess) return error;
  const fake::c10_cuda::Figures figures = fake::c10_cuda::figures(c10::cuda::current_device());
  *total = figures.total_bytes;
  *free = figures.total_bytes - std::min(figures.total_bytes, figures.reserved_bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus* status) {
  if (const cudaError_t error = fake::failing(); error != cudaSuccess) return error;
  *status = fake::c10_cuda::capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

}  // extern "C"
