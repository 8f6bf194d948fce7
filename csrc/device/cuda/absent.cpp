// In a build without the CUDA device: why there is none.
#include "device/registry.h"

namespace chameleon {

namespace {

std::string missing(c10::Device) {
  return "this build of Chameleon Lab has no CUDA device: it lacks " CHAMELEON_CUDA_MISSING
         ". Build Chameleon Lab again with that (`pip install --force-reinstall --no-deps .`), or use device='cpu', "
         "the "
         "embedded device";
}

const bool registered = register_device(
    c10::DeviceType::CUDA, {missing, nullptr, {.runs_behind = true, .pinned_host = true, .captures_graphs = true}});

}  // namespace

}  // namespace chameleon
