// Where in the program's op sequence the live run is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "program.h"

namespace chameleon {

// A cursor that waits where the sequences part, and moves on when the last few live ops are found again further on.
class Matcher {
 public:
  void reset(const Program* program);
  void begin_step();

  // The program's op that the live op is, or -1.
  int32_t match(uint32_t token) {
    if (cursor_ < program_->ops() && program_->tokens[cursor_] == token) {
      parted_ = 0;
      return cursor_++;
    }
    return resync(token);
  }

  int32_t cursor() const { return cursor_; }  // the program's op expected next

 private:
  static constexpr size_t kNearGram = 3;
  static constexpr int32_t kNear = 16;

  int32_t resync(uint32_t token);

  const Program* program_ = nullptr;
  int32_t cursor_ = 0;
  size_t parted_ = 0;                              // live ops since the sequences parted
  std::array<uint32_t, Program::kGram> recent_{};  // the last of them, newest last
};

}  // namespace chameleon
