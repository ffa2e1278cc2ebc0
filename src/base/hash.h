// XXH3: 128 bits for the integrity of files (not against forgery), 64 bits for keys.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct XXH3_state_s;

namespace trireme {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Hash128&) const = default;
};

/// 32 lower-case hexadecimal digits.
std::string to_hex(const Hash128& hash);
/// The inverse of to_hex; nullopt for anything else.
std::optional<Hash128> parse_hash128(std::string_view hex);

Hash128 hash128(const void* data, int64_t bytes);
inline Hash128 hash128(std::string_view text) {
  return hash128(text.data(), static_cast<int64_t>(text.size()));
}
uint64_t hash64(std::string_view text, uint64_t seed = 0);

/// The hash128 of bytes given piece by piece.
class Hasher {
 public:
  Hasher();
  void update(const void* data, int64_t bytes);
  void update(std::string_view text) { update(text.data(), static_cast<int64_t>(text.size())); }
  /// Of everything so far; more may follow.
  Hash128 digest() const;
  /// As if new.
  void reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// The hash128 of every block of `block_bytes` of bytes given piece by piece, the last one shorter.
class BlockHasher {
 public:
  explicit BlockHasher(int64_t block_bytes) : block_bytes_(block_bytes) {}
  void update(const void* data, int64_t bytes);
  /// Of everything so far; more may follow. At least one: nothing is an empty block.
  std::vector<Hash128> digests() const;

 private:
  int64_t block_bytes_;
  std::vector<Hash128> whole_;  // of full blocks
  Hasher part_;                 // of what lies beyond them
  int64_t part_bytes_ = 0;
};

}  // namespace trireme
