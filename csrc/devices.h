// The devices that this build has.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "device/device.h"

namespace chameleon {

// Raises an error that says why where there is no such device.
std::unique_ptr<Device> make_device(c10::Device device);

// Why there is no such device here; empty if there is one.
std::string missing_device(c10::Device device);

// Defined by the device backends.
std::unique_ptr<Device> make_cpu_device();
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace chameleon
