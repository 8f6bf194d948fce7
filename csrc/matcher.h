// Where in the program's op sequence the live run is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "program.h"

namespace chameleon {

// A cursor that waits where the sequences part, and moves on when the last few live ops are found again further on.
class Matcher {
 public:
  void reset(const Program* program);
  void begin_step();

  // The program's op that the live op is, or -1.
  int32_t match(uint32_t token);

  int32_t cursor() const { return cursor_; }  // the program's op expected next

 private:
  static constexpr size_t kConfirm = 6;      // live ops that must agree before the cursor jumps
  static constexpr int32_t kReach = 4096;    // how far ahead it looks

  int32_t resync() const;

  const Program* program_ = nullptr;
  int32_t cursor_ = 0;
  std::deque<uint32_t> recent_;  // the live ops since the sequences parted, newest last
};

}  // namespace chameleon
