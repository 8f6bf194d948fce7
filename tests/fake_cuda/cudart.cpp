#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fake.h"

namespace fake {

struct Stream;

struct Mark {
  Stream* stream;
  bool done = false;
  double ms = 0;
};

struct Item {
  std::function<void()> run;  // or
  MarkPtr wait;               // or
  MarkPtr reach;
};

struct Stream {
  std::string role;
  bool eager = false;
  bool destroyed = false;
  std::deque<Item> queue;
};

namespace {

// A kernel may free memory, which gives a stream more to do.
std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

std::mt19937_64 random_source;
std::vector<Stream*> streams;
int own_streams = 0;
std::set<std::pair<std::string, std::string>> dropped_pairs;
long dropped_count = 0;
std::map<std::string, long> waits_of_host;
size_t pinned_limit = SIZE_MAX, pinned = 0, peak_pinned = 0;
constexpr size_t kPoisonedBytes = 256 << 10;  // of a slab: all that the toy programs use
size_t gpu_bytes = size_t{1} << 36;
std::unordered_map<void*, size_t> pinned_blocks;
std::unordered_map<void*, int> nodes;  // of those
bool lazy = false;
thread_local cudaStream_t current_lane = nullptr;
thread_local int current_device = 0;
long calls_astray = 0;

long pinning_to_failure = 0;
long calls_to_failure = 0, calls_that_fail = 0, calls_failed = 0;
bool failure_is_sticky = false, copies_fail = false;
cudaError_t death = cudaSuccess;  // what every call returns since a sticky error
thread_local cudaError_t last_error = cudaSuccess;

// What a call returns is also what cudaGetLastError() says, until somebody asks.
cudaError_t said(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
void (*meanwhile)() = nullptr;

// The driver takes its time, and holds nothing of ours meanwhile.
class Hold {
 public:
  void pass() {
    if (meanwhile) meanwhile();
    std::unique_lock<std::mutex> lock(mutex_);
    ++threads_;
    goes_on_.wait(lock, [this] { return !is_held_; });
    --threads_;
  }
  void set(bool hold) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_held_ = hold;
    goes_on_.notify_all();
  }
  long threads() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_held_ ? threads_ : 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable goes_on_;
  bool is_held_ = false;
  long threads_ = 0;
};
Hold pinning, waits;

Stream* default_lane() {
  static Stream* lane = reinterpret_cast<Stream*>(make_lane(/*eager=*/true));
  return lane;
}

Stream* stream_of(cudaStream_t stream) { return stream ? reinterpret_cast<Stream*>(stream) : default_lane(); }

size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_source); }

void count_astray() { calls_astray += current_device != 0; }

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool can_run(const Stream& stream) {
  return !stream.queue.empty() && (!stream.queue.front().wait || stream.queue.front().wait->done);
}

void run_front(Stream& stream) {
  Item item = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (item.run) item.run();
  if (item.reach) {
    item.reach->done = true;
    item.reach->ms = now_ms();
  }
}

bool run_any() {
  std::vector<Stream*> ready;
  for (Stream* stream : streams) {
    if (can_run(*stream)) ready.push_back(stream);
  }
  if (ready.empty()) return false;
  run_front(*ready[below(ready.size())]);
  return true;
}

// No more than it takes: what can be late, is.
void run_least(const Mark& mark) {
  while (!mark.done) {
    Stream& stream = *mark.stream;
    if (stream.queue.empty()) {
      std::fprintf(stderr, "fake CUDA: a mark that is never reached\n");
      std::abort();
    }
    if (!can_run(stream)) run_least(*stream.queue.front().wait);
    run_front(stream);
  }
}

void run_until(const Mark& mark) {
  while (!mark.done) {
    if (lazy || below(2)) {
      run_least(mark);
    } else if (!run_any()) {
      std::fprintf(stderr, "fake CUDA: deadlock\n");
      std::abort();
    }
  }
}

