#include "checkpoint/hf_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/json.h"

namespace trireme::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

/// model.safetensors, its index, or a shard of any number.
bool is_weight_file(const std::string& name) {
  return name == kSingle || name == kIndex ||
         (name.starts_with("model-") && name.ends_with(".safetensors"));
}

std::string index_text(const std::vector<model::TensorSpec>& tensors,
                       const std::vector<HfShard>& shards) {
  int64_t total = 0;
  Json map = Json::object();
  for (const HfShard& shard : shards) {
    total += shard.bytes;
    for (size_t t = shard.first; t < shard.last; ++t) map[tensors[t].name] = shard.name;
  }
  return dump_json({{"metadata", {{"total_size", total}}}, {"weight_map", map}}, 2) + "\n";
}

}  // namespace

std::vector<HfShard> cut_into_shards(const std::vector<model::TensorSpec>& tensors,
                                     int64_t max_bytes) {
  std::vector<HfShard> shards;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t bytes = tensors[t].bytes();
    const int64_t before = shards.empty() ? 0 : shards.back().bytes;
    if (shards.empty() || (before > 0 && bytes > 0 && before + bytes > max_bytes)) {
      shards.push_back({"", t, t, 0});
    }
    shards.back().last = t + 1;
    shards.back().bytes += bytes;
  }
  for (size_t s = 0; s < shards.size(); ++s) {
    shards[s].name = shards.size() == 1
                         ? std::string(kSingle)
                         : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
  }
  return shards;
}

fs::path unfinished(const fs::path& folder, const HfShard& shard) {
  return folder / (shard.name + ".tmp");
}

std::vector<FileRecord> publish_shards(const fs::path& folder,
                                       const std::vector<model::TensorSpec>& tensors,
                                       const std::vector<HfShard>& shards,
                                       std::vector<FileRecord> written) {
  for (const HfShard& shard : shards) rename_path(unfinished(folder, shard), folder / shard.name);
  if (shards.size() > 1) {
    const std::string text = index_text(tensors, shards);
    replace_file(folder / kIndex, text);
    written.push_back({std::string(kIndex), static_cast<int64_t>(text.size()), hash128(text)});
  }
  sync_folder(folder);
  for (const std::string& name : list_folder(folder)) {
    const bool ours = std::any_of(written.begin(), written.end(),
                                  [&](const FileRecord& file) { return file.name == name; });
    if (is_weight_file(name) && !ours) remove_tree(folder / name);
  }
  return written;
}

}  // namespace trireme::checkpoint
