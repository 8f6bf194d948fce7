// The recorder: what ops ran, which storages they touched, what was copied and what was waited for, a step at a time.
//
// Rows are plain structs, so that Python sees each table as one structured numpy array (see bindings.cpp). The columns
// that people work with are documented in chameleon_lab/trace/columns.py.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "clock.h"
#include "leaf_call.h"
#include "owned_elsewhere.h"
#include "storage.h"

namespace torch {
struct CapturedTraceback;
}

namespace chameleon {

enum class Stage : uint8_t { Forward, Backward, Optimizer, NoGrad };

struct OpRow {
  Ticks start_ticks;
  Ticks end_ticks;
  Ticks stall_ticks;
  Ticks device_ticks;  // that it took there; -1 where nobody measured
  int64_t sequence_nr;
  int64_t live_peak_bytes;
  int64_t resident_peak_bytes;
  int32_t name;
  int32_t module;
  int32_t thread;
  int32_t stack;
  int32_t plan_op;  // the op of the program it was matched to, or -1
  uint32_t token;   // what it was matched by
  uint8_t stage;
};

struct StorageRow {
  int64_t uid;
  int64_t bytes;
  int64_t block_bytes;
  int32_t module;
  int32_t label;
  int32_t birth_op;
  int32_t birth_ordinal;
  int32_t death_op;
  int32_t shape;  // index into Runtime::shapes(), or -1
  int8_t dtype;   // a c10::ScalarType, or -1
  uint8_t category;
  uint8_t movable;
};

struct UseRow {
  int32_t op;
  int32_t storage;
  int32_t part;  // of an op that may run in parts: the element of its lists; -1: of all, or nobody knows
  uint8_t reads;
  uint8_t writes;
};

struct TransferRow {
  int64_t bytes;
  Ticks due_ticks;  // when somebody asked for it: before its issue where there was no room
  Ticks issue_ticks;
  Ticks start_ticks;
  Ticks end_ticks;
  int32_t storage;
  int32_t issue_op;
  uint8_t direction;
  uint8_t cause;
};

struct StallRow {
  Ticks start_ticks;
  Ticks end_ticks;
  Ticks due_ticks;  // of the copy that was waited for
  Ticks issue_ticks;
  Ticks copy_start_ticks;
  Ticks copy_end_ticks;
  int64_t room_bytes;    // that its end was to make room for; 0: nobody asked for room
  int32_t room_storage;  // whose block that is; -1: a new one's
  int32_t op;
  int32_t storage;
  uint8_t direction;
  uint8_t cause;
};

// Why no op runs: for no known reason, while data are loaded, or between a notebook's cells.
enum class PauseKind : uint8_t { Idle, Loading, Cells };

// A stretch without ops; ops may lie in one that somebody has told of.
struct PauseRow {
  Ticks start_ticks;
  Ticks end_ticks;
  int32_t op;  // the next one
  uint8_t kind;
};

// A stretch that the user's own code has named: torch.profiler.record_function, and what torch itself names so.
struct MarkRow {
  Ticks start_ticks;
  Ticks end_ticks;
  int32_t name;  // index into mark_names()
  int32_t thread;
  int32_t from_op;
  int32_t to_op;  // the first op after it
};

// What a wait makes room for.
struct Room {
  int64_t bytes = 0;
  int32_t storage = -1;
};

// An op that ran again to give a storage its bytes back.
struct ReplayRow {
  Ticks start_ticks;
  Ticks end_ticks;
  int64_t bytes;    // of what it made
  int32_t op;       // of the step: the one that it was replayed for
  int32_t storage;  // whose bytes are restored; in a chain, several ops are replayed for one storage
  int32_t name;     // of the op that was replayed
  uint8_t cause;
};

// A drop that the program asked for and that was declined.
struct DeclinedRow {
  int32_t op;
  int32_t storage;
  int32_t name;  // of the op that made the storage, or -1
  uint8_t refusal;
};

// A value of a storage and one of those that it was made from: a value has a row for each, or one without.
struct MakingRow {
  int32_t making;   // the value's number in the step
  int32_t op;       // of the step
  int32_t storage;  // that holds the value
  int32_t name;     // of the op that replays would run, which may be inside of the step's; -1: nobody knows
  int32_t input;    // a storage whose value it was made from: its own where that was changed in place; -1: none
  uint8_t refusal;
};

// A stretch of time in which a storage's block was on the device.
struct ResidencyRow {
  Ticks from_ticks;
  Ticks to_ticks;
  int32_t storage;
  int32_t from_op;
  int32_t to_op;  // the first op without it
};

// A stretch of ops that the program does not have there, or the place where it has ops that were left out.
struct DepartureRow {
  int32_t from_op;
  int32_t to_op;       // the first op that is matched again, or -1
  int32_t plan_op;     // the program's op that was expected
  int32_t plan_to_op;  // the program's op at which the match goes on, or -1
};

// Counters of a step that its summary shows by these names (`StepSummary` in report.py says what each counts). A new
// one is a name here and a field there.
// clang-format off
#define CHAMELEON_STEP_COUNTERS(X) \
  X(evictions) X(evicted_bytes) X(demand_swap_ins) X(late_prefetches) X(dropped_triggers) \
  X(drops) X(dropped_bytes) X(matched_ops) X(due_bytes) X(fired_bytes) X(useless_bytes)
// clang-format on

// One step's tables.
struct StepLog : OwnedElsewhere {
  int64_t index = 0;
  Ticks start_ticks = 0;
  Ticks end_ticks = 0;
  std::vector<OpRow> ops;
  std::vector<StorageRow> storages;
  std::vector<UseRow> uses;
  std::vector<TransferRow> transfers;
  std::vector<EventPtr> transfer_events;  // beside transfers: their times are known once they are done
  struct Wait {
    StallRow stall;  // without its times
    int32_t running_op;
    EventPtr event;
    EventPtr copy;
  };
  std::vector<StallRow> stalls;
  std::vector<Wait> waits;  // of compute that has not got there yet: settle() makes stalls of them
  struct Span {
    int32_t op;
    EventPtr begin, end;
  };
  std::deque<Span> spans;  // of compute likewise: settle() makes the ops' device_ticks of them
  std::vector<ResidencyRow> residencies;
  std::vector<ReplayRow> replays;
  std::vector<DeclinedRow> declined;
  std::vector<PauseRow> pauses;
  std::vector<MarkRow> marks;      // in order of their ends
  std::vector<MakingRow> makings;  // of the whole step, or none
  int32_t making_count = 0;
  bool has_makings = false;
  static constexpr size_t kMostDepartures = 64;
  std::vector<DepartureRow> departures;
  std::vector<std::shared_ptr<torch::CapturedTraceback>> stacks;
  std::vector<LeafCall> leaf_calls;  // of a trace without memory
  int64_t truncated_ops = 0;
  // Why records of the step were lost, where that was not the end of the ring. Filled in where no memory can be had.
  std::array<char, 128> lost_to{};
  // Its newest op that found no room, and the one before: the step may lack what came after it.
  int32_t failed_op = -1;
  int32_t failed_before = -1;

