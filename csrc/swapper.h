// Moves storages between the device and the host, and makes room under the capacity.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "recorder.h"
#include "storage.h"
#include "swap_target.h"

namespace chameleon {

// Note [Adopted blocks]
// A block that was taken over as it is belongs to the lane that it was made for, and nobody says which that is: its
// storage counts as one of the lane that adopted it. When the block goes back, it is not reused before that lane has
// done what it was given. Who wrote it before it was adopted is not known either: the first copy out of it comes after
// all lanes, and a session begins when the device has done what it was given before. Nor is it known for which streams
// its user recorded it then, which torch knows of the first block alone: any lane may use it at any time.
//
// Note [Copies on the host]
// A storage that comes back keeps its copy on the host until it is written, so that it may leave again for nothing.
// That needs every write to be seen. Where raw ones are not (torch before 2.13, without a promise), a copy is there
// only while its storage is not resident: what is resident may be written by anybody, and what is leaving by ops alone.
//
// Note [Deaths]
// A storage's user orders its death: its stream comes after those that use it, or they were recorded (record_stream).
// Both are about the block that the user knows, the first one, and are enough for what has not moved: its death costs
// nothing here. Any later block may belong to another lane, and torch knows of nobody that uses it. So its lane comes
// after all that used the storage, and after the lanes that its user has recorded at any time, before it goes back.
//
// Of replays the user knows nothing: whoever writes what one has read, or lets it die, comes after that.
//
// Note [Copies that fail]
// A disk fails after a while; and no copy may begin at all, for want of an event or of the host's own memory. A copy
// out that has failed leaves its storage where it is, since a block goes back only when its copy is known to be good,
// and has no buffer: one that a storage has was written, or is being. A copy in that has failed leaves the storage
// away, with no block: whoever needs it gets an error that says why, and the next use tries again. No number is made
// from bytes that have not arrived.
//
// Note [Gradients under way]
// From one node of a backward to the next, autograd holds gradients that no op shows. Where a node's stream is another
// one, it takes their DataPtr between the ops, to record it on that stream (torch/csrc/autograd/input_buffer.cpp).
// Before torch 2.13 that raises for a storage that is leaving or away. So there, where compute goes along several
// lanes, what the ops of a backward have made stays until the backward is over: until the thread that called it goes
// on, or the step ends. Other threads' ops end nothing.
class Swapper {
 public:
  Swapper(Device& device, SwapTarget& host, StorageTable& table, Recorder& recorder)
      : device_(device), host_(&host), table_(table), recorder_(recorder) {}

  void use(SwapTarget& target) { host_ = &target; }  // where nothing is away

  // How soon a storage is used again, in ops; eviction takes the furthest. Set by the executor.
  std::function<int64_t(const Storage&)> next_use;
  // Where the plan has the storage's copy in the host pool, or -1. Set by the executor.
  std::function<int64_t(const Storage&)> host_place;
  // Does the plan keep the storage's copy when it comes back? Set by the executor.
  std::function<bool(const Storage&)> host_kept;
  // Gives up the bytes of a resident storage that an op can make again, where the host has no room for them; false:
  // none can.
  std::function<bool(Storage&)> drop_instead;
  // Called when nothing more can leave: waits for another thread's op to end. False: there is none to wait for.
  std::function<bool()> wait_for_pins;
  // Gets host memory for a buffer of so many bytes without the core's lock, so that a swap-out finds it. Null:
  // swap-outs get it themselves.
  std::function<void(size_t)> grow_host;
  // What an error calls a storage whose bytes could not be brought back.
  std::function<std::string(const Storage&)> name_of;
  size_t min_bytes = 16 << 10;                         // smaller storages leave last
  bool keeps_host_copies = true;                       // see Note [Copies on the host]
  std::optional<int64_t> backward;                     // see Note [Gradients under way]: those of this one stay now
  std::optional<std::vector<Transition>> transitions;  // kept for tests

  // A block of the lane; storages leave to make room for it. nullptr where even that does not suffice. `whose`: of a
  // storage that comes back.
  void* take(size_t block_bytes, int lane, Storage* whose = nullptr);
  bool make_room(size_t block_bytes);  // the same without taking it
  bool evict_any(size_t bytes);        // for those who take memory from elsewhere; false: nothing can leave

