// One file of a checkpoint, read in parts and checked by what was read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/manifest.h"

namespace trireme::checkpoint {

/// Bytes of a block of the files that are written here.
inline constexpr int64_t kBlockBytes = int64_t{64} << 10;

/// Hashes as they lie at the end of a file: 16 bytes each, the high half first, little endian.
std::string hash_list(const std::vector<Hash128>& hashes);

/// Blocks [first, last) of a file.
struct BlockRange {
  int64_t first = 0;
  int64_t last = 0;
  bool operator==(const BlockRange&) const = default;
};

/// Counts a block as proved when all of it was read, from front to end and in any number of reads,
/// and has its hash. One thread.
class CheckedFile {
 public:
  /// Opens it and reads its list of hashes. DataError when it has another size or another list,
  /// DeviceError when it cannot be read. `record` is borrowed.
  CheckedFile(const std::filesystem::path& folder, const FileRecord& record);

  const File& file() const { return file_; }
  /// Bytes that somebody read from `offset` of file(). DataError when they end a block that has not
  /// its hash.
  void see(const std::byte* data, int64_t bytes, int64_t offset);
  /// Reads blocks, at least one, and sees them. Returns the bytes read.
  int64_t prove(BlockRange blocks);
  /// Ascending, and joined.
  std::vector<BlockRange> proved() const;

 private:
  struct Begun {
    Hasher hasher;
    int64_t next = 0;  // offset of the byte that goes on
  };
  void judge(int64_t block, const Hash128& hash);

  const FileRecord& record_;
  File file_;
  std::vector<Hash128> expected_;  // of each block
  std::vector<bool> proved_;
  std::map<int64_t, Begun> begun_;  // by block
};

}  // namespace trireme::checkpoint
