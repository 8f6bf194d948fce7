// The runtime's part of collectives: see Note [Flights].
#include <algorithm>
#include <utility>

#include "collectives.h"
#include "runtime_internal.h"
#include "tensor_storages.h"

namespace chameleon {

// All that it was given is pinned by its op as well.
void Runtime::board(c10::ArrayRef<const c10::IValue> inputs, const OpInfo& info, ThreadState& thread) {
  Flight& flight = thread.boarding.emplace_back();
  for (size_t i = 0; i < inputs.size(); ++i) {
    each_storage_of(inputs[i], [&](const at::Tensor& tensor, c10::StorageImpl* impl) {
      Storage* storage = find(impl);
      if (!storage) return;
      flight.parts.push_back({storage, storage->uid, ByteRange::of(tensor), info.receives(i)});
      ++storage->pins;
      ++storage->flights;
    });
  }
}

void Runtime::depart(const collectives::Launched& launched, ThreadState& thread) {
  if (thread.boarding.empty()) return;  // its begin was not seen
  Flight flight = std::move(thread.boarding.back());
  thread.boarding.pop_back();
  if (launched.over) return end_flight(std::move(flight));
  if (flight.parts.empty()) return;
  flight.work = launched.work.get();
  if (launched.work) flight.held = c10::weak_intrusive_ptr<torch::CustomClassHolder>(launched.work);
  flights_.depart(std::move(flight));
}

// A wait uses all that the collective was given: it is there, and no copy of it begins before.
void Runtime::use_waited(const at::RecordFunction& function, ThreadState& thread) {
  const void* const work = arguments_of(function).empty() ? collectives::waited_for() : nullptr;
  thread.waited.clear();
  for (Flight& flight : flights_.all()) {
    bool waited = flight.is_of(work);
    for (const c10::IValue& input : arguments_of(function)) {
      each_storage_of(input, [&](const at::Tensor& tensor, c10::StorageImpl* impl) {
        const Storage* storage = find(impl);
        waited |= storage && flight.ended_by(*storage, ByteRange::of(tensor), /*reads=*/true, /*writes=*/false);
      });
    }
    if (!waited) continue;
    thread.waited.push_back(flight.id);
    for (const Flight::Part& part : flight.parts) {
      if (!part.alive()) continue;
      pin(*part.storage, thread);
      part.storage->lanes |= lane_bit(thread.lane);
      part.storage->last_use = clock_ops_;
      if (open_) recorder_.used(*part.storage, /*reads=*/true, /*writes=*/false);
    }
  }
}

void Runtime::end_waited(ThreadState& thread) {
  const std::vector<int64_t> waited = std::exchange(thread.waited, {});
  if (waited.empty() || !collectives::wait_is_over()) return;
  for (Flight& flight : flights_.take_if(
           [&](const Flight& one) { return std::find(waited.begin(), waited.end(), one.id) != waited.end(); })) {
    end_flight(std::move(flight));
  }
}

void Runtime::end_flights_of(Storage& storage, const at::Tensor& tensor, size_t argument, const OpInfo& info) {
  if (info.shows_no_end || flights_.empty()) return;
  const ByteRange range = ByteRange::of(tensor);
  const bool reads = info.reads(argument), writes = info.writes(argument);
  for (Flight& flight :
       flights_.take_if([&](const Flight& one) { return one.ended_by(storage, range, reads, writes); })) {
    end_flight(std::move(flight));
  }
}

// At the end of a step. Gloo holds a Work while it is busy with it; NCCL does not have to.
void Runtime::end_dropped_flights() {
  if (flights_.empty()) return;
  std::vector<Flight> dropped = flights_.take_if([](const Flight& flight) { return flight.held.expired(); });
  if (dropped.empty()) return;
  device_->host_wait_for_compute();
  for (Flight& flight : dropped) end_flight(std::move(flight));
}

void Runtime::end_flight(Flight flight) {
  for (const Flight::Part& part : flight.parts) {
    if (!part.alive()) continue;
    --part.storage->flights;
    unpin(*part.storage);
  }
  collectives::keep(std::move(flight.held));
}

bool Runtime::has_flight(const void* work) {
  Lock lock(mutex_);
  const auto& all = flights_.all();
  return std::any_of(all.begin(), all.end(), [&](const Flight& flight) { return flight.is_of(work); });
}

}  // namespace chameleon
