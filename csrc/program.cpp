#include "program.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace chameleon {

namespace {
uint64_t birth_key(int32_t op, int32_t ordinal) {
  return static_cast<uint64_t>(static_cast<uint32_t>(op)) << 32 | static_cast<uint32_t>(ordinal);
}
}  // namespace

Program::Program(std::vector<uint32_t> tokens_in, std::vector<PlanStorage> storages_in, std::vector<int32_t> uses_in,
                 std::vector<Action> actions_in)
    : tokens(std::move(tokens_in)),
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
  std::stable_sort(actions.begin(), actions.end(),
                   [](const Action& a, const Action& b) { return a.op != b.op ? a.op < b.op : a.kind < b.kind; });
  offsets_.assign(tokens.size() + 1, 0);
  for (const Action& action : actions) ++offsets_[action.op + 1];
  for (size_t op = 0; op < tokens.size(); ++op) offsets_[op + 1] += offsets_[op];
  for (size_t end = kGram; end <= tokens.size(); ++end) {
    grams_[gram_key(tokens.data() + end - kGram)].push_back(static_cast<int32_t>(end - 1));
  }
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

uint64_t Program::gram_key(const uint32_t* tokens) {
  uint64_t key = 0;
  for (size_t i = 0; i < kGram; ++i) key = (key ^ tokens[i]) * 0x9E3779B97F4A7C15ull;  // Fibonacci hashing
  return key;
}

int32_t Program::find_gram(uint64_t key, int32_t from) const {
  const auto found = grams_.find(key);
  if (found == grams_.end()) return -1;
  const auto at = std::lower_bound(found->second.begin(), found->second.end(), from);
  return at == found->second.end() ? -1 : *at;
}

int32_t Program::with_uid(int64_t uid) const {
  auto found = by_uid_.find(uid);
  return found == by_uid_.end() ? -1 : found->second;
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
