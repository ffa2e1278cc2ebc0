// How a model is laid out in a Hugging Face folder: which tensors lie in which file, and how files
// get their names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "model/safetensors.h"

namespace trireme::checkpoint {

struct HfShard {
  std::string name;
  size_t first = 0;  // tensors [first, last)
  size_t last = 0;
  int64_t bytes = 0;  // of data
};

/// model.safetensors, or numbered shards of at most `max_bytes` (a larger tensor has one alone).
std::vector<HfShard> cut_into_shards(const std::vector<model::TensorSpec>& tensors,
                                     int64_t max_bytes);

/// Where a shard is written before it is complete.
std::filesystem::path unfinished(const std::filesystem::path& folder, const HfShard& shard);

/// Gives complete, fsynced shards their names, writes the index when there are several, and removes
/// weights of an earlier model. All files, the index included.
std::vector<FileRecord> publish_shards(const std::filesystem::path& folder,
                                       const std::vector<model::TensorSpec>& tensors,
                                       const std::vector<HfShard>& shards,
                                       std::vector<FileRecord> written);

}  // namespace trireme::checkpoint
