#include "executor.h"

#include <algorithm>

namespace chameleon {

void Executor::load(Program program) {
  for (const auto& storage : table_.all()) storage->plan = -1;
  program_ = std::move(program);
  live_.assign(program_.storages.size(), nullptr);
  for (const auto& storage : table_.all()) {
    const int32_t plan = program_.with_uid(storage->uid);
    if (plan < 0) continue;
    storage->plan = plan;
    live_[plan] = storage.get();
  }
  swap_ins_.clear();
  matcher_.reset(&program_);
  begin_step();
}

void Executor::begin_step() {
  matcher_.begin_step();
  freed_to_ = 0;
  swapped_out_to_ = 0;
}

void Executor::end_step() {
  if (!loaded()) return;
  while (freed_to_ < program_.ops()) {
    fire_free(freed_to_++);
    while (swapped_out_to_ < freed_to_) fire_swap_out(swapped_out_to_++);
  }
  while (swapped_out_to_ < program_.ops()) fire_swap_out(swapped_out_to_++);
}

int32_t Executor::begin_op(int32_t name, uint8_t stage) {
  if (!loaded()) return -1;
  const int32_t plan_op = matcher_.match(Program::token(name, stage));
  if (plan_op < 0) return -1;
  ++recorder_.log().matched_ops;
  // Ops that the live run has skipped: what was due at them is due now.
  while (freed_to_ <= plan_op) {
    while (swapped_out_to_ < freed_to_) fire_swap_out(swapped_out_to_++);
    fire_free(freed_to_++);
  }
  return plan_op;
}

void Executor::fire_free(int32_t op) {
  for (const Action* action = program_.actions_begin(op); action != program_.actions_end(op); ++action) {
    Storage* storage = live_[action->storage];
    if (action->kind == ActionKind::Free) {
      if (storage && storage->residency == Residency::Leaving) {
        swapper_.finish_swap_out(*storage);
      } else {
        ++recorder_.log().dropped_triggers;
      }
    } else if (action->kind == ActionKind::SwapIn) {
      swap_ins_.push_back(action->storage);
    }
  }
}

void Executor::prefetch() {
  if (swap_ins_.empty()) return;
  size_t waiting = 0;
  for (size_t i = 0; i < swap_ins_.size(); ++i) {
    Storage* storage = live_[swap_ins_[i]];
    if (!storage || storage->residency != Residency::Away) continue;
    // Later ones must not overtake: the link carries them in the order in which they are needed.
    if (waiting > 0 || !swapper_.swap_in(*storage, Cause::Planned)) swap_ins_[waiting++] = swap_ins_[i];
  }
  swap_ins_.resize(waiting);
}

void Executor::fire_swap_out(int32_t op) {
  for (const Action* action = program_.actions_begin(op); action != program_.actions_end(op); ++action) {
    if (action->kind != ActionKind::SwapOut) continue;
    Storage* storage = live_[action->storage];
    if (storage && storage->residency == Residency::Resident && storage->pins == 0 && swapper_.movable(*storage)) {
      swapper_.swap_out(*storage, Cause::Planned);
    } else {
      ++recorder_.log().dropped_triggers;
    }
  }
}

void Executor::end_op(int32_t plan_op) {
  if (plan_op < 0) return;
  while (swapped_out_to_ <= plan_op) fire_swap_out(swapped_out_to_++);
}

void Executor::born(Storage& storage, int32_t plan_op, int32_t ordinal) {
  if (plan_op < 0) return;
  const int32_t plan = program_.born_at(plan_op, ordinal);
  if (plan < 0) return;
  if (live_[plan]) live_[plan]->plan = -1;  // last step's, still alive
  live_[plan] = &storage;
  storage.plan = plan;
  if (!storage.categorised) storage.category = static_cast<Category>(program_.storages[plan].category);
  storage.label = program_.storages[plan].label;
}

void Executor::died(Storage& storage) {
  if (storage.plan >= 0 && live_[storage.plan] == &storage) live_[storage.plan] = nullptr;
}

int64_t Executor::next_use(const Storage& storage, int64_t clock) const {
  if (storage.plan >= 0 && program_.storages[storage.plan].evict_last) return 0;
  if (storage.plan >= 0) return program_.next_use_distance(storage.plan, matcher_.cursor() - 1);
  return clock - storage.last_use;
}

}  // namespace chameleon
