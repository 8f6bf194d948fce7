// Ops that write every byte of a storage and read none of them.
//
// Note [Overwriting]
// zero_, fill_ and copy_ often do. If the storage is away, it gets a block for that and nothing is copied in. It is
// blank until the op has ended: its old bytes are on the host alone. They are copied in if the op raises.
//
// Another thread's op, hold or pointer waits while a storage is blank: in plain PyTorch it would find old bytes or new
// ones. Nothing becomes blank that another thread uses already.
//
// An op is served like this only if nothing but PyTorch's own kernels run (or those that an extension registers in C++
// in their place), and they have no reason to refuse the arguments:
// - no dispatch mode, no tensor subclass, no transform of torch.func, and no kernel that torch.library has registered
//   from Python for any of these ops, which call each other: these may read the old bytes first, or write nothing;
// - no forward-mode autograd, and no conjugated or negated tensor: these run more ops on the target behind the kernel;
// - no argument that the op may refuse: a tensor that requires a gradient, an inference tensor outside of inference
//   mode, a number that the dtype cannot hold, another shape, a dtype of which there is no kernel.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>

#include "op_info.h"

namespace chameleon {

// The storage that this call of zero_, fill_ or copy_ overwrites like this; null if there is none. Runs no op and no
// Python. `level`: to be released without the core's lock, since that may free tensors.
c10::StorageImpl* overwritten_by(const OpInfo& info, c10::ArrayRef<const c10::IValue> arguments,
                                 std::shared_ptr<void>* level);

}  // namespace chameleon
