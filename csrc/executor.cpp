#include "executor.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

namespace chameleon {

namespace {
constexpr size_t kMostInPieces = 8;  // swap-ins that are tried again at every op
}

void Executor::add(int64_t id, std::shared_ptr<const Program> program) {
  drop(id);
  known_.push_back({id, std::move(program), follows_});
  newcomer_ = true;
  size_searches_ = 0;
}

void Executor::drop(int64_t id) {
  std::erase_if(known_, [id](const Known& known) { return known.id == id; });
  if (left_.id == id) left_ = {};
  if (program_id_ != id) return;
  forget_places();
  program_.reset();
  program_id_ = -1;
  watch_.clear();
  let_go_of_retained(/*all=*/true);
}

void Executor::use(int64_t id) {
  const auto known = std::find_if(known_.begin(), known_.end(), [id](const Known& one) { return one.id == id; });
  if (known == known_.end()) return;
  if (program_id_ != id) {
    follow(*known, 0);
    let_go_of_retained(/*all=*/true);
    send_to_places(0);
  }
  begin_step();
}

void Executor::unload() {
  forget_places();
  waiting_.clear();
  left_ = {};
  known_.clear();
  program_.reset();
  program_id_ = -1;
  watch_.clear();
  let_go_of_retained(/*all=*/true);
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
  // First, since what throws on the way would leave a program that is half followed.
  std::vector<Storage*> live(known.program->storages.size(), nullptr);
  std::vector<uint8_t> came(known.program->storages.size(), false);
  std::vector<int32_t> fired_at(known.program->ops(), -kRecently - 1);
  forget_places();
  program_ = known.program;
  program_id_ = known.id;
  for (Known& one : known_) {
    if (one.id == known.id) one.used = ++follows_;
  }
  live_ = std::move(live);
  came_ = std::move(came);
  fired_at_ = std::move(fired_at);
  watch_.clear();
  for (const auto& storage : table_.all()) {
    if (storage->ghost) continue;  // its tensors are gone, and it ends without a word to the executor
    if (const int32_t plan = program_->with_uid(storage->uid); plan >= 0) {
      storage->plan = plan;
      storage->evict_last = program_->storages[plan].evict_last;
      live_[plan] = storage.get();
      came_[plan] = true;
    }
  }
  jumped_over_.clear();
  matcher_.reset(&program_->sequence, cursor);
  passed_ = cursor;
  parted_ = false;
}

// Another program left storages that live across steps where it wanted them, and in its last step: those that this one
// has away at this point leave now, and those that it has here come.
void Executor::send_to_places(int32_t cursor) {
  constexpr int kUnknown = -1;
  std::vector<int> last(program_->storages.size(), kUnknown);
  const Action* const middle = program_->actions_begin(cursor);
  for (const Action* action = program_->actions_begin(0); action != middle; ++action) {
    last[action->storage] = static_cast<int>(action->kind);
  }
  std::vector<int> before = last;
  for (const Action* action = middle; action != program_->actions_begin(program_->ops()); ++action) {
    if (before[action->storage] == kUnknown) last[action->storage] = static_cast<int>(action->kind);
  }
  for (size_t row = 0; row < last.size(); ++row) {
    Storage* storage = live_[row];
    if (!storage || program_->storages[row].uid < 0 || last[row] == kUnknown) continue;
    const auto kind = static_cast<ActionKind>(last[row]);
    const bool goes = kind == ActionKind::SwapOut || kind == ActionKind::Free;
    if (goes) {
      send_out(*storage, /*due=*/false);
    } else if (kind == ActionKind::SwapIn && storage->residency == Residency::Away) {
      swap_ins_.push_back(static_cast<int32_t>(row));
    }
  }
}

// Returns whether it was on the device, and leaves, now or with send_waiting().
bool Executor::send_out(Storage& storage, bool due) {
  if (storage.pins > 0 || !swapper_.movable(storage)) return false;
  if (storage.residency == Residency::Returning) {  // fetched for ops that never came
    swapper_.undo_swap_in(storage);
    return true;
  }
  if (storage.residency != Residency::Resident) return false;
  swapper_.swap_out(storage, Cause::Planned, /*at_hand=*/true);
  if (swapper_.lacks_host_memory()) waiting_.push_back({&storage, storage.uid, storage.last_use, due});
  return true;
}

// The op stream stands still meanwhile where it is this thread's, so that the plan's bytes leave where they are due.
// Other threads' ops may have come between: what they have used is not due any more. What they have passed the free
// point of gives its block to whoever lacks room next, as all that is leaving does; so does, by eviction, what has not
// found memory now.
void Executor::send_waiting() {
  for (const Waiting& one : std::exchange(waiting_, {})) {
    Storage& storage = *one.storage;
    const auto still_due = [&] {
      return storage.uid == one.uid && storage.last_use == one.last_use && storage.pins == 0 &&
             storage.residency == Residency::Resident && swapper_.movable(storage);
    };
    try {
      if (still_due()) swapper_.have_host_memory(storage);
    } catch (const std::exception&) {  // no memory for the host's books
    }
    if (still_due()) swapper_.swap_out(storage, Cause::Planned, /*at_hand=*/true);
    if (!one.due || storage.uid != one.uid) continue;
    const bool leaves = storage.residency == Residency::Leaving || storage.residency == Residency::Away;
    note_trigger(static_cast<int64_t>(storage.bytes), leaves);
  }
}

void Executor::begin_step() {
  left_ = {};
  live_op_ = 0;
  passed_ = 0;
  tokens_.clear();
  prefix_ = 0;
  size_searches_ = 0;
  departed_ = parted_ = false;
  jumped_over_.clear();
  if (!loaded()) return;
  matcher_.reset(&program_->sequence);
  std::fill(fired_at_.begin(), fired_at_.end(), -kRecently - 1);
  std::transform(live_.begin(), live_.end(), came_.begin(), [](const Storage* storage) { return storage != nullptr; });
}

void Executor::end_step() {
  recorder_.log().fingerprint = prefix_;
  recorder_.log().program = program_id_;
  if (!loaded()) return;
  for (const JumpedOver& range : jumped_over_) catch_up(range.begin, range.end);
  jumped_over_.clear();
  // A step that was another thing altogether says nothing about what is due.
  if (passed_ > 0) catch_up(passed_, program_->ops());
  let_go_of_retained(/*all=*/true);
}

// Where in a program the newest op is: in the followed one, or, where the run parts from that, in another that agrees.
Matcher::Match Executor::follow_op(uint32_t token) {
  int32_t expected = matcher_.cursor();
  Matcher::Match match = matcher_.match(token);
  const bool newcomer = std::exchange(newcomer_, false);
  const bool parts = !match.settled && !departed_;
  if ((parts || (newcomer && parted_)) && change_program(-1, 0, 0)) {
    match = {live_op_ - 1, true};
    expected = match.op;
  } else if (!match.settled && go_back()) {
    match = {passed_ - 1, true};
  }
  if (watch_.op(match.op >= 0) && !match.settled && watch_.lost() && look_elsewhere()) match = {passed_ - 1, true};
  parted_ |= !match.settled;
  if (departed_ || !match.settled) note_departure(match, expected);
  return match;
}

// Ranges that were jumped over and are still not there.
void Executor::catch_up_with_due() {
  while (!jumped_over_.empty() && jumped_over_.front().due <= live_op_) {
    const JumpedOver range = jumped_over_.front();
    jumped_over_.pop_front();
    catch_up(range.begin, range.end);
  }
}

int32_t Executor::begin_op(uint32_t token) {
  prefix_ = Sequence::extend(prefix_, token);
  ++live_op_;
  if (!loaded()) return -1;
  keep_token(token);
  if (left_.program) left_.ops.push_back(left_.matcher.match(token).op);
  if (left_.ops.size() > kMostLeft) left_ = {};
  const Matcher::Match match = follow_op(token);
  catch_up_with_due();
  if (match.op < 0) return -1;
  ++recorder_.log().matched_ops;
  if (match.settled) {
    if (match.op > passed_) jumped_over_.push_back({departed_at_ + kGrace, passed_, match.op});
    passed_ = match.op + 1;
  }
  fire_before(match.op);
  return match.op;
}

void Executor::keep_token(uint32_t token) {
  if (tokens_.size() == 2 * kMostTokens) tokens_.erase(tokens_.begin(), tokens_.begin() + kMostTokens);
  tokens_.push_back(token);
}

int32_t Executor::begun_at() const { return std::max(recorder_.ops() - live_op_, 0); }

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
  if (plan_op < 0 && !left_.program && !parted_) left_ = {program_, program_id_, matcher_, live_op_ - 1, {-1}};
  follow(*best, live_op_);
  find_places([this](int32_t op) { return op < live_op_ ? op : -1; });
  catch_up(0, std::max(live_op_ - 1, 0));
  send_to_places(std::max(live_op_ - 1, 0));
  return true;
}

