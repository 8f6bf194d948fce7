#include "replay_chains.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace chameleon::planner {

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

template <class T>
size_t at(T index) {
  return static_cast<size_t>(index);
}

std::invalid_argument cannot_be_dropped(int64_t gap) {
  return std::invalid_argument("gap " + std::to_string(gap) + " cannot be dropped");
}

}  // namespace

ReplayChains::ReplayChains(Values values, Storages storages, StorageGaps gaps, int64_t ops, int64_t longest)
    : values_(std::move(values)),
      storages_(std::move(storages)),
      gaps_(std::move(gaps)),
      ops_(ops),
      longest_(longest),
      changes_(values_.size(), kAtFirst),
      values_offset_(storages_.size() + 1, 0),
      values_of_(values_.size()),
      gaps_begin_(storages_.size(), 0),
      gaps_end_(storages_.size(), 0),
      level_(values_.size(), 0),
      reader_(storages_.size(), 0) {
  for (size_t value = 0; value < values_.size(); ++value) {
    ++values_offset_[at(values_.row[value]) + 1];
    const size_t end = at(values_.inputs_end[value]);
    for (size_t k = at(values_.inputs_begin[value]); k < end && changes_[value] == kAtFirst; ++k) {
      if (values_.input_row[k] == values_.row[value]) changes_[value] = values_.input_value[k];
    }
  }
  std::partial_sum(values_offset_.begin(), values_offset_.end(), values_offset_.begin());
  std::vector<int64_t> next(values_offset_.begin(), values_offset_.end() - 1);
  for (size_t value = 0; value < values_.size(); ++value) {
    values_of_[at(next[at(values_.row[value])]++)] = static_cast<int64_t>(value);
  }
  for (size_t gap = 0; gap < gaps_.size(); ++gap) {
    const size_t row = at(gaps_.row[gap]);
    if (gaps_end_[row] == 0) gaps_begin_[row] = static_cast<int64_t>(gap);
    gaps_end_[row] = static_cast<int64_t>(gap) + 1;
  }
}

int64_t ReplayChains::value_at(int64_t row, int64_t op) const {
  const auto begin = values_of_.begin() + values_offset_[at(row)],
             end = values_of_.begin() + values_offset_[at(row) + 1];
  const auto next = std::partition_point(begin, end, [&](int64_t value) { return values_.op[at(value)] < op; });
  return next == begin ? kAtFirst : *(next - 1);
}

std::optional<ReplayChains::Around> ReplayChains::gap_around(int64_t row, int64_t op) const {
  const auto begin = gaps_.out_op.begin() + gaps_begin_[at(row)], end = gaps_.out_op.begin() + gaps_end_[at(row)];
  for (const int64_t when : {op, op + ops_}) {
    const auto next = std::lower_bound(begin, end, when);
    if (next == begin) continue;
    const int64_t gap = next - 1 - gaps_.out_op.begin();
    if (when <= gaps_.use_op[at(gap)]) return Around{gap, when};
  }
  return std::nullopt;
}

const Chain* ReplayChains::chain(int64_t row, int64_t op) {
  const std::lock_guard lock(mutex_);
  return chain_of(value_at(row, op), op);
}

const Chain* ReplayChains::chain_of(int64_t value, int64_t op) {
  if (value == kAtFirst) return nullptr;
  const int64_t key = value * (2 * ops_ + 1) + op;
  if (const auto known = chains_.find(key); known != chains_.end()) return known->second.get();
  auto made = std::make_unique<Chain>();
  ++making_;
  const bool can = visit(value, op, longest_, *made) > 0;
  for (const int64_t one : made->made) level_[at(one)] = 0;
  if (can) {
    finish(*made);
  } else {
    made.reset();
  }
  return chains_.emplace(key, std::move(made)).first->second.get();
}

int64_t ReplayChains::visit(int64_t value, int64_t op, int64_t most, Chain& into) {
  if (most == 0 || !values_.possible[at(value)]) return 0;
  int64_t level = 1;
  const size_t end = at(values_.inputs_end[at(value)]);
  for (size_t k = at(values_.inputs_begin[at(value)]); k < end; ++k) {
    const int64_t row = values_.input_row[k], of = values_.input_value[k];
    int64_t before = of == kAtFirst ? 0 : level_[at(of)];
    if (before == 0) {
      if (storages_.death_op[at(row)] >= op && value_at(row, op) == of) {
        if (reader_[at(row)] != making_) into.inputs.push_back(row);
        reader_[at(row)] = making_;
        continue;
      }
      before = of == kAtFirst ? 0 : visit(of, op, most - 1, into);
      if (before == 0) return 0;
    }
    level = std::max(level, before + 1);
  }
  if (level > most) return 0;
  level_[at(value)] = level;
  into.made.push_back(value);
  return level;
}

