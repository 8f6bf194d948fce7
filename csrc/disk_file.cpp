#include "disk_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "crc32c.h"
#include "faults.h"

namespace chameleon {

namespace {

constexpr size_t kGrowBytes = 64 << 20;  // the file grows by this much at once
constexpr int kMostIdleMoves = 64;       // that carry nothing and are tried again
constexpr unsigned kRamfsMagic = 0x858458f6;

std::string words(int error) { return std::generic_category().message(error); }

// Pages from the system, whatever malloc would give.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() {
    if (*this) munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  explicit operator bool() const { return data_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  const size_t bytes_;
  void* const data_;
};

// A file of the folder that no other process can open: without a name from the beginning, where the file system has
// that, or with one for an instant.
int open_unnamed(const std::string& folder, int* error) {
  int file = open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name = folder + "/.chameleon-XXXXXX";
    file = mkostemp(name.data(), O_CLOEXEC);  // mode 0600
    if (file >= 0) unlink(name.c_str());
  }
  *error = errno;
  return file;
}

}  // namespace

DiskFile::DiskFile(const DiskOptions& options)
    : folder_(options.folder), verify_(options.verify), capacity_bytes_(options.capacity_bytes) {
  int error = 0;
  file_ = open_unnamed(folder_, &error);
  TORCH_CHECK(file_ >= 0, "Chameleon Lab: disk=\"", folder_, "\" cannot be used: ", words(error),
              ". Name a folder on a disk that this process may write to");
  struct statfs system{};
  if (fstatfs(file_, &system) == 0) {
    const auto type = static_cast<unsigned>(system.f_type);
    if (type == TMPFS_MAGIC || type == kRamfsMagic || type == HUGETLBFS_MAGIC) {
      close(file_);
      TORCH_CHECK(false, "Chameleon Lab: disk=\"", folder_,
                  "\" lies in memory (a tmpfs or ramfs), so that what is sent there saves none. Name a folder on a "
                  "disk");
    }
  }
  direct_ = !faults().disk_refuses_direct.load() && fcntl(file_, F_SETFL, O_DIRECT) == 0;
  try {
    probe();
  } catch (...) {
    close(file_);
    throw;
  }
}

DiskFile::~DiskFile() {
  close(file_);
  for (const Child& child : children_) {
    if (child.pipe >= 0) close(child.pipe);
  }
}

// Some file systems take the flag and refuse the moves. What cannot hold one page is told here, and not in a step.
void DiskFile::probe() {
  const Pages page(kPageBytes);
  TORCH_CHECK(page, "Chameleon Lab: no memory left to try the disk");
  const size_t at = allocate(kPageBytes);
  TORCH_CHECK(at != kNowhere, "Chameleon Lab: disk=\"", folder_, "\" cannot be used: ", refusal());
  const auto fails = [&] {
    const ssize_t bytes = pwrite(file_, page.data(), kPageBytes, static_cast<off_t>(at));
    if (bytes != kPageBytes) return bytes < 0 ? errno : EIO;
    return pread(file_, page.data(), kPageBytes, static_cast<off_t>(at)) == kPageBytes ? 0 : EIO;
  };
  int error = fails();
  if (error && direct_) {
    direct_ = false;
    fcntl(file_, F_SETFL, 0);
    error = fails();
  }
  TORCH_CHECK(!error, "Chameleon Lab: disk=\"", folder_, "\" cannot be used: ", words(error));
  free(at, kPageBytes);
}

// ---------------------------------------------------------------------------------------------------- places

size_t DiskFile::allocate(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (forked_ || failed_writes_ >= kMostFailedWrites) return kNowhere;
  size_t at = take_free(bytes);
  if (at == kNowhere && thaw()) at = take_free(bytes);
  if (at == kNowhere) {
    // What is free at the end of the file is part of what it grows by.
    const auto& by_offset = free_.by_address();
    const auto last = by_offset.empty() ? by_offset.end() : std::prev(by_offset.end());
    const size_t tail_bytes = last != by_offset.end() && last->first + last->second == file_bytes_ ? last->second : 0;
    const size_t capacity_bytes = capacity_bytes_ / kPageBytes * kPageBytes;
    const size_t left_bytes = capacity_bytes > file_bytes_ ? capacity_bytes - file_bytes_ : 0;
    const size_t least_bytes = bytes - tail_bytes;
    if (left_bytes < least_bytes) {
      refusal_ = "it has no room left of its size";
      return kNowhere;
    }
    size_t grow_bytes = std::min(std::max(least_bytes, kGrowBytes), left_bytes);
    refusal_ = reserve(grow_bytes);
    if (!refusal_.empty() && grow_bytes > least_bytes) refusal_ = reserve(grow_bytes = least_bytes);
    if (!refusal_.empty()) return kNowhere;
    free_.add(std::exchange(file_bytes_, file_bytes_ + grow_bytes), grow_bytes);
    at = take_free(bytes);
    if (at == kNowhere) {
      refusal_ = words(ENOMEM);
      return kNowhere;
    }
  }
  refusal_.clear();
  born_[at] = forks_;
  return at;
}

