// How well the live ops have followed the program of late: by ops, and by the bytes that its triggers should have
// moved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace chameleon {

class Watch {
 public:
  struct Level {
    int64_t ops = 0;
    int64_t matched_ops = 0;
    int64_t due_bytes = 0;  // of swap-outs and drops whose op ran, and whose storage should have been there
    int64_t fired_bytes = 0;
  };

  void clear() { *this = {}; }

  // Returns whether it is time to judge again.
  bool op(bool matched) {
    Level& part = parts_[part_ % kParts];
    part.matched_ops += matched;
    if (++part.ops < kPartOps) return false;
    parts_[++part_ % kParts] = {};
    return true;
  }

  void trigger(int64_t due_bytes, int64_t fired_bytes) {
    parts_[part_ % kParts].due_bytes += due_bytes;
    parts_[part_ % kParts].fired_bytes += fired_bytes;
  }

  Level recent() const {
    Level sum;
    for (const Level& part : parts_) {
      sum.ops += part.ops;
      sum.matched_ops += part.matched_ops;
      sum.due_bytes += part.due_bytes;
      sum.fired_bytes += part.fired_bytes;
    }
    return sum;
  }

  // Are most ops not the program's any more?
  bool lost() const {
    const Level level = recent();
    return level.ops >= kLeastOps && 2 * level.matched_ops < level.ops;
  }

 private:
  static constexpr int64_t kPartOps = 64;
  static constexpr int64_t kLeastOps = 2 * kPartOps;
  static constexpr size_t kParts = 4;

  std::array<Level, kParts> parts_{};  // a ring: the newest is not full yet
  size_t part_ = 0;
};

}  // namespace chameleon
