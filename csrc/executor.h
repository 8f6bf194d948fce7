// Follows the live ops through the program that fits them, and fires its actions.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "matcher.h"
#include "program.h"
#include "swapper.h"
#include "watch.h"

namespace chameleon {

// A program is a hint: an action whose storage is gone, pinned or already where it should be does nothing.
//
// Several programs are known, and one is followed. Where the live ops part from it, or a storage has another size than
// it says, and another program began just as this step did, that one is followed from there on. If they part from that
// one too, the program that the step began with is gone back to, as soon as its own cursor has found the run again.
//
// How well the ops are followed is watched all the time, over the borders of steps. A run that is lost in the middle of
// one is looked for in the other programs: what it does now may be what one of them is for, whatever the step began
// with.
class Executor {
 public:
  Executor(Swapper& swapper, StorageTable& table, Recorder& recorder)
      : swapper_(swapper), table_(table), recorder_(recorder) {}

  void add(int64_t id, std::shared_ptr<const Program> program);
  void drop(int64_t id);
  void use(int64_t id);  // from now on, which must be before a step's first op
  void unload();
  bool loaded() const { return program_ != nullptr; }
  bool drops() const;  // does any known program drop storages?

  std::function<bool(Storage&)> drop_bytes;  // give a storage's block back if its bytes can be made again

  void begin_step();
  void end_step();  // does what is left, so that the next step begins as the program expects

  // An outermost op starts, and its inputs are pinned: match it and fire the free points up to it. Returns the
  // program's op, or -1.
  int32_t begin_op(uint32_t token);
  // Once the op's own storages are there: begin the copies in.
  void prefetch();
  // Dropped storages that are due to be made again, in order.
  std::vector<Storage*> take_replays();
  // The op has ended: begin the copies out, and drop what is made again later.
  void end_op(int32_t plan_op);
  // Begin the copies out that have to have host memory first. Gives up the lock, so call it when nothing of the op, or
  // of the step, is left to do.
  void send_waiting();

  void born(Storage& storage, int32_t plan_op, int32_t ordinal);
  void died(Storage& storage);

  // Note [Retention]
  // A program may want the bytes of a storage for longer than its tensors live: what is dropped is made from them. It
  // keeps its place in the program then, and may leave and come back meanwhile. It is let go of at the program's op, at
  // the end of the step, or where another program that does not want it is followed.
  bool retains(const Storage& storage) const;  // which dies now
  void retained(Storage& ghost, int32_t plan);
  std::function<void(Storage&)> let_go;

  // In ops; below 0 for what is evicted last. Where the program does not know: as far ahead as the last use lies back.
  int64_t next_use(const Storage& storage, int64_t clock) const;
  int64_t host_place(const Storage& storage) const;        // of its copy; -1: anywhere
  bool host_kept(const Storage& storage) const;            // does the plan keep its copy when it comes back?
  Watch::Level recent() const { return watch_.recent(); }  // of the program that is followed

 private:
  struct Known {
    int64_t id;
    std::shared_ptr<const Program> program;
    uint64_t used;  // when it was followed last
  };
  struct JumpedOver {  // ops of the program that no live op has been
    int32_t due;       // live op before which they are dealt with
    int32_t begin, end;
  };
  struct Due {
    bool any = false;
    bool comes = false;   // its last action is a swap-in
    bool leaves = false;  // a swap-out is among them
    bool drops = false;   // or a drop
  };
  // Reordered ops must not fire before production: what a jump left out waits so many ops from
  // where the run departed.
  static constexpr int32_t kGrace = 12;
  static constexpr int32_t kRecently = 64;     // live ops
  static constexpr int32_t kSizeSearches = 4;  // in a step
  static constexpr int32_t kLeastFound = 16;   // ops that a lost run and another program must have in common
  static constexpr size_t kMostPlaces = 8;     // looked at in each program
  static constexpr size_t kMostTokens = 4096;  // kept, or a few more: a step that never ends must not eat memory
  static constexpr size_t kMostLeft = size_t{1} << 20;

  struct Waiting {  // a swap-out that lacks host memory
    Storage* storage;
    int64_t uid, last_use;
    bool due;  // is it a trigger, which is counted when it is made or not?
  };

  struct Left {  // the program that the step began with, while another one is followed
    std::shared_ptr<const Program> program = nullptr;
    int64_t id = -1;
    Matcher matcher = {};
    int32_t since = 0;              // index of the live op that departed
    std::vector<int32_t> ops = {};  // of the program, or -1, by live op since then
  };

  void follow(const Known& known, int32_t cursor);
  void send_to_places(int32_t cursor);
  void forget_places();
  bool change_program(int32_t plan_op, int32_t ordinal, int64_t bytes);
  bool go_back();
  bool look_elsewhere();
  Matcher::Match follow_op(uint32_t token);
  void catch_up_with_due();
  void keep_token(uint32_t token);
  // The op of the step at which this program came into use: not 0 where another thread's op came first.
  int32_t begun_at() const;
  void find_places(const std::function<int32_t(int32_t)>& op_of);
  void note_departure(Matcher::Match match, int32_t expected);
  void catch_up(int32_t begin, int32_t end);
  void fire_before(int32_t op);
  void fire_after(int32_t op);
  // Op: of the program, whose action this is; -1 where no live op has been it.
  void fire_swap_out(int32_t storage, int32_t op);
  void fire_drop(int32_t storage, int32_t op);
  bool send_out(Storage& storage, bool due);
  void let_go_of(int32_t storage);
  void let_go_of_retained(bool all);  // else of those that have no place in the program
  void note_trigger(int64_t bytes, bool fired);

  Swapper& swapper_;
  StorageTable& table_;
  Recorder& recorder_;
  std::vector<Known> known_;
  std::shared_ptr<const Program> program_;  // the one that is followed
  int64_t program_id_ = -1;
  uint64_t follows_ = 0;
  Matcher matcher_;
  Left left_;
  std::vector<Storage*> live_;                          // by row of the program's storages
  std::vector<uint8_t> came_;                           // by row: has it been there in this step?
  std::vector<int32_t> swap_ins_;                       // due, in order; those without room wait here
  std::vector<int32_t> replays_;                        // due, in order
  std::vector<Waiting> waiting_;                        // in order
  std::vector<std::pair<Storage*, int64_t>> retained_;  // with their uids: some may be gone
  std::vector<int32_t> fired_at_;  // by op of the program: the live op at which its actions fired last
  std::vector<Due> due_;           // scratch of catch_up, by storage
  std::deque<JumpedOver> jumped_over_;
  int32_t live_op_ = 0;           // outermost ops of the step so far
  int32_t passed_ = 0;            // ops of the program before this one have fired, or are in jumped_over_
  std::vector<uint32_t> tokens_;  // of the step's newest ops
  uint64_t prefix_ = 0;           // of all its tokens so far
  Watch watch_;
  int32_t size_searches_ = 0;
  bool newcomer_ = false;  // has a program been added since the newest op?
  bool departed_ = false;
  bool parted_ = false;      // have the live ops departed from the followed program in this step, if only for a while?
  int32_t departed_at_ = 0;  // live op
};

}  // namespace chameleon
