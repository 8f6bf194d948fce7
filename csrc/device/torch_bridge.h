// A device's role: what torch sees of it. While a session is open, torch's allocator for the device takes its blocks
// from the runtime.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace chameleon {

class TorchBridge {
 public:
  virtual ~TorchBridge() = default;

  virtual c10::Device torch_device() const = 0;
  virtual void install_allocator() = 0;                   // once; it stays, since DataPtrs hold its deleter
  virtual c10::DeleterFnPtr block_deleter() const = 0;    // what DataPtrs of the device's blocks are destroyed with
  virtual c10::DeleterFnPtr plain_deleter() const = 0;    // the same of torch's own allocator: those may be adopted
  virtual c10::DataPtr allocate_plain(size_t bytes) = 0;  // from torch's own allocator
  // Where torch's own allocator makes the device's blocks too, they change hands as they are. False: they are copied.
  virtual bool take_over(void*, size_t) { return false; }
  virtual bool hand_over(void*, size_t) { return false; }
  // The block of a storage that has moved, before it is handed over: it is not reused before all lanes have done what
  // they are given until it is freed.
  virtual void used_by_all(void*) {}
  // So much could not be had, which the program is about to be told: those who watch torch's allocator are told, too.
  // Without the core's lock.
  virtual void out_of_memory(size_t /*bytes*/) noexcept {}
};

}  // namespace chameleon
