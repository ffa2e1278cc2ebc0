#include "checkpoint/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "model/box_reader.h"

namespace trireme::checkpoint {

namespace {

constexpr size_t kMaxListed = 8;
constexpr size_t kMaxKept = 1000;
// Of blocks that a rank has proved and tells of: the longest. A message holds a MiB.
constexpr size_t kMaxStretches = 16384;

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

/// Collective: every sentence of every rank, once, the same on all ranks.
std::vector<std::string> all_problems(const std::vector<std::string>& mine, Coordinator& ranks) {
  std::vector<std::string> all;
  for (const std::string& text : ranks.exchange(dump_json(mine))) {
    for (const Json& problem : parse_json(text, "a rank's report")) {
      const auto sentence = problem.get<std::string>();
      if (std::find(all.begin(), all.end(), sentence) == all.end()) all.push_back(sentence);
    }
  }
  return all;
}

/// Collective: opens, uses and checks one checkpoint. Everything wrong with it, the same on all
/// ranks; `manifest` is filled in when nothing is.
std::vector<std::string> problems_of(const std::filesystem::path& folder, Coordinator& ranks,
                                     const UseCheckpoint& use, Manifest* manifest) {
  std::optional<CheckpointReader> reader;
  std::vector<std::string> mine;
  try {
    reader.emplace(folder);
  } catch (const std::exception& error) {
    mine = {error.what()};
  }
  std::vector<std::string> problems = all_problems(mine, ranks);
  if (!problems.empty()) return problems;
  if (use) use(*reader);
  problems = reader->verify(ranks);
  if (problems.empty()) *manifest = reader->manifest();
  return problems;
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

CheckedFile& CheckpointReader::open(size_t file) {
  if (!files_[file]) {
    const FileRecord& record = manifest_.files[file].file;
    files_[file] = std::make_unique<CheckedFile>(folder_, record);
    if (record.has_list()) bytes_read_ += record.bytes - record.list_offset;
  }
  return *files_[file];
}

/// Keeps what is wrong with a file.
template <typename Action>
void CheckpointReader::guarded(Action action) {
  const auto keep = [&](std::string problem) {
    if (problems_.size() < kMaxKept && std::ranges::find(problems_, problem) == problems_.end()) {
      problems_.push_back(std::move(problem));
    }
  };
  try {
    action();
  } catch (const DataError& error) {
    keep(error.what());
  } catch (const DeviceError& error) {
    keep(error.what());
  }
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
    guarded([&] {
      CheckedFile& file = open(place.file);
      const auto see = [&](const std::byte* data, int64_t bytes, int64_t offset) {
        bytes_read_ += bytes;
        file.see(data, bytes, offset);
      };
      model::read_shared_box({&file.file(), place.box->offset, dtype, place.box->box}, box, out,
                             see);
    });
  }
}

/// This rank's proved blocks, for unproved().
std::string CheckpointReader::proved() const {
  std::vector<Stretch> stretches;
  for (size_t f = 0; f < files_.size(); ++f) {
    if (!files_[f]) continue;
    for (const BlockRange& blocks : files_[f]->proved()) stretches.push_back({f, blocks});
  }
  if (stretches.size() > kMaxStretches) {
    const auto length = [](const Stretch& s) { return s.blocks.last - s.blocks.first; };
    std::ranges::nth_element(stretches, stretches.begin() + kMaxStretches, std::greater(), length);
    stretches.resize(kMaxStretches);
  }
  Json json = Json::array();
  for (const Stretch& s : stretches) json.push_back({s.file, s.blocks.first, s.blocks.last});
  return dump_json(json);
}

std::vector<CheckpointReader::Stretch> CheckpointReader::unproved(
    const std::vector<std::string>& proved_by_ranks) const {
  std::vector<std::vector<BlockRange>> proved(manifest_.files.size());
  for (const std::string& text : proved_by_ranks) {
    for (const Json& json : parse_json(text, "a rank's report")) {
      proved.at(json.at(0).get<size_t>()).push_back({json.at(1), json.at(2)});
    }
  }
  std::vector<Stretch> gaps;
  for (size_t f = 0; f < proved.size(); ++f) {
    std::ranges::sort(proved[f], {}, &BlockRange::first);
    int64_t at = 0;
    const auto gap_until = [&](int64_t block) {
      if (block > at) gaps.push_back({f, {at, block}});
    };
    for (const BlockRange& blocks : proved[f]) {
      gap_until(blocks.first);
      at = std::max(at, blocks.last);
    }
    gap_until(manifest_.files[f].file.num_blocks());
  }
  return gaps;
}

/// One rank's part of blocks: those that begin in its part of all their bytes.
std::vector<CheckpointReader::Stretch> CheckpointReader::share(const std::vector<Stretch>& all,
                                                               int rank, int num_ranks) const {
  const auto block_bytes = [&](const Stretch& s) {
    const FileRecord& file = manifest_.files[s.file].file;
    return static_cast<double>(file.has_list() ? file.block_bytes
                                               : std::max<int64_t>(1, file.bytes));
  };
  const auto count = [](const Stretch& s) { return s.blocks.last - s.blocks.first; };
  double total = 0;
  for (const Stretch& s : all) total += block_bytes(s) * static_cast<double>(count(s));
  double before = 0;
  std::vector<Stretch> mine;
  for (const Stretch& s : all) {
    /// The first block that does not begin before the part of `of_rank`.
    const auto cut = [&](int of_rank) {
      const double at = std::ceil((total * of_rank / num_ranks - before) / block_bytes(s));
      return s.blocks.first +
             static_cast<int64_t>(std::clamp(at, 0.0, static_cast<double>(count(s))));
    };
    if (cut(rank) < cut(rank + 1)) mine.push_back({s.file, {cut(rank), cut(rank + 1)}});
    before += block_bytes(s) * static_cast<double>(count(s));
  }
  return mine;
}

std::vector<std::string> CheckpointReader::verify(Coordinator& ranks) {
  const std::vector<Stretch> rest = unproved(ranks.exchange(proved()));
  for (const Stretch& s : share(rest, ranks.rank(), ranks.world_size())) {
    guarded([&] { bytes_read_ += open(s.file).prove(s.blocks); });
  }
  return all_problems(problems_, ranks);
}

std::optional<FoundCheckpoint> find_newest(const std::filesystem::path& output_dir,
                                           Coordinator& ranks, const UseCheckpoint& use) {
  // Rank 0 looks into the folder, so that all try the same ones in the same order.
  Json listed = Json::array();
  std::string problem;
  if (ranks.rank() == 0) {
    try {
      for (const auto& folder : folders_of_run(output_dir, current_run(output_dir), true)) {
        listed.push_back(folder.path.filename().string());
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
    const std::vector<std::string> problems =
        problems_of(found.folder, ranks, use, &found.manifest);
    if (problems.empty()) return found;
    found.skipped.push_back(
        fmt::format("{} skipped: {}", name.get<std::string>(), join_some(problems, kMaxListed)));
  }
  if (found.skipped.empty()) return std::nullopt;
  throw DataError(
      fmt::format("{}: no checkpoint can be used: {}; name another one, or leave "
                  "resume_from_checkpoint out to start afresh",
                  output_dir.string(), join_some(found.skipped, kMaxListed)));
}

FoundCheckpoint open_named(const std::filesystem::path& folder, std::string_view field,
                           Coordinator& ranks, const UseCheckpoint& use) {
  const auto exists = [](const std::filesystem::path& path) {
    std::error_code unreadable;
    return std::filesystem::exists(path, unreadable);
  };
  std::string mine = "ok";
  if (!exists(folder)) {
    mine = "there is no such folder; name a checkpoint-N folder";
  } else if (!exists(folder / kManifestName)) {
    mine = fmt::format("the folder holds no {}; name a checkpoint-N folder", kManifestName);
  }
  for (const std::string& answer : ranks.exchange(mine)) {
    if (answer != "ok") throw ConfigError(field, folder.string(), answer);
  }
  FoundCheckpoint found{folder, {}, {}};
  const std::vector<std::string> problems = problems_of(folder, ranks, use, &found.manifest);
  if (!problems.empty()) {
    throw ConfigError(field, folder.string(),
                      fmt::format("it cannot be used: {}; name another checkpoint",
                                  join_some(problems, kMaxListed)));
  }
  return found;
}

}  // namespace trireme::checkpoint