  void fails(int32_t op) {
    if (op != failed_op) failed_before = std::exchange(failed_op, op);
  }

  // Counters of the step.
  int64_t peak_resident_bytes = 0;
  int64_t live_peak_bytes = 0;
  int64_t unlisted_bytes[2] = {0, 0};  // moved out and in past the end of the ring
#define CHAMELEON_COUNTER(name) int64_t name = 0;
  CHAMELEON_STEP_COUNTERS(CHAMELEON_COUNTER)
#undef CHAMELEON_COUNTER
  int64_t replay_count = 0;  // ops
  Ticks replay_ticks = 0;
  int64_t departure_count = 0;
  int64_t program = -1;      // the one that was followed when the step ended
  uint64_t fingerprint = 0;  // of its tokens
  Ticks stall_ticks = 0;
  AllocatorEvents allocator;

  void settle();  // call before reading ops, stalls, their sum, or late prefetches
  bool settled() const { return waits.empty() && spans.empty(); }

  // What a copy has moved or will have moved: less than asked for if it was cancelled.
  int64_t copied_bytes(size_t transfer) const;
  int64_t moved_bytes(Direction direction) const;
  // When a copy began and ended; none while it runs, and where nobody knows.
  std::optional<std::pair<Ticks, Ticks>> copy_times(size_t transfer) const;
};

// A ring of steps: the one being written, and the last few.
class Recorder {
 public:
  // A step with more ops is cut off there, and says so: a loop that never ends a step must not eat memory.
  explicit Recorder(size_t most_ops = size_t{1} << 20) : most_ops_(most_ops) { begin_step(next_log()); }

  StepLog& log() { return *log_; }
  const StepLog& log() const { return *log_; }
  const std::deque<std::shared_ptr<StepLog>>& finished() const { return finished_; }

  int32_t op() const { return op_; }  // what is recorded now belongs to this op of the step; -1 before the first
  int32_t ops() const { return static_cast<int32_t>(log_->ops.size()); }

  size_t used_bytes(int32_t op) const;  // of all storages that the newest op uses

  // Returns the row of the op, or null past the end of the ring.
  OpRow* begin_op(int32_t name, Stage stage, int32_t module, int64_t sequence_nr, int32_t thread);
  void end_op(int32_t op, bool last);  // last: no other op runs
  void timed(int32_t op, EventPtr begin, EventPtr end);
  void resume(int32_t op, bool running) {  // where several threads run ops, each comes back to its own
    op_ = op;
    op_running_ = running;
  }
  OpRow* row(int32_t op) { return op >= 0 && op < static_cast<int32_t>(log_->ops.size()) ? &log_->ops[op] : nullptr; }

