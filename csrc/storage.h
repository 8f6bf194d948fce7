// A storage as the core sees it: where its bytes are, who is using it, and what is known about it.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "tensor_forms.h"

namespace chameleon {

class Runtime;
struct Value;

// resident ──swap-out──> leaving ──free point──> away ──swap-in──> returning ──first use──> resident
// A leaving storage that is touched becomes resident again; its copy is kept if the touch was a read.
// resident ──drop──> dropped ──replay──> resident
// away ──an op that overwrites it──> resident; back to away, if the op raises and copying the old bytes in fails
enum class Residency : uint8_t { Resident, Leaving, Away, Returning, Dropped };

enum class Category : uint8_t { Parameter, Gradient, OptimizerState, Activation, Input, Other };

enum class Cause : uint8_t { Planned, Evict, Demand, Access };

// Why a storage cannot be dropped; refusal_text() says it in words.
enum class Refusal : uint8_t {
  None,
  Unknown,    // made before anybody kept producers, or outside of ops
  Op,         // the op that made it is not replayed
  Random,     // it drew from a generator that has moved on since
  Arguments,  // it had arguments that cannot be kept
  Foreign,    // one of its inputs is memory that the session does not own, or that a raw pointer can write
  Written,    // it was written after it was made
  InputLost,  // an input was written or died since, and cannot be made again
  TooLong,    // more ops than the longest chain has would have to be replayed in a row
  InUse,      // an op uses it now, or it is not resident
  Unmovable,  // it may not leave
  Denormals,  // some of the threads that made it may flush denormals to zero, and others not
  NoMemory,   // of the host, to remember that it was dropped
  Settings,   // the op ran under others than those under which it was seen to repeat itself to the bit
};
inline constexpr int kRefusals = static_cast<int>(Refusal::Settings) + 1;

// The bytes on the host, valid until the storage is written. A copy that cannot begin, or that fails, leaves none here.
struct HostCopy {
  void* data = nullptr;
  EventPtr written;  // null: there already
};

struct Storage {
  Runtime* owner = nullptr;
  c10::DeleterFnPtr block_deleter = nullptr;  // what its DataPtr is destroyed with while it is resident
  int64_t uid = 0;
  size_t bytes = 0;
  size_t block_bytes = 0;
  size_t slot = 0;  // place in StorageTable

  // Weak references only: strong ones could take the GIL. Null until an op has shown which StorageImpl holds the block.
  c10::StorageImpl* impl = nullptr;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> weak;

  Residency residency = Residency::Resident;
  bool escaped = false;      // a raw pointer left the dispatcher, for good: never moves again
  int32_t loans = 0;         // raw pointers outside whose end will be told: see Note [Loans]
  int32_t loans_ended = 0;   // those of them whose holder is gone, and may have left work to the device
  bool settled = false;      // made by a kernel or read by an op: nobody is still filling it through a raw pointer
  bool unseen = false;       // would be settled, but for an op around that nobody saw begin
  bool bucket = false;       // of DDP: see Note [DDP before torch 2.13]
  bool failed = false;       // bringing it in failed: accesses raise until the op ends
  bool host_stale = false;   // an op writes it while it returns or is blank: the host copy goes when the op ends
  bool blank = false;        // an op overwrites it now: see Note [Overwriting]
  bool unbacked = false;     // of a tensor without memory: `block` is a made-up address
  uint8_t lane = 0;          // that its block belongs to
  bool adopted = false;      // made before, maybe for another lane: see Note [Adopted blocks]
  bool first_block = false;  // does it still lie where it did then?
  bool moved = false;        // does it lie elsewhere than its user knows?
  Lanes lanes = 0;           // that used its block, or are about to
  Lanes made_by = 0;         // that replayed its bytes, if they were: no program orders its ops behind that
  Lanes replays_read = 0;    // that replayed others from its bytes: nor its writes and its death behind that
  Lanes recorded = 0;        // that its user has recorded (record_stream), whichever block it had then
  int32_t pins = 0;          // ops on the stack that use it, holds, and flights
  int32_t flights = 0;       // of collectives that it was given to: see Note [Flights]
  int32_t holds = 0;         // of torch.save and the like
  uint64_t pinned_by = 0;    // the op that pinned it last
  void* block = nullptr;     // null while away
  void* mark = nullptr;      // where its pointer points to while it is away; null before the first time
  bool shown = false;        // can the bytes be read there?
  HostCopy host;
  EventPtr arriving;  // the copy in, while returning
  Cause moved_by = Cause::Planned;
  Ticks due[2] = {0, 0};     // by direction: when its newest copy was asked for
  Ticks issued[2] = {0, 0};  // and when that was issued

