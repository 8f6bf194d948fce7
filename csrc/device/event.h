// Work of a device that runs beside the host: when it is done, and how long it took.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "clock.h"

namespace chameleon {

enum class Direction : uint8_t { Out, In };

inline constexpr Ticks kNoTime = INT64_MIN;  // of what the device could not tell

// A stretch of work: a copy, or a wait of the compute for one. Its times are on the host's clock.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
  virtual void cancel() = 0;                // a hint: the bytes are no longer wanted
  virtual size_t copied_bytes() const = 0;  // valid once done; less than asked for if it was cancelled
  virtual Ticks start_ticks() const = 0;    // valid once done; kNoTime where nobody knows
  virtual Ticks end_ticks() const = 0;
  // Why the bytes did not all arrive, of what can fail (a disk); valid once done. Null: they did, or it was cancelled.
  virtual const std::string* failure() const { return nullptr; }
  virtual bool made_at_once() const { return false; }  // did the thread that asked for the copy make it itself?
};
using EventPtr = std::shared_ptr<Event>;

// Compute goes along lanes (a GPU's streams), numbered as they appear; each is in order, and nothing orders two of them
// but what waits. Where there is one, it is lane 0. A set of them has a bit each.
using Lanes = uint32_t;
inline Lanes lane_bit(int lane) { return Lanes{1} << lane; }

}  // namespace chameleon
