// Ops that write every byte of a storage and read none of them.
//
// Note [Overwriting]
// zero_, fill_ and copy_ often do. If the storage is away, it gets a block for that and nothing is copied in. It is
// blank until the op has ended: its old bytes are on the host alone. They are copied in if the op raises.
//
// While a storage is blank, nothing may read it that PyTorch would let read the old bytes. So an op is served like this
// only if PyTorch's own kernel runs, alone, and has no reason to refuse its arguments:
// - no dispatch mode, no tensor subclass, no transform of torch.func, and no kernel that torch.library has registered
//   from Python: these may read the old bytes first, or run no kernel;
// - no forward-mode autograd, and no conjugated or negated tensor: these run more ops on the target behind the kernel;
// - no tensor that requires a gradient, no inference tensor outside of inference mode, no number that the dtype cannot
//   hold, no other shape: another thread may read the old bytes while the op raises.
#pragma once

#include <ATen/core/ivalue.h>

#include "op_info.h"

namespace chameleon {

// The storage that this call of an op overwrites like this; null if there is none. Runs no op and no Python.
c10::StorageImpl* overwritten_by(const OpInfo& info, c10::ArrayRef<const c10::IValue> arguments);

}  // namespace chameleon
