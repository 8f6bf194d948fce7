// The file that takes the bytes of storages that are away: the places in it, and moves of pieces to and from them.
//
// Note [Forks]
// A child shares the parent's file, and brings back what was away when it was forked. So it never writes there, and the
// parent leaves alone what the child may still read: a place that was in use at a fork and is freed later is not used
// again before the child has ended. A pipe tells: its other end closes with the last process that has it, or when that
// runs another program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "disk_target.h"
#include "free_ranges.h"

namespace chameleon {

class DiskFile {
 public:
  static constexpr size_t kPageBytes = 4096;  // what places, memory and lengths of direct moves are multiples of
  static constexpr size_t kPieceBytes = 2 << 20;
  static constexpr size_t kNowhere = SIZE_MAX;

  // Throws where the folder cannot take such a file.
  explicit DiskFile(const DiskOptions& options);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  static size_t place_bytes(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

  // Of so many place_bytes(), which the disk has set aside; kNowhere where it has no room, or the limit does not allow
  // it.
  size_t allocate(size_t bytes);
  void free(size_t offset, size_t bytes);
  void set_capacity(size_t bytes) { capacity_bytes_ = bytes; }

  // A piece of a place, from the calling thread: at most kPieceBytes, beginning at a multiple of that in the place, and
  // whole pages to or from page-aligned memory. Return what went wrong; empty: nothing.
  std::string write(size_t offset, const char* from, size_t bytes);
  std::string read(size_t offset, char* to, size_t bytes);

  DiskCounters counters() const;
  std::string refusal() const;
  void write_failed(const std::string& why);  // a copy of a storage; of three of them the disk is not used any more
  void read_failed() { ++failed_reads_; }

  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct Frozen {  // a freed place that children may read
    size_t offset, bytes;
    int64_t first_fork, last_fork;
  };
  struct Child {
    int64_t fork;
    int pipe;  // below 0: nobody can tell when it ends
  };

  void probe();
  std::string reserve(size_t bytes);
  std::string write_zeros(size_t bytes);
  size_t take_free(size_t bytes);
  bool thaw();
  std::string flush(size_t offset, size_t bytes);
  void flip_a_bit(size_t offset);

  const std::string folder_;
  const bool verify_;
  bool direct_ = false;
  bool forked_ = false;  // this process is a child: it reads alone
  int file_ = -1;
  std::atomic<size_t> capacity_bytes_;

  mutable std::mutex mutex_;
  size_t file_bytes_ = 0;
  FreeRanges<size_t> free_;                         // by offset
  std::unordered_map<size_t, int64_t> born_;        // of places in use: how many forks there were before
  std::unordered_map<size_t, uint32_t> checksums_;  // of pieces, by offset
  std::vector<Frozen> frozen_;
  std::vector<Child> children_;
  int64_t forks_ = 0;
  int fork_pipe_[2] = {-1, -1};
  std::string refusal_;
  std::string last_error_;

  static constexpr int64_t kMostFailedWrites = 3;
  std::atomic<int64_t> written_bytes_{0}, read_bytes_{0}, failed_writes_{0}, failed_reads_{0}, short_moves_{0},
      bad_checksums_{0};
};

}  // namespace chameleon