void ReplayChains::finish(Chain& chain) const {
  const auto holds = [](const std::vector<int64_t>& all, int64_t one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  // What an op in place changes has its result's memory, and is made once more for another op that reads it.
  std::vector<int64_t> changed, read;
  int64_t beside_bytes = 0;
  for (const int64_t value : chain.made) {
    changed.push_back(changes_[at(value)]);
    const size_t end = at(values_.inputs_end[at(value)]);
    for (size_t k = at(values_.inputs_begin[at(value)]); k < end; ++k) {
      if (values_.input_row[k] != values_.row[at(value)]) read.push_back(values_.input_value[k]);
    }
    chain.seconds += values_.seconds[at(value)];
    beside_bytes = std::max(beside_bytes, values_.beside_bytes[at(value)]);
  }
  for (size_t k = 0; k + 1 < chain.made.size(); ++k) {
    const int64_t value = chain.made[k];
    if (holds(changed, value) && !holds(read, value)) continue;
    chain.transient_bytes += storages_.block_bytes[at(values_.row[at(value)])];
  }
  chain.transient_bytes += beside_bytes;
}

std::vector<int64_t> ReplayChains::needs(int64_t gap, int64_t op) {
  const Chain* found = chain(gaps_.row[at(gap)], op);
  if (found == nullptr) throw cannot_be_dropped(gap);
  std::vector<int64_t> around;
  for (const int64_t row : found->inputs) {
    if (const auto one = gap_around(row, op)) around.push_back(one->gap);
  }
  std::sort(around.begin(), around.end());
  around.erase(std::unique(around.begin(), around.end()), around.end());
  return around;
}

Resolved ReplayChains::resolve(std::span<const int64_t> gaps, const std::vector<bool>& fixed,
                               std::span<const int64_t> useful, const std::vector<bool>& must) {
  Resolved found;
  found.seconds.assign(at(ops_), 0.0);
  found.transient_bytes.assign(at(ops_), 0);
  std::vector<std::pair<int64_t, int64_t>> order;  // value and gap
  const bool any_fixed = std::find(fixed.begin(), fixed.end(), true) != fixed.end();
  const auto reads_fixed = [&](int64_t gap) {
    const auto needed = needs(gap, gaps_.use_op[at(gap)]);
    return std::any_of(needed.begin(), needed.end(), [&](int64_t other) { return fixed[at(other)]; });
  };
  for (const int64_t gap : gaps) {
    if (any_fixed && reads_fixed(gap)) {
      found.declined.push_back(gap);
    } else {
      order.emplace_back(value_at(gaps_.row[at(gap)], gaps_.use_op[at(gap)]), gap);
    }
  }
  std::sort(order.begin(), order.end());
  std::vector<int64_t> needed(gaps_.size(), kNever), asked;
  std::vector<bool> stays(gaps_.size(), false);
  for (auto each = order.rbegin(); each != order.rend(); ++each) {  // a storage comes before all that is made of it
    const int64_t gap = each->second, begin = gaps_.out_op[at(gap)] + 1;
    const int64_t op = std::min(needed[at(gap)], gaps_.use_op[at(gap)]);
    const bool idle = !useful.empty() && !must[at(gap)] && useful[at(op)] == useful[at(begin)];
    if (op <= begin || idle) {
      found.declined.push_back(gap);
      continue;
    }
    needed[at(gap)] = kNever;
    const Chain* made = chain(gaps_.row[at(gap)], op);
    if (made == nullptr) throw cannot_be_dropped(gap);
    found.seconds[at(op)] += made->seconds;
    found.transient_bytes[at(op)] = std::max(found.transient_bytes[at(op)], made->transient_bytes);
    for (const int64_t row : made->inputs) {
      const auto around = gap_around(row, op);
      if (!around) continue;
      if (gaps_.returns[at(around->gap)]) {
        if (needed[at(around->gap)] == kNever) asked.push_back(around->gap);
        needed[at(around->gap)] = std::min(needed[at(around->gap)], around->op);
      } else {
        stays[at(around->gap)] = true;
      }
    }
    found.gap.push_back(gap);
    found.in_op.push_back(op);
  }
  std::reverse(found.gap.begin(), found.gap.end());
  std::reverse(found.in_op.begin(), found.in_op.end());
  std::sort(asked.begin(), asked.end());
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  for (const int64_t gap : asked) {
    if (needed[at(gap)] == kNever) continue;  // it is dropped itself
    found.needed_gap.push_back(gap);
    found.needed_op.push_back(needed[at(gap)]);
  }
  for (size_t gap = 0; gap < stays.size(); ++gap) {
    if (stays[gap]) found.stays.push_back(static_cast<int64_t>(gap));
  }
  std::sort(found.declined.begin(), found.declined.end());
  return found;
}

}  // namespace chameleon::planner
