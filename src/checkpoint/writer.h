// Saves output_dir/checkpoint-N: one file per rank and a manifest, published last.
//
// Order, after which a crash at any moment leaves the old checkpoints or the new one, whole:
// files of all ranks fsynced in checkpoint-N.tmp-X; manifest fsynced; that folder fsynced; renamed
// to checkpoint-N; output_dir fsynced; `latest` replaced; only then are old checkpoints removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "checkpoint/checked_file.h"
#include "checkpoint/coordinator.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "host/stream_writer.h"
#include "mesh/box.h"

namespace trireme::checkpoint {

/// A box of one plane of a global tensor, which one rank saves.
struct Piece {
  std::string tensor;
  std::string plane;
  std::vector<int64_t> global_shape;
  mesh::Box box;
  DType dtype = DType::f32;
};

/// Moments of a save at which a test may stop a rank: kill it, or throw as a failed call would.
/// From `manifest_written` on only rank 0 passes.
enum class SavePoint {
  folder_made,
  half_written,  // of this rank's pieces
  all_written,   // not yet fsynced
  file_synced,
  manifest_written,
  folder_synced,
  renamed,
  parent_synced,
  pointer_written,
  rotated,
};
inline constexpr int kNumSavePoints = 10;

struct SaveRequest {
  std::filesystem::path output_dir;  // made when absent
  int64_t step = 0;
  std::string run = {};                   // its id (folders.h)
  int64_t save_total_limit = 0;           // checkpoints to keep; 0: all
  std::optional<int64_t> best_step = {};  // of one that is kept in any case
  KnownRuns* known_runs = nullptr;        // of earlier saves; may be null
  host::WriteOptions write = {};
  int64_t block_bytes = kBlockBytes;             // of which each gets a hash
  std::function<void(SavePoint)> at_point = {};  // may be empty
};

struct SaveResult {
  std::filesystem::path folder;
  int64_t total_bytes = 0;           // of all ranks
  std::vector<std::string> removed;  // names of old checkpoints; rank 0 only
  std::string set_aside;             // where another run's checkpoint-N is now; rank 0 only
  std::string warning;               // published, but something after that failed; rank 0 only
};

/// One rank's part of one save. Constructor and commit() are collective; between them a rank never
/// waits for others, and what goes wrong (a full disk) is kept for commit(), so that no rank is
/// left waiting. A rank without pieces has no file. Memory: the buffers of `write`.
class CheckpointWriter {
 public:
  /// Throws the same DeviceError on every rank when the folder cannot be made or the disk has less
  /// room than all pieces need. `ranks` must outlive the writer.
  CheckpointWriter(const SaveRequest& request, std::vector<Piece> pieces, Coordinator& ranks);
  /// Without commit(), rank 0 removes what was written.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The next piece of the list given to the constructor, dense and row-major, in the type said
  /// there. Takes a copy.
  void add(std::string_view tensor, std::string_view plane, const mesh::Box& box, const void* data);

  /// Where the checkpoint is being made; for files that shall be published with it.
  const std::filesystem::path& folder() const { return folder_; }
  /// A file that the caller wrote into folder() and fsynced becomes part of the checkpoint.
  void include(const FileRecord& file);
  /// This rank cannot do its part; commit() will throw on every rank.
  void fail(std::string_view why);

  /// Publishes, with the state of rank 0, or throws the same DeviceError on every rank and leaves
  /// the earlier checkpoints as they were.
  SaveResult commit(const Json& state);

 private:
  template <typename Action>
  void guarded(Action action);
  void at(SavePoint point);
  void prepare_output(const std::vector<std::string>& announcements);
  void make_folder();
  void write_list();
  std::string rank_report() const;
  void publish(const std::vector<std::string>& reports, const Json& state, SaveResult* result);
  void clean_up(SaveResult* result);

  SaveRequest request_;
  std::vector<Piece> pieces_;
  Coordinator& ranks_;
  std::filesystem::path folder_;
  std::filesystem::path final_path_;
  std::string file_name_;
  std::unique_ptr<host::StreamWriter> file_;
  size_t next_ = 0;  // into pieces_
  int64_t header_bytes_ = 0;
  FileRecord record_;  // of file_, once its list is written
  std::vector<FileRecord> included_;
  std::string problem_;  // "" while all is well on this rank
  bool committed_ = false;
};

}  // namespace trireme::checkpoint
