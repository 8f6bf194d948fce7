// A disk as the place for storages that are away. Devices that can move their blocks there make one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "swap_target.h"

namespace chameleon {

struct DiskOptions {
  std::string folder;                // that the file lies in; empty: no disk
  size_t capacity_bytes = SIZE_MAX;  // the most that the file may take
  bool verify = false;               // keep a checksum of every piece, and compare it when it comes back
};

// Since the session began.
// clang-format off
#define CHAMELEON_DISK_COUNTERS(X) \
  X(written_bytes) X(read_bytes) X(failed_writes) X(failed_reads) X(short_moves) X(bad_checksums)
// clang-format on
struct DiskCounters {
#define CHAMELEON_COUNTER(name) int64_t name = 0;
  CHAMELEON_DISK_COUNTERS(CHAMELEON_COUNTER)
#undef CHAMELEON_COUNTER
  int64_t file_bytes = 0;
  bool direct = false;  // past the page cache
  std::string refusal;  // why nothing more is written; empty: it is
};

class DiskTarget : public SwapTarget {
 public:
  virtual DiskCounters counters() const = 0;
  virtual void set_link(double out_bytes_per_s, double in_bytes_per_s) = 0;  // no faster than that; 0: as it goes
  virtual void drain() = 0;
  // See Note [Forks] in disk_file.h; before the fork nothing is being copied.
  virtual void before_fork() = 0;
  virtual void after_fork_in_parent() = 0;
  virtual void after_fork_in_child() = 0;
};

}  // namespace chameleon