// The GPU goes on meanwhile: not at all, a little, or a lot.
void go_on() {
  const size_t mood = lazy ? 0 : below(4);
  for (size_t left = mood < 2 ? 0 : mood == 2 ? 1 : below(8); left > 0 && run_any(); --left) {
  }
}

void give(Stream& stream, Item item) {
  stream.queue.push_back(std::move(item));
  if (!stream.eager) {
    go_on();
    return;
  }
  while (!stream.queue.empty()) {
    if (stream.queue.front().wait) run_until(*stream.queue.front().wait);
    run_front(stream);
  }
}

bool is_dropped(const std::string& waiter, const std::string& source) {
  if (!dropped_pairs.count({waiter, source})) return false;
  ++dropped_count;
  return true;
}

// How many bytes from an address on lie in one block of pinned memory.
size_t pinned_from(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  for (const auto& block : pinned_blocks) {
    const auto* begin = static_cast<const char*>(block.first);
    if (wanted >= begin && wanted < begin + block.second) return static_cast<size_t>(begin + block.second - wanted);
  }
  return 0;
}

bool pin(void* data, size_t bytes, int node) {
  if (pinned + bytes > pinned_limit) return false;
  nodes[data] = node;
  poison(data, std::min(bytes, kPoisonedBytes));
  pinned += bytes;
  peak_pinned = std::max(peak_pinned, pinned);
  pinned_blocks[data] = bytes;
  return true;
}

bool unpin(void* data) {
  const auto found = pinned_blocks.find(data);
  if (found == pinned_blocks.end()) return false;
  poison(data, std::min(found->second, kPoisonedBytes));
  pinned -= found->second;
  pinned_blocks.erase(found);
  return true;
}

struct Event {
  MarkPtr mark;
};
Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

}  // namespace

cudaError_t failing() {
  Lock lock(mutex);
  if (calls_to_failure > 0 && --calls_to_failure > 0) return cudaSuccess;
  const bool now = calls_that_fail > 0;
  calls_that_fail -= now;
  if (now && failure_is_sticky) death = cudaErrorIllegalAddress;
  const bool is_dead = death != cudaSuccess;
  calls_failed += now || is_dead;
  return said(is_dead ? death : now ? cudaErrorMemoryAllocation : cudaSuccess);
}

void start(uint64_t seed) {
  Lock lock(mutex);
  run_all();
  random_source.seed(seed);
  dropped_pairs.clear();
  dropped_count = 0;
  lazy = false;
  waits_of_host.clear();
  calls_astray = 0;
  pinned_limit = SIZE_MAX;
  peak_pinned = pinned;
  calls_to_failure = calls_that_fail = calls_failed = 0;
  death = last_error = cudaSuccess;
}

void be_lazy() { lazy = true; }

std::map<int, size_t> pinned_near() {
  Lock lock(mutex);
  std::map<int, size_t> near;
  for (const auto& [data, bytes] : pinned_blocks) near[nodes[data]] += bytes;
  return near;
}

void drop(const std::string& waiter, const std::string& source) {
  Lock lock(mutex);
  dropped_pairs.insert({waiter, source});
}

long dropped() { return dropped_count; }

std::map<std::string, long> host_waits() {
  Lock lock(mutex);
  return waits_of_host;
}

cudaStream_t make_lane(bool eager) {
  Lock lock(mutex);
  auto* stream = new Stream{"lane", eager, false, {}};
  streams.push_back(stream);
  return reinterpret_cast<cudaStream_t>(stream);
}

void set_destroyed(cudaStream_t stream, bool destroyed) { stream_of(stream)->destroyed = destroyed; }
bool is_destroyed(cudaStream_t stream) { return stream_of(stream)->destroyed; }

cudaStream_t current() { return current_lane ? current_lane : reinterpret_cast<cudaStream_t>(default_lane()); }
void set_current(cudaStream_t lane) { current_lane = lane; }

