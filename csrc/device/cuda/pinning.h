// Two ways to get host memory that the GPU's copy engines reach by themselves.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace chameleon::cuda {

enum class Way : unsigned char {
  Register,  // pages of our own, touched by several threads, then registered with the driver
  Alloc,     // cudaHostAlloc, which touches them in one thread, and holds the driver meanwhile
  Pageable,  // not pinned: the system gives no more of that
};
Way way_of(const std::string& name);  // "register" or "alloc"; raises an error for anything else
Way default_way();                    // CHAMELEON_LAB_PINNING, or register

struct Slab {
  char* data = nullptr;  // null: the system has none left
  size_t bytes = 0;
  Way way = Way::Register;
};

struct PinTimes {
  double touch_s = 0;  // of the pages, where that is a step of its own
  double pin_s = 0;

  double both_s() const { return touch_s + pin_s; }
};

// Pinned memory near a GPU: on the NUMA node that it is plugged into, where the system says which that is. Any thread
// may call; the GPU that the memory is for is the calling thread's.
//
// What is registered lies in one range of address space, each slab behind the one before, so that a buffer may reach
// over the end of a slab. A copy may not: CUDA takes only what lies in one registration.
class Pinning {
 public:
  Pinning() = default;
  ~Pinning();
  Pinning(const Pinning&) = delete;
  Pinning& operator=(const Pinning&) = delete;

  // A slab of at most so many bytes: pieces of kMostPieceBytes at a time are registered, since each holds the driver.
  // What can't be registered is allocated.
  Slab pin(size_t bytes, Way way);
  // The GPU must be done with it. What CUDA does not let go of stays to the end of the process, and counts no more.
  void unpin(const Slab& slab);
  PinTimes spent() const;  // on all slabs so far, by all threads

  static constexpr size_t kMostPieceBytes = size_t{256} << 20;

 private:
  void spend(double touch_s, double pin_s);
  char* reserve(size_t bytes);
  void give_back(char* begin, size_t bytes);

  mutable std::mutex mutex_;
  PinTimes spent_;
  char* space_ = nullptr;  // of addresses
  char* first_ = nullptr;  // in it, at a huge page
  size_t space_bytes_ = 0;
  std::map<char*, size_t> taken_;
};

extern std::string pci_devices_folder;  // where the system says what it knows of them

int numa_node_of_gpu();  // of the calling thread's GPU; -1 where nobody says

}  // namespace chameleon::cuda
