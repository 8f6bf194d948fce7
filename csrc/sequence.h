// A step's ops as tokens, with indexes to find a place in it again. Knows no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace chameleon {

// Tokens hold no sizes: the operator, ranks and dtypes of its first inputs, the stage, the module, and which named
// storages it touches. They mean the same in every process.
inline uint32_t mix_token(uint32_t token, uint32_t part) {
  const uint64_t product = (uint64_t{token} << 32 | (part + 0x7F4A7C15u)) * 0x9E3779B97F4A7C15ull;  // Fibonacci hashing
  return static_cast<uint32_t>(product >> 32) ^ static_cast<uint32_t>(product);
}

uint32_t hash_text(std::string_view text);

class Sequence {
 public:
  Sequence() = default;
  explicit Sequence(std::vector<uint32_t> tokens);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  bool empty() const { return tokens_.empty(); }
  uint32_t operator[](int32_t op) const { return tokens_[op]; }

  // The ops with this token, ascending.
  std::span<const int32_t> with_token(uint32_t token) const { return find(by_token_, token); }

  // The ops that end a run of kGram ops with these tokens, ascending.
  static constexpr size_t kGram = 5;
  std::span<const int32_t> with_gram(const uint32_t* newest_last) const {
    return find(by_gram_, gram_key(newest_last));
  }

  // A hash of a sequence grows by one token at a time; two that begin alike have the same prefix.
  static uint64_t extend(uint64_t prefix, uint32_t token) { return (prefix ^ (token + 1)) * 0x9E3779B97F4A7C15ull; }
  uint64_t prefix(int32_t ops) const { return prefixes_[ops]; }  // of its first `ops` ops

 private:
  struct Index {
    std::vector<int32_t> ops;                                          // grouped by key
    std::unordered_map<uint64_t, std::pair<uint32_t, uint32_t>> runs;  // of `ops`
  };
  static uint64_t gram_key(const uint32_t* tokens);
  static Index index(const std::vector<uint64_t>& keys, int32_t first_op);
  static std::span<const int32_t> find(const Index& index, uint64_t key) {
    const auto found = index.runs.find(key);
    if (found == index.runs.end()) return {};
    return {index.ops.data() + found->second.first, found->second.second};
  }

  std::vector<uint32_t> tokens_;
  std::vector<uint64_t> prefixes_{0};
  Index by_token_;
  Index by_gram_;
};

}  // namespace chameleon
