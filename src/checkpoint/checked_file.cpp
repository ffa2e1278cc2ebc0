#include "checkpoint/checked_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace trireme::checkpoint {

namespace {

constexpr int64_t kPiece = int64_t{4} << 20;

uint64_t number_at(const std::string& bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

[[noreturn]] void throw_damaged(const FileRecord& record) {
  throw DataError(
      fmt::format("{} is damaged (its hash is not the one in the manifest)", record.name));
}

}  // namespace

std::string hash_list(const std::vector<Hash128>& hashes) {
  std::string bytes;
  bytes.reserve(hashes.size() * sizeof(Hash128));
  for (const Hash128& hash : hashes) {
    for (const uint64_t half : {hash.high, hash.low}) {
      for (int i = 0; i < 8; ++i) bytes += static_cast<char>(half >> (8 * i));
    }
  }
  return bytes;
}

CheckedFile::CheckedFile(const std::filesystem::path& folder, const FileRecord& record)
    : record_(record), file_(File::open(folder / record.name)) {
  if (const int64_t bytes = file_.size(); bytes != record.bytes) {
    throw DataError(fmt::format("{} has {} bytes instead of {}", record.name, bytes, record.bytes));
  }
  expected_.resize(
      static_cast<size_t>(record.num_blocks()));  // not more than the file has room for
  proved_.resize(expected_.size());
  if (!record.has_list()) {
    expected_[0] = record.hash;
    return;
  }
  std::string list(static_cast<size_t>(record.bytes - record.list_offset), '\0');
  file_.read_at(list.data(), static_cast<int64_t>(list.size()), record.list_offset);
  if (hash128(list) != record.hash) throw_damaged(record);
  for (size_t i = 0; i < expected_.size(); ++i) {
    expected_[i] = {number_at(list, 16 * i), number_at(list, 16 * i + 8)};
  }
}

void CheckedFile::judge(int64_t block, const Hash128& hash) {
  if (hash != expected_[static_cast<size_t>(block)]) throw_damaged(record_);
  proved_[static_cast<size_t>(block)] = true;
}

void CheckedFile::see(const std::byte* data, int64_t bytes, int64_t offset) {
  const int64_t end = offset + bytes;
  int64_t block = record_.has_list() ? offset / record_.block_bytes : 0;
  for (; block < record_.num_blocks() && record_.block(block).first < end; ++block) {
    const auto [first, last] = record_.block(block);
    const int64_t from = std::max(first, offset);
    const int64_t to = std::min(last, end);
    if (from >= to) continue;
    const std::byte* part = data + (from - offset);
    if (from == first && to == last) {
      judge(block, hash128(part, to - from));
      continue;
    }
    auto begun = begun_.find(block);
    if (from == first) {
      begun = begun_.insert_or_assign(block, Begun{}).first;
      begun->second.next = first;
    }
    if (begun == begun_.end() || begun->second.next != from) continue;
    begun->second.hasher.update(part, to - from);
    begun->second.next = to;
    if (to < last) continue;
    const Hash128 hash = begun->second.hasher.digest();
    begun_.erase(begun);
    judge(block, hash);
  }
}

int64_t CheckedFile::prove(BlockRange blocks) {
  const int64_t first = record_.block(blocks.first).first;
  const int64_t last = record_.block(blocks.last - 1).second;
  if (first == last) judge(blocks.first, hash128(nullptr, 0));
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(
      static_cast<size_t>(std::min(kPiece, last - first)));
  for (int64_t at = first; at < last; at += kPiece) {
    const int64_t part = std::min(kPiece, last - at);
    file_.read_at(piece.get(), part, at);
    see(piece.get(), part, at);
  }
  return last - first;
}

std::vector<BlockRange> CheckedFile::proved() const {
  std::vector<BlockRange> ranges;
  for (int64_t block = 0; block < record_.num_blocks(); ++block) {
    if (!proved_[static_cast<size_t>(block)]) continue;
    if (!ranges.empty() && ranges.back().last == block) {
      ++ranges.back().last;
    } else {
      ranges.push_back({block, block + 1});
    }
  }
  return ranges;
}

}  // namespace trireme::checkpoint
