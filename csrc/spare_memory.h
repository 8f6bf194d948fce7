// Memory for the core's own records where the host has none left.
//
// Note [The host has no memory left]
// Each op, each storage and each copy has small records. Where none can be had as an op starts or as a tensor dies, the
// core would not know of it, and torch takes no error there. So a process with an open session keeps some memory, and
// operator new gets it piece by piece where the system refuses. A step's end takes as much again. Where that is used
// up, too, an op that cannot be followed keeps all that it uses on the device (Runtime::lose_sight).
#pragma once

namespace chameleon::spare_memory {

// As much as there should be, or as much as there is. On any thread.
void keep();
void let_go();

}  // namespace chameleon::spare_memory
