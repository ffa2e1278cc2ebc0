#include "checkpoint/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "model/box_reader.h"

namespace trireme::checkpoint {

namespace {

constexpr size_t kMaxListed = 8;

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

/// What is wrong with one file; "" for nothing.
std::string problem_of(const std::filesystem::path& folder, const FileRecord& record) {
  try {
    const File file = File::open(folder / record.name);
    if (const int64_t bytes = file.size(); bytes != record.bytes) {
      return fmt::format("{} has {} bytes instead of {}", record.name, bytes, record.bytes);
    }
    if (hash_of(file, record.bytes) != record.hash) {
      return fmt::format("{} is damaged (its hash is not the one in the manifest)", record.name);
    }
    return "";
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Collective: everything wrong with a checkpoint, the same on all ranks.
std::vector<std::string> problems_of(const std::filesystem::path& folder, Coordinator& ranks) {
  std::vector<std::string> mine;
  try {
    mine = verify_files(folder, read_manifest(folder), ranks.rank(), ranks.world_size());
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    mine = {error.what()};
  }
  std::vector<std::string> all;
  for (const std::string& text : ranks.exchange(dump_json(mine))) {
    for (const Json& problem : parse_json(text, "a rank's report")) {
      const auto sentence = problem.get<std::string>();
      if (std::find(all.begin(), all.end(), sentence) == all.end()) all.push_back(sentence);
    }
  }
  return all;
}

}  // namespace

CheckpointReader::CheckpointReader(const std::filesystem::path& folder)
    : folder_(folder), manifest_(read_manifest(folder)), files_(manifest_.files.size()) {
  for (size_t f = 0; f < manifest_.files.size(); ++f) {
    for (const BoxEntry& box : manifest_.files[f].boxes) {
      const std::string& tensor = manifest_.tensors[static_cast<size_t>(box.tensor)].name;
      const std::string& plane = manifest_.planes[static_cast<size_t>(box.plane)].name;
      places_[{tensor, plane}].push_back({f, &box});
    }
  }
}

const TensorEntry* CheckpointReader::find(std::string_view tensor, std::string_view plane) const {
  const auto found = places_.find({tensor, plane});
  if (found == places_.end()) return nullptr;
  return &manifest_.tensors[static_cast<size_t>(found->second.front().box->tensor)];
}

const File& CheckpointReader::open(size_t file) {
  File& opened = files_[file];
  if (!opened.is_open()) {
    const FileRecord& record = manifest_.files[file].file;
    opened = File::open(folder_ / record.name);
    if (opened.size() != record.bytes) {
      throw DataError(fmt::format("{}: {} bytes instead of {}", (folder_ / record.name).string(),
                                  opened.size(), record.bytes));
    }
  }
  return opened;
}

void CheckpointReader::read(std::string_view tensor, std::string_view plane,
                            const std::vector<int64_t>& global_shape, const mesh::Box& box,
                            float* out) {
  const TensorEntry* entry = find(tensor, plane);
  if (entry == nullptr) {
    throw DataError(
        fmt::format("{}: holds no plane '{}' of tensor '{}'", folder_.string(), plane, tensor));
  }
  if (entry->shape != global_shape) {
    throw DataError(fmt::format("{}: tensor '{}' has shape {}, this run needs {}", folder_.string(),
                                tensor, shape_text(entry->shape), shape_text(global_shape)));
  }
  if (box.size() == 0) return;
  mesh::Box inside;
  check(mesh::intersect(mesh::whole(global_shape), box, &inside) && inside == box,
        "box {} of tensor '{}' {}", mesh::to_string(box), tensor, shape_text(global_shape));
  for (const Place& place : places_.at({tensor, plane})) {
    mesh::Box common;
    if (!mesh::intersect(place.box->box, box, &common)) continue;
    const DType dtype = manifest_.planes[static_cast<size_t>(place.box->plane)].dtype;
    bytes_read_ += model::read_shared_box(
        {&open(place.file), place.box->offset, dtype, place.box->box}, box, out);
  }
}

std::vector<std::string> verify_files(const std::filesystem::path& folder, const Manifest& manifest,
                                      int64_t part, int64_t num_parts) {
  std::vector<std::string> problems;
  const auto num_files = static_cast<int64_t>(manifest.files.size());
  for (int64_t f = part; f < num_files; f += num_parts) {
    const std::string problem = problem_of(folder, manifest.files[static_cast<size_t>(f)].file);
    if (!problem.empty()) problems.push_back(problem);
  }
  return problems;
}

std::optional<FoundCheckpoint> find_newest(const std::filesystem::path& output_dir,
                                           Coordinator& ranks) {
  // Rank 0 looks into the folder, so that all try the same ones in the same order.
  Json listed = Json::array();
  std::string problem;
  if (ranks.rank() == 0) {
    try {
      for (const CheckpointFolder& folder : list_folders(output_dir)) {
        if (folder.has_manifest) listed.push_back(folder.path.filename().string());
      }
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  agree(ranks, "looking for checkpoints", problem);
  const std::string names = ranks.exchange(dump_json(listed))[0];
  FoundCheckpoint found;
  for (const Json& name : parse_json(names, "a list of checkpoints")) {
    found.folder = output_dir / name.get<std::string>();
    const std::vector<std::string> problems = problems_of(found.folder, ranks);
    if (problems.empty()) return found;
    found.skipped.push_back(
        fmt::format("{} skipped: {}", name.get<std::string>(), join_some(problems, kMaxListed)));
  }
  if (found.skipped.empty()) return std::nullopt;
  throw DataError(fmt::format("{}: no checkpoint can be used: {}", output_dir.string(),
                              join_some(found.skipped, kMaxListed)));
}

std::filesystem::path open_named(const std::filesystem::path& folder, std::string_view field,
                                 Coordinator& ranks) {
  const auto exists = [](const std::filesystem::path& path) {
    std::error_code unreadable;
    return std::filesystem::exists(path, unreadable);
  };
  std::string mine = "ok";
  if (!exists(folder)) {
    mine = "there is no such folder";
  } else if (!exists(folder / kManifestName)) {
    mine = fmt::format("the folder holds no {}; name a checkpoint-N folder", kManifestName);
  }
  for (const std::string& answer : ranks.exchange(mine)) {
    if (answer != "ok") throw ConfigError(field, folder.string(), answer);
  }
  const std::vector<std::string> problems = problems_of(folder, ranks);
  if (!problems.empty()) {
    throw DataError(
        fmt::format("{}: cannot be used: {}", folder.string(), join_some(problems, kMaxListed)));
  }
  return folder;
}

}  // namespace trireme::checkpoint
