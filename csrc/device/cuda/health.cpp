#include "device/cuda/health.h"

#include <c10/util/Exception.h>

#include "device/cuda/check.h"

namespace chameleon::cuda {

namespace {

// Of driver_types.h, by number: CUDA 12.6 does not name them yet.
constexpr int kContained = 226, kTensorMemoryLeak = 721;

// Those of which driver_types.h says that the process must be terminated and relaunched; and what the machine itself
// has found broken.
bool is_sticky(cudaError_t error) {
  if (static_cast<int>(error) == kContained || static_cast<int>(error) == kTensorMemoryLeak) return true;
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string Health::why() const {
  const std::string* why = why_.load(std::memory_order_acquire);
  return why ? *why : std::string();
}

void Health::lose(const std::string& why) {
  const auto* mine = new std::string(why);
  const std::string* none = nullptr;
  if (!gone() && why_.compare_exchange_strong(none, mine)) {
    gone_ = true;
  } else {
    delete mine;
  }
}

bool Health::lost(cudaError_t error, const char* call) {
  (void)cudaGetLastError();  // it would be reported again by whoever asks next
  if (is_sticky(error)) lose(words(error, call));
  return gone();
}

void Health::check(cudaError_t error, const char* call) {
  if (C10_LIKELY(error == cudaSuccess) || lost(error, call)) return;
  cuda::check(error, call);
}

}  // namespace chameleon::cuda