// The ops part from the followed program, which was chosen for its beginning alone, and the program that the step began
// with has found the run again.
bool Executor::go_back() {
  if (!left_.program || !left_.matcher.settled() || left_.ops.back() < 0) return false;
  const Left left = std::exchange(left_, {});
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& one) { return one.id == left.id; });
  if (known == known_.end() || left.id == program_id_) return false;
  const int32_t op = left.ops.back();
  follow(*known, op + 1);
  matcher_ = left.matcher;
  parted_ = true;
  find_places([&left](int32_t live_op) {
    if (live_op < left.since) return live_op;
    const auto since = static_cast<size_t>(live_op - left.since);
    return since < left.ops.size() ? left.ops[since] : -1;
  });
  std::vector<DepartureRow>& rows = recorder_.log().departures;
  if (departed_ && !rows.empty() && rows.back().to_op < 0) rows.pop_back();
  if (!departed_) ++recorder_.log().departure_count;
  if (rows.size() < StepLog::kMostDepartures) {
    rows.push_back({left.since + begun_at(), live_op_ - 1 + begun_at(), left.since, op});
  }
  departed_ = false;
  catch_up(0, op);
  send_to_places(op);
  return true;
}

// The program that has most of the newest ops in one piece, wherever in it they are.
bool Executor::look_elsewhere() {
  constexpr auto kGram = static_cast<int32_t>(Sequence::kGram);
  const auto kept = static_cast<int32_t>(tokens_.size());
  if (kept < kLeastFound) return false;
  const Known* best = nullptr;
  int32_t best_op = -1, best_run = kLeastFound - 1;
  for (const Known& known : known_) {
    if (known.id == program_id_) continue;  // its own cursor looks there
    const Sequence& sequence = known.program->sequence;
    const auto places = sequence.with_gram(tokens_.data() + kept - kGram);
    for (const int32_t op : places.first(std::min(places.size(), kMostPlaces))) {
      int32_t run = kGram;
      while (run < kept && run <= op && sequence[op - run] == tokens_[kept - 1 - run]) ++run;
      if (run > best_run || (run == best_run && best && known.used > best->used)) {
        best = &known;
        best_op = op;
        best_run = run;
      }
    }
  }
  if (!best) return false;
  left_ = {};
  follow(*best, best_op + 1);
  parted_ = true;
  const int32_t since = live_op_ - best_run;
  find_places([&](int32_t live_op) { return live_op >= since ? best_op - (live_op_ - 1 - live_op) : -1; });
  std::vector<DepartureRow>& rows = recorder_.log().departures;
  // Of the ops up to here, the log says that they were nobody's.
  if (departed_ && !rows.empty() && rows.back().to_op < 0) {
    rows.back() = {rows.back().from_op, live_op_ - 1 + begun_at(), best_op, best_op};
  }
  departed_ = false;
  catch_up(best_op + 1 - best_run, best_op);
  send_to_places(best_op);
  return true;
}

