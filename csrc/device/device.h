// What the core asks of a device, in five roles. Nothing above these interfaces knows whether the device is a GPU or
// the embedded CPU device; a part of the core takes the roles that it needs.
#pragma once

#include <memory>
#include <string>

#include "device/copies.h"
#include "device/host_memory.h"
#include "device/memory.h"
#include "device/streams.h"
#include "device/torch_bridge.h"
#include "disk_target.h"

namespace chameleon {

class Device : public DeviceMemory, public Copies, public Streams, public HostMemory, public TorchBridge {
 public:
  // A disk that its blocks can go to; null where they cannot. Throws where the folder is none for that.
  virtual std::unique_ptr<DiskTarget> open_disk(const DiskOptions&) { return nullptr; }
  // Why it can be used no more by this process, as far as it has shown; empty while it can. From then on nothing that
  // is asked of it throws: see Note [A GPU that is gone] in device/cuda/health.h.
  virtual std::string failure() const { return {}; }
  // The host waits for all that it was given, by anybody, where it could not be told what comes first.
  virtual void finish() noexcept {}
  // In a forked child the engines' threads are gone: from here on copies happen in the caller.
  virtual void after_fork_in_child() = 0;
};

}  // namespace chameleon
