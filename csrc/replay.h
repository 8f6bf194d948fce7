// What is kept of an op's call so that it can run again: how a storage whose bytes were dropped gets them back.
//
// Note [Values]
// A storage holds a value from one write to the next: the value is the storage's write epoch. Ops whose schema says
// that they write an argument end the value of its storage, and so does a raw pointer that leaves the dispatcher. A
// value that an op made, from values that are still there (or can be made again), can be made again.
//
// A value whose bytes are gone, and that somebody may still ask for, is held: each input of its producer knows it as a
// dependent. What has dependents is not lost: before a write its dependents are restored, and when its storage dies the
// bytes stay behind as a ghost, unless the value can be made again itself.
//
// An op in place makes a new value from the one that it ends. That one has no storage any more: it is made again first,
// in memory that then becomes the result's. Where the op only overwrites it, any memory will do.
//
// Ops that draw random numbers draw again from a copy of what their generator was right before: see Draw.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "op_info.h"
#include "storage.h"
#include "surroundings.h"

namespace chameleon {

const char* refusal_text(Refusal refusal);

struct Producer;

struct Value {
  Storage* storage = nullptr;                // that holds it; null once it is gone
  std::shared_ptr<const Producer> producer;  // null: nothing can make it again
  int32_t result = -1;                       // of the producer
  std::vector<Value*> dependents;            // held values that are made from it; once for each use
  bool held = false;
  int32_t gone_in_a_row = 0;  // of a value that is gone: it, and the longest line of gone ones that it was made from
  int64_t mark = 0;           // of the last walk over values that saw it
  int32_t line = 0;           // what that walk found: see Replays

  int32_t ending = 0;  // threads that restore its dependents, since its storage is about to be written

  bool has_bytes() const { return storage && storage->residency != Residency::Dropped; }
  bool gone() const { return !storage; }
};

// An argument, or one element of a list.
struct KeptInput {
  int32_t argument = 0;
  int32_t element = -1;
  at::Tensor form;               // shape, strides, dtype: no bytes, no graph
  size_t bytes = 0;              // of its storage
  std::shared_ptr<Value> value;  // whose bytes it reads; null: it has a copy of them, or reads none
  bool blank = false;            // the op overwrites all of it, and reads nothing: any memory will do
  c10::Storage copy;
  c10::StorageImpl* impl = nullptr;  // until link()

  at::Tensor memory() const;  // for the storage of one that is blank. Call it without the core's lock
};

struct ResultForm {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  size_t bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

// One call of an op.
struct Producer {
  const OpInfo* info = nullptr;
  torch::jit::Stack arguments;  // with holes for tensors
  std::vector<KeptInput> inputs;
  std::vector<ResultForm> results;
  std::shared_ptr<const Surroundings> surroundings;
  int32_t written = -1;              // of the inputs: the one that an op in place writes
  int lane = 0;                      // that it ran along
  std::optional<uint64_t> drawn_to;  // where its generator stood afterwards, if it is one of the host

  bool writes(const KeptInput& input) const { return written >= 0 && &input == &inputs[written]; }

  Producer();
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  static std::atomic<int64_t> count;  // of all that are kept

  // Run the op again: `data` has the address of each input's storage. Call it without the core's lock. Raises what the
  // op raises, and where the result is not of the form of the first one.
  at::Tensor run(int32_t result, const std::vector<void*>& data) const;

 private:
  bool is_where_it_was(const at::Tensor& made, const std::vector<void*>& data) const;
};

// A draw of one op from a generator, which threads may share: all of them share the host's default one. It can be
// repeated if no other thread has drawn from it meanwhile: ops that draw are counted. One that draws without an op, or
// sets the state, is not seen; a replay that does not leave the copy where the first run left the generator gives an
// error, and never other numbers.
class Draw {
 public:
  static void begin(const at::RecordFunction& function,
                    const OpInfo& info);  // around every op that draws, on any thread
  static void end();
  static void after_fork_in_child();  // which has one thread

  explicit Draw(at::Generator generator);  // before the op looks at it
  const at::Generator& before() const { return before_; }
  bool ended(std::optional<uint64_t>* drawn_to);  // the op has: where it stands now. False: others have drawn too

  static uint64_t position(const at::Generator& generator);  // of the host: a hash of its state

