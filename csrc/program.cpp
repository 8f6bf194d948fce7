#include "program.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace chameleon {

namespace {
uint64_t birth_key(int32_t op, int32_t ordinal) {
  return static_cast<uint64_t>(static_cast<uint32_t>(op)) << 32 | static_cast<uint32_t>(ordinal);
}
// What fires before an op comes before what fires after it.
int firing_order(ActionKind kind) {
  switch (kind) {
    case ActionKind::Free:
      return 0;
    case ActionKind::SwapIn:
      return 1;
    case ActionKind::Replay:
      return 2;
    case ActionKind::SwapOut:
      return 3;
    case ActionKind::Drop:
      return 4;
    case ActionKind::Release:
      return 5;
  }
  return 6;
}
}  // namespace

Program::Program(std::vector<uint32_t> tokens_in, std::vector<PlanStorage> storages_in, std::vector<int32_t> uses_in,
                 std::vector<Action> actions_in)
    : sequence(std::move(tokens_in)),
      storages(std::move(storages_in)),
      uses(std::move(uses_in)),
      actions(std::move(actions_in)) {
  for (const Action& action : actions) {
    if (action.op < 0 || action.op >= ops() || action.storage < 0 ||
        action.storage >= static_cast<int32_t>(storages.size())) {
      throw std::invalid_argument("program: action at op " + std::to_string(action.op) + " on storage " +
                                  std::to_string(action.storage) + " is outside the " + std::to_string(ops()) +
                                  " ops and " + std::to_string(storages.size()) + " storages");
    }
  }
  std::stable_sort(actions.begin(), actions.end(), [](const Action& a, const Action& b) {
    return a.op != b.op ? a.op < b.op : firing_order(a.kind) < firing_order(b.kind);
  });
  drops_ = std::any_of(actions.begin(), actions.end(), [](const Action& a) { return a.kind == ActionKind::Drop; });
  for (const Action& action : actions) {
    if (action.kind == ActionKind::Release) retained_until_[action.storage] = action.op;
  }
  offsets_.assign(ops() + 1, 0);
  for (const Action& action : actions) ++offsets_[action.op + 1];
  for (int32_t op = 0; op < ops(); ++op) offsets_[op + 1] += offsets_[op];
  for (size_t row = 0; row < storages.size(); ++row) {
    const PlanStorage& storage = storages[row];
    if (storage.uses_end < storage.uses_begin || storage.uses_end > uses.size()) {
      throw std::invalid_argument("program: storage " + std::to_string(row) + " has uses outside the list");
    }
    if (storage.uid >= 0) {
      by_uid_.emplace(storage.uid, static_cast<int32_t>(row));
    } else {
      by_birth_.emplace(birth_key(storage.birth_op, storage.birth_ordinal), static_cast<int32_t>(row));
    }
  }
}

int32_t Program::born_at(int32_t op, int32_t ordinal) const {
  auto found = by_birth_.find(birth_key(op, ordinal));
  return found == by_birth_.end() ? -1 : found->second;
}

int32_t Program::with_uid(int64_t uid) const {
  auto found = by_uid_.find(uid);
  return found == by_uid_.end() ? -1 : found->second;
}

int32_t Program::retained_until(int32_t storage) const {
  auto found = retained_until_.find(storage);
  return found == retained_until_.end() ? -1 : found->second;
}

int64_t Program::next_use_distance(int32_t storage, int32_t op) const {
  constexpr int64_t kNever = int64_t{1} << 40;
  const PlanStorage& plan = storages[storage];
  const auto begin = uses.begin() + plan.uses_begin, end = uses.begin() + plan.uses_end;
  if (begin == end) return kNever;
  const auto next = std::upper_bound(begin, end, op);
  if (next != end) return *next - op;
  return plan.uid >= 0 ? int64_t{*begin} + ops() - op : kNever;
}

}  // namespace chameleon
