// Follows the live ops through the program and fires its actions.
#pragma once

#include <vector>

#include "matcher.h"
#include "program.h"
#include "swapper.h"

namespace chameleon {

// A program is a hint: an action whose storage is gone, pinned or already where it should be does nothing.
class Executor {
 public:
  Executor(Swapper& swapper, StorageTable& table, Recorder& recorder)
      : swapper_(swapper), table_(table), recorder_(recorder) {}

  void load(Program program);
  void unload() { load(Program()); }
  bool loaded() const { return !program_.empty(); }
  int32_t ops() const { return program_.ops(); }

  void begin_step();
  void end_step();  // fires what is left, so that the next step begins as the program expects

  // An outermost op starts: match it and fire the free points up to it. Returns the program's op, or -1.
  int32_t begin_op(int32_t name, uint8_t stage);
  // Once the op's own storages are there: begin the copies in.
  void prefetch();
  // The op has ended: begin the copies out.
  void end_op(int32_t plan_op);

  void born(Storage& storage, int32_t plan_op, int32_t ordinal);
  void died(Storage& storage);

  // In ops; 0 for what is evicted last. Where the program does not know: as far ahead as the last use lies back.
  int64_t next_use(const Storage& storage, int64_t clock) const;

 private:
  void fire_free(int32_t op);
  void fire_swap_out(int32_t op);

  Swapper& swapper_;
  StorageTable& table_;
  Recorder& recorder_;
  Program program_;
  Matcher matcher_;
  std::vector<Storage*> live_;     // by row of the program's storages
  std::vector<int32_t> swap_ins_;  // due, in order; those without room wait here
  int32_t freed_to_ = 0;           // actions before these ops have fired
  int32_t swapped_out_to_ = 0;
};

}  // namespace chameleon
