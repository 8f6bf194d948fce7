#include "turns.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>

namespace chameleon {

thread_local Turns* Turns::mine = nullptr;
thread_local int Turns::number = 0;

Turns::Thread::Thread(Turns& turns, int thread) {
  mine = &turns;
  number = thread;
  Lock lock(turns.mutex_);
  turns.ids_[thread] = gettid();
  turns.wait(lock, thread);
}

Turns::Thread::~Thread() {
  Turns& turns = *mine;
  const Lock lock(turns.mutex_);
  turns.ended_[number] = true;
  turns.turn_ = 1 - number;
  turns.changed_.notify_all();
  mine = nullptr;
  number = 0;
}

void Turns::pass() {
  if (!mine) return;
  Turns& turns = *mine;
  Lock lock(turns.mutex_);
  // Whoever has lost its turn waits for it here, too.
  if (turns.turn_ == number && !turns.ended_[1 - number] && turns.random_() % 2 == 0) {
    turns.turn_ = 1 - number;
    ++turns.changes_;
    turns.changed_.notify_all();
  }
  turns.wait(lock, number);
}

bool Turns::other_is_inside() {
  if (!mine) return false;
  const Lock lock(mine->mutex_);
  return mine->calls_[1 - number] > 0;
}

Turns::Call::Call() {
  if (!mine) return;
  const Lock lock(mine->mutex_);
  ++mine->calls_[number];
}

Turns::Call::~Call() {
  if (!mine) return;
  Lock lock(mine->mutex_);
  --mine->calls_[number];
  mine->wait(lock, number);
}

void Turns::wait(Lock& lock, int thread) {
  constexpr std::chrono::milliseconds kLook(1);
  bool slept = false;
  while (turn_ != thread) {
    if (changed_.wait_for(lock, kLook) == std::cv_status::no_timeout || turn_ == thread) {
      slept = false;
      continue;
    }
    const bool sleeps_now = sleeps(turn_);
    if (sleeps_now && slept) {
      turn_ = thread;
      ++taken_;
    }
    slept = sleeps_now;
  }
}

bool Turns::sleeps(int thread) const {
  if (calls_[thread] == 0) return false;
  std::ifstream file("/proc/self/task/" + std::to_string(ids_[thread]) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_ends = line.rfind(')');
  return name_ends != std::string::npos && line.compare(name_ends, 3, ") S") == 0;
}

}  // namespace chameleon