// The storages that this step has made, in the program that is followed now.
void Executor::find_places(const std::function<int32_t(int32_t)>& op_of) {
  const StepLog& log = recorder_.log();
  const int32_t first = begun_at();
  for (const auto& storage : table_.all()) {
    if (storage->scratch || (storage->ghost && !storage->retained) || storage->log_step != log.index) continue;
    if (log.storages[storage->log_row].birth_op < first) continue;
    const int32_t op = op_of(static_cast<int32_t>(storage->birth_op) - first);
    const int32_t row = op >= 0 ? program_->born_at(op, storage->birth_ordinal) : -1;
    if (row < 0 || (storage->ghost && program_->retained_until(row) < passed_)) continue;
    live_[row] = storage.get();
    came_[row] = true;
    storage->plan = row;
  }
  let_go_of_retained(/*all=*/false);
}

void Executor::note_departure(Matcher::Match match, int32_t expected) {
  std::vector<DepartureRow>& rows = recorder_.log().departures;
  if (!departed_) {
    departed_ = true;
    departed_at_ = live_op_;
    if (rows.size() < StepLog::kMostDepartures) rows.push_back({live_op_ - 1 + begun_at(), -1, expected, -1});
    ++recorder_.log().departure_count;
  }
  if (!match.settled) return;
  departed_ = false;
  if (!rows.empty() && rows.back().to_op < 0) {
    rows.back().to_op = live_op_ - 1 + begun_at();
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
    if (fired(*action) || action->kind == ActionKind::Release) continue;
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
      fire_drop(action->storage, -1);
    } else if (due.leaves) {
      fire_swap_out(action->storage, -1);  // pressure takes its block, if nothing asks for it before
    }
  }
  for (const Action* action = first; action != last; ++action) {
    if (action->kind == ActionKind::Release) let_go_of(action->storage);
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
  bool all_wait = false;
  for (size_t i = 0; i < swap_ins_.size(); ++i) {
    Storage* storage = live_[swap_ins_[i]];
    if (!storage || storage->residency != Residency::Away) continue;
    if (storage->due[1] == 0) storage->due[1] = now_ticks();  // it may wait for room from here on
    if (!all_wait && swapper_.swap_in(*storage, Cause::Planned)) continue;
    swap_ins_[waiting++] = swap_ins_[i];
    // Later ones must not overtake one that lacks bytes: the link carries them in the order in which they are needed.
    // One that finds its bytes in pieces has them planned for all the same, and takes nothing from those behind it.
    all_wait = all_wait || waiting >= kMostInPieces || !swapper_.has_bytes_for(*storage);
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
    if (action->kind == ActionKind::SwapOut) fire_swap_out(action->storage, op);
    if (action->kind == ActionKind::Drop) fire_drop(action->storage, op);
    if (action->kind == ActionKind::Release) let_go_of(action->storage);
  }
}

