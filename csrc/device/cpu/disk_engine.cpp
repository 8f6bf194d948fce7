#include "device/cpu/disk_engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "device/cpu/block_pool.h"
#include "device/cpu/buffer_cache.h"

namespace chameleon::cpu {

namespace {

constexpr double kLongestSleep_s = 500e-6;  // a cancelled copy must not hold up whoever waits for its end

double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool goes_as_it_is(const void* block, size_t bytes) {
  return bytes >= BlockPool::kLargeBytes && reinterpret_cast<uintptr_t>(block) % DiskFile::kPageBytes == 0;
}

}  // namespace

// Of a thread: page-aligned memory for blocks that are not.
class DiskEngine::Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (data_) BufferCache::unmap(data_, DiskFile::kPieceBytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* data() {
    if (!data_) data_ = BufferCache::map(DiskFile::kPieceBytes);
    return static_cast<char*>(data_);
  }

 private:
  void* data_ = nullptr;
};

DiskEngine::~DiskEngine() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<CopyEvent> DiskEngine::submit(size_t offset, void* block, size_t bytes, bool urgent) {
  Job job{offset, static_cast<char*>(block), bytes, urgent, std::make_shared<CopyEvent>(), 0, 0, {}};
  std::shared_ptr<CopyEvent> event = job.event;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_threads_ && threads_.empty()) start();
    if (has_threads_) {
      const auto waits = [](const Job& one) { return !one.urgent; };
      queue_.insert(urgent ? std::find_if(queue_.begin(), queue_.end(), waits) : queue_.end(), std::move(job));
    }
  }
  if (has_threads_) {
    wake_.notify_all();
  } else {
    copy_here(std::move(job));
  }
  return event;
}

void DiskEngine::set_bandwidth(double bytes_per_s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes_per_s_ = bytes_per_s;
}

// One thread does, where the system has no more.
void DiskEngine::start() {
  try {
    while (threads_.size() < kThreads) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    has_threads_ = !threads_.empty();
  }
}

void DiskEngine::run() {
  prctl(PR_SET_NAME, "chameleon-disk");
  Buffer buffer;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || has_piece() || (!current_ && !queue_.empty()); });
    if (!current_ && !queue_.empty()) {
      if (begin_next()) wake_.notify_all();
    } else if (has_piece()) {
      move_piece(lock, buffer);
    } else {
      return;
    }
  }
}

bool DiskEngine::has_piece() const { return current_ && current_->begun_bytes < current_->bytes; }

// False: that copy is not wanted any more.
bool DiskEngine::begin_next() {
  Job job = std::move(queue_.front());
  queue_.pop_front();
  uint32_t queued = CopyEvent::kQueued;
  if (!job.event->state_.compare_exchange_strong(queued, CopyEvent::kRunning)) {
    if (queue_.empty()) idle_.notify_all();
    return false;
  }
  job.event->start_ticks_ = now_ticks();
  link_free_s_ = std::max(link_free_s_, monotonic_s());
  current_.emplace(std::move(job));
  if (current_->bytes == 0) end();
  return true;
}

void DiskEngine::move_piece(std::unique_lock<std::mutex>& lock, Buffer& buffer) {
  Job& job = *current_;
  const size_t at = job.begun_bytes;
  const size_t bytes = std::min(DiskFile::kPieceBytes, job.bytes - at);
  job.begun_bytes += bytes;
  ++job.moving;
  lock.unlock();
  std::string failure = move(job, at, bytes, buffer);
  lock.lock();
  if (failure.empty()) {
    job.event->copied_bytes_ += bytes;
    pace(lock, bytes, *job.event);
  } else {
    job.failure = std::move(failure);
  }
  // What is left of a copy that has failed, or that nobody wants, is not begun.
  if (!job.failure.empty() || job.event->cancelled_.load(std::memory_order_relaxed)) job.begun_bytes = job.bytes;
  if (--job.moving == 0 && job.begun_bytes == job.bytes) end();
}

std::string DiskEngine::move(const Job& job, size_t at, size_t bytes, Buffer& buffer) {
  const size_t offset = job.offset + at;
  const size_t whole_bytes = DiskFile::place_bytes(bytes);
  char* const piece = job.block + at;
  const bool direct = goes_as_it_is(job.block, job.bytes);
  char* const memory = direct ? piece : buffer.data();
  if (!memory) return "no memory is left for a buffer";
  if (direction_ == Direction::In) {
    std::string failure = file_.read(offset, memory, whole_bytes);
    if (!direct && failure.empty()) std::memcpy(piece, memory, bytes);
    return failure;
  }
  if (!direct) {
    std::memcpy(memory, piece, bytes);
    std::memset(memory + bytes, 0, whole_bytes - bytes);
  }
  return file_.write(offset, memory, whole_bytes);
}

// As long as the link would take for it, and no less.
void DiskEngine::pace(std::unique_lock<std::mutex>& lock, size_t bytes, const CopyEvent& event) {
  if (bytes_per_s_ <= 0) return;
  const double due_s = link_free_s_ += static_cast<double>(bytes) / bytes_per_s_;
  lock.unlock();
  while (!event.cancelled_.load(std::memory_order_relaxed)) {
    const double ahead_s = due_s - monotonic_s();
    if (ahead_s <= 0) break;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(ahead_s, kLongestSleep_s)));
  }
  lock.lock();
}

// A copy that nobody wants has not failed, whatever became of its pieces.
void DiskEngine::end() {
  CopyEvent& event = *current_->event;
  if (!current_->failure.empty() && !event.cancelled_.load(std::memory_order_relaxed)) {
    event.failure_ = current_->failure;
    if (direction_ == Direction::Out) {
      file_.write_failed(event.failure_);
    } else {
      file_.read_failed();
    }
  }
  const std::shared_ptr<CopyEvent> ended = current_->event;
  current_.reset();
  ended->finish();
  if (queue_.empty()) idle_.notify_all();
  wake_.notify_all();
}

void DiskEngine::copy_here(Job job) {
  Buffer buffer;
  std::unique_lock<std::mutex> lock(mutex_);
  queue_.push_back(std::move(job));
  while (current_ || !queue_.empty()) {
    if (!current_) {
      begin_next();
    } else {
      move_piece(lock, buffer);
    }
  }
}

void DiskEngine::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && !current_; });
}

// The threads live on in the parent only: forget the handles, and the lock and the conditions that they sleep on.
void DiskEngine::abandon_threads() {
  has_threads_ = false;
  new (&threads_) std::vector<std::thread>();
  new (&mutex_) std::mutex();
  new (&wake_) std::condition_variable();
  new (&idle_) std::condition_variable();
}

}  // namespace chameleon::cpu