  // For replay: see Note [Values].
  std::shared_ptr<Value> value;        // what it holds; null where nobody asked yet
  Refusal refusal = Refusal::Unknown;  // why nothing can make its value again
  int32_t maker = -1;                  // the op that made it: index into op_names()
  bool ghost = false;                  // its tensors are gone, but dropped values are made from its bytes
  bool retained = false;               // a ghost that the plan wants, whether such values are there yet or not
  bool scratch = false;                // memory of a replay: not in the trace
  bool replaying = false;              // a thread is making its bytes

  // For the recorder and the executor.
  Category category = Category::Other;
  bool categorized = false;  // told by the session; guesses do not override it
  int32_t label = -1;
  int32_t module = -1;
  TensorForm form;        // of the first tensor that was seen of it
  uint32_t anchor = 0;    // the hash of its name, if it has the same storage in every step; else 0
  int64_t birth_op = -1;  // step-relative; of the step that made it
  int32_t birth_ordinal = -1;
  int64_t backward = -1;  // the number of the backward that made it
  int64_t last_use = 0;   // in ops since the session began
  int64_t log_step = -1;  // the step in whose log it has a row
  int32_t log_row = -1;
  int32_t last_use_row = -1;
  int64_t resident_step = -1;  // since when the block is on the device
  int32_t resident_from_op = 0;
  Ticks resident_from_ticks = 0;
  int32_t plan = -1;        // row in the executor's program
  bool evict_last = false;  // the user wants it left alone, whichever program is followed, or none

  // May somebody outside of the dispatcher read and write the bytes?
  bool given_out() const { return escaped || loans > 0; }
};

// Storages' moves from state to state, in the order in which they happened. Kept while somebody asks for it; guarded by
// the core's lock.
struct Transition {
  int64_t uid;
  Residency from;
  Residency to;
};

// Every storage whose block the device holds or whose bytes are away. Owns the records.
class StorageTable {
 public:
  StorageTable(Runtime* owner, c10::DeleterFnPtr block_deleter) : owner_(owner), block_deleter_(block_deleter) {}

  Storage* add(size_t bytes, size_t block_bytes, void* block, bool scratch = false);
  void make_ghost(Storage* storage);
  void remove(Storage* storage);

  // The storage behind a block's address; null if the block is not ours.
  Storage* at(const void* block) const {
    auto found = by_block_.find(block);
    return found == by_block_.end() ? nullptr : found->second;
  }
  void set_block(Storage* storage, void* block);

  const std::vector<std::unique_ptr<Storage>>& all() const { return all_; }

  // Blocks of all storages, resident or away; but of tensors alone, as they would be without replays.
  size_t live_bytes() const { return live_bytes_; }
  int64_t next_uid() const { return next_uid_; }

 private:
  Runtime* const owner_;
  const c10::DeleterFnPtr block_deleter_;
  std::vector<std::unique_ptr<Storage>> all_;
  std::vector<std::unique_ptr<Storage>> spare_;
  ska::flat_hash_map<const void*, Storage*> by_block_;
  size_t live_bytes_ = 0;
  int64_t next_uid_ = 0;
};

}  // namespace chameleon
