#include "device/cpu/disk_target.h"

#include <c10/util/Exception.h>

#include "clock.h"
#include "device/cpu/buffer_cache.h"

namespace chameleon::cpu {

namespace {

// A place in the file as a pointer, never null.
void* pointer_to(size_t offset) { return reinterpret_cast<void*>(offset + DiskFile::kPageBytes); }
size_t offset_of(const void* data) { return reinterpret_cast<uintptr_t>(data) - DiskFile::kPageBytes; }

}  // namespace

// Random places are as fast as neighbors from a piece on, so a plan's are not heeded.
void* CpuDiskTarget::allocate(size_t bytes, int64_t, bool, bool) {
  if (!allows(bytes, 0)) return nullptr;
  const size_t offset = file_.allocate(buffer_bytes(bytes));
  if (offset == DiskFile::kNowhere) return nullptr;
  used_bytes_ += buffer_bytes(bytes);
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return pointer_to(offset);
}

void CpuDiskTarget::free(void* data, size_t bytes) {
  used_bytes_ -= buffer_bytes(bytes);
  file_.free(offset_of(data), buffer_bytes(bytes));
}

// The calling thread is the compute stream: there is nothing to come after.
EventPtr CpuDiskTarget::copy_out(void* to, const void* block, size_t bytes, EventPtr) {
  return out_.submit(offset_of(to), const_cast<void*>(block), bytes);
}

EventPtr CpuDiskTarget::copy_in(void* block, const void* from, size_t bytes, EventPtr, bool urgent) {
  return in_.submit(offset_of(from), block, bytes, urgent);
}

// `to` is page-aligned and has whole pages. In pieces as they were written: each has a checksum.
bool CpuDiskTarget::read_now(void* to, const void* from, size_t bytes) {
  bytes = buffer_bytes(bytes);
  for (size_t done = 0; done < bytes; done += DiskFile::kPieceBytes) {
    const size_t piece_bytes = std::min(DiskFile::kPieceBytes, bytes - done);
    if (!file_.read(offset_of(from) + done, static_cast<char*>(to) + done, piece_bytes).empty()) return false;
  }
  return true;
}

// A disk needs more bytes than memory to show what it does; a slow one is not kept at it for long. The first write to a
// new place is slower than later ones, which are what a run of many steps makes.
std::pair<double, double> CpuDiskTarget::measure_bandwidth() {
  constexpr size_t kFewBytes = 4 << 20, kManyBytes = 32 << 20;
  constexpr double kSlow_bytes_per_s = 100e6;
  constexpr int kCopies = 3;
  const size_t peak_bytes = peak_bytes_;
  const Clock clock;
  const auto measured = [&](size_t bytes) -> std::pair<double, double> {
    void* there = allocate(bytes, -1, false, false);
    if (!there) return {0, 0};
    void* here = BufferCache::map(bytes);
    std::string failure = here ? "" : "no memory is left";
    const auto best = [&](auto copy) {
      Ticks best_ticks = INT64_MAX;
      for (int i = 0; i < kCopies && failure.empty(); ++i) {
        const EventPtr event = copy();
        static_cast<const CopyEvent&>(*event).wait();
        if (event->failure()) failure = *event->failure();
        best_ticks = std::min(best_ticks, event->end_ticks() - event->start_ticks());
      }
      return static_cast<double>(bytes) / clock.duration(std::max<Ticks>(best_ticks, 1));
    };
    const double out = best([&] { return copy_out(there, here, bytes, nullptr); });
    const double in = best([&] { return copy_in(here, there, bytes, nullptr, false); });
    if (here) BufferCache::unmap(here, bytes);
    free(there, bytes);
    peak_bytes_ = peak_bytes;  // no storage's
    TORCH_CHECK(failure.empty(), "Chameleon Lab: the disk could not be measured: ", failure);
    return {out, in};
  };
  const auto few = measured(std::min(kFewBytes, capacity_bytes_ / DiskFile::kPageBytes * DiskFile::kPageBytes));
  TORCH_CHECK(few.first > 0, "Chameleon Lab: the disk has no room to measure its bandwidth: ", refusal());
  if (std::min(few.first, few.second) < kSlow_bytes_per_s) return few;
  const auto many = measured(kManyBytes);
  return many.first > 0 ? many : few;
}

void CpuDiskTarget::set_link(double out_bytes_per_s, double in_bytes_per_s) {
  out_.set_bandwidth(out_bytes_per_s);
  in_.set_bandwidth(in_bytes_per_s);
}

void CpuDiskTarget::drain() {
  out_.drain();
  in_.drain();
}

void CpuDiskTarget::before_fork() {
  drain();
  file_.before_fork();
}

void CpuDiskTarget::after_fork_in_child() {
  out_.abandon_threads();
  in_.abandon_threads();
  file_.after_fork_in_child();
}

}  // namespace chameleon::cpu
