// A Hugging Face model folder that several ranks write at once, each the boxes it holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "checkpoint/coordinator.h"
#include "checkpoint/hf_export.h"

namespace trireme::checkpoint {

/// The folder is one that all ranks see. Memory: 1 MiB. Every box of every tensor is written by
/// exactly one rank.
class HfSharedWriter {
 public:
  /// Collective: rank 0 makes the files at their full size. The tensors are the same on all ranks.
  HfSharedWriter(const std::filesystem::path& folder, std::vector<model::TensorSpec> tensors,
                 Coordinator& ranks, const ExportOptions& options = {});
  /// Without finish(), rank 0 removes what was written.
  ~HfSharedWriter();
  HfSharedWriter(const HfSharedWriter&) = delete;
  HfSharedWriter& operator=(const HfSharedWriter&) = delete;

  /// A box, dense and row-major. What goes wrong is kept for finish().
  void write(std::string_view tensor, const mesh::Box& box, const float* data);
  /// Collective; throws AgreedError with the first problem of any rank. On rank 0: all files.
  std::vector<FileRecord> finish();

 private:
  struct Place {
    size_t tensor = 0;
    size_t shard = 0;
    int64_t offset = 0;  // of its first byte in the file
  };

  void place_tensors();
  void make_files() const;
  void remove_unfinished() const;
  void write_run(const Place& place, int64_t element, const float* data, int64_t count);
  std::vector<FileRecord> hashed() const;

  std::filesystem::path folder_;
  std::vector<model::TensorSpec> tensors_;
  Coordinator& ranks_;
  std::vector<HfShard> shards_;
  std::vector<std::string> headers_;  // of each shard
  std::unordered_map<std::string_view, Place> places_;
  std::vector<File> files_;  // of each shard
  std::vector<std::byte> staging_;
  std::string problem_;
  bool published_ = false;
};

}  // namespace trireme::checkpoint