 private:
  at::Generator generator_, before_;
  int32_t slot_;
  int64_t others_begun_;
  bool began_alone_;
};

// An op that is running and may turn out to be what made a storage.
struct Maker {
  size_t frame = 0;  // of the thread's frames
  int64_t first_uid = 0;
  c10::DispatchKeySet autocast;
  const OpInfo* info = nullptr;
  std::shared_ptr<Producer> producer;  // null: not to be replayed, because of `refusal`
  Refusal refusal = Refusal::Op;
  std::optional<Draw> draw;

  void end_draw();  // the op has ended. Call it without the core's lock: kernels allocate under the generator's
};

// The ops that may run again, and the settings under which that was found out. Ops read it without a lock: it does not
// change.
struct Replayable {
  std::vector<uint64_t> dtypes;  // by OpInfo::name_number: a bit per ScalarType, all of them where it does not matter
  CheckedSettings settings;

  uint64_t dtypes_of(const OpInfo& info) const {
    const auto number = static_cast<size_t>(info.name_number);
    return info.repeatable && number < dtypes.size() ? dtypes[number] : 0;
  }
  bool operator==(const Replayable&) const = default;
};

class Replays {
 public:
  // The most ops in a row that restoring one storage may have to replay for values that no storage holds any more.
  // Storages that are dropped too are restored by themselves, and do not count.
  static constexpr int32_t kLongestChain = 12;

  // Smaller inputs are copied: they are nobody's, and mostly Python's numbers. An op that began before a session opens
  // may ask while it is set.
  std::atomic<size_t> copied_bytes{512};

  using Find = std::function<Storage*(c10::StorageImpl*)>;
  using Movable = std::function<bool(const Storage&)>;
  using FreeGhost = std::function<void(Storage&)>;
  Replays(Find find, Movable movable, FreeGhost free_ghost, std::function<c10::DataPtr(size_t)> plain)
      : find_(std::move(find)),
        movable_(std::move(movable)),
        free_ghost_(std::move(free_ghost)),
        allocate_plain_(std::move(plain)) {}

  // --- producers
  // By name, with a bit per ScalarType; where bits are named, under these settings.
  void allow(const std::unordered_map<std::string, uint64_t>& dtypes, CheckedSettings settings);
  // Keep what the op needs to run again, but for values. Call it without the core's lock: it takes strong references.
  Maker describe(const at::RecordFunction& function, const OpInfo& info) const;
  // Its inputs' values, as they are now. Sets the refusal where one has none.
  void link(Maker* maker);
  // The op has ended and has made this storage. Returns whether it did: where an op inside had, or it returns an input,
  // it has not.
  bool attach(Maker* maker, int32_t result, const at::Tensor& tensor, Storage* storage);

  // --- values
  Refusal drop(Storage& storage);   // the bytes may go: None, and the value is held; or why not
  void restored(Storage& storage);  // they are back
  bool needed(const Storage& storage) const { return storage.value && !storage.value->dependents.empty(); }
  std::vector<std::shared_ptr<Value>> dropped_dependents(const Storage& storage);  // of other storages
  void ended(Storage& storage, Refusal why);  // it is written, and nothing depends on what it held
  // True: its bytes stay as a ghost, since others need them, or the plan retains it.
  bool died(Storage& storage, bool retained);
  void let_go(Storage& ghost);                        // the plan retains it no longer: it goes, unless others need it
  void gave_up(const std::shared_ptr<Value>& value);  // its storage died while the value was being made again
  void prune(const StorageTable& table);              // at the end of a step
  void forget(Storage& storage);                      // at the end of a session

 private:
  struct Description;
  bool keep_tensor(const at::Tensor& tensor, size_t argument, int32_t element, Description* found) const;
  bool keep_argument(const c10::IValue& argument, size_t index, Description* found) const;
  static bool keep_draw(Description* found);
  static Refusal described(const Replayable& may, Description* found);  // None: it can run again
  int32_t line_below(Value& value, int32_t most);
  int32_t line_above(Value& value);
  Refusal why_not(Value& value);
  bool hold(Value& value);
  void release(Value& value);
  void gone(Value& value);
  void end_ghost(Storage& ghost);

  Find find_;
  Movable movable_;
  FreeGhost free_ghost_;
  std::function<c10::DataPtr(size_t)> allocate_plain_;
  std::vector<std::unique_ptr<const Replayable>> all_;  // that were in force: an op may still read them
  std::atomic<const Replayable*> replayable_{nullptr};  // in force
  int64_t mark_ = 0;
};

}  // namespace chameleon