  void forget_refusals() {  // they were an earlier session's
    host_full_ = false;
    copy_failure_.clear();
  }
  bool host_full() const { return host_full_; }  // was the last swap-out refused by the host pool?

  // May this storage leave, now or once its ops have ended?
  bool movable(const Storage& storage) const;

  // Begin; a clean storage needs no copy. `at_hand`: not where host memory would have to be had for it, without the
  // lock: lacks_host_memory() then.
  void swap_out(Storage& storage, Cause cause, bool at_hand = false);
  bool lacks_host_memory() const { return lacking_bytes_ > 0; }
  void have_host_memory(const Storage& storage);  // for its copy, before it leaves; may give up the lock
  void undo_swap_in(Storage& storage);            // of a storage that nothing has used since
  void finish_swap_out(Storage& storage);         // the free point: wait for the copy, give the block back
  bool swap_in(Storage& storage, Cause cause);    // begin, without evicting anything; false where there is no room
  bool has_bytes_for(const Storage& storage) const { return device_.has_room(storage.block_bytes); }
  // Be resident for what compute does from here on; false where there is no room. For the host, too, once it has waited
  // for `arrived`, if that is set. `blank`: what is away gets a block alone, see Note [Overwriting].
  bool restore(Storage& storage, Cause cause, EventPtr* arrived = nullptr, bool blank = false);
  void refill(Storage& storage);               // the op that was to overwrite it has raised: its bytes come in
  void drop(Storage& storage);                 // a resident storage gives its block back, and has no copy
  void remade(Storage& storage, void* block);  // a dropped storage has its bytes again, in this block
  bool has_room(size_t block_bytes);           // with what is leaving anyway, if need be
  void touch(Storage& storage, bool writes);   // a resident or leaving storage is about to be used
  void release(Storage& storage) noexcept;     // the storage dies: its memory goes back
  // Why the newest copy out could not be begun; empty where it was.
  const std::string& copy_failure() const { return copy_failure_; }
  // What an error says of a storage that is away.
  std::string not_back(const Storage& storage, const std::string& why) const;
  // At the end of a session; false: they do not all fit. What cannot be brought back for good is `lost`.
  bool restore_all(std::vector<Storage*>* lost);
  // The host copy is stale, or no longer wanted. Of a blank storage it goes when the op has ended.
  void drop_host(Storage& storage);

 private:
  void become(Storage& storage, Residency to);
  bool finish_any_leaving();
  bool evict(size_t block_bytes);
  void gather_candidates();
  Storage* furthest_candidate();
  void send_ahead(size_t waited_for_bytes);
  bool sent_enough(size_t waited_for_bytes) const;
  void count_eviction(const Storage& storage);
  void forget_leaving(Storage& storage);
  void stay(Storage& storage);
  void give_block_back(Storage& storage);
  void let_block_die(Storage& storage);
  bool bring_all(std::vector<Storage*>* lost);
  bool copy_out(Storage& storage, Cause cause, bool at_hand);
  void begin_swap_in(Storage& storage, void* block, Cause cause);
  void come_blank(Storage& storage, void* block);
  void arrive(Storage& storage, EventPtr* arrived);
  void wait(Storage& storage, const EventPtr& copy, Direction direction, int lane);
  void was_made(Storage& storage, const EventPtr& copy, Direction direction, Cause cause);
  void cancel(Storage& storage, EventPtr& copy, Direction direction) noexcept;
  bool free_something(size_t block_bytes);
  void* take_host(const Storage& storage, Cause cause, bool at_hand);
  bool get_lacking();

  Device& device_;
  SwapTarget* host_;
  StorageTable& table_;
  Recorder& recorder_;
  bool host_full_ = false;
  std::string copy_failure_;
  size_t lacking_bytes_ = 0;  // of host memory, for want of which the newest swap-out was not made
  // Eviction sends out ahead of need up to this share of the capacity, what is not used within so many ops.
  static constexpr size_t kAheadShare = 16;
  static constexpr int64_t kSoon = 32;
  static constexpr int64_t kLastResort = int64_t{1} << 60;

  std::vector<Storage*> leaving_;                         // in order of issue
  std::vector<std::pair<int64_t, Storage*>> candidates_;  // a heap: the one used furthest in the future is on top
};

}  // namespace chameleon