  void born(Storage& storage, int32_t ordinal);
  void died(Storage& storage);
  void used(Storage& storage, bool reads, bool writes, int32_t part = -1);
  void belongs(Storage& storage, int32_t part);           // what this op made is the result of one of its elements
  int32_t row_of(Storage& storage);                       // of this step's storages; made where missing
  void levels(size_t live_bytes, size_t resident_bytes);  // after memory was taken
  void arrived(Storage& storage);                         // its block was taken
  void left(Storage& storage, int32_t first_op_without);  // its block was given back
  void transfer(Storage& storage, Direction direction, Cause cause, Ticks issue, EventPtr event);
  void dropped(Storage& storage);
  void declined(Storage& storage, Refusal refusal);
  void cut_short(const char* why);  // as at the end of the ring: no more of this step can be recorded
  void record_makings(bool on);     // of a step that they are recorded of from its begin to its end
  void made(Storage& storage, const std::vector<Storage*>& from);  // by its maker, or why that cannot be repeated
  void replayed(Storage* storage, size_t bytes, int32_t name, Cause cause, Ticks start, Ticks end);
  void stalled(Storage& storage, Direction direction, Cause cause, EventPtr copy, EventPtr wait,
               Room room);  // wait null: it did not

  // Stretches without ops. Where the host runs ahead of the device only those count that somebody tells of.
  void notice_pauses(bool on) { notices_pauses_ = on; }
  void own_work(bool on);                             // what the runtime itself does between ops is no pause
  void begin_pause(PauseKind kind, EventPtr moment);  // moment: when what was given to the device before is done
  void end_pause();

  // Marks may begin in one step and end in another: each has its part.
  int64_t begin_mark(const char* name, int32_t thread);  // returns what end_mark() takes
  void end_mark(int64_t mark);
  const std::vector<std::string>& mark_names() const { return mark_names_; }

  // Close the step: every storage alive gets a row. Movable: may it leave the device?
  template <class Movable>
  std::shared_ptr<StepLog> end_step(const StorageTable& table, Movable movable) {
    std::shared_ptr<StepLog> next = next_log();  // first: a step that has ended must not be written any more
    describe(table, movable);
    return close(std::move(next));
  }

  // The step as it would be if it ended now; it goes on.
  template <class Movable>
  std::shared_ptr<StepLog> so_far(const StorageTable& table, Movable movable) {
    for (const auto& storage : table.all()) {
      if (!storage->scratch) row_of(*storage);
    }
    const auto own = std::exchange(log_, std::make_shared<StepLog>(*log_));
    try {
      describe(table, movable);
    } catch (...) {
      log_ = own;
      throw;
    }
    log_->end_ticks = now_ticks();
    return std::exchange(log_, own);
  }

 private:
  template <class Movable>
  void describe(const StorageTable& table, Movable movable) {
    const int32_t ops = this->ops();
    // First as well: a step that goes on has no residency twice.
    for (const auto& storage : table.all()) {
      if (!storage->scratch) row_of(*storage);
    }
    log_->residencies.reserve(log_->residencies.size() + table.all().size());
    for (const auto& storage : table.all()) {
      if (storage->scratch) continue;
      StorageRow& row = log_->storages[row_of(*storage)];
      row.death_op = ops;
      row.movable = movable(*storage);
      row.category = static_cast<uint8_t>(storage->category);
      row.label = storage->label;
      row.shape = storage->form.shape;
      row.dtype = storage->form.dtype;
      if (storage->block) left(*storage, ops);
    }
  }

  std::shared_ptr<StepLog> close(std::shared_ptr<StepLog> next);
  std::shared_ptr<StepLog> next_log() const;
  void begin_step(std::shared_ptr<StepLog> log);
  bool full() const { return log_->truncated_ops > 0; }
  void write_mark(const MarkRow& mark);

  struct OpenMark {
    int64_t id;
    MarkRow row;
  };
  std::vector<OpenMark> open_marks_;
  std::vector<std::string> mark_names_;
  std::unordered_map<std::string, int32_t> mark_numbers_;
  inline static std::atomic<int64_t> next_mark_{0};  // over all sessions: a mark may end in a later one
  static constexpr size_t kMostMarks = size_t{1} << 16;

  std::shared_ptr<StepLog> log_;
  std::deque<std::shared_ptr<StepLog>> finished_;
  static constexpr size_t kKeptSteps = 4;
  size_t most_ops_;
  int64_t next_step_ = 0;
  int32_t op_ = -1;
  bool op_running_ = false;

  // Shorter ones are Python between two ops. Ticks are a nanosecond at most: see what reads them.
  static constexpr Ticks kLeastPause = 5'000'000;
  bool notices_pauses_ = false;
  int own_work_ = 0;
  Ticks idle_since_ = 0;  // 0: an op runs
  Ticks paused_since_ = 0;
  PauseKind paused_for_ = PauseKind::Idle;
  EventPtr paused_at_;
};

}  // namespace chameleon
