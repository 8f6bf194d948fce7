// The passes that choose which gaps of a step to swap, and when: see chameleon_lab/planner/passes.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace chameleon::planner {

// Steps that a sweep goes over. Gaps that begin in the middle one are the plan: those of the first lack what was away
// before it, those of the last may end after it.
inline constexpr int64_t kPeriods = 3;

// One step's gaps, and the ops that they lie between. G gaps, n ops; op indices of a gap count from the start of the
// step that it begins in, so that uses in the next step are at n and above.
struct Gaps {
  std::span<const int64_t> bytes;      // (G,)
  std::span<const int64_t> out_op;     // (G,) of the use that the gap follows
  std::span<const int64_t> use_op;     // (G,) of the use that ends it
  std::span<const int64_t> latest_in;  // (G,) at which a copy back can be issued and end before the use
  std::span<const double> least_s;     // (G,) a swap of a gap with less time left saves too little
  std::span<const bool> returns;       // (G,) false: dead time, nothing is copied back
};

// When each block is freed and taken again: gap g is away for free[g] <= i < back[g]; free[g] < 0: it is kept.
struct Schedule {
  std::vector<int64_t> free;
  std::vector<int64_t> back;
};

// Which gap to swap first where bytes exceed the capacity.
enum class Order : uint8_t {
  Furthest,  // next use, as Belady's MIN does
  Longest,   // in ops: fewer copies, of storages that come back long before their use
};

// `bytes`, (n,): those on the device at each op with everything resident that may leave in a gap.

// Which gaps to swap, each freed as late as memory allows. `start_s`, ((kPeriods + 1) * n,): start of each op of steps
// in a row. The result never holds more than the capacity, which must not be below the floor.
Schedule choose_swaps(const Gaps& gaps, std::span<const int64_t> bytes, std::span<const double> start_s,
                      int64_t capacity_bytes, Order order);

// Brings blocks back as early as they fit, and keeps those that need not leave at all. A schedule that holds no more
// than the capacity stays so.
void prefetch(const Gaps& gaps, std::span<const int64_t> bytes, int64_t capacity_bytes, Schedule& schedule);

}  // namespace chameleon::planner
