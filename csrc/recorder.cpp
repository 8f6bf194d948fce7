#include "recorder.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace chameleon {

int64_t StepLog::copied_bytes(size_t transfer) const {
  const Event& event = *transfer_events[transfer];
  return event.done() ? static_cast<int64_t>(event.copied_bytes()) : transfers[transfer].bytes;
}

int64_t StepLog::moved_bytes(Direction direction) const {
  int64_t bytes = unlisted_bytes[static_cast<size_t>(direction)];
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].direction == static_cast<uint8_t>(direction)) bytes += copied_bytes(i);
  }
  return bytes;
}

std::optional<std::pair<Ticks, Ticks>> StepLog::copy_times(size_t transfer) const {
  const Event& event = *transfer_events[transfer];
  if (!event.done()) return std::nullopt;
  const Ticks start = event.start_ticks(), end = event.end_ticks();
  if (start == kNoTime || end == kNoTime) return std::nullopt;
  return std::pair(start, end);
}

void StepLog::settle() {
  const auto settled = [this](Wait& wait) {
    if (!wait.event->done()) return false;
    if (!wait.copy->done()) return false;
    wait.stall.copy_start_ticks = wait.copy->start_ticks();
    wait.stall.copy_end_ticks = wait.copy->end_ticks();
    wait.stall.start_ticks = wait.event->start_ticks();
    wait.stall.end_ticks = wait.event->end_ticks();
    if (wait.stall.start_ticks == kNoTime || wait.stall.end_ticks == kNoTime) return true;  // left out
    const Ticks lasted = wait.stall.end_ticks - wait.stall.start_ticks;
    if (lasted <= 0) return true;  // compute got there when the copy had ended
    stall_ticks += lasted;
    const bool planned = wait.stall.cause == static_cast<uint8_t>(Cause::Planned);
    if (planned && !wait.copy->made_at_once() && wait.stall.direction == static_cast<uint8_t>(Direction::In))
      ++late_prefetches;
    if (wait.stall.storage < 0) return true;
    stalls.push_back(wait.stall);
    if (wait.running_op >= 0 && wait.running_op < static_cast<int32_t>(ops.size())) {
      ops[wait.running_op].stall_ticks += lasted;
    }
    return true;
  };
  // First, since what throws on the way would leave waits without their events.
  if (stalls.capacity() - stalls.size() < waits.size()) stalls.reserve(2 * stalls.size() + waits.size());
  std::erase_if(waits, settled);
  for (; !spans.empty() && spans.front().end->done() && spans.front().begin->done(); spans.pop_front()) {
    const Span& span = spans.front();
    const Ticks begin = span.begin->start_ticks(), end = span.end->start_ticks();
    if (begin == kNoTime || end == kNoTime) continue;
    if (span.op < static_cast<int32_t>(ops.size())) ops[span.op].device_ticks = std::max<Ticks>(end - begin, 0);
  }
}

std::shared_ptr<StepLog> Recorder::next_log() const {
  auto log = std::make_shared<StepLog>();
  if (log_) {  // steps are alike: spare the vectors their growth
    log->ops.reserve(log_->ops.size());
    log->storages.reserve(log_->storages.size());
    log->uses.reserve(log_->uses.size());
    log->residencies.reserve(log_->residencies.size());
    log->makings.reserve(log_->makings.size());
  }
  return log;
}

void Recorder::begin_step(std::shared_ptr<StepLog> log) {
  log_ = std::move(log);
  log_->index = next_step_++;
  log_->start_ticks = now_ticks();
  op_ = -1;
  op_running_ = false;
  idle_since_ = log_->start_ticks;
}

std::shared_ptr<StepLog> Recorder::close(std::shared_ptr<StepLog> next) {
  log_->end_ticks = now_ticks();
  if (paused_since_) {  // the rest of it belongs to the next step
    const PauseKind kind = paused_for_;
    end_pause();
    begin_pause(kind, nullptr);
  }
  for (OpenMark& mark : open_marks_) {
    write_mark(mark.row);
    mark.row.start_ticks = log_->end_ticks;
    mark.row.from_op = 0;
  }
  auto closed = log_;
  finished_.push_back(closed);
  while (finished_.size() > kKeptSteps) finished_.pop_front();
  begin_step(std::move(next));
  return closed;
}

OpRow* Recorder::begin_op(int32_t name, Stage stage, int32_t module, int64_t sequence_nr, int32_t thread) {
  if (log_->ops.size() >= most_ops_) {
    ++log_->truncated_ops;
    return nullptr;
  }
  op_ = ops();
  op_running_ = true;
  OpRow& row = log_->ops.emplace_back();
  row.sequence_nr = sequence_nr;
  row.live_peak_bytes = 0;
  row.resident_peak_bytes = 0;
  row.name = name;
  row.module = module;
  row.thread = thread;
  row.stack = -1;
  row.plan_op = -1;
  row.token = 0;
  row.stage = static_cast<uint8_t>(stage);
  row.start_ticks = row.end_ticks = now_ticks();
  const Ticks since = std::exchange(idle_since_, 0);
  if (C10_UNLIKELY(since && row.start_ticks - since >= kLeastPause) && notices_pauses_ && own_work_ == 0) {
    log_->pauses.push_back({since, row.start_ticks, op_, static_cast<uint8_t>(PauseKind::Idle)});
  }
  row.stall_ticks = 0;
  row.device_ticks = -1;
  return &row;
}

