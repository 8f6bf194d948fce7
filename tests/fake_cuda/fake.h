// A CUDA runtime for tests: streams are queues, and what is in them happens in any order that the waits allow.
//
// The order is drawn from a seed. A wait that the device under test forgets, or that a test drops, shows as wrong bytes
// somewhere: memory that is freed, or handed out, is overwritten in the order of its stream.
#pragma once

#include <c10/core/Allocator.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace fake {

struct Mark;  // a moment of a stream
using MarkPtr = std::shared_ptr<Mark>;

void start(uint64_t seed);  // forgets what was dropped; everything must have happened

// Waits of streams (or "host") of one role for what streams of another role did are left out from here on. Roles:
// "out", "in" and "urgent" are the device's own streams, in the order in which it makes them; "lane" are those of
// compute.
void drop(const std::string& waiter, const std::string& source);
long dropped();  // waits that were left out

// How often CUDA calls have kept the host waiting since start(), by call: synchronizing, copies that block, and
// pinning.
std::map<std::string, long> host_waits();
// What torch's CUDA allocator does where a user asks for record_stream, or the autograd engine.
void record_stream(const c10::DataPtr& pointer, cudaStream_t stream);
void release_spare();   // what that allocator keeps goes back
long record_streams();  // how often torch's allocator was told that another stream uses a block

cudaStream_t make_lane(bool eager);  // eager: what it is given happens at once, as the CPU's own kernels do
// What it was given is done all the same; calls with it fail. No longer destroyed: a new stream that has its handle.
void set_destroyed(cudaStream_t stream, bool destroyed);
bool is_destroyed(cudaStream_t stream);
// The lane of whoever has set none. Late: what it is given happens when it may, or when an op begins or memory is asked
// for, since the CPU's kernels do not wait by themselves (catch_up()). Eager at first.
void set_default_lane_late(bool late);
// From here on until start(), nothing happens before somebody waits for it, and then no more than it takes.
void be_lazy();
void catch_up();  // it does what it was given, if it is current
cudaStream_t current();
void set_current(cudaStream_t lane);

// The GPU that is the calling thread's, and how many calls of the device under test, whose GPU is 0, found another one
// there: what they waited for was then on that one's default stream.
void set_device(int index);
int device();
long astray();

void launch(cudaStream_t stream, std::function<void()> kernel);
MarkPtr record(cudaStream_t stream);  // the user's own order between streams: never dropped
void wait(cudaStream_t stream, const MarkPtr& mark);
void synchronize(const MarkPtr& mark);
bool reached(const MarkPtr& mark);
void run_all();
void forget_streams();  // those that nobody will use again: all

void limit_pinned(size_t bytes);     // cudaHostAlloc and cudaHostRegister fail beyond
void hold_pinning(bool hold);        // what pins or unpins does not return meanwhile
long held_pinning();                 // how many threads that keeps
void hold_waits(bool hold);          // nor does what waits for an event
long held_waits();                   // how many threads that keeps
void set_meanwhile(void (*what)());  // what other threads do while one pins or unpins, or waits for an event
void fail_pinning(long number);      // of the next attempts, the one of this number throws std::bad_alloc
// Of the next calls of CUDA, the one of this number fails, and so many in a row. If that is sticky, all that come after
// it fail, and kernels and copies are lost from then on.
void fail_call(long number, bool sticky, long in_a_row);
void fail_copies(bool fail);  // all that are asked for meanwhile
long failed_calls();          // since start()
cudaError_t failing();        // what the call that asks returns in place of what it would do
bool dead();
// The same from the next call on, with that error; with none, and of what no device has seen, as if it had not been.
void die(int error);
void set_total_bytes(size_t bytes);  // of the GPU
size_t total_bytes();
size_t pinned_bytes();
size_t read_pinned();  // reads all of it, as a GPU may: so many bytes
// Of those, by the NUMA node that their pages were wished near when they were pinned; -1: none.
std::map<int, size_t> pinned_near();
int policy_of(const void* data, size_t bytes);  // the node that a range is to lie near, and the thread's own; -1: none
int policy_of_thread();
void refuse_policies(bool refuse);  // as containers do
size_t peak_pinned_bytes();         // since start()
void poison(void* data, size_t bytes);

}  // namespace fake
