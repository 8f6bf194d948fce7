// Whether the GPU is still there.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <string>

namespace chameleon::cuda {

// Note [A GPU that is gone]
// After some errors CUDA can do nothing more in this process: a kernel that read out of bounds, an assertion on the
// device (a wrong label is one), a machine fault. Every later call returns the same error, and driver_types.h says that
// the process must be started anew. The error is the user's, who is to see it: so from then on all work counts as done,
// nothing is freed, and the session ends as any other; whoever wants bytes that are away is told. In a forked child
// CUDA is of no use either: there it is the same, without a reason that anybody would be told.
//
// Other errors say that one call has failed, and the next one may not: memory for an event, a call while somebody
// captures a graph. A copy that cannot be made is not made (see Copies). An order that cannot be given to the GPU is
// the host's: it waits for all that the GPU was given.
class Health {
 public:
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  std::string why() const;  // empty while the GPU is there, and in a forked child

  void lose(const std::string& why);  // the first reason stays
  void lose_in_child() { gone_ = true; }
  bool lost(cudaError_t error, const char* call);   // is it gone, by this error or before? Clears the error
  void check(cudaError_t error, const char* call);  // throws what the next call may not meet

 private:
  std::atomic<bool> gone_{false};
  std::atomic<const std::string*> why_{nullptr};  // never freed: no lock, which a forked child could find taken
};

}  // namespace chameleon::cuda
