// Finds and reads checkpoints, on any number of ranks and any layout: boxes say what lies where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/coordinator.h"
#include "checkpoint/manifest.h"
#include "mesh/box.h"

namespace trireme::checkpoint {

/// One open checkpoint. Contents are believed: verify them first (find_newest, open_named).
class CheckpointReader {
 public:
  /// DataError for a missing or damaged manifest.
  explicit CheckpointReader(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  int64_t step() const { return manifest_.step; }
  const Json& state() const { return manifest_.state; }
  /// nullptr when the checkpoint has no such tensor in that plane.
  const TensorEntry* find(std::string_view tensor, std::string_view plane) const;

  /// A box of a tensor, dense and row-major, from whatever boxes were saved; reads only the bytes
  /// it needs. DataError when the tensor or plane is absent or has another shape.
  void read(std::string_view tensor, std::string_view plane,
            const std::vector<int64_t>& global_shape, const mesh::Box& box, float* out);
  /// Bytes of boxes read so far.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Place {
    size_t file;  // into manifest_.files
    const BoxEntry* box;
  };
  using Key = std::pair<std::string_view, std::string_view>;  // tensor, plane
  const File& open(size_t file);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<Key, std::vector<Place>> places_;
  std::vector<File> files_;
  int64_t bytes_read_ = 0;
};

/// Re-reads files `part`, `part + num_parts`, ... of a checkpoint. Each problem is a sentence that
/// names the file: absent, of another size, or with another hash.
std::vector<std::string> verify_files(const std::filesystem::path& folder, const Manifest& manifest,
                                      int64_t part = 0, int64_t num_parts = 1);

struct FoundCheckpoint {
  std::filesystem::path folder;
  /// Newer ones that cannot be used, each "checkpoint-N skipped: why"; the same on all ranks.
  std::vector<std::string> skipped;
};

/// Collective. The first checkpoint of list_folders whose files are all there and as they were
/// written; the ranks share the checking. nullopt when output_dir has none; DataError, listing the
/// reasons, when it has some but none can be used.
std::optional<FoundCheckpoint> find_newest(const std::filesystem::path& output_dir,
                                           Coordinator& ranks);

/// Collective. The folder that somebody named with `field`. ConfigError when it does not exist or
/// is no checkpoint, DataError when it is damaged: another one is never taken instead.
std::filesystem::path open_named(const std::filesystem::path& folder, std::string_view field,
                                 Coordinator& ranks);

}  // namespace trireme::checkpoint
