// Tells the runtime when a DLPack capsule, or whoever has taken its tensor, is done with the pointer. See Note [Loans].
#pragma once

#include <Python.h>

#include "runtime.h"

namespace chameleon {

// Whoever deletes the capsule's tensor ends the loan. False: it is no capsule that still has one, and nothing does.
bool end_with_capsule(PyObject* capsule, const Loan& loan);

}  // namespace chameleon
