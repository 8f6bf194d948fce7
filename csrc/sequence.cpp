#include "sequence.h"

#include <algorithm>
#include <numeric>

namespace chameleon {

uint32_t hash_text(std::string_view text) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char letter : text) hash = (hash ^ static_cast<uint8_t>(letter)) * 16777619u;
  return hash;
}

Sequence::Sequence(std::vector<uint32_t> tokens) : tokens_(std::move(tokens)) {
  prefixes_.reserve(tokens_.size() + 1);
  for (const uint32_t token : tokens_) prefixes_.push_back(extend(prefixes_.back(), token));
  by_token_ = index({tokens_.begin(), tokens_.end()}, 0);
  std::vector<uint64_t> grams;
  for (size_t end = kGram; end <= tokens_.size(); ++end) grams.push_back(gram_key(tokens_.data() + end - kGram));
  by_gram_ = index(grams, static_cast<int32_t>(kGram) - 1);
}

Sequence::Index Sequence::index(const std::vector<uint64_t>& keys, int32_t first_op) {
  Index made;
  made.ops.resize(keys.size());
  std::iota(made.ops.begin(), made.ops.end(), 0);
  std::stable_sort(made.ops.begin(), made.ops.end(), [&](int32_t a, int32_t b) { return keys[a] < keys[b]; });
  made.runs.reserve(keys.size());
  for (size_t begin = 0; begin < keys.size();) {
    size_t end = begin;
    while (end < keys.size() && keys[made.ops[end]] == keys[made.ops[begin]]) ++end;
    made.runs[keys[made.ops[begin]]] = {static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin)};
    begin = end;
  }
  for (int32_t& op : made.ops) op += first_op;
  return made;
}

uint64_t Sequence::gram_key(const uint32_t* tokens) {
  uint64_t key = 0;
  for (size_t i = 0; i < kGram; ++i) key = extend(key, tokens[i]);
  return key;
}

}  // namespace chameleon
