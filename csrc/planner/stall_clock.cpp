#include "stall_clock.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

namespace chameleon::planner {

namespace {

constexpr int kMostSteps = 64;       // two to four are the rule
constexpr size_t kLongestCycle = 4;  // steps may alternate: this many are compared with each new one
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSame = 1e-9;  // of all times together; what differs by less is the same

class Clock {
 public:
  Clock(const Events& events, const StepTimes& times)
      : events_(events), times_(times), swaps_(times.out_s.size()), state_(2 + 2 * swaps_, -kNever) {
    state_[0] = state_[1] = 0.0;
    least_s_ = kSame * (times.start_s.back() + std::accumulate(times.out_s.begin(), times.out_s.end(), 0.0) +
                        std::accumulate(times.in_s.begin(), times.in_s.end(), 0.0));
    slack_.assign(2 * swaps_, kNever);
  }

  SteadyState run() {
    SteadyState found;
    std::vector<std::vector<Wait>> waits;
    while (!events_.op.empty() && waits.size() < kMostSteps) {
      waits.push_back(step());
      states_.push_back(state_);
      slacks_.push_back(slack_);
      // The first step begins with everything resident: it is not among those that repeat.
      if (const size_t age = repeats_after(); age > 0) {
        found.cycle = static_cast<int64_t>(age);
        break;
      }
      if (states_.size() > 2) skip_ahead();
    }
    const size_t kept = std::min(static_cast<size_t>(found.cycle), waits.size());
    for (auto one = waits.end() - static_cast<ptrdiff_t>(kept); one != waits.end(); ++one) {
      found.waits.insert(found.waits.end(), one->begin(), one->end());
    }
    found.out_end_s.assign(out_end(), out_end() + swaps_);
    found.in_end_s.assign(in_end(), in_end() + swaps_);
    found.step_s = step_s_;
    return found;
  }

 private:
  // The state that a step hands on to the next: when each direction of the link is free, and when the copies that were
  // issued last end. Seconds from the start of the running step.
  double& out_free() { return state_[0]; }
  double& in_free() { return state_[1]; }
  double* out_end() { return state_.data() + 2; }
  double* in_end() { return state_.data() + 2 + swaps_; }

  std::vector<Wait> step() {
    std::vector<Wait> waits;
    double stall = 0.0;
    double* const out_end = this->out_end();
    double* const in_end = this->in_end();
    const auto wait_for = [&](double end, double now, int64_t op, int64_t swap, Awaited awaited, double& slack) {
      const double wait = end - now - stall;
      slack = -wait;
      if (wait > 0.0) {
        waits.push_back({op, swap, awaited, wait});
        stall += wait;
      }
    };
    for (size_t i = 0; i < events_.op.size(); ++i) {
      const int64_t op = events_.op[i], k = events_.swap[i];
      switch (static_cast<EventKind>(events_.kind[i])) {
        case EventKind::SwapOut: {
          const double now = times_.start_s[op + 1] + stall;
          // A clean swap-out is done at once: it does not queue behind other copies.
          out_end[k] = times_.copies[k] ? out_free() = std::max(out_free(), now) + times_.out_s[k] : now;
          break;
        }
        case EventKind::SwapIn:
          if (out_end[k] > -kNever) {
            in_end[k] = in_free() = std::max(in_free(), times_.start_s[op] + stall) + times_.in_s[k];
          }
          break;
        case EventKind::Free:
          wait_for(out_end[k], times_.start_s[op], op, k, Awaited::Out, slack_[k]);
          break;
        case EventKind::ReplayRead:
          wait_for(in_end[k], times_.start_s[op], op, k, Awaited::In, slack_[swaps_ + k]);
          break;
        case EventKind::Use:
          wait_for(in_end[k], times_.op_start_s[op], op, k, Awaited::In, slack_[swaps_ + k]);
          break;
      }
    }
    step_s_ = times_.start_s.back() + stall;
    for (double& time : state_) time -= step_s_;
    return waits;
  }

  // How many steps ago one inherited the same as the next will: copies that still take as long. 0: none of late.
  size_t repeats_after() const {
    for (size_t age = 1; age < std::min(kLongestCycle + 1, states_.size()); ++age) {
      const auto& then = states_[states_.size() - 1 - age];
      bool same = true;
      for (size_t i = 0; same && i < state_.size(); ++i) {
        same = std::abs(std::max(state_[i], 0.0) - std::max(then[i], 0.0)) <= least_s_;
      }
      if (same) return age;
    }
    return 0;
  }

  // Where a backlog grows evenly from step to step, goes to the step before it first delays an op.
  void skip_ahead() {
    const size_t last = states_.size() - 1;
    double most = 0.0, difference = 0.0;
    for (size_t i = 0; i < state_.size(); ++i) {
      const double now = std::max(state_[i], 0.0), before = std::max(states_[last - 1][i], 0.0);
      const double earlier = std::max(states_[last - 2][i], 0.0);
      most = std::max(most, now - before);
      difference = std::max(difference, std::abs((before - earlier) - (now - before)));
    }
    if (difference > least_s_ || most <= least_s_) return;
    double steps = kNever;
    for (size_t i = 0; i < slack_.size(); ++i) {
      const double loss = slacks_[last - 1][i] - slack_[i];  // not a number where there never was a wait
      if (loss > least_s_ && slack_[i] > 0.0) steps = std::min(steps, slack_[i] / loss);
    }
    steps = std::floor(steps);
    if (!(steps >= 1.0 && steps < kNever)) return;
    for (size_t i = 0; i < state_.size(); ++i) {
      const double growth = state_[i] - states_[last - 1][i];
      if (growth > least_s_) state_[i] += steps * growth;
    }
  }

  const Events& events_;
  const StepTimes& times_;
  const size_t swaps_;
  double least_s_ = 0.0;
  double step_s_ = 0.0;
  std::vector<double> state_;
  std::vector<double> slack_;  // how long before they were waited for the copies of a swap ended: outward ones, inward
  std::vector<std::vector<double>> states_, slacks_;  // after each step
};

}  // namespace

SteadyState run_until_steady(const Events& events, const StepTimes& times) { return Clock(events, times).run(); }

}  // namespace chameleon::planner
