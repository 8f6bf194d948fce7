// How much of a step's copies compute hides.
#pragma once

#include <optional>

#include "recorder.h"

namespace chameleon {

// The share of the time of the copies in which compute did not wait for a copy of the same direction, as
// chameleon_lab/trace/overlap.py says it of a trace; none where nothing was copied. Copies that still run do not count.
// Call StepLog::settle() before.
std::optional<double> overlap(const StepLog& log);

}  // namespace chameleon
