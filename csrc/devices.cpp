// The devices that this build has.
#include "devices.h"

#include <c10/util/Exception.h>

namespace chameleon {

std::unique_ptr<Device> make_device(c10::Device device) {
  const std::string missing = missing_device(device);
  TORCH_CHECK(missing.empty(), "Chameleon Lab: ", missing);
#ifdef CHAMELEON_CUDA
  if (device.is_cuda()) return make_cuda_device(device.index());
#endif
  return make_cpu_device();
}

#ifndef CHAMELEON_CUDA
std::string missing_device(c10::Device device) {
  if (device.is_cpu()) return "";
  if (!device.is_cuda()) return "there is no device '" + device.str() + "': use device='cpu', the embedded device";
  return "this build of Chameleon Lab has no CUDA device: torch, or the compiler, had no CUDA when it was built. "
         "Install a "
         "CUDA build of torch and CUDA's headers, then build Chameleon Lab again (`pip install --force-reinstall "
         "--no-deps .`), or use device='cpu', the embedded device";
}
#endif

}  // namespace chameleon
