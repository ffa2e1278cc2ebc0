#include "checkpoint/writer.h"

#include <fmt/format.h>

#include <map>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/math.h"
#include "base/text.h"
#include "model/safetensors.h"

namespace trireme::checkpoint {

namespace {

int64_t bytes_of(const Piece& piece) { return piece.box.size() * size_of(piece.dtype); }

/// The header of a rank's file: readable with any safetensors tool, for which the list of hashes is
/// one more tensor.
std::string header_of(const std::vector<Piece>& pieces, int64_t block_bytes, int64_t step,
                      int rank) {
  constexpr int64_t kHashBytes = sizeof(Hash128);
  std::vector<model::TensorSpec> specs;
  specs.reserve(pieces.size() + 1);
  int64_t data_bytes = 0;
  for (const Piece& piece : pieces) {
    specs.push_back({fmt::format("{}:{}{}", piece.plane, piece.tensor, mesh::to_string(piece.box)),
                     piece.dtype, piece.box.extent});
    data_bytes += bytes_of(piece);
  }
  specs.push_back({fmt::format("xxh3 of every {} bytes", block_bytes), DType::u8, {0, kHashBytes}});
  // The header is hashed too, and says how many hashes there are: a longer one may need one more.
  while (true) {
    std::string header = model::safetensors_header(
        specs, {{"step", std::to_string(step)}, {"rank", std::to_string(rank)}});
    const int64_t blocks = ceil_div(static_cast<int64_t>(header.size()) + data_bytes, block_bytes);
    if (specs.back().shape[0] == blocks) return header;
    specs.back().shape[0] = blocks;
  }
}

/// Index of `key`, which is appended by `make` when new.
template <typename Entry, typename Make>
int64_t index_of(std::map<std::string, int64_t, std::less<>>* known, std::vector<Entry>* entries,
                 const std::string& key, Make make) {
  const auto [found, added] = known->emplace(key, static_cast<int64_t>(entries->size()));
  if (added) entries->push_back(make());
  return found->second;
}

/// Tables of tensors and planes that grow as the ranks' parts are added.
class ManifestBuilder {
 public:
  explicit ManifestBuilder(Manifest* manifest) : manifest_(*manifest) {}

  int64_t plane(const std::string& name, DType dtype) {
    const int64_t index = index_of(&planes_, &manifest_.planes, name, [&] {
      return PlaneEntry{name, dtype};
    });
    check(manifest_.planes[static_cast<size_t>(index)].dtype == dtype,
          "the boxes of plane '{}' are of two types", name);
    return index;
  }
  int64_t tensor(const std::string& name, const std::vector<int64_t>& shape) {
    const int64_t index = index_of(&tensors_, &manifest_.tensors, name, [&] {
      return TensorEntry{name, shape};
    });
    check(manifest_.tensors[static_cast<size_t>(index)].shape == shape,
          "ranks disagree about the shape of tensor '{}'", name);
    return index;
  }

