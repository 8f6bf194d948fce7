// One direction of the link: a thread that copies in order of issue, urgent copies first, at a given bandwidth.
//
// Note [Small copies]
// To wake the thread takes longer than to make a small copy: the system has to find it a core, the caches of that core
// are cold, and taking pages back interrupts two cores instead of one. Where the link is free, who asks for a small
// copy makes it. Compute waits meanwhile, and the recorder is told so. An urgent copy may be twice as large: compute
// would wait for it in any case.
//
// Where the two cores share no cache, the thread copies at a fourth of the speed, and compute finds cold what it copied
// in. So, when a copy of the thread has taken longer than the link would have, the next ones may be twice as large,
// too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "device/device.h"

namespace chameleon::cpu {

class CopyEvent final : public Event {
 public:
  bool done() const override { return state_.load(std::memory_order_acquire) == kDone && !in_model(); }
  void cancel() override;
  size_t copied_bytes() const override { return copied_bytes_; }
  Ticks start_ticks() const override { return start_ticks_; }
  Ticks end_ticks() const override { return end_ticks_; }
  bool made_at_once() const override { return made_at_once_; }
  const std::string* failure() const override { return failure_.empty() ? nullptr : &failure_; }
  void wait() const;
  void wait_awake() const;  // for compute: a thread that sleeps is put on another core, or finds its caches cold

 private:
  friend class CopyEngine;
  friend class DiskEngine;
  static constexpr uint32_t kQueued = 0, kRunning = 1, kDone = 2;
  void finish();

  // See Note [Modeled time]: its bytes have moved, and its time is not over.
  bool in_model() const { return modeled_ && modeled_time.on() && modeled_time.now() < end_ticks_; }
  void cancel_in_model();

  bool modeled_ = false;
  std::atomic<uint32_t> state_{kQueued};
  std::atomic<bool> cancelled_{false};
  size_t copied_bytes_ = 0;
  Ticks start_ticks_ = 0;
  Ticks end_ticks_ = 0;
  bool made_at_once_ = false;
  std::string failure_;
};

class CopyEngine {
 public:
  CopyEngine() = default;
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  std::shared_ptr<CopyEvent> submit(void* to, const void* from, size_t bytes, EventPtr after, bool urgent = false);
  void set_bandwidth(double bytes_per_s);
  void drain();
  void abandon_thread();  // in a forked child: the thread does not exist; copy in the caller from here on

 private:
  struct Job {
    void* to;
    const void* from;
    size_t bytes;
    double issue_s;  // on the monotonic clock
    std::shared_ptr<CopyEvent> after;
    std::shared_ptr<CopyEvent> event;
    bool urgent;
  };

  bool small(const Job& job);
  void start();
  void run();
  void retire(const Job& failed);
  void copy(const Job& job);
  void copy_in_model(const Job& job);

  struct Modeled {
    std::shared_ptr<CopyEvent> event;
    Ticks from;  // it cannot begin earlier
    Ticks takes;
    bool urgent;
  };
  std::deque<Modeled> modeled_;  // in order; the first may have begun

  std::atomic<double> bytes_per_s_{0};
  double link_free_s_ = 0;  // when the link has carried everything so far; of whoever copies
  bool has_thread_ = true;
  std::atomic<int> larger_left_{0};  // so many larger copies are small

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  std::condition_variable idle_;
  bool copying_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace chameleon::cpu