void Recorder::end_op(int32_t op, bool last) {
  op_running_ = false;
  if (modeled_time.on()) [[unlikely]]
    modeled_time.pass_op(used_bytes(op));
  const Ticks now = now_ticks();
  if (OpRow* ended = row(op)) ended->end_ticks = now;
  if (last) idle_since_ = now;
}

size_t Recorder::used_bytes(int32_t op) const {
  int64_t bytes = 0;
  for (auto use = log_->uses.rbegin(); use != log_->uses.rend() && use->op >= op; ++use) {
    if (use->op == op) bytes += log_->storages[use->storage].bytes;
  }
  return static_cast<size_t>(bytes);
}

void Recorder::own_work(bool on) {
  own_work_ = std::max(own_work_ + (on ? 1 : -1), 0);
  if (idle_since_) idle_since_ = now_ticks();
}

void Recorder::begin_pause(PauseKind kind, EventPtr moment) {
  paused_since_ = now_ticks();
  paused_for_ = kind;
  paused_at_ = std::move(moment);
}

void Recorder::end_pause() {
  Ticks start = std::exchange(paused_since_, 0);
  const EventPtr moment = std::move(paused_at_);
  if (!start) return;
  if (moment) {
    if (!moment->done()) return;  // the device has not paused at all
    start = std::max(start, moment->start_ticks());
  }
  const Ticks now = now_ticks();
  if (now > start) log_->pauses.push_back({start, now, ops(), static_cast<uint8_t>(paused_for_)});
}

int64_t Recorder::begin_mark(const char* name, int32_t thread) {
  // A script may name each of its batches anew.
  if (mark_names_.size() >= kMostMarks && !mark_numbers_.contains(name)) return -1;
  std::string text = name;
  const auto number = static_cast<int32_t>(mark_names_.size());
  // First, or the next new name would have this one's number.
  if (mark_names_.size() == mark_names_.capacity()) mark_names_.reserve(2 * mark_names_.size() + 1);
  const auto [known, is_new] = mark_numbers_.try_emplace(text, number);
  if (is_new) mark_names_.push_back(std::move(text));
  const int64_t mark = ++next_mark_;
  open_marks_.push_back({mark, {now_ticks(), 0, known->second, thread, ops(), 0}});
  return mark;
}

void Recorder::end_mark(int64_t mark) {
  const auto found =
      std::find_if(open_marks_.rbegin(), open_marks_.rend(), [mark](const OpenMark& open) { return open.id == mark; });
  if (found == open_marks_.rend()) return;
  const MarkRow row = found->row;
  open_marks_.erase(std::next(found).base());
  write_mark(row);
}

void Recorder::write_mark(const MarkRow& mark) {
  if (log_->marks.size() >= kMostMarks) return;
  log_->marks.push_back(mark);
  log_->marks.back().end_ticks = now_ticks();
  log_->marks.back().to_op = ops();
}

void Recorder::timed(int32_t op, EventPtr begin, EventPtr end) {
  if (end && row(op)) log_->spans.push_back({op, std::move(begin), std::move(end)});
}

void Recorder::arrived(Storage& storage) {
  storage.resident_step = log_->index;
  storage.resident_from_op = std::max(op_, 0);
  storage.resident_from_ticks = now_ticks();
}

void Recorder::left(Storage& storage, int32_t first_op_without) {
  if (full()) return;
  const bool this_step = storage.resident_step == log_->index;
  log_->residencies.push_back({this_step ? storage.resident_from_ticks : log_->start_ticks, now_ticks(),
                               row_of(storage), this_step ? storage.resident_from_op : 0, first_op_without});
}

void Recorder::cut_short(const char* why) {
  ++log_->truncated_ops;
  auto& text = log_->lost_to;
  if (!text.front()) std::memcpy(text.data(), why, std::min(std::strcspn(why, "\n"), text.size() - 1));
}

int32_t Recorder::row_of(Storage& storage) {
  if (storage.log_step == log_->index) return storage.log_row;
  StorageRow& row = log_->storages.emplace_back();
  storage.log_step = log_->index;
  storage.log_row = static_cast<int32_t>(log_->storages.size()) - 1;
  storage.last_use_row = -1;
  row.uid = storage.uid;
  row.bytes = static_cast<int64_t>(storage.bytes);
  row.block_bytes = static_cast<int64_t>(storage.block_bytes);
  row.module = storage.module;
  row.label = storage.label;
  row.birth_op = -1;
  row.birth_ordinal = -1;
  row.death_op = -1;
  row.shape = storage.form.shape;
  row.dtype = storage.form.dtype;
  row.category = static_cast<uint8_t>(storage.category);
  row.movable = 1;
  return storage.log_row;
}

