// Torch's CUDA allocator while a session is open: a forwarding one in front of the caching allocator. Blocks are the
// caching allocator's own, so that its statistics, record_stream, snapshots and expandable segments stay what they are.
#include <c10/core/AllocatorConfig.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/torch_callbacks.h"
#include "device/cuda/torch_side.h"
#include "late_deaths.h"
#include "runtime.h"

#define CHAMELEON_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

namespace chameleon {

namespace {

namespace callbacks = cuda::callbacks;
namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

caching::CUDAAllocator* original = nullptr;

constexpr size_t kMostDevices = 128;  // what a DeviceIndex can tell apart
std::array<std::atomic<Runtime*>, kMostDevices> runtimes{};

// What a device's memory may be taken of: the user's share, and within it ours.
struct Fraction {
  std::optional<double> user;  // while it is limited by us
  double ours = 1;
};
std::array<Fraction, kMostDevices> fractions{};
std::mutex fractions_mutex;

// Null where we limit nothing, or there is no such device.
Fraction* limited(DeviceIndex device) {
  if (device < 0 || !fractions[device].user) return nullptr;
  return &fractions[device];
}

std::array<std::atomic<size_t>, kMostDevices> allowed{};  // what torch may reserve of each device; 0: all there is
std::atomic<uint64_t> frees_past_runtime{0};

void set_fraction(double fraction, DeviceIndex device, size_t total_bytes) {
  original->setMemoryFraction(fraction, device);
  allowed[device] = fraction < 1 ? static_cast<size_t>(fraction * static_cast<double>(total_bytes)) : 0;
  ++frees_past_runtime;
}

// Before torch throws an OutOfMemoryError it asks NVML who uses the memory. Where NVML does not answer (MIG, vGPU,
// containers, Jetson), that ends in an internal assertion. It does so before anything has been counted or changed, and
// lets go of the allocator's lock: asking again is as good as after an OutOfMemoryError.
bool is_out_of_memory(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) return true;
  const std::string text = error.what_without_backtrace();
  return text.find("NVML_SUCCESS") != std::string::npos || text.find("Can't find nvml") != std::string::npos;
}

// In a catch block: as it is, or in torch's words where it is no OutOfMemoryError.
[[noreturn]] void throw_out_of_memory(const c10::Error& error, size_t bytes) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) throw;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes,
                   " bytes in a Chameleon Lab session, and nothing more can leave the GPU. (NVML does not answer here, "
                   "so that torch cannot say who uses the memory.)");
}

Runtime* runtime_of(DeviceIndex index) { return runtimes[index].load(std::memory_order_acquire); }

void delete_block(void* block) {
  if (!block || late_deaths::put_off(&delete_block, block)) return;
  const callbacks::Stack stack(callbacks::What::Free);
  for (size_t index = 0; index < kMostDevices; ++index) {
    Runtime* runtime = runtimes[index].load(std::memory_order_acquire);
    if (runtime && runtime->release(block)) return;
  }
  const callbacks::Call call(*original, callbacks::What::Free);  // the stack is taken
  original->raw_deleter()(block);
  ++frees_past_runtime;
}

// Of the original alone: see Note [Deaths inside of torch's allocator].
c10::DataPtr allocate_natively(size_t bytes) {
  const late_deaths::Scope scope;
  return original->allocate(bytes);
}
void* raw_alloc_natively(size_t bytes) {
  const late_deaths::Scope scope;
  return original->raw_alloc(bytes);
}
void* raw_alloc_natively(size_t bytes, cudaStream_t stream) {
  const late_deaths::Scope scope;
  return original->raw_alloc_with_stream(bytes, stream);
}