// The smallest that is large enough.
size_t DiskFile::take_free(size_t bytes) {
  const auto found = free_.by_size().lower_bound({bytes, 0});
  if (found == free_.by_size().end()) return kNowhere;
  const size_t at = found->second;
  free_.take(free_.by_address().find(at), at, bytes);
  return at;
}

void DiskFile::free(size_t offset, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (forked_) return;
  const auto born = born_.find(offset);
  const int64_t forks_before = born->second;
  born_.erase(born);
  for (size_t piece = offset; verify_ && piece < offset + bytes; piece += kPieceBytes) checksums_.erase(piece);
  if (forks_before < forks_ && !children_.empty()) {
    try {
      frozen_.push_back({offset, bytes, forks_before + 1, forks_});
    } catch (const std::bad_alloc&) {  // a child may read it for good
    }
  } else {
    free_.add(offset, bytes);
  }
}

// Places that no child can read any more are free again. False: there are none.
bool DiskFile::thaw() {
  if (frozen_.empty()) return false;
  std::erase_if(children_, [](const Child& child) {
    pollfd end{child.pipe, POLLIN, 0};
    const bool ended = child.pipe >= 0 && poll(&end, 1, 0) > 0;
    if (ended) close(child.pipe);
    return ended;
  });
  const auto needed = [this](const Frozen& place) {
    return std::any_of(children_.begin(), children_.end(), [&](const Child& child) {
      return child.fork >= place.first_fork && child.fork <= place.last_fork;
    });
  };
  const size_t before = frozen_.size();
  std::erase_if(frozen_, [&](const Frozen& place) {
    if (needed(place)) return false;
    free_.add(place.offset, place.bytes);
    return true;
  });
  return frozen_.size() < before;
}

