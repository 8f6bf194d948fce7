// Two host threads that take turns, drawn from a seed: a program of theirs runs the same way each time.
#pragma once

#include <sys/types.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>

namespace chameleon {

// The turn changes where a thread calls pass(): between its acts, and inside of its ops. What the threads share is
// theirs in their turn alone, and calls into the core and torch are made in call(): there a thread may have to wait for
// the other one's op, which waits for its turn. The turn is taken from such a sleeper, and call() returns when it has
// it again. Only there the two may run at the same time.
class Turns {
 public:
  explicit Turns(uint64_t seed) : random_(seed) {}

  class Thread {  // the calling one takes part while it lives
   public:
    Thread(Turns& turns, int number);
    ~Thread();
    Thread(const Thread&) = delete;
    Thread& operator=(const Thread&) = delete;
  };

  static void pass();  // nothing outside of such a thread
  static bool many() { return mine != nullptr; }
  static bool other_is_inside();  // is the other thread in a call?
  static size_t me() { return static_cast<size_t>(number); }

  template <class F>
  static auto call(F&& f) {
    const Call inside;
    return f();
  }

  int changes() const { return changes_; }
  int taken() const { return taken_; }

 private:
  struct Call {
    Call();
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
  };
  using Lock = std::unique_lock<std::mutex>;

  void wait(Lock& lock, int thread);
  bool sleeps(int thread) const;  // in a call

  static thread_local Turns* mine;
  static thread_local int number;

  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = 0;
  std::array<pid_t, 2> ids_{};
  std::array<int, 2> calls_{};  // that each is in
  std::array<bool, 2> ended_{};
  int changes_ = 0, taken_ = 0;
};

}  // namespace chameleon
