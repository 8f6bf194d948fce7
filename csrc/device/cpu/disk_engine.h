// One direction of the disk: copies in order of issue, urgent ones first, one at a time, in pieces that several threads
// carry at once.
//
// Note [One copy at a time]
// A disk is fast with several moves in flight, so the pieces of a copy are. Several copies at once would be as fast,
// but each would count the others' time as its own: the bandwidth under load and the overlap would both be wrong, and
// copies would end in another order than planned.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/cpu/copy_engine.h"
#include "device/event.h"
#include "disk_file.h"

namespace chameleon::cpu {

class DiskEngine {
 public:
  DiskEngine(DiskFile& file, Direction direction) : file_(file), direction_(direction) {}
  ~DiskEngine();
  DiskEngine(const DiskEngine&) = delete;
  DiskEngine& operator=(const DiskEngine&) = delete;

  // Between a place in the file and a block of so many bytes. Large blocks are page-aligned and have whole pages, and
  // are moved as they are; others go through a buffer of the thread's.
  std::shared_ptr<CopyEvent> submit(size_t offset, void* block, size_t bytes, bool urgent = false);
  void set_bandwidth(double bytes_per_s);  // no faster than that; 0: as fast as it goes
  void drain();
  void abandon_threads();  // in a forked child: they do not exist; copy in the caller from here on

 private:
  static constexpr size_t kThreads = 2;

  struct Job {
    size_t offset;
    char* block;
    size_t bytes;
    bool urgent;
    std::shared_ptr<CopyEvent> event;
    size_t begun_bytes = 0;  // of the pieces that somebody has taken
    int moving = 0;          // pieces
    std::string failure;
  };

  class Buffer;
  void start();
  void run();
  bool begin_next();
  void move_piece(std::unique_lock<std::mutex>& lock, Buffer& buffer);
  std::string move(const Job& job, size_t at, size_t bytes, Buffer& buffer);
  void pace(std::unique_lock<std::mutex>& lock, size_t bytes, const CopyEvent& event);
  bool has_piece() const;
  void end();
  void copy_here(Job job);

  DiskFile& file_;
  const Direction direction_;
  double bytes_per_s_ = 0;
  double link_free_s_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<Job> queue_;
  std::optional<Job> current_;
  bool has_threads_ = true;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace chameleon::cpu