// So many bytes more at the end of the file, which later writes are sure of.
std::string DiskFile::reserve(size_t bytes) {
  if (faults().disk_full.hits()) return words(ENOSPC);
  int error;
  do {
    error = fallocate(file_, 0, static_cast<off_t>(file_bytes_), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP || error == ENOSYS) return write_zeros(bytes);
  return error ? words(error) : "";
}

std::string DiskFile::write_zeros(size_t bytes) {
  const Pages zeros(kPieceBytes);
  if (!zeros) return words(ENOMEM);
  for (size_t done = 0; done < bytes;) {
    const size_t piece_bytes = std::min(kPieceBytes, bytes - done);
    const ssize_t moved = pwrite(file_, zeros.data(), piece_bytes, static_cast<off_t>(file_bytes_ + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return words(moved < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(moved) / kPageBytes * kPageBytes;
    if (static_cast<size_t>(moved) < kPageBytes) return words(ENOSPC);
  }
  return flush(file_bytes_, bytes);
}

// ---------------------------------------------------------------------------------------------------- moves

namespace {

// Moves all of it, as many times as the system stops short of that; a direct move goes on at a page. Returns an errno.
template <class Move>
int move_all(size_t bytes, std::atomic<int64_t>& short_moves, Move move) {
  int idle = 0;
  for (size_t done = 0; done < bytes;) {
    size_t wanted_bytes = bytes - done;
    if (wanted_bytes > DiskFile::kPageBytes && faults().disk_short_moves.hits()) wanted_bytes = DiskFile::kPageBytes;
    const ssize_t moved = move(done, wanted_bytes);
    if (moved < 0 && errno != EINTR && errno != EAGAIN) return errno;
    if (moved == 0) return ENODATA;
    const size_t moved_bytes = std::max<ssize_t>(moved, 0);
    if (moved_bytes < bytes - done) ++short_moves;
    const size_t before = done;
    done = done + moved_bytes == bytes ? bytes : (done + moved_bytes) / DiskFile::kPageBytes * DiskFile::kPageBytes;
    if (done > before) {
      idle = 0;
    } else if (++idle == kMostIdleMoves) {
      return moved < 0 ? errno : EIO;
    }
  }
  return 0;
}

}  // namespace

std::string DiskFile::write(size_t offset, const char* from, size_t bytes) {
  if (verify_) {
    const uint32_t checksum = crc32c(from, bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      checksums_[offset] = checksum;
    } catch (const std::bad_alloc&) {
      return words(ENOMEM);
    }
  }
  if (faults().disk_writes.hits()) return words(EIO);
  const int error = move_all(bytes, short_moves_, [&](size_t done, size_t wanted_bytes) {
    return pwrite(file_, from + done, wanted_bytes, static_cast<off_t>(offset + done));
  });
  if (error) return words(error);
  written_bytes_ += static_cast<int64_t>(bytes);
  if (faults().disk_flips.hits()) flip_a_bit(offset);
  return direct_ ? "" : flush(offset, bytes);
}

std::string DiskFile::read(size_t offset, char* to, size_t bytes) {
  if (faults().disk_reads.hits()) return words(EIO);
  const int error = move_all(bytes, short_moves_, [&](size_t done, size_t wanted_bytes) {
    return pread(file_, to + done, wanted_bytes, static_cast<off_t>(offset + done));
  });
  if (error == ENODATA) return "the file has been cut short";
  if (error) return words(error);
  read_bytes_ += static_cast<int64_t>(bytes);
  if (!direct_) posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  if (!verify_) return "";
  const uint32_t checksum = crc32c(to, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = checksums_.find(offset);
  if (known != checksums_.end() && known->second == checksum) return "";
  ++bad_checksums_;
  return "the disk gave back other bytes than were written to it (the checksum differs)";
}

// Memory that a cgroup counts would be the page cache's otherwise; and a write that fails behind our back is told.
std::string DiskFile::flush(size_t offset, size_t bytes) {
  constexpr unsigned kAll = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (faults().disk_flushes.hits()) return words(EIO);
  if (sync_file_range(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes), kAll) != 0) return words(errno);
  posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  return "";
}

// As a bad disk does, on purpose.
void DiskFile::flip_a_bit(size_t offset) {
  const Pages page(kPageBytes);
  if (!page || pread(file_, page.data(), kPageBytes, static_cast<off_t>(offset)) != kPageBytes) return;
  page.data()[kPageBytes / 2] ^= 1;
  [[maybe_unused]] const ssize_t moved = pwrite(file_, page.data(), kPageBytes, static_cast<off_t>(offset));
}

// ---------------------------------------------------------------------------------------------------- state

void DiskFile::write_failed(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++failed_writes_;
  last_error_ = why;
}

std::string DiskFile::refusal() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed_writes_ >= kMostFailedWrites) {
    return std::to_string(failed_writes_) + " writes to it have failed, the last one with: " + last_error_;
  }
  return refusal_;
}

DiskCounters DiskFile::counters() const {
  DiskCounters counters;
#define CHAMELEON_COUNTER(name) counters.name = name##_;
  CHAMELEON_DISK_COUNTERS(CHAMELEON_COUNTER)
#undef CHAMELEON_COUNTER
  counters.refusal = refusal();
  counters.direct = direct_;
  const std::lock_guard<std::mutex> lock(mutex_);
  counters.file_bytes = static_cast<int64_t>(file_bytes_);
  return counters;
}

void DiskFile::before_fork() {
  if (forked_ || pipe2(fork_pipe_, O_CLOEXEC) != 0) fork_pipe_[0] = fork_pipe_[1] = -1;
  mutex_.lock();
}

void DiskFile::after_fork_in_parent() {
  if (fork_pipe_[1] >= 0) close(fork_pipe_[1]);
  if (!forked_) children_.push_back({++forks_, fork_pipe_[0]});
  mutex_.unlock();
}

// The end that it keeps is the sign that it lives.
void DiskFile::after_fork_in_child() {
  if (fork_pipe_[0] >= 0) close(fork_pipe_[0]);
  for (const Child& child : children_) {
    if (child.pipe >= 0) close(child.pipe);
  }
  children_.clear();
  forked_ = true;
  mutex_.unlock();
}

}  // namespace chameleon
