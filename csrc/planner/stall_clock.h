// When the compute stream has to wait for copies, over steps in a row: see chameleon_lab/planner/simulate.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace chameleon::planner {

// What the executor does for a swap, in the order in which it does that before and after one op.
enum class EventKind : int64_t { Free, SwapIn, ReplayRead, Use, SwapOut };

// What the compute stream waits for: the copy out of a block that is freed, or the copy in of one that is used.
enum class Awaited : int64_t { Out, In };

// One step's events, in the order in which the executor fires them; E events.
struct Events {
  std::span<const int64_t> op;    // (E,)
  std::span<const int64_t> kind;  // (E,) EventKind
  std::span<const int64_t> swap;  // (E,) index of the swap
};

// n ops, S swaps.
struct StepTimes {
  std::span<const double> start_s;     // (n + 1,) of the replays before each op, were there no stalls; the step's end
  std::span<const double> op_start_s;  // (n,) of the op itself
  std::span<const double> out_s;       // (S,) what a copy out takes
  std::span<const double> in_s;        // (S,) and a copy in
  std::span<const bool> copies;        // (S,) false: the host copy is still valid, the swap-out copies nothing
};

struct Wait {
  int64_t op;
  int64_t swap;
  Awaited awaited;
  double seconds;
};

// Of a long run: the steps that repeat, `cycle` of them, and where the newest one left the link.
struct SteadyState {
  std::vector<Wait> waits;  // of all of the cycle's steps
  int64_t cycle = 1;
  // Of the newest step, from its end on. -inf: there never was such a copy.
  std::vector<double> out_end_s;  // (S,)
  std::vector<double> in_end_s;   // (S,)
  double step_s = 0;              // what that step took
};

// Runs steps in a row, 64 at most, until one inherits the copies under way that an earlier one did: four steps back at
// most.
SteadyState run_until_steady(const Events& events, const StepTimes& times);

}  // namespace chameleon::planner
