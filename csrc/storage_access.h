// How a StorageImpl is told that its bytes are away, and how we learn that a raw pointer has left the dispatcher.
//
// Note [The mark for "away"]
// An away storage points at inaccessible pages, never at null: several ops and DLPack crash on null. With torch 2.13
// and newer a materializer sits on it: every mutable access (data_ptr(), DLPack, numpy, save, ...) calls it, and it
// brings the bytes back. Kept armed while the storage is resident too, the same hook is the escape detector: who takes
// a raw pointer and is no kernel of an op that uses the storage may keep it, and such a storage never moves again.
// Armed while ops use it, too, it finds other threads' pointers; but torch takes it off when it has fired, whoever it
// was for, so behind a kernel that has asked for its pointer itself nothing is seen until the op ends. Older torch has
// no materializer: there an access raises an error that names the way out.
#pragma once

#include "storage.h"
#include "swap_target.h"

namespace chameleon::access {

// Called on mutable access to a storage whose hook is armed. May throw.
using Hook = void (*)(c10::StorageImpl*);
void set_hook(Hook hook);
bool has_hook();                // does this torch have materializers?
void pretend_no_hook(bool on);  // for tests: as torch 2.11 and 2.12 are. Call it while nothing is tracked

// Whether the StorageImpl still holds our block or our mark: a DataPtr can be moved elsewhere behind our back.
bool intact(const Storage& storage);

// Is its last tensor going, on a thread that waits for the core's lock to say so?
bool dying(const Storage& storage);

// Before the DataPtr of a storage that no op has pinned is replaced: keeps another thread from destroying it meanwhile,
// until release_kept(). False: it is being destroyed, or its DataPtr is elsewhere; leave it alone.
bool keep(Storage& storage);
// Call without the core's lock: the last reference may go here, and with it the storage.
void release_kept();

// Intact, and no raw pointer of it is known to be outside.
bool movable(const Storage& storage);

// The away storage behind an impl, or null.
Storage* away_storage(c10::StorageImpl* impl);
Storage* away_storage(const c10::DataPtr& pointer);

void have_mark(Storage& storage);  // before it goes away, since there may be no memory or no address space for it
void mark_away(Storage& storage);
void mark_resident(Storage& storage);
// Where nothing tells of a write: no raw access to a storage that is leaving, whose copy would miss it.
void forbid(Storage& storage);
void allow(Storage& storage);
void mark_failed(Storage& storage, const std::string& message);  // every access raises RuntimeError(message)
void clear_failed(Storage& storage);
// Its bytes are lost: every access raises, for good, and the storage's record is no longer known by its impl.
void mark_lost(Storage& storage, const std::string& message);
bool show_at_mark(Storage& storage, SwapTarget& target);  // for reading; see Note [Reads through a const pointer]
void give_mark_back(Storage& storage);                    // when it dies

void arm(Storage& storage);
bool armed(const Storage& storage);  // then nobody has taken its pointer since; never without the hook
void disarm(Storage& storage);

// What is called when an away storage dies.
using Deleter = void (*)(void* storage);
void set_away_deleter(Deleter deleter);

}  // namespace chameleon::access
