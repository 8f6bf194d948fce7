#include "executor.h"

#include <algorithm>
#include <utility>

namespace chameleon {

void Executor::add(int64_t id, std::shared_ptr<const Program> program) {
  drop(id);
  known_.push_back({id, std::move(program), follows_});
}

void Executor::drop(int64_t id) {
  std::erase_if(known_, [id](const Known& known) { return known.id == id; });
  if (program_id_ != id) return;
  forget_places();
  program_.reset();
  program_id_ = -1;
}

void Executor::use(int64_t id) {
  const auto known = std::find_if(known_.begin(), known_.end(), [id](const Known& one) { return one.id == id; });
  if (known == known_.end()) return;
  if (program_id_ != id) {
    forget_places();
    follow(*known, 0);
  }
  begin_step();
}

void Executor::unload() {
  forget_places();
  known_.clear();
  program_.reset();
  program_id_ = -1;
}

void Executor::forget_places() {
  for (const auto& storage : table_.all()) storage->plan = -1;
  swap_ins_.clear();
  replays_.clear();
}

bool Executor::drops() const {
  return std::any_of(known_.begin(), known_.end(), [](const Known& known) { return known.program->drops(); });
}

void Executor::follow(const Known& known, int32_t cursor) {
  program_ = known.program;
  program_id_ = known.id;
  for (Known& one : known_) {
    if (one.id == known.id) one.used = ++follows_;
  }
  live_.assign(program_->storages.size(), nullptr);
  fired_at_.assign(program_->ops(), -kRecently - 1);
  for (const auto& storage : table_.all()) {
    if (const int32_t plan = program_->with_uid(storage->uid); plan >= 0) {
      storage->plan = plan;
      storage->evict_last = program_->storages[plan].evict_last;
      live_[plan] = storage.get();
    }
  }
  jumped_over_.clear();
  matcher_.reset(&program_->sequence, cursor);
  passed_ = cursor;
}

void Executor::begin_step() {
  live_op_ = 0;
  passed_ = 0;
  prefix_ = 0;
  size_searches_ = 0;
  departed_ = false;
  jumped_over_.clear();
  if (!loaded()) return;
  matcher_.reset(&program_->sequence);
  std::fill(fired_at_.begin(), fired_at_.end(), -kRecently - 1);
}

void Executor::end_step() {
  recorder_.log().fingerprint = prefix_;
  recorder_.log().program = program_id_;
  if (!loaded()) return;
  for (const JumpedOver& range : jumped_over_) catch_up(range.begin, range.end);
  jumped_over_.clear();
  // A step that was another thing altogether says nothing about what is due.
  if (passed_ > 0) catch_up(passed_, program_->ops());
}

int32_t Executor::begin_op(uint32_t token) {
  prefix_ = Sequence::extend(prefix_, token);
  ++live_op_;
  if (!loaded()) return -1;
  int32_t expected = matcher_.cursor();
  Matcher::Match match = matcher_.match(token);
  if (!match.settled && !departed_ && change_program(-1, 0, 0)) {
    match = {live_op_ - 1, true};
    expected = match.op;
  }
  if (departed_ || !match.settled) note_departure(match, expected);
  while (!jumped_over_.empty() && jumped_over_.front().due <= live_op_) {
    const JumpedOver range = jumped_over_.front();
    jumped_over_.pop_front();
    catch_up(range.begin, range.end);
  }
  if (match.op < 0) return -1;
  ++recorder_.log().matched_ops;
  if (match.settled) {
    if (match.op > passed_) jumped_over_.push_back({departed_at_ + kGrace, passed_, match.op});
    passed_ = match.op + 1;
  }
  fire_before(match.op);
  return match.op;
}

// The other programs that began as this step did; of those that agree, the one whose storage made here has about the
// size of the live one, rather too large than too small. Returns whether another one is followed now.
bool Executor::change_program(int32_t plan_op, int32_t ordinal, int64_t bytes) {
  const Known* best = nullptr;
  int64_t best_off = 0;
  const auto off_by = [&](int64_t planned) { return planned >= bytes ? planned - bytes : 4 * (bytes - planned); };
  for (const Known& known : known_) {
    const Program& program = *known.program;
    if (program.ops() < live_op_ || program.sequence.prefix(live_op_) != prefix_) continue;
    int64_t off = 0;
    if (plan_op >= 0) {
      const int32_t row = program.born_at(plan_op, ordinal);
      if (row < 0) continue;
      off = off_by(program.storages[row].bytes);
    }
    if (!best || off < best_off || (off == best_off && known.used > best->used)) {
      best = &known;
      best_off = off;
    }
  }
  if (!best || best->id == program_id_) return false;
  // What this step has made is the same in both programs, up to here.
  const std::shared_ptr<const Program> before = program_;
  std::vector<std::pair<Storage*, const PlanStorage*>> made;
  for (size_t row = 0; row < live_.size(); ++row) {
    if (live_[row] && before->storages[row].uid < 0) made.emplace_back(live_[row], &before->storages[row]);
  }
  forget_places();
  follow(*best, live_op_);
  for (const auto& [storage, planned] : made) {
    const int32_t row =
        planned->birth_op < live_op_ ? program_->born_at(planned->birth_op, planned->birth_ordinal) : -1;
    if (row < 0) continue;
    live_[row] = storage;
    storage->plan = row;
  }
  catch_up(0, std::max(live_op_ - 1, 0));
  return true;
}

void Executor::note_departure(Matcher::Match match, int32_t expected) {
  std::vector<DepartureRow>& rows = recorder_.log().departures;
  if (!departed_) {
    departed_ = true;
    departed_at_ = live_op_;
    if (rows.size() < StepLog::kMostDepartures) rows.push_back({live_op_ - 1, -1, expected, -1});
    ++recorder_.log().departure_count;
  }
  if (!match.settled) return;
  departed_ = false;
  if (!rows.empty() && rows.back().to_op < 0) {
    rows.back().to_op = live_op_ - 1;
    rows.back().plan_to_op = match.op;
  }
}

// Ops that no live op has been: of all that was due there to a storage, only the last counts now.
void Executor::catch_up(int32_t begin, int32_t end) {
  const Action* const first = program_->actions_begin(begin);
  const Action* const last = program_->actions_begin(end);
  const auto fired = [&](const Action& action) { return live_op_ - fired_at_[action.op] <= kRecently; };
  due_.resize(program_->storages.size());
  for (const Action* action = first; action != last; ++action) {
    if (fired(*action)) continue;
    Due& due = due_[action->storage];
    const bool back = action->kind == ActionKind::Replay;  // on demand, then
    due = {true, action->kind == ActionKind::SwapIn, due.leaves || action->kind == ActionKind::SwapOut,
           !back && (due.drops || action->kind == ActionKind::Drop)};
  }
  for (const Action* action = first; action != last; ++action) {
    const Due due = std::exchange(due_[action->storage], {});
    if (!due.any) continue;
    if (due.comes) {
      swap_ins_.push_back(action->storage);
    } else if (due.drops) {
      fire_drop(action->storage);
    } else if (due.leaves) {
      fire_swap_out(action->storage);  // pressure takes its block, if nothing asks for it before
    }
  }
}

void Executor::fire_before(int32_t op) {
  fired_at_[op] = live_op_;
  for (const Action* action = program_->actions_begin(op); action != program_->actions_end(op); ++action) {
    Storage* storage = live_[action->storage];
    if (action->kind == ActionKind::Free) {
      if (storage && storage->residency == Residency::Leaving) {
        swapper_.finish_swap_out(*storage);
      } else {
        ++recorder_.log().dropped_triggers;
      }
    } else if (action->kind == ActionKind::SwapIn) {
      swap_ins_.push_back(action->storage);
    } else if (action->kind == ActionKind::Replay && storage) {
      // Where it could not be dropped it was swapped out.
      (storage->residency == Residency::Dropped ? replays_ : swap_ins_).push_back(action->storage);
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

std::vector<Storage*> Executor::take_replays() {
  std::vector<Storage*> due;
  for (const int32_t row : replays_) {
    if (live_[row] && live_[row]->residency == Residency::Dropped) due.push_back(live_[row]);
  }
  replays_.clear();
  return due;
}

void Executor::fire_after(int32_t op) {
  for (const Action* action = program_->actions_begin(op); action != program_->actions_end(op); ++action) {
    if (action->kind == ActionKind::SwapOut) fire_swap_out(action->storage);
    if (action->kind == ActionKind::Drop) fire_drop(action->storage);
  }
}

// What cannot be made again leaves as a swap-out does.
void Executor::fire_drop(int32_t row) {
  Storage* storage = live_[row];
  if (!storage || !drop_bytes(*storage)) {
    fire_swap_out(row);
    return;
  }
  recorder_.log().due_bytes += static_cast<int64_t>(storage->bytes);
  recorder_.log().fired_bytes += static_cast<int64_t>(storage->bytes);
}

void Executor::fire_swap_out(int32_t row) {
  StepLog& log = recorder_.log();
  Storage* storage = live_[row];
  if (storage) log.due_bytes += static_cast<int64_t>(storage->bytes);
  if (storage && storage->residency == Residency::Resident && storage->pins == 0 && swapper_.movable(*storage)) {
    swapper_.swap_out(*storage, Cause::Planned);
  } else {
    ++log.dropped_triggers;
  }
  const bool leaves = storage && (storage->residency == Residency::Leaving || storage->residency == Residency::Away);
  if (leaves) log.fired_bytes += static_cast<int64_t>(storage->bytes);
}

void Executor::end_op(int32_t plan_op) {
  // Another thread may have dropped the program, or changed it, while the op ran.
  if (loaded() && plan_op >= 0 && plan_op < program_->ops()) fire_after(plan_op);
}

void Executor::born(Storage& storage, int32_t plan_op, int32_t ordinal) {
  if (plan_op < 0 || !loaded()) return;
  int32_t plan = program_->born_at(plan_op, ordinal);
  if (plan < 0) return;
  const auto bytes = static_cast<int64_t>(storage.bytes);
  const bool as_planned = plan_op == std::max(live_op_ - 1, 0) && program_->ops() >= live_op_ &&
                          program_->sequence.prefix(live_op_) == prefix_;
  if (as_planned && program_->storages[plan].bytes != bytes && size_searches_++ < kSizeSearches) {
    if (change_program(plan_op, ordinal, bytes)) {
      plan = program_->born_at(plan_op, ordinal);
      fire_before(plan_op);
    }
  }
  if (live_[plan]) live_[plan]->plan = -1;  // last step's, still alive
  live_[plan] = &storage;
  storage.plan = plan;
  if (!storage.categorised) storage.category = static_cast<Category>(program_->storages[plan].category);
  storage.label = program_->storages[plan].label;
  storage.evict_last = program_->storages[plan].evict_last;
}

void Executor::died(Storage& storage) {
  if (storage.plan >= 0 && live_[storage.plan] == &storage) live_[storage.plan] = nullptr;
}

int64_t Executor::next_use(const Storage& storage, int64_t clock) const {
  if (storage.evict_last) return -1;
  if (storage.plan >= 0) return program_->next_use_distance(storage.plan, matcher_.cursor() - 1);
  return clock - storage.last_use;
}

}  // namespace chameleon
