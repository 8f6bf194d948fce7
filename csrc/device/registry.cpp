#include "device/registry.h"

#include <c10/util/Exception.h>

#include <map>

namespace chameleon {

namespace {

std::map<c10::DeviceType, DeviceKind>& kinds() {
  static auto* registered = new std::map<c10::DeviceType, DeviceKind>();
  return *registered;
}

}  // namespace

bool register_device(c10::DeviceType type, const DeviceKind& kind) { return kinds().emplace(type, kind).second; }

std::string missing_device(c10::Device device) {
  const auto found = kinds().find(device.type());
  if (found != kinds().end()) return found->second.missing(device);
  return "there is no device '" + device.str() + "': use device='cpu', the embedded device";
}

std::unique_ptr<Device> make_device(c10::Device device) {
  const std::string missing = missing_device(device);
  TORCH_CHECK(missing.empty(), "Chameleon Lab: ", missing);
  return kinds().at(device.type()).make(device);
}

void stand_in_front(c10::DeviceType type) {
  const auto found = kinds().find(type);
  if (found != kinds().end() && found->second.stand_in_front) found->second.stand_in_front();
}

const DeviceTraits& device_traits(c10::DeviceType type) {
  const auto found = kinds().find(type);
  TORCH_CHECK(found != kinds().end(), "Chameleon Lab: there is no device '", c10::DeviceTypeName(type, true), "'");
  return found->second.traits;
}

}  // namespace chameleon