// Memory that is no storage of ours counts against the same limit: storages leave for it.
template <class F>
auto making_way(size_t bytes, F allocate) {
  constexpr size_t kWorthLooking = 1 << 20;  // below, torch packs many into a segment
  Runtime* runtime = runtime_of(c10::cuda::current_device());
  if (runtime && bytes >= kWorthLooking) runtime->make_way_where_refused(bytes);
  late_deaths::settle();
  for (;;) {
    try {
      const callbacks::Silence silence(runtime != nullptr);
      return allocate();
    } catch (const c10::Error& error) {
      if (!runtime || !is_out_of_memory(error)) throw;
      if (late_deaths::settle()) continue;
      if (runtime->make_way(bytes)) continue;
      cuda::torch_side::out_of_memory(c10::cuda::current_device(), bytes);
      if (!runtime->is_open()) throw;
      throw_out_of_memory(error, bytes);
    }
  }
}

void record_stream(void* data, c10::Device device, c10::cuda::CUDAStream stream) {
  c10::DataPtr block(data, data, original->raw_deleter(), device);
  try {
    original->recordStream(block, stream);
  } catch (...) {
    block.release_context();
    throw;
  }
  block.release_context();
}

class ForwardingAllocator final : public caching::CUDAAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const DeviceIndex index = c10::cuda::current_device();
    Runtime* runtime = runtime_of(index);
    if (!runtime || !runtime->tracks(bytes)) {
      return making_way(bytes, [&] { return allocate_natively(bytes); });
    }
    late_deaths::settle();
    const callbacks::Stack stack(callbacks::What::Request);
    void* block = runtime->allocate(bytes);
    return {block, block, &delete_block, c10::Device(c10::DeviceType::CUDA, index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { original->copy_data(to, from, bytes); }

  void* raw_alloc(size_t bytes) override {
    return making_way(bytes, [&] { return raw_alloc_natively(bytes); });
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return making_way(bytes, [&] { return raw_alloc_natively(bytes, stream); });
  }
  void raw_delete(void* block) override {
    original->raw_delete(block);
    ++frees_past_runtime;
  }

  // The original passes over blocks whose deleter is not its own.
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    const c10::Device device = pointer.device();
    const auto tell_torch = [&] {
      if (pointer.get_deleter() == &delete_block) {
        record_stream(pointer.get(), device, stream);
      } else {
        original->recordStream(pointer, stream);
      }
    };
    // Its storage may be away, or leave later, and the streams that its user names are those of its next block too.
    Runtime* runtime = device.is_cuda() && device.index() >= 0 ? runtime_of(device.index()) : nullptr;
    if (runtime && stream.device_index() == device.index()) {
      runtime->recorded(pointer, stream.stream(), tell_torch);
    } else {
      tell_torch();
    }
  }

  // Graphs hold addresses: what they hold must not move.
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    Runtime* runtime = runtime_of(device);
    TORCH_CHECK(!runtime || !runtime->is_open(),
                "Chameleon Lab: CUDA graphs and memory pools of one's own keep the addresses of their tensors, which a "
                "session moves: capture before the session starts or after it ends, or run this part without a graph");
    original->beginAllocateToPool(device, pool, std::move(filter));
  }
  void recordHistory(bool enabled, caching::CreateContextFn context, size_t most_entries, caching::RecordContext when,
                     bool clear, const std::vector<std::string>& skip) override {
    callbacks::record_history(*original, enabled, context, most_entries, when, clear, skip);
  }

  std::string name() override { return original->name(); }
  bool initialized() override { return original->initialized(); }
  void init(int devices) override { original->init(devices); }
  void enable(bool on) override { original->enable(on); }
  bool isEnabled() const override { return original->isEnabled(); }
  void emptyCache(MempoolId_t pool) override {
    original->emptyCache(pool);
    ++frees_past_runtime;
  }
  double getMemoryFraction(DeviceIndex device) override {
    const std::lock_guard lock(fractions_mutex);
    const Fraction* fraction = limited(device);
    return fraction ? *fraction->user : original->getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    const std::lock_guard lock(fractions_mutex);
    Fraction* before = limited(device);
    const bool possible = fraction <= 1;  // what is not is for torch to refuse
    set_fraction(before && possible ? std::min(fraction, before->ours) : fraction, device,
                 cuda::torch_side::total_bytes(device));
    if (before) before->user = fraction;
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return original->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override { original->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { original->resetPeakStats(device); }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return original->getExpandableSegmentSizes(device);
  }
  void cacheInfo(DeviceIndex device, size_t* largest) override { original->cacheInfo(device, largest); }
  void* getBaseAllocation(void* block, size_t* bytes) override { return original->getBaseAllocation(block, bytes); }
  caching::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return original->snapshot(pool, traces); }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override { original->endAllocateToPool(device, pool); }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { original->releasePool(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override { return original->getPoolUseCount(device, pool); }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    original->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    original->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { original->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return original->checkPoolLiveAllocations(device, pool, expected);
  }
  caching::ShareableHandle shareIpcHandle(void* block) override { return original->shareIpcHandle(block); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return original->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return original->isHistoryEnabled(); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotation) override {
    original->recordAnnotation(annotation);
  }
  void pushCompileContext(std::string& context) override { original->pushCompileContext(context); }
  void popCompileContext() override { original->popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { original->setUserMetadata(metadata); }
  std::string getUserMetadata() override { return original->getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    original->attachOutOfMemoryObserver(callbacks::standing_for(std::move(observer)));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    original->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override { original->enablePeerAccess(device, other); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peer_access) override {
    return original->memcpyAsync(to, to_device, from, from_device, bytes, stream, peer_access);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return original->getCheckpointState(device, pool);
  }
  caching::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                  std::shared_ptr<caching::AllocatorState> state) override {
    return original->setCheckpointPoolState(device, std::move(state));
  }
#if CHAMELEON_TORCH >= 212
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* block) override {
    return original->getContextForPointer(block);
  }
  void attachOomRejectionObserver(caching::OomRejectionObserver observer) override {
    original->attachOomRejectionObserver(callbacks::standing_for_rejection(std::move(observer)));
  }
#endif
#if CHAMELEON_TORCH >= 213
  void markCaptureBegin(DeviceIndex device) override { original->markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { original->markCaptureEnd(device); }
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override {
    const late_deaths::Scope scope;
    return original->allocateWithAddress(bytes, address);
  }
#endif
#if CHAMELEON_TORCH >= 214
  bool supportsUserMetadata() override { return original->supportsUserMetadata(); }
  void annotateMemory(const void* block, const std::string& metadata) override {
    original->annotateMemory(block, metadata);
  }
#endif
};

ForwardingAllocator* forwarding() {
  static auto* allocator = new ForwardingAllocator();
  return allocator;
}

}  // namespace

namespace cuda::torch_side {

std::string missing(c10::Device device) {
  const DeviceIndex count = c10::cuda::device_count();
  if (count == 0) {
    return "torch finds no NVIDIA GPU here (torch.cuda.is_available() says why): use device='cpu', the embedded device";
  }
  if (device.index() >= count) {
    return "there is no device '" + device.str() + "': torch finds " + std::to_string(count) + " GPUs here";
  }
  return "";
}

namespace {
void put_in_front(caching::CUDAAllocator* current) {
  if (current == forwarding()) return;
  original = current;
  caching::allocator.store(forwarding());
  c10::SetAllocator(c10::DeviceType::CUDA, forwarding(), /*priority=*/255);
}
}  // namespace

void stand_in_front() {
  caching::CUDAAllocator* current = caching::allocator.load();
  if (current && current->name() == "native" && current->initialized()) put_in_front(current);
}

void install(int index) {
  caching::CUDAAllocator* current = caching::allocator.load();
  const std::string name = current ? current->name() : "none";
  TORCH_CHECK(name == "native", "Chameleon Lab works with torch's own caching allocator, and this process uses '", name,
              "': unset backend:", name,
              " in PYTORCH_CUDA_ALLOC_CONF, or leave out torch.cuda.memory.change_current_allocator");
  TORCH_CHECK(!std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING"),
              "Chameleon Lab works with torch's caching allocator: unset PYTORCH_NO_CUDA_MEMORY_CACHING");
  TORCH_CHECK(current->initialized(), "Chameleon Lab: CUDA is not initialized: call torch.cuda.init() first");
  TORCH_CHECK(c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None,
              "Chameleon Lab: a CUDA graph is being captured: start the session before or after");
  TORCH_CHECK(callbacks::history_is_ours() || !current->isHistoryEnabled(),
              "Chameleon Lab: recording of the memory history began before `import chameleon_lab`: it may take stacks "
              "where that hangs a session. Import chameleon_lab before that, or begin it anew with "
              "torch.cuda.memory._record_memory_history()");
  TORCH_CHECK(!c10::impl::GPUTrace::get_trace(),
              "Chameleon Lab: torch's CUDA sanitizer asks for Python's lock inside the allocator, which can hang a "
              "session: run without TORCH_CUDA_SANITIZER");
  put_in_front(current);
  runtimes[index].store(&Runtime::of(device(index)), std::memory_order_release);
}

c10::Device device(int index) { return {c10::DeviceType::CUDA, static_cast<DeviceIndex>(index)}; }

size_t total_bytes(int index) {
  static std::array<std::atomic<size_t>, kMostDevices> known{};
  const Guard guard(index);
  size_t free = 0, total = 0;
  const cudaError_t error = cudaMemGetInfo(&free, &total);
  if (error == cudaSuccess) {
    known[index] = total;
  } else if (known[index] > 0) {
    (void)cudaGetLastError();  // it has as many as before: a session must be able to end
  } else {
    check(error, "cudaMemGetInfo");
  }
  return known[index];
}

Stats stats(int index) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  if (!original) return {};  // ours does not stand in front yet
  const auto stats = original->getDeviceStats(static_cast<DeviceIndex>(index));
  return {static_cast<size_t>(stats.allocated_bytes[kAll].current),
          static_cast<size_t>(stats.reserved_bytes[kAll].current),
          static_cast<size_t>(stats.reserved_bytes[kAll].peak),
          static_cast<size_t>(stats.inactive_split_bytes[kAll].current),
          {.alloc_retries = stats.num_alloc_retries,
           .device_allocs = stats.num_device_alloc,
           .device_frees = stats.num_device_free,
           .device_syncs = stats.num_sync_all_streams}};
}

namespace {
size_t segment_bytes(size_t bytes) {  // as torch's get_allocation_size
  namespace config = c10::CachingAllocator;
  if (bytes <= config::kSmallSize) return config::kSmallBuffer;
  if (bytes < config::kMinLargeAlloc) return config::AcceleratorAllocatorConfig::large_segment_size();
  return (bytes + config::kRoundLarge - 1) / config::kRoundLarge * config::kRoundLarge;
}
}  // namespace

bool expandable_segments() { return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments(); }

uint64_t frees() { return frees_past_runtime.load(std::memory_order_relaxed); }

// In the words of torch's malloc(): a free block of the stream's pool; else a segment, if the limit allows it beside
// what is reserved; else the same once all that is free and unsplit has been given back. Streams are not told apart
// here.
Outlook outlook(int index, size_t bytes, size_t ceiling_bytes, size_t stuck_bytes, FreePieces& pieces) {
  using c10::CachingAllocator::StatType;
  const auto device = static_cast<DeviceIndex>(index);
  const auto stats = original->getDeviceStats(device);
  pieces.follow(stats.num_device_free);
  const auto current = [](const auto& stat, StatType type) {
    return static_cast<size_t>(std::max<int64_t>(stat[static_cast<size_t>(type)].current, 0));
  };
  const size_t allowed_bytes = allowed[index];
  const size_t limit = std::min(allowed_bytes > 0 ? allowed_bytes : SIZE_MAX, ceiling_bytes);
  const size_t taken = segment_bytes(bytes);
  const size_t reserved = current(stats.reserved_bytes, StatType::AGGREGATE);
  const size_t active = current(stats.active_bytes, StatType::AGGREGATE);
  const size_t allocated = current(stats.allocated_bytes, StatType::AGGREGATE);
  const size_t split = current(stats.inactive_split_bytes, StatType::AGGREGATE);
  const auto sum_fits = [limit, taken](size_t held) { return held <= limit && taken <= limit - held; };
  Outlook found{Source::AtHand, false, 0, 0, stats.num_alloc_retries};
  if (sum_fits(reserved)) return found;
  static_assert(is_small(c10::CachingAllocator::kSmallSize) && !is_small(c10::CachingAllocator::kSmallSize + 1));
  const bool small = is_small(bytes);
  const StatType pool = small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
  const size_t free_bytes = current(stats.reserved_bytes, pool) -
                            std::min(current(stats.reserved_bytes, pool), current(stats.active_bytes, pool));
  if (small) {  // torch tells the largest of all pools alone; among so many pieces one is as large as the mean
    found.cached = free_bytes / std::max<size_t>(current(stats.inactive_split, pool), 1) >= bytes;
  } else if (free_bytes >= bytes) {
    size_t largest = 1;  // not 0: torch would begin with what the GPU has left
    if (!pieces.has(bytes)) original->cacheInfo(device, &largest);
    found.cached = pieces.has(bytes) || largest >= bytes;
  }
  // What other streams still use is waited for, and then goes back as well.
  const size_t held = active > allocated ? allocated : active + split + stuck_bytes;
  const size_t rounding = taken - std::min(taken, bytes);
  found.source = found.cached ? Source::AtHand : sum_fits(held) ? Source::Flush : Source::None;
  found.useless_bytes = split + stuck_bytes + rounding;
  found.flushed_bytes = reserved - std::min(reserved, active) + rounding;
  return found;
}

void out_of_memory(int index, size_t bytes) noexcept {
  try {
    const Guard guard(index);
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) (void)cudaGetLastError();
    callbacks::tell(index, bytes, allowed[index] > 0 ? allowed[index].load() : total_bytes, free_bytes);
  } catch (const std::exception& error) {
    TORCH_WARN("Chameleon Lab: an observer of out-of-memory has failed: ", error.what());
  }
}

