// A device's role: the order between compute, copies and the host.
#pragma once

#include <vector>

#include "device/event.h"
#include "order.h"

namespace chameleon {

class Streams {
 public:
  virtual ~Streams() = default;

  // The lane that the calling thread's compute goes along. What it is given from here on comes after every copy that
  // any lane was told to wait for.
  virtual int lane() = 0;
  virtual EventPtr record(Lanes lanes) = 0;  // done when the compute they were given so far is; null if that is now
  // What the lane is given from here on comes after the copy. Returns how long it stood still; null: not at all.
  virtual EventPtr compute_wait(const EventPtr& copy, int lane) = 0;
  // What the lane is given from here on comes after what those were given; `why` is for those who leave one out.
  virtual void join(int lane, Lanes lanes, Order why) = 0;
  virtual void host_wait(const EventPtr& event, Order why) = 0;  // the core's lock is not needed
  virtual std::vector<EventPtr> arrivals() const { return {}; }  // done when the copies in are that lanes wait for
  virtual void host_wait_for_compute() {}  // the host waits for all that the device was given, by anybody
  // The lane of a stream, which somebody else names; -1 where it is not the device's.
  virtual int lane_of(const void* /*stream*/) { return -1; }
  // The lane, or the calling thread's where nothing can be given to it any more: for blocks to come.
  virtual int living(int lane) { return lane; }
  // A moment of the lane's compute, with its time. Null where ops are over when their calls return: the host's time is
  // the op's.
  virtual EventPtr moment(int) { return nullptr; }
};

}  // namespace chameleon