 private:
  Manifest& manifest_;
  std::map<std::string, int64_t, std::less<>> planes_;
  std::map<std::string, int64_t, std::less<>> tensors_;
};

/// Adds what one rank reported.
void add_report(const std::string& report, ManifestBuilder* builder, Manifest* manifest) {
  const Json json = parse_json(report, "a rank's report", {.max_bytes = int64_t{1} << 30});
  std::vector<int64_t> planes;
  std::vector<int64_t> tensors;
  for (const Json& json_plane : json["planes"]) {
    const PlaneEntry plane = plane_from_json(json_plane);
    planes.push_back(builder->plane(plane.name, plane.dtype));
  }
  for (const Json& tensor : json["tensors"]) {
    tensors.push_back(builder->tensor(tensor[0], tensor[1].get<std::vector<int64_t>>()));
  }
  for (const Json& file : json["files"]) {
    FileEntry entry = file_entry_from_json(file);
    for (BoxEntry& box : entry.boxes) {
      box.tensor = tensors.at(static_cast<size_t>(box.tensor));
      box.plane = planes.at(static_cast<size_t>(box.plane));
    }
    manifest->files.push_back(std::move(entry));
  }
}

std::string report(const Manifest& mine, const Json& files) {
  Json tensors = Json::array();
  for (const TensorEntry& tensor : mine.tensors) {
    tensors.push_back(Json::array({tensor.name, tensor.shape}));
  }
  return dump_json({{"planes", to_json(mine.planes)}, {"tensors", tensors}, {"files", files}});
}

std::string random_suffix() {
  std::random_device device;
  return fmt::format("{:08x}", device());
}

}  // namespace

void CheckpointWriter::at(SavePoint point) {
  if (request_.at_point) request_.at_point(point);
}

/// Runs `action` unless this rank has failed already; keeps what it throws.
template <typename Action>
void CheckpointWriter::guarded(Action action) {
  if (!problem_.empty()) return;
  try {
    action();
  } catch (const CommError&) {
    throw;  // nobody is left to agree with
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void CheckpointWriter::fail(std::string_view why) {
  if (problem_.empty()) problem_ = why.empty() ? "failed" : why;
}

CheckpointWriter::CheckpointWriter(const SaveRequest& request, std::vector<Piece> pieces,
                                   Coordinator& ranks)
    : request_(request),
      pieces_(std::move(pieces)),
      ranks_(ranks),
      final_path_(request.output_dir / folder_name(request.step)) {
  const std::string header = header_of(pieces_, request_.block_bytes, request_.step, ranks_.rank());
  header_bytes_ = static_cast<int64_t>(header.size());
  int64_t bytes = header_bytes_;
  for (const Piece& piece : pieces_) bytes += bytes_of(piece);
  bytes += ceil_div(bytes, request_.block_bytes) * static_cast<int64_t>(sizeof(Hash128));
  const std::vector<std::string> announcements =
      ranks_.exchange(fmt::format("{} {}", request_.step, bytes));
  if (ranks_.rank() == 0) {
    guarded([&] { prepare_output(announcements); });
    guarded([&] { make_folder(); });
  }
  const std::string task = fmt::format("{} was not saved", folder_name(request_.step));
  agree(ranks_, task, problem_);
  folder_ = ranks_.exchange(folder_.string())[0];
  file_name_ = fmt::format("rank-{:05}-of-{:05}.safetensors", ranks_.rank(), ranks_.world_size());
  guarded([&] {
    at(SavePoint::folder_made);
    if (pieces_.empty()) return;
    host::WriteOptions options = request_.write;
    options.hash_block_bytes = request_.block_bytes;
    file_ = std::make_unique<host::StreamWriter>(folder_ / file_name_, options);
    file_->write(header.data(), header_bytes_);
  });
}

void CheckpointWriter::prepare_output(const std::vector<std::string>& announcements) {
  std::error_code ignored;
  if (!std::filesystem::exists(request_.output_dir, ignored)) {
    make_folders(request_.output_dir);
    sync_folder(std::filesystem::absolute(request_.output_dir).parent_path());
  }
  remove_leftovers(request_.output_dir);
  int64_t needed = 0;
  for (const std::string& text : announcements) {
    const size_t space = text.find(' ');
    check(std::stoll(text) == request_.step, "ranks save steps {} and {}", request_.step,
          text.substr(0, space));
    needed += std::stoll(text.substr(space + 1));
  }
  const int64_t room = free_bytes(request_.output_dir);
  if (room < needed) {
    throw DeviceError(fmt::format("the disk of '{}' has {} left, the checkpoint needs {}",
                                  request_.output_dir.string(), human_bytes(room),
                                  human_bytes(needed)));
  }
}

void CheckpointWriter::make_folder() {
  folder_ = final_path_;
  folder_ += ".tmp-" + random_suffix();
  make_folders(folder_);
}

CheckpointWriter::~CheckpointWriter() {
  file_.reset();
  if (committed_ || ranks_.rank() != 0) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void CheckpointWriter::add(std::string_view tensor, std::string_view plane, const mesh::Box& box,
                           const void* data) {
  check(next_ < pieces_.size(), "more pieces than the {} announced", pieces_.size());
  const Piece& piece = pieces_[next_];
  check(piece.tensor == tensor && piece.plane == plane && piece.box == box,
        "piece {} of a checkpoint is {} of '{}', announced was {} of '{}'", next_, plane, tensor,
        piece.plane, piece.tensor);
  ++next_;
  guarded([&] {
    file_->write(data, bytes_of(piece));
    if (next_ == (pieces_.size() + 1) / 2) at(SavePoint::half_written);
  });
}

void CheckpointWriter::include(const FileRecord& file) { included_.push_back(file); }

void CheckpointWriter::write_list() {
  const std::string list = hash_list(file_->hashes());
  record_ = {file_name_, 0, hash128(list), request_.block_bytes, file_->bytes()};
  file_->write(list.data(), static_cast<int64_t>(list.size()));
  record_.bytes = file_->bytes();
}

std::string CheckpointWriter::rank_report() const {
  Manifest mine;
  ManifestBuilder builder(&mine);
  Json files = Json::array();
  for (const FileRecord& file : included_) files.push_back(to_json(FileEntry{file, {}}));
  if (pieces_.empty()) return report(mine, files);
  FileEntry entry{record_, {}};
  int64_t offset = header_bytes_;
  for (const Piece& piece : pieces_) {
    entry.boxes.push_back({builder.tensor(piece.tensor, piece.global_shape),
                           builder.plane(piece.plane, piece.dtype), piece.box, offset});
    offset += bytes_of(piece);
  }
  files.insert(files.begin(), to_json(entry));
  return report(mine, files);
}

SaveResult CheckpointWriter::commit(const Json& state) {
  check(next_ == pieces_.size(), "{} of {} announced pieces were added", next_, pieces_.size());
  const std::string task = fmt::format("{} was not saved", folder_name(request_.step));
  guarded([&] {
    if (file_) write_list();
    at(SavePoint::all_written);
    if (file_) file_->finish();
    at(SavePoint::file_synced);
  });
  agree(ranks_, task, problem_);
  const std::vector<std::string> reports = ranks_.exchange(rank_report());
  SaveResult result;
  result.folder = final_path_;
  if (ranks_.rank() == 0) guarded([&] { publish(reports, state, &result); });
  agree(ranks_, task, problem_);
  committed_ = true;
  if (ranks_.rank() == 0) clean_up(&result);
  result.total_bytes = std::stoll(ranks_.exchange(std::to_string(result.total_bytes))[0]);
  return result;
}

void CheckpointWriter::publish(const std::vector<std::string>& reports, const Json& state,
                               SaveResult* result) {
  Manifest manifest;
  manifest.step = request_.step;
  manifest.run = request_.run;
  manifest.world_size = ranks_.world_size();
  manifest.state = state;
  ManifestBuilder builder(&manifest);
  for (const std::string& report : reports) add_report(report, &builder, &manifest);
  const std::string problem = tiling_problem(manifest);
  check(problem.empty(), "{}", problem);
  result->total_bytes = manifest.total_bytes();

  write_new_file(folder_ / kManifestName, format_manifest(manifest));
  at(SavePoint::manifest_written);
  sync_folder(folder_);
  at(SavePoint::folder_synced);
  result->set_aside = set_aside(final_path_, request_.run);
  swap_into_place(folder_, final_path_);
  at(SavePoint::renamed);
  sync_folder(request_.output_dir);
  at(SavePoint::parent_synced);
}

/// The checkpoint is safe already; what fails here is worth a warning.
void CheckpointWriter::clean_up(SaveResult* result) {
  try {
    point_to(request_.output_dir, request_.step);
    at(SavePoint::pointer_written);
    remove_leftovers(request_.output_dir);  // an older checkpoint of this step, swapped out
    result->removed = rotate(request_.output_dir, request_.run, request_.save_total_limit,
                             request_.best_step, request_.known_runs);
    at(SavePoint::rotated);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    result->warning = fmt::format("{} is saved, but: {}", folder_name(request_.step), error.what());
  }
}

}  // namespace trireme::checkpoint