void limit(int index, size_t bytes) {
  const auto device = static_cast<DeviceIndex>(index);
  const std::lock_guard lock(fractions_mutex);
  Fraction& fraction = fractions[index];
  if (bytes == SIZE_MAX) {
    if (fraction.user) set_fraction(*fraction.user, device, total_bytes(index));
    fraction.user.reset();
    return;
  }
  if (!fraction.user) fraction.user = original->getMemoryFraction(device);
  const size_t total = total_bytes(index);
  fraction.ours = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total));
  set_fraction(std::min(*fraction.user, fraction.ours), device, total);
}

cudaStream_t current_stream(int index) {
  return c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(index)).stream();
}

void* allocate(int index, size_t bytes, cudaStream_t stream, bool may_fail) {
  const Guard guard(index);
  const callbacks::Call call(*original, callbacks::What::Request);
  try {
    return raw_alloc_natively(bytes, stream);
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    if (!may_fail) throw_out_of_memory(error, bytes);
    return nullptr;
  }
}

void free(void* block) {
  const callbacks::Call call(*original, callbacks::What::Free);
  original->raw_delete(block);
}

void used_on(int index, void* block, cudaStream_t stream) {
  record_stream(block, device(index), c10::cuda::getStreamFromExternal(stream, static_cast<DeviceIndex>(index)));
}

c10::DeleterFnPtr block_deleter() { return &delete_block; }
c10::DeleterFnPtr plain_deleter() { return original->raw_deleter(); }

c10::DataPtr allocate_plain(int index, size_t bytes) {
  const Guard guard(index);
  const callbacks::Call call(*original, callbacks::What::Request);
  return allocate_natively(bytes);
}

Guard::Guard(int index) : index_(index), before_(c10::cuda::current_device()) {
  if (before_ != index_) c10::cuda::set_device(static_cast<DeviceIndex>(index_));
}

Guard::~Guard() {
  if (before_ == index_) return;
  try {
    c10::cuda::set_device(static_cast<DeviceIndex>(before_));
  } catch (const std::exception&) {  // the device was there a moment ago
  }
}

}  // namespace cuda::torch_side

}  // namespace chameleon
