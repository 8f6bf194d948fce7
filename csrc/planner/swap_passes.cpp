#include "swap_passes.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "range_max.h"

namespace chameleon::planner {

namespace {

template <class T>
using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<T>>;

// A gap that begins so many ops after the first of the sweep.
struct Occurrence {
  int64_t gap;
  int64_t shift;
  auto operator<=>(const Occurrence&) const = default;
};

// Bytes on the device at each op under a schedule.
std::vector<int64_t> resident_bytes(const Gaps& gaps, std::span<const int64_t> bytes, const Schedule& schedule) {
  const size_t n = bytes.size();
  std::vector<int64_t> change(2 * n + 2, 0);
  for (size_t gap = 0; gap < gaps.bytes.size(); ++gap) {
    if (schedule.free[gap] < 0) continue;
    change[schedule.free[gap]] += gaps.bytes[gap];
    change[schedule.back[gap]] -= gaps.bytes[gap];
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  std::vector<int64_t> resident(n);
  for (size_t op = 0; op < n; ++op) resident[op] = bytes[op] - change[op] - change[op + n];
  return resident;
}

// A gap's next use is at use_op[gap] + shift of the sweep.
using ByUse = std::pair<int64_t, Occurrence>;

struct Ranked {
  int64_t gap;
  int64_t rank;
};

class Chooser {
 public:
  Chooser(const Gaps& gaps, std::span<const int64_t> bytes, std::span<const double> start_s, int64_t capacity,
          Order order)
      : gaps_(gaps),
        bytes_(bytes),
        start_s_(start_s),
        capacity_(capacity),
        order_(order),
        n_(static_cast<int64_t>(bytes.size())),
        plan_{std::vector<int64_t>(gaps.bytes.size(), -1), std::vector<int64_t>(gaps.bytes.size(), -1)} {}

  Schedule run() {
    for (int64_t op = 0; op < n_; ++op) {
      if (bytes_[op] > capacity_) over_ops_.push_back(op);
    }
    if (over_ops_.empty()) return std::move(plan_);
    find_idle_over_capacity();
    choose();
    refine();
    repair();
    return std::move(plan_);
  }

 private:
  int64_t gap_count() const { return static_cast<int64_t>(gaps_.bytes.size()); }

  // Freeing a gap that is idle at no op over the capacity helps nobody.
  void find_idle_over_capacity() {
    std::vector<int64_t> before(2 * n_ + 1, 0);
    for (int64_t i = 0; i < 2 * n_; ++i) before[i + 1] = before[i] + (bytes_[i % n_] > capacity_);
    spans_excess_.resize(gap_count());
    for (int64_t gap = 0; gap < gap_count(); ++gap) {
      spans_excess_[gap] = before[gaps_.use_op[gap]] > before[gaps_.out_op[gap] + 1];
    }
  }

  void choose() {
    std::vector<Ranked> ranked;
    const bool longest = order_ == Order::Longest;
    for (int64_t gap = 0; gap < gap_count(); ++gap) {
      const int64_t rank = longest ? gaps_.out_op[gap] - gaps_.use_op[gap] : -gaps_.use_op[gap];
      if (spans_excess_[gap]) ranked.push_back({gap, rank});
    }
    plan_ = Sweep(*this, std::move(ranked), longest ? 0 : -n_, /*spares_short=*/true).run();
  }

  // The chosen gaps alone, in the order in which their copies out are issued.
  void refine() {
    std::vector<Ranked> ranked;
    for (int64_t gap = 0; gap < gap_count(); ++gap) {
      if (plan_.free[gap] >= 0) ranked.push_back({gap, gaps_.out_op[gap]});
    }
    plan_ = Sweep(*this, std::move(ranked), n_, /*spares_short=*/false).run();
  }

  // Goes over the ops of kPeriods steps; where bytes exceed the capacity, frees the idle gap of lowest rank. A rank
  // grows by `rank_per_step` from one step to the next. A block comes back provisionally: one transfer before its use,
  // or at the use where that leaves no room. With `spares_short`, a gap of which less than least_s is left is a last
  // resort.
  class Sweep {
   public:
    Sweep(const Chooser& chooser, std::vector<Ranked> ranked, int64_t rank_per_step, bool spares_short)
        : p_(chooser),
          gaps_(chooser.gaps_),
          begins_(std::move(ranked)),
          rank_per_step_(rank_per_step),
          spares_short_(spares_short),
          found_{std::vector<int64_t>(chooser.gap_count(), -1), std::vector<int64_t>(chooser.gap_count(), -1)} {
      std::stable_sort(begins_.begin(), begins_.end(),
                       [&](const Ranked& a, const Ranked& b) { return begin_op(a) < begin_op(b); });
      size_t begun = 0;
      for (const int64_t op : p_.over_ops_) {
        while (begun < begins_.size() && begin_op(begins_[begun]) <= op) ++begun;
        begun_.push_back(static_cast<int64_t>(begun));
      }
    }

    Schedule run() {
      for (int64_t period = 0; period < kPeriods; ++period) {
        for (size_t k = 0; k < p_.over_ops_.size(); ++k) {
          const int64_t op = p_.over_ops_[k], at = period * p_.n_ + op;
          bring_back(at);
          begin_gaps(at, period * static_cast<int64_t>(begins_.size()) + begun_[k]);
          free_idle(at, p_.bytes_[op] - p_.capacity_ - away_);
        }
      }
      return std::move(found_);
    }

   private:
    int64_t begin_op(const Ranked& one) const { return (gaps_.out_op[one.gap] + 1) % p_.n_; }
    int64_t use_of(const Occurrence& one) const { return gaps_.use_op[one.gap] + one.shift; }

    void bring_back(int64_t at) {
      while (!returns_.empty() && returns_.top().first <= at) {
        const Occurrence one = returns_.top().second;
        returns_.pop();
        away_ -= gaps_.bytes[one.gap];
        if (use_of(one) > at) back_early_.push({-use_of(one), one});
      }
    }

    void begin_gaps(int64_t at, int64_t until) {
      for (; seen_ < until; ++seen_) {
        const auto count = static_cast<int64_t>(begins_.size());
        const Ranked& one = begins_[seen_ % count];
        // The gap after a step's last op begins with the next step.
        const int64_t steps = seen_ / count - (gaps_.out_op[one.gap] == p_.n_ - 1);
        const int64_t use = gaps_.use_op[one.gap] + steps * p_.n_;
        if (use > at) idle_.push({one.rank + steps * rank_per_step_, use, {one.gap, steps * p_.n_}});
      }
    }

    void free_idle(int64_t at, int64_t over) {
      while (over > 0) {
        bool at_use = false;
        const std::optional<Occurrence> next = next_to_free(at, &at_use);
        if (!next) break;
        const auto [gap, shift] = *next;
        const int64_t until = at_use ? use_of(*next) : std::max(gaps_.latest_in[gap] + shift, at + 1);
        away_ += gaps_.bytes[gap];
        over -= gaps_.bytes[gap];
        returns_.push({until, *next});
        if (shift == p_.n_) {  // the middle step
          if (!at_use) found_.free[gap] = at - shift;
          found_.back[gap] = until - shift;
        }
      }
    }

    // First of those that are idle; then of those that are back ahead of their use, which wait for it; then of those
    // that have too little time left.
    std::optional<Occurrence> next_to_free(int64_t at, bool* at_use) {
      while (!idle_.empty()) {
        const auto [rank, use, one] = idle_.top();
        idle_.pop();
        if (use <= at) continue;
        if (spares_short_ && p_.start_s_[use] - p_.start_s_[at] < gaps_.least_s[one.gap]) {
          short_.push({-use, one});
          continue;
        }
        return one;
      }
      *at_use = true;
      if (const auto one = furthest(back_early_, at)) return one;
      *at_use = false;
      return furthest(short_, at);
    }

    static std::optional<Occurrence> furthest(MinHeap<ByUse>& heap, int64_t at) {
      if (heap.empty() || -heap.top().first <= at) return std::nullopt;
      const Occurrence one = heap.top().second;
      heap.pop();
      return one;
    }

    const Chooser& p_;
    const Gaps& gaps_;
    std::vector<Ranked> begins_;  // by the op that they begin with
    const int64_t rank_per_step_;
    const bool spares_short_;
    std::vector<int64_t> begun_;  // by op over the capacity: how many of them have begun
    Schedule found_;
    MinHeap<std::tuple<int64_t, int64_t, Occurrence>> idle_;  // rank, use
    MinHeap<ByUse> returns_;                                  // by the op from which the block is back
    MinHeap<ByUse> back_early_, short_;                       // the furthest use first
    int64_t away_ = 0, seen_ = 0;
  };

  // A sweep knows the steps before only as far as it has come. What still exceeds the capacity, taking the step as a
  // cycle, is mended by longer swaps first, then by further ones.
  void repair() {
    std::vector<int64_t> resident = resident_bytes(gaps_, bytes_, plan_);
    for (int64_t op = 0; op < n_; ++op) {
      if (resident[op] > capacity_) repair_at(op, resident);
    }
  }

  // How to have a gap away at an op: what to do, how much that adds (of further swaps, the furthest use first), gap,
  // op.
  enum Way : int64_t { kLonger, kFurther };
  using Remedy = std::tuple<Way, int64_t, int64_t, int64_t>;

  std::vector<Remedy> remedies(int64_t op) const {
    std::vector<Remedy> found;
    for (const int64_t at : {op, op + n_}) {
      for (int64_t gap = 0; gap < gap_count(); ++gap) {
        if (gaps_.out_op[gap] >= at || at >= gaps_.use_op[gap]) continue;
        const int64_t free = plan_.free[gap], back = plan_.back[gap];
        if (free < 0) {
          found.emplace_back(kFurther, at - gaps_.use_op[gap], gap, at);
        } else if (at < free || at >= back) {
          found.emplace_back(kLonger, at < free ? free - at : at + 1 - back, gap, at);
        }
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  void repair_at(int64_t op, std::vector<int64_t>& resident) {
    for (const auto& [way, added, gap, at] : remedies(op)) {
      if (resident[op] <= capacity_) return;
      int64_t &free = plan_.free[gap], &back = plan_.back[gap];
      int64_t begin = at, end = at + 1;
      if (free < 0) {
        free = at;
        end = back = std::max(gaps_.latest_in[gap], at + 1);
      } else if (at < free) {
        end = std::exchange(free, at);
      } else {
        begin = std::exchange(back, at + 1);
      }
      for (int64_t i = begin; i < end; ++i) resident[i % n_] -= gaps_.bytes[gap];
    }
  }

  const Gaps& gaps_;
  const std::span<const int64_t> bytes_;
  const std::span<const double> start_s_;
  const int64_t capacity_;
  const Order order_;
  const int64_t n_;
  std::vector<int64_t> over_ops_;
  std::vector<char> spans_excess_;
  Schedule plan_;
};

// The last op from `free` on, before `back`, with more bytes than `room`; below `free`: none. Of n ops.
int64_t last_full(const RangeMax& profile, int64_t n, int64_t free, int64_t back, int64_t room) {
  if (back > n) {
    const int64_t full = profile.last_above(std::max(free, n) - n, back - n, room) + n;
    if (full >= std::max(free, n)) return full;
  }
  return free < n ? profile.last_above(free, std::min(back, n), room) : free - 1;
}

}  // namespace

Schedule choose_swaps(const Gaps& gaps, std::span<const int64_t> bytes, std::span<const double> start_s,
                      int64_t capacity_bytes, Order order) {
  return Chooser(gaps, bytes, start_s, capacity_bytes, order).run();
}

// The nearest use comes first, counted from the op of the highest bytes: no block that left before it can come back
// across it.
void prefetch(const Gaps& gaps, std::span<const int64_t> bytes, int64_t capacity_bytes, Schedule& schedule) {
  const auto n = static_cast<int64_t>(bytes.size());
  const std::vector<int64_t> resident = resident_bytes(gaps, bytes, schedule);
  const int64_t summit = std::max_element(resident.begin(), resident.end()) - resident.begin();
  RangeMax profile(resident);
  std::vector<std::pair<int64_t, int64_t>> order;  // ops from the summit to the use, gap
  for (size_t gap = 0; gap < gaps.bytes.size(); ++gap) {
    if (schedule.free[gap] >= 0) order.emplace_back((gaps.use_op[gap] - summit - 1 + n) % n, gap);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [_, gap] : order) {
    const int64_t size = gaps.bytes[gap], free = schedule.free[gap], back = schedule.back[gap];
    const int64_t full = last_full(profile, n, free, back, capacity_bytes - size);
    int64_t until = free;
    if (full < free) {
      schedule.free[gap] = -1;
    } else {
      until = schedule.back[gap] = gaps.returns[gap] ? full + 1 : gaps.use_op[gap];
    }
    profile.add(until, std::min(back, n), size);
    profile.add(std::max(until, n) - n, back - n, size);
  }
}

}  // namespace chameleon::planner
