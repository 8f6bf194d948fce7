#include "overlap.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace chameleon {

namespace {

using Interval = std::pair<Ticks, Ticks>;

// The waits for copies of a direction, in order, none of which overlaps another.
std::vector<Interval> waits_of(const StepLog& log, Direction direction) {
  std::vector<Interval> waits;
  for (const StallRow& stall : log.stalls) {
    if (stall.direction == static_cast<uint8_t>(direction)) waits.emplace_back(stall.start_ticks, stall.end_ticks);
  }
  std::sort(waits.begin(), waits.end());
  size_t last = 0;
  for (const Interval& wait : waits) {
    if (wait.first <= waits[last].second) {
      waits[last].second = std::max(waits[last].second, wait.second);
    } else {
      waits[++last] = wait;
    }
  }
  if (!waits.empty()) waits.resize(last + 1);
  return waits;
}

Ticks inside(const std::vector<Interval>& waits, Interval copy) {
  Ticks ticks = 0;
  const auto ends_after = [&](const Interval& wait) { return wait.second <= copy.first; };
  for (auto wait = std::partition_point(waits.begin(), waits.end(), ends_after);
       wait != waits.end() && wait->first < copy.second; ++wait) {
    ticks += std::min(wait->second, copy.second) - std::max(wait->first, copy.first);
  }
  return ticks;
}

}  // namespace

std::optional<double> overlap(const StepLog& log) {
  if (log.transfers.empty()) return std::nullopt;
  const std::vector<Interval> waits[] = {waits_of(log, Direction::Out), waits_of(log, Direction::In)};
  Ticks copied = 0, exposed = 0;
  for (size_t i = 0; i < log.transfers.size(); ++i) {
    const std::optional<Interval> copy = log.copy_times(i);
    if (!copy || copy->second <= copy->first) continue;
    copied += copy->second - copy->first;
    exposed += inside(waits[log.transfers[i].direction], *copy);
  }
  if (copied == 0) return std::nullopt;
  return 1.0 - static_cast<double>(exposed) / static_cast<double>(copied);
}

}  // namespace chameleon
