// Collectives: what they are given is in use until somebody waits for them, long after their ops have ended.
//
// Note [Flights]
// A collective has two ends. Its launch is an op (c10d::allreduce_ and the like), whose result is a Work. Its wait is a
// method of that Work, or _c10d_functional::wait_tensor: along NCCL's streams, too, what the waiting thread's stream is
// given from there on comes behind the collective. Both are ops of the step (the method runs as `c10d::wait`), and both
// use all that the collective was given, which is pinned in between: a flight. So when it may move hangs on the program
// alone. Nobody asks a Work whether it is done: that is a matter of time, and gloo's do not always say it.
//
// Waits inside of C++ are not seen: DDP's reducer waits for the Future of a Work. But a program without a race has
// waited when an op reads what the collective writes, or writes what it reads: such an op ends the flight. It is one
// that touches the same bytes, as others may work on another part of a buffer meanwhile.
//
// What is left when the step ends stays, as long as somebody holds the Work: a wait may still come. Where nobody does,
// the device is waited for, and the flight is over.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "storage.h"

namespace chameleon {

struct OpInfo;

// The bytes of a storage that a tensor shows: from the first to behind the last.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;

  static ByteRange of(const at::Tensor& tensor);
  bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
};

struct Flight {
  struct Part {
    Storage* storage;
    int64_t uid;  // records are reused
    ByteRange range;
    bool written;  // by the collective, on this rank, whatever its root is

    bool alive() const { return storage->uid == uid; }
  };

  // Is the op, which does this to some of its bytes, a sign that the collective has been waited for?
  bool ended_by(const Storage& storage, const ByteRange& range, bool reads, bool writes) const;
  bool is_of(const void* work) const { return work && work == this->work; }

  int64_t id = 0;
  const void* work = nullptr;  // its address; null where the backend gave none
  c10::weak_intrusive_ptr<torch::CustomClassHolder> held{c10::intrusive_ptr<torch::CustomClassHolder>()};
  std::vector<Part> parts;
};

// Of one device. Guarded by the core's lock.
class Flights {
 public:
  void depart(Flight flight);
  bool empty() const { return flights_.empty(); }
  std::vector<Flight>& all() { return flights_; }

  template <class Which>
  std::vector<Flight> take_if(Which&& which) {
    std::vector<Flight> taken;
    for (size_t i = 0; i < flights_.size();) {
      if (!which(flights_[i])) {
        ++i;
        continue;
      }
      taken.push_back(std::move(flights_[i]));
      flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));  // they end in the order of their begin
    }
    return taken;
  }

 private:
  std::vector<Flight> flights_;
  int64_t next_id_ = 0;
};

namespace collectives {

// What the launch of a collective has given back.
struct Launched {
  c10::intrusive_ptr<torch::CustomClassHolder> work;
  bool over = false;  // there is nothing to wait for
};
Launched launched(const at::RecordFunction& function, const OpInfo& info);

// The method of a Work that waits for it: the op c10d::wait, on this thread, until leave_wait().
void enter_wait(const void* work);
void leave_wait(bool over);  // over: it has not raised
const void* waited_for();    // by the innermost one; null: by none
bool wait_is_over();         // the one that ends now

// Do a communication library's own threads run ops? They belong to the collective, and to no step.
bool on_backend_thread();

// Works that nobody refers to any more: their memory is given back without the core's lock.
void keep(c10::weak_intrusive_ptr<torch::CustomClassHolder> work);
void release_kept();

}  // namespace collectives

}  // namespace chameleon
