#include "device/cuda/check.h"

#include <c10/util/Exception.h>

namespace chameleon::cuda {

std::string words(cudaError_t error, const char* call) {
  return std::string(call) + " failed: " + cudaGetErrorString(error);
}

void check(cudaError_t error, const char* call) {
  if (C10_LIKELY(error == cudaSuccess)) return;
  (void)cudaGetLastError();  // it would be reported again by whoever asks next
  TORCH_CHECK(false, "Chameleon Lab: ", words(error, call));
}

}  // namespace chameleon::cuda
