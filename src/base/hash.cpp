#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <new>

#include "base/error.h"

namespace trireme {

namespace {
Hash128 from_xxh(const XXH128_hash_t& hash) { return {hash.high64, hash.low64}; }
}  // namespace

std::string to_hex(const Hash128& hash) {
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

std::optional<Hash128> parse_hash128(std::string_view hex) {
  if (hex.size() != 32) return std::nullopt;
  Hash128 hash;
  for (const char c : hex) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
    hash.high = (hash.high << 4) | (hash.low >> 60);
    hash.low = (hash.low << 4) | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return hash;
}

Hash128 hash128(const void* data, int64_t bytes) {
  return from_xxh(XXH3_128bits(data, static_cast<size_t>(bytes)));
}

uint64_t hash64(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

void Hasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Hasher::Hasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  reset();
}

void Hasher::reset() { XXH3_128bits_reset(state_.get()); }

void Hasher::update(const void* data, int64_t bytes) {
  const XXH_errorcode code = XXH3_128bits_update(state_.get(), data, static_cast<size_t>(bytes));
  check(code == XXH_OK, "XXH3_128bits_update({} bytes) failed", bytes);
}

Hash128 Hasher::digest() const { return from_xxh(XXH3_128bits_digest(state_.get())); }

void BlockHasher::update(const void* data, int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const int64_t piece = std::min(bytes, block_bytes_ - part_bytes_);
    if (piece == block_bytes_) {
      whole_.push_back(hash128(at, piece));
    } else {
      part_.update(at, piece);
      part_bytes_ += piece;
      if (part_bytes_ == block_bytes_) {
        whole_.push_back(part_.digest());
        part_.reset();
        part_bytes_ = 0;
      }
    }
    at += piece;
    bytes -= piece;
  }
}

std::vector<Hash128> BlockHasher::digests() const {
  std::vector<Hash128> all = whole_;
  if (part_bytes_ > 0 || all.empty()) all.push_back(part_.digest());
  return all;
}

}  // namespace trireme
