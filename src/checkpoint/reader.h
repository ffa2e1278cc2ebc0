// Finds and reads checkpoints, on any number of ranks and any layout: boxes say what lies where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checked_file.h"
#include "checkpoint/coordinator.h"
#include "checkpoint/manifest.h"
#include "mesh/box.h"

namespace trireme::checkpoint {

/// One open checkpoint. Only the manifest is checked at once; what read() gave may be used when
/// verify() has found nothing.
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
  /// it needs. DataError when the tensor or plane is absent or has another shape. A file that
  /// cannot be read, or is not as it was written, is kept for verify(), so that no rank leaves the
  /// others alone in the middle of loading; `out` then holds anything.
  void read(std::string_view tensor, std::string_view plane,
            const std::vector<int64_t>& global_shape, const mesh::Box& box, float* out);
  /// Collective: whether every byte of every file is as it was written. What some rank's reads have
  /// proved is not read again; the ranks share the rest. Everything wrong, the same on all ranks:
  /// each a sentence that names the file, which is absent, of another size, or damaged.
  std::vector<std::string> verify(Coordinator& ranks);
  /// Bytes of files read so far, by read() and verify().
  int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Place {
    size_t file;  // into manifest_.files
    const BoxEntry* box;
  };
  using Key = std::pair<std::string_view, std::string_view>;  // tensor, plane
  /// Blocks of one of the files.
  struct Stretch {
    size_t file;
    BlockRange blocks;
  };
  CheckedFile& open(size_t file);
  template <typename Action>
  void guarded(Action action);
  std::string proved() const;
  std::vector<Stretch> unproved(const std::vector<std::string>& proved_by_ranks) const;
  std::vector<Stretch> share(const std::vector<Stretch>& all, int rank, int num_ranks) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<Key, std::vector<Place>> places_;
  std::vector<std::unique_ptr<CheckedFile>> files_;  // nullptr: not opened yet
  std::vector<std::string> problems_;                // of this rank
  int64_t bytes_read_ = 0;
};

/// Reads what a rank needs of a checkpoint. It may be called for several, one after the other: only
/// what it read from the last one counts. ConfigErrors must be the same on all ranks.
using UseCheckpoint = std::function<void(CheckpointReader& reader)>;

struct FoundCheckpoint {
  std::filesystem::path folder;
  Manifest manifest;
  /// Newer ones that cannot be used, each "checkpoint-N skipped: why"; the same on all ranks.
  std::vector<std::string> skipped;
};

/// Collective. The first checkpoint of output_dir's current run (folders.h) that `use` read and
/// whose files are all there and as they were written. nullopt when it has none; DataError, listing
/// the reasons, when it has some but none can be used.
std::optional<FoundCheckpoint> find_newest(const std::filesystem::path& output_dir,
                                           Coordinator& ranks, const UseCheckpoint& use = {});

/// Collective. The folder that somebody named with `field`. ConfigError when it does not
/// exist, is no checkpoint or is damaged: another one is never taken instead.
FoundCheckpoint open_named(const std::filesystem::path& folder, std::string_view field,
                           Coordinator& ranks, const UseCheckpoint& use = {});

}  // namespace trireme::checkpoint