void set_device(int index) { current_device = index; }
int device() { return current_device; }
long astray() { return calls_astray; }

void set_default_lane_late(bool late) {
  Lock lock(mutex);
  run_all();
  default_lane()->eager = !late;
}

void catch_up() {
  Lock lock(mutex);
  if (!current_lane && !default_lane()->queue.empty()) synchronize(record(current_lane));
}

void launch(cudaStream_t stream, std::function<void()> kernel) {
  Lock lock(mutex);
  if (dead()) return;
  give(*stream_of(stream), {std::move(kernel), nullptr, nullptr});
}

MarkPtr record(cudaStream_t stream) {
  Lock lock(mutex);
  auto mark = std::make_shared<Mark>(Mark{stream_of(stream)});
  give(*mark->stream, {nullptr, nullptr, mark});
  return mark;
}

void wait(cudaStream_t stream, const MarkPtr& mark) {
  Lock lock(mutex);
  if (!mark->done) give(*stream_of(stream), {nullptr, mark, nullptr});
}

void synchronize(const MarkPtr& mark) {
  Lock lock(mutex);
  run_until(*mark);
}

bool reached(const MarkPtr& mark) {
  Lock lock(mutex);
  return mark->done;
}

void run_all() {
  Lock lock(mutex);
  while (run_any()) {
  }
}

void forget_streams() {
  Lock lock(mutex);
  run_all();
  streams.clear();
}

void limit_pinned(size_t bytes) { pinned_limit = bytes; }
void hold_pinning(bool hold) { pinning.set(hold); }
long held_pinning() { return pinning.threads(); }
void hold_waits(bool hold) { waits.set(hold); }
long held_waits() { return waits.threads(); }
void set_meanwhile(void (*what)()) { meanwhile = what; }
void fail_pinning(long number) { pinning_to_failure = number; }
void fail_call(long number, bool sticky, long in_a_row) {
  Lock lock(mutex);
  calls_to_failure = number;
  calls_that_fail = number > 0 ? in_a_row : 0;
  failure_is_sticky = sticky;
}
long failed_calls() { return calls_failed; }
void fail_copies(bool fail) { copies_fail = fail; }
bool dead() { return death != cudaSuccess; }
void die(int error) {
  Lock lock(mutex);
  death = static_cast<cudaError_t>(error);
}
size_t pinned_bytes() { return pinned; }
size_t read_pinned() {
  Lock lock(mutex);
  size_t read = 0;
  for (const auto& [data, bytes] : pinned_blocks) {
    for (size_t at = 0; at < bytes; at += 4096) (void)static_cast<const volatile char*>(data)[at];
    read += bytes;
  }
  return read;
}
size_t peak_pinned_bytes() { return peak_pinned; }
void set_total_bytes(size_t bytes) { gpu_bytes = bytes; }
size_t total_bytes() { return gpu_bytes; }

void poison(void* data, size_t bytes) {
  Lock lock(mutex);
  std::memset(data, static_cast<int>(0x80 | below(0x80)), bytes);
}

}  // namespace fake

using fake::Lock;
using fake::stream_of;