void Recorder::born(Storage& storage, int32_t ordinal) {
  if (full()) return;
  const int32_t op = std::max(op_, 0);
  storage.birth_op = op;
  storage.birth_ordinal = ordinal;
  StorageRow& row = log_->storages[row_of(storage)];
  row.birth_op = op;
  row.birth_ordinal = ordinal;
  used(storage, false, true);
}

void Recorder::died(Storage& storage) {
  if (full() && storage.log_step != log_->index) return;
  StorageRow& row = log_->storages[row_of(storage)];
  row.death_op = std::max(op_, 0);
  row.movable = storage.settled && !storage.given_out();
  row.category = static_cast<uint8_t>(storage.category);
  row.label = storage.label;
  row.shape = storage.form.shape;
  row.dtype = storage.form.dtype;
}

void Recorder::used(Storage& storage, bool reads, bool writes, int32_t part) {
  if (full()) return;
  const int32_t op = std::max(op_, 0);
  const int32_t row = row_of(storage);
  if (storage.last_use_row >= 0) {
    UseRow& last = log_->uses[storage.last_use_row];
    if (last.op == op) {
      last.reads |= reads;
      last.writes |= writes;
      if (part >= 0 && part != last.part) last.part = -1;  // of two elements
      return;
    }
  }
  log_->uses.push_back({op, row, part, reads, writes});
  storage.last_use_row = static_cast<int32_t>(log_->uses.size()) - 1;
}

void Recorder::belongs(Storage& storage, int32_t part) {
  if (storage.log_step != log_->index || storage.last_use_row < 0) return;
  UseRow& last = log_->uses[storage.last_use_row];
  if (last.op == op_ && storage.birth_op == op_) last.part = part;
}

void Recorder::levels(size_t live_bytes, size_t resident_bytes) {
  log_->peak_resident_bytes = std::max(log_->peak_resident_bytes, static_cast<int64_t>(resident_bytes));
  log_->live_peak_bytes = std::max(log_->live_peak_bytes, static_cast<int64_t>(live_bytes));
  if (OpRow* op = row(op_)) {
    op->live_peak_bytes = std::max(op->live_peak_bytes, static_cast<int64_t>(live_bytes));
    op->resident_peak_bytes = std::max(op->resident_peak_bytes, static_cast<int64_t>(resident_bytes));
  }
}

void Recorder::transfer(Storage& storage, Direction direction, Cause cause, Ticks issue, EventPtr event) {
  const auto bytes = static_cast<int64_t>(storage.bytes);
  if (full()) {
    log_->unlisted_bytes[static_cast<size_t>(direction)] += bytes;
    return;
  }
  log_->transfer_events.push_back(std::move(event));
  try {
    log_->transfers.push_back({bytes, storage.due[static_cast<size_t>(direction)], issue, 0, 0, row_of(storage),
                               std::max(op_, 0), static_cast<uint8_t>(direction), static_cast<uint8_t>(cause)});
  } catch (...) {  // they lie side by side
    log_->transfer_events.pop_back();
    throw;
  }
}

void Recorder::dropped(Storage& storage) {
  ++log_->drops;
  log_->dropped_bytes += static_cast<int64_t>(storage.bytes);
}

void Recorder::declined(Storage& storage, Refusal refusal) {
  if (full()) return;
  log_->declined.push_back({std::max(op_, 0), row_of(storage), storage.maker, static_cast<uint8_t>(refusal)});
}

void Recorder::record_makings(bool on) {
  log_->has_makings = on && (log_->has_makings || ops() == 0);
  if (!log_->has_makings) log_->makings.clear();
}

void Recorder::made(Storage& storage, const std::vector<Storage*>& from) {
  if (!log_->has_makings || full()) return;
  MakingRow row{log_->making_count++,
                std::max(op_, 0),
                row_of(storage),
                storage.maker,
                -1,
                static_cast<uint8_t>(storage.refusal)};
  if (from.empty()) log_->makings.push_back(row);
  for (Storage* input : from) {
    row.input = row_of(*input);
    log_->makings.push_back(row);
  }
}

void Recorder::replayed(Storage* storage, size_t bytes, int32_t name, Cause cause, Ticks start, Ticks end) {
  ++log_->replay_count;
  log_->replay_ticks += end - start;
  if (full()) return;
  log_->replays.push_back({start, end, static_cast<int64_t>(bytes), std::max(op_, 0), storage ? row_of(*storage) : -1,
                           name, static_cast<uint8_t>(cause)});
}

void Recorder::stalled(Storage& storage, Direction direction, Cause cause, EventPtr copy, EventPtr wait, Room room) {
  if (!wait) return;
  const auto way = static_cast<size_t>(direction);
  StallRow row{};
  row.due_ticks = storage.due[way];
  row.issue_ticks = storage.issued[way];
  row.room_bytes = room.bytes;
  row.room_storage = room.storage;
  row.op = std::max(op_, 0);
  row.storage = full() ? -1 : row_of(storage);
  row.direction = static_cast<uint8_t>(direction);
  row.cause = static_cast<uint8_t>(cause);
  log_->waits.push_back({row, op_running_ ? op_ : -1, std::move(wait), std::move(copy)});
  if (log_->waits.back().event->done()) log_->settle();
}

}  // namespace chameleon
