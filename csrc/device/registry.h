// The devices that this build has, by torch's device type. A device's folder registers it; nobody else names it.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "device/device.h"

namespace chameleon {

// What is to be known of a kind of device before there is one.
struct DeviceTraits {
  bool emulated = false;         // its memory is host memory under a budget, and its link as fast as it is told to be
  bool runs_behind = false;      // the host runs ahead of it: ops are not over when their calls return
  bool pinned_host = false;      // copies need host memory that is pinned, which is scarce
  bool captures_graphs = false;  // torch captures graphs of its work, or watches its allocator
};

struct DeviceKind {
  // Why there is no such device here; empty if there is one.
  std::string (*missing)(c10::Device device) = nullptr;
  std::unique_ptr<Device> (*make)(c10::Device device) = nullptr;
  DeviceTraits traits;
  // Puts the session's allocator in front of torch's, where that is possible: whoever has torch's call something else
  // while it allocates does so through it. Null: nothing of the kind can be had of torch.
  void (*stand_in_front)() = nullptr;
};

// Returns true, for a static object's initializer: before main(), or when the module is loaded.
bool register_device(c10::DeviceType type, const DeviceKind& kind);

// Raises an error that says why where there is no such device.
std::unique_ptr<Device> make_device(c10::Device device);

std::string missing_device(c10::Device device);  // of an unknown type, too

// See DeviceKind.
void stand_in_front(c10::DeviceType type);

// Of a registered type; raises an error for others.
const DeviceTraits& device_traits(c10::DeviceType type);

}  // namespace chameleon
