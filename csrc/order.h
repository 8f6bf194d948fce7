// What keeps compute, copies and the host in order: every wait of a device, by what it is for.
//
// Each can be left out on purpose (faults.h), one at a time: on a device that runs late (tests/fake_cuda) wrong bytes
// must show then, or the wait is there for nothing.
#pragma once

#include <cstdint>

namespace chameleon {

enum class Order : uint8_t {
  // --- copies
  CopyOut,           // a copy out: after the compute that used the block
  CopyIn,            // a copy in: after the compute that had its memory before
  FreePoint,         // compute of the block's lane, which may get it next: after the copy out
  Arrival,           // compute that uses a storage: after its copy in
  ArrivalElsewhere,  // so does that of every other lane: there is no telling which of them uses it next
  BufferReused,      // a copy out: after the copies in from memory of the host that it may now write
  // --- compute of several lanes
  BlockBack,          // the lane of a block that goes back: after the other lanes that used it
  Death,              // the same of a storage that has moved, and dies: its user ordered the block that it had at first
  UserRecorded,       // both: after the lanes that its user has recorded, whatever ran there
  AdoptedBack,        // whoever gets a first block, which may belong to any lane: after the lane that gives it back
  FirstRun,           // a replay: after the first run of the op, and so after whoever wrote what it reads
  Replayed,           // compute that uses a storage: after the replay that made its bytes
  ReplayedMeanwhile,  // the same of what was away when its op began, and of what another thread has made since
  ReplayedBefore,     // a replay: after the replays that made what it reads
  ReplayRead,         // who writes a storage or lets it die: after the replays that read it
  HandedBack,         // a storage that has moved dies after the session: after all that uses it
  // --- the host
  HostRead,             // reads what is there: after its copy in
  HostReadReplayed,     // or after the replay that made it
  PointerTaken,         // hands out an address, for any use along any lane: after copies in that only lanes wait for
  PointerReplayed,      // and after the replays that read there
  SessionEnds,          // after which nobody follows copies any more
  SessionEndsReplayed,  // nor replays
  SessionBegins,        // which finds storages that are still being written, nobody knows where
};
inline constexpr int kOrders = static_cast<int>(Order::SessionBegins) + 1;

}  // namespace chameleon
