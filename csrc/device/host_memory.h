// A device's role: host memory that its copies can reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace chameleon {

class HostMemory {
 public:
  virtual ~HostMemory() = default;

  virtual size_t buffer_bytes(size_t bytes) const = 0;  // what a buffer for so many bytes takes
  // Of so many buffer_bytes(); nullptr where the system has none left. Of what is free and kept for reuse, at most
  // `most_kept_bytes` are kept then.
  virtual void* allocate_host(size_t bytes, size_t most_kept_bytes = SIZE_MAX) = 0;
  virtual void free_host(void* data, size_t bytes) = 0;
  virtual void release_kept_host() {}                       // what is free, and would not outlive the session
  virtual size_t reserved_host_bytes() const = 0;           // had from the system
  virtual size_t pooled_host_bytes() const { return 0; }    // of those: reserved ahead, and kept for later sessions
  virtual size_t pageable_host_bytes() const { return 0; }  // of those: where copies are slow, for want of better
  virtual void set_host_capacity(size_t bytes) = 0;
  // Getting that from the system and giving it back takes long. So it is begun under the runtime's lock, had without
  // any, and added, or given up by its destructor, under the lock again: what fails between leaves nothing counted.
  class Growth {
   public:
    virtual ~Growth() = default;
    virtual void have() = 0;
    virtual void add() = 0;
  };
  // For so many bytes in all, a piece at a time; null: nothing is to be had.
  virtual std::unique_ptr<Growth> grow_host(size_t /*bytes*/) { return nullptr; }
  // The same for one buffer of such a size, where none is free: allocate_host() would have to get it under the lock.
  virtual bool lacks_host(size_t /*bytes*/) const { return false; }
  virtual std::unique_ptr<Growth> grow_host_for(size_t /*bytes*/) { return nullptr; }
  virtual std::function<void()> release_host() { return nullptr; }  // what is not in use
  // Of what copies are slow from: all that is not in use, or what is more than was ever in use at once.
  virtual std::function<void()> trim_host(bool /*all*/) { return nullptr; }
  virtual bool places_plans() const { return false; }
  virtual void place_plans(size_t /*bytes*/) {}  // plans give the places of the first so many bytes to their storages
  virtual void* allocate_host_at(size_t /*place*/, size_t /*bytes*/) { return nullptr; }  // nullptr where it is taken
  // What is pinned, how often memory was had from the system for that since the process began, and how long that took.
  struct Pinned {
    size_t bytes = 0;
    size_t pins = 0;
    double pinning_s = 0;
  };
  virtual Pinned pinned_host() const { return {}; }
  // Seconds that it takes to touch, pin and unpin so many bytes in a way of the device's; empty where it has none.
  virtual std::vector<double> measure_pinning(const std::string& /*way*/, size_t /*bytes*/) { return {}; }
};

}  // namespace chameleon
