// What a checkpoint holds: manifest.json, the file whose presence makes a folder a checkpoint.
//
// Its first line carries the hash of all that follows. A file is known by name, size and hash; a
// box by tensor, plane, place in the global tensor and byte offset in its file (row-major; f32, or
// bf16 where the plane's entry is ["exp_avg", "bf16"] instead of "exp_avg"). A file of boxes ends
// with a list of the hashes of its blocks, and its hash is that of the list: so a rank checks what
// it reads while it reads it. Version 1 had no lists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "mesh/box.h"

namespace trireme::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";

/// A file that is complete and fsynced. `hash` is of all its bytes, or of its list of hashes: those
/// of every block of block_bytes of the bytes before list_offset. The list fills the rest of the
/// file, 16 bytes a block.
struct FileRecord {
  std::string name;  // in the folder
  int64_t bytes = 0;
  Hash128 hash;
  int64_t block_bytes = 0;  // 0: no list
  int64_t list_offset = 0;

  bool has_list() const { return block_bytes > 0; }
  int64_t num_blocks() const;  // 1 without a list
  /// Bytes [begin, end) of the file that the block's hash is of.
  std::pair<int64_t, int64_t> block(int64_t index) const;
};

/// Of a file that holds exactly this text.
FileRecord record_of(std::string name, std::string_view text);

struct TensorEntry {
  std::string name;
  std::vector<int64_t> shape;
};

struct PlaneEntry {
  std::string name;  // "master", "exp_avg", ...
  DType dtype = DType::f32;
};

struct BoxEntry {
  int64_t tensor = 0;  // into Manifest::tensors
  int64_t plane = 0;   // into Manifest::planes
  mesh::Box box;
  int64_t offset = 0;  // of the first byte in the file
};

struct FileEntry {
  FileRecord file;
  std::vector<BoxEntry> boxes;  // none: a file for others, such as Hugging Face weights
};

struct Manifest {
  int64_t step = 0;
  std::string run;         // the id of the run that saved (folders.h); "" before there were ids
  int64_t world_size = 0;  // of the run that saved
  std::vector<PlaneEntry> planes;
  std::vector<TensorEntry> tensors;
  std::vector<FileEntry> files;
  Json state;  // the small state of the host: schedule, data position, counters

  /// Index of a name; -1 when absent.
  int64_t find_plane(std::string_view name) const;
  int64_t find_tensor(std::string_view name) const;
  /// Whether there is no state to resume from, only files for others (save_only_model).
  bool only_model() const { return tensors.empty(); }
  int64_t total_bytes() const;
};

/// Planes, and files with their boxes, as JSON, for the manifest and for messages between ranks.
Json to_json(const std::vector<PlaneEntry>& planes);
PlaneEntry plane_from_json(const Json& json);
Json to_json(const FileEntry& entry);
FileEntry file_entry_from_json(const Json& json);

/// "" when every tensor of every plane that has one of its boxes is covered exactly once; else what
/// is wrong. Part of reading and writing.
std::string tiling_problem(const Manifest& manifest);

/// The text of manifest.json.
std::string format_manifest(const Manifest& manifest);
/// Reads and checks all of it. DataError naming the file.
Manifest read_manifest(const std::filesystem::path& folder);

/// Of the first `bytes` of a file. Reads them.
Hash128 hash_of(const File& file, int64_t bytes);

}  // namespace trireme::checkpoint