// What cannot be made again leaves as a swap-out does.
void Executor::fire_drop(int32_t row, int32_t op) {
  Storage* storage = live_[row];
  if (!storage || !drop_bytes(*storage)) {
    fire_swap_out(row, op);
    return;
  }
  note_trigger(static_cast<int64_t>(storage->bytes), true);
}

void Executor::fire_swap_out(int32_t row, int32_t op) {
  Storage* storage = live_[row];
  if (!storage) {
    ++recorder_.log().dropped_triggers;
    // One that was made in the step and has died is not in anybody's way. One that never came is, under whatever name
    // the run has it, and one that lived across steps has been replaced.
    const PlanStorage& planned = program_->storages[row];
    if (op >= 0 && (planned.uid >= 0 || (op >= planned.birth_op && !came_[row]))) note_trigger(planned.bytes, false);
    return;
  }
  if (storage->residency == Residency::Leaving) {
    storage->moved_by = Cause::Planned;  // pressure has sent it ahead
  } else if (!send_out(*storage, /*due=*/true)) {
    ++recorder_.log().dropped_triggers;
  } else if (!waiting_.empty() && waiting_.back().storage == storage) {
    return;  // send_waiting() says what became of it
  }
  const bool leaves = storage->residency == Residency::Leaving || storage->residency == Residency::Away;
  note_trigger(static_cast<int64_t>(storage->bytes), leaves);
}

void Executor::note_trigger(int64_t bytes, bool fired) {
  StepLog& log = recorder_.log();
  log.due_bytes += bytes;
  log.fired_bytes += fired ? bytes : 0;
  watch_.trigger(bytes, fired ? bytes : 0);
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
  came_[plan] = true;
  storage.plan = plan;
  if (!storage.categorized) storage.category = static_cast<Category>(program_->storages[plan].category);
  storage.label = program_->storages[plan].label;
  storage.evict_last = program_->storages[plan].evict_last;
}

void Executor::died(Storage& storage) {
  if (storage.plan >= 0 && live_[storage.plan] == &storage) live_[storage.plan] = nullptr;
}

bool Executor::retains(const Storage& storage) const {
  return storage.plan >= 0 && live_[storage.plan] == &storage && program_->retained_until(storage.plan) >= passed_;
}

void Executor::retained(Storage& ghost, int32_t plan) {
  ghost.retained = true;
  ghost.plan = plan;
  retained_.emplace_back(&ghost, ghost.uid);
}

void Executor::let_go_of(int32_t storage) {
  if (live_[storage] && live_[storage]->retained) let_go(*live_[storage]);
}

void Executor::let_go_of_retained(bool all) {
  // In place: those that stay are remembered whatever memory there is.
  size_t kept = 0;
  for (size_t i = 0; i < retained_.size(); ++i) {
    const auto [ghost, uid] = retained_[i];
    if (ghost->uid != uid || !ghost->retained) continue;
    if (all || ghost->plan < 0) {
      let_go(*ghost);
    } else {
      retained_[kept++] = {ghost, uid};
    }
  }
  retained_.resize(kept);
}

int64_t Executor::next_use(const Storage& storage, int64_t clock) const {
  if (storage.evict_last) return std::numeric_limits<int64_t>::min();
  if (storage.plan >= 0) return program_->next_use_distance(storage.plan, matcher_.cursor() - 1);
  return clock - storage.last_use;
}

int64_t Executor::host_place(const Storage& storage) const {
  return storage.plan >= 0 ? program_->storages[storage.plan].host_place : -1;
}

bool Executor::host_kept(const Storage& storage) const {
  return storage.plan < 0 || program_->storages[storage.plan].host_kept;
}

}  // namespace chameleon