#define MAY_FAIL() \
  if (const cudaError_t error = fake::failing(); error != cudaSuccess) return error

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  fake::count_astray();
  static constexpr const char* kRoles[] = {"out", "in", "urgent"};
  auto* made = new fake::Stream{kRoles[fake::own_streams++ % 3], false, false, {}};
  fake::streams.push_back(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  ++fake::waits_of_host[__func__];
  if (fake::is_dropped("host", stream_of(stream)->role)) return cudaSuccess;
  fake::synchronize(fake::record(stream));
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  ++fake::waits_of_host[__func__];
  fake::run_all();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  fake::count_astray();
  if (stream_of(stream)->destroyed) return fake::said(cudaErrorInvalidResourceHandle);
  const fake::MarkPtr mark = fake::event_of(event)->mark;
  if (!mark || fake::is_dropped(stream_of(stream)->role, mark->stream->role)) return cudaSuccess;
  fake::wait(stream, mark);
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  MAY_FAIL();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  if (stream_of(stream)->destroyed) return fake::said(cudaErrorInvalidResourceHandle);
  return stream_of(stream)->queue.empty() ? cudaSuccess : fake::said(cudaErrorNotReady);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  MAY_FAIL();
  fake::count_astray();
  *event = reinterpret_cast<cudaEvent_t>(new fake::Event());
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  fake::count_astray();
  if (stream_of(stream)->destroyed) return fake::said(cudaErrorInvalidResourceHandle);
  fake::event_of(event)->mark = fake::record(stream);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  fake::go_on();
  const fake::MarkPtr& mark = fake::event_of(event)->mark;
  return !mark || mark->done ? cudaSuccess : fake::said(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  MAY_FAIL();
  fake::waits.pass();
  Lock lock(fake::mutex);
  ++fake::waits_of_host[__func__];
  const fake::MarkPtr mark = fake::event_of(event)->mark;
  if (mark && !fake::is_dropped("host", mark->stream->role)) fake::synchronize(mark);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  const fake::MarkPtr &from = fake::event_of(start)->mark, &to = fake::event_of(end)->mark;
  if (!from || !to) return fake::said(cudaErrorInvalidResourceHandle);
  if (!from->done || !to->done) return fake::said(cudaErrorNotReady);
  *ms = static_cast<float>(to->ms - from->ms);
  return cudaSuccess;
}

// Of memory that is not pinned, it may return before the copy is over, or not.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  if (fake::copies_fail) return fake::said(cudaErrorMemoryAllocation);
  const size_t pinned = fake::pinned_from(kind == cudaMemcpyDeviceToHost ? to : from);
  if (pinned == 0) ++fake::waits_of_host["cudaMemcpyAsync, pageable"];
  if (pinned > 0 && pinned < bytes) return fake::said(cudaErrorInvalidValue);  // over the end of what is pinned
  fake::launch(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind) {
  Lock lock(fake::mutex);
  ++fake::waits_of_host[__func__];
  fake::run_all();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) {
  MAY_FAIL();
  fake::pinning.pass();
  Lock lock(fake::mutex);
  ++fake::waits_of_host[__func__];
  *data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*data && fake::pin(*data, bytes, fake::policy_of_thread())) return cudaSuccess;
  std::free(*data);
  return fake::said(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* data) {
  MAY_FAIL();
  Lock lock(fake::mutex);
  ++fake::waits_of_host[__func__];
  if (!fake::unpin(data)) return fake::said(cudaErrorInvalidValue);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned int) {
  MAY_FAIL();
  fake::pinning.pass();
  Lock lock(fake::mutex);
  ++fake::waits_of_host[__func__];
  return fake::pin(data, bytes, fake::policy_of(data, bytes)) ? cudaSuccess : fake::said(cudaErrorMemoryAllocation);
}

cudaError_t cudaHostUnregister(void* data) {
  MAY_FAIL();
  fake::pinning.pass();
  Lock lock(fake::mutex);
  ++fake::waits_of_host[__func__];
  return fake::unpin(data) ? cudaSuccess : fake::said(cudaErrorInvalidValue);
}

cudaError_t cudaGetDevice(int* device) {
  MAY_FAIL();
  *device = fake::device();
  return cudaSuccess;
}

// The device under test asks whenever it pins anything.
cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int) {
  MAY_FAIL();
  if (fake::pinning_to_failure > 0 && --fake::pinning_to_failure == 0) throw std::bad_alloc();
  std::snprintf(name, static_cast<size_t>(bytes), "0000:FA:CE.0");
  return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = fake::dead() ? fake::death : fake::last_error;
  fake::last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return fake::dead() ? fake::death : fake::last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
         : error == cudaSuccess           ? "no error"
                                          : "an error";
}

}  // extern "C"
