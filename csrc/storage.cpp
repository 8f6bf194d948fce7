#include "storage.h"

#include <algorithm>
#include <utility>

namespace chameleon {

Storage* StorageTable::add(size_t bytes, size_t block_bytes, void* block, bool scratch) {
  // All that may find no memory comes first: a record is never freed, and deaths must not ask for memory.
  if (all_.size() == all_.capacity()) all_.reserve(std::max<size_t>(64, 2 * all_.size()));
  if (spare_.capacity() < all_.capacity()) spare_.reserve(all_.capacity());
  if (spare_.empty()) spare_.push_back(std::make_unique<Storage>());
  Storage* storage = spare_.back().get();
  by_block_[block] = storage;
  *storage = Storage();
  storage->owner = owner_;
  storage->block_deleter = block_deleter_;
  storage->uid = next_uid_++;
  storage->bytes = bytes;
  storage->block_bytes = block_bytes;
  storage->block = block;
  storage->slot = all_.size();
  all_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  storage->scratch = scratch;
  if (!scratch) live_bytes_ += block_bytes;
  return storage;
}

void StorageTable::make_ghost(Storage* storage) {
  storage->ghost = true;
  storage->pins -= std::exchange(storage->holds, 0);  // nobody can let go of it any more
  storage->loans = 0;
  storage->loans_ended = 0;
  storage->plan = -1;
  storage->impl = nullptr;
  storage->weak.reset();
  live_bytes_ -= storage->block_bytes;
}

void StorageTable::remove(Storage* storage) {
  if (storage->block) by_block_.erase(storage->block);
  if (!storage->scratch && !storage->ghost) live_bytes_ -= storage->block_bytes;
  storage->uid = -1;  // who still holds the record can tell
  storage->weak.reset();
  storage->host = {};
  storage->arriving.reset();
  storage->value.reset();
  const size_t slot = storage->slot;
  spare_.push_back(std::move(all_[slot]));
  if (slot + 1 != all_.size()) {
    all_[slot] = std::move(all_.back());
    all_[slot]->slot = slot;
  }
  all_.pop_back();
}

void StorageTable::set_block(Storage* storage, void* block) {
  if (block == storage->block) return;
  if (block) by_block_[block] = storage;  // it may find no memory: nothing has changed then
  if (storage->block) by_block_.erase(storage->block);
  storage->block = block;
}

}  // namespace chameleon
