#include "device/cuda/pinning.h"

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <thread>
#include <vector>

namespace chameleon::cuda {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = 2 << 20;
constexpr size_t kSpaceBytes = size_t{1} << 40;
constexpr size_t kBytesPerThread = 32 << 20;
constexpr unsigned kMostThreads = 8;

// Of linux/mempolicy.h, by system call: libnuma is not everywhere.
constexpr int kPreferred = 1;
constexpr size_t kMaskBits = 1024;
using NodeMask = std::array<unsigned long, kMaskBits / (8 * sizeof(unsigned long))>;

NodeMask only(int node) {
  NodeMask mask{};
  const auto bit = static_cast<size_t>(node);
  mask[bit / (8 * sizeof(unsigned long))] |= 1UL << bit % (8 * sizeof(unsigned long));
  return mask;
}

bool known(int node) { return node >= 0 && static_cast<size_t>(node) < kMaskBits; }

// Where the pages of a range will lie. A wish: a system that can't fulfill it, or may not, is left alone.
void prefer(char* begin, size_t bytes, int node) {
  if (!known(node)) return;
  const NodeMask mask = only(node);
  (void)syscall(SYS_mbind, begin, bytes, kPreferred, mask.data(), kMaskBits, 0);
}

// The same of all pages that the calling thread touches first, while this lives.
class Preferring {
 public:
  explicit Preferring(int node) {
    if (!known(node) || syscall(SYS_get_mempolicy, &mode_, before_.data(), kMaskBits, nullptr, 0) != 0) return;
    const NodeMask mask = only(node);
    set_ = syscall(SYS_set_mempolicy, kPreferred, mask.data(), kMaskBits) == 0;
  }
  ~Preferring() {
    if (set_) (void)syscall(SYS_set_mempolicy, mode_, before_.data(), kMaskBits);
  }
  Preferring(const Preferring&) = delete;
  Preferring& operator=(const Preferring&) = delete;

 private:
  int mode_ = 0;
  NodeMask before_{};
  bool set_ = false;
};

void touch(char* begin, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kPageBytes) static_cast<volatile char*>(begin)[at] = 0;
}

// The kernel clears a page when it is first touched: that takes longer than all else, and goes on in parallel.
void touch_in_parallel(char* begin, size_t bytes) {
  const size_t cores = std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads);
  const size_t share = std::max((bytes + cores - 1) / cores, kBytesPerThread) / kPageBytes * kPageBytes;
  std::vector<std::thread> threads;
  threads.reserve(cores);
  size_t at = share;
  try {
    for (; at < bytes; at += share) threads.emplace_back(touch, begin + at, std::min(share, bytes - at));
  } catch (const std::exception&) {  // the system has no thread left, or no memory for one
    touch(begin + at, bytes - at);
  }
  touch(begin, std::min(share, bytes));
  for (std::thread& thread : threads) thread.join();
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Way way_of(const std::string& name) {
  if (name == "register") return Way::Register;
  TORCH_CHECK(name == "alloc", "Chameleon Lab: \"", name, "\" is no way to pin memory (CHAMELEON_LAB_PINNING): give ",
              "\"register\" or \"alloc\"");
  return Way::Alloc;
}

Way default_way() {
  const char* const name = std::getenv("CHAMELEON_LAB_PINNING");
  return way_of(name && *name ? name : "register");
}

std::string pci_devices_folder = "/sys/bus/pci/devices";

int numa_node_of_gpu() {
  int device = 0;
  char bus[32] = {};
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  std::string name(bus);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  int node = -1;
  std::ifstream(pci_devices_folder + "/" + name + "/numa_node") >> node;
  return node;
}

// What is still pinned stays: somebody may read it to the end of the process.
Pinning::~Pinning() {
  if (space_ && taken_.empty()) (void)munmap(space_, space_bytes_);
}

void Pinning::spend(double touch_s, double pin_s) {
  std::lock_guard<std::mutex> lock(mutex_);
  spent_.touch_s += touch_s;
  spent_.pin_s += pin_s;
}

PinTimes Pinning::spent() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return spent_;
}

Slab Pinning::pin(size_t bytes, Way way) {
  const int node = numa_node_of_gpu();
  if (way == Way::Register) {
    const size_t piece_bytes = std::min(bytes, kMostPieceBytes);
    if (char* data = reserve(piece_bytes)) {
      (void)madvise(data, piece_bytes, MADV_HUGEPAGE);
      // As CUDA's own: no fork shares them, so that no page is copied on write while the GPU knows the old one.
      (void)madvise(data, piece_bytes, MADV_DONTFORK);
      prefer(data, piece_bytes, node);
      const double began_s = now_s();
      touch_in_parallel(data, piece_bytes);
      const double touched_s = now_s();
      const bool pinned = cudaHostRegister(data, piece_bytes, cudaHostRegisterDefault) == cudaSuccess;
      spend(touched_s - began_s, now_s() - touched_s);
      if (pinned) return {data, piece_bytes, Way::Register};
      (void)cudaGetLastError();
      give_back(data, piece_bytes);
    }
  }
  const Preferring preferring(node);
  const double began_s = now_s();
  void* data = nullptr;
  if (cudaHostAlloc(&data, bytes, cudaHostAllocDefault) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  spend(0, now_s() - began_s);
  return {static_cast<char*>(data), bytes, Way::Alloc};
}

void Pinning::unpin(const Slab& slab) {
  if (slab.way == Way::Pageable) {
    (void)munmap(slab.data, slab.bytes);
    return;
  }
  const bool of_cuda = slab.way == Way::Alloc;
  if ((of_cuda ? cudaFreeHost(slab.data) : cudaHostUnregister(slab.data)) != cudaSuccess) {
    (void)cudaGetLastError();  // it stays where it is: the GPU may still reach it
  } else if (!of_cuda) {
    give_back(slab.data, slab.bytes);
  }
}

// Behind the last one, so that slabs that come one after another are in one piece; else the first gap that is large
// enough. Address space costs nothing until it is touched.
char* Pinning::reserve(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t wanted = kSpaceBytes; !space_ && wanted >= bytes; wanted /= 4) {
    void* space = mmap(nullptr, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) continue;
    space_ = static_cast<char*>(space);
    space_bytes_ = wanted;
    first_ = space_ + (kHugePageBytes - reinterpret_cast<uintptr_t>(space_) % kHugePageBytes) % kHugePageBytes;
  }
  if (!space_) return nullptr;
  const auto fits = [&](const char* begin) { return bytes <= static_cast<size_t>(space_ + space_bytes_ - begin); };
  char* at = taken_.empty() ? first_ : taken_.rbegin()->first + taken_.rbegin()->second;
  if (!fits(at)) {
    at = first_;
    for (const auto& [begin, size] : taken_) {
      if (static_cast<size_t>(begin - at) >= bytes) break;
      at = begin + size;
    }
    if (!fits(at)) return nullptr;
  }
  if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
  taken_.emplace(at, bytes);
  return at;
}

// A new mapping over the old one: its pages go. With the last slab the addresses do.
void Pinning::give_back(char* begin, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  taken_.erase(begin);
  if (taken_.empty()) {
    (void)munmap(space_, space_bytes_);
    space_ = nullptr;
    return;
  }
  (void)mmap(begin, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace chameleon::cuda
