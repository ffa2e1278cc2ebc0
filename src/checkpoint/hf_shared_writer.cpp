#include "checkpoint/hf_shared_writer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/convert.h"
#include "base/error.h"

namespace trireme::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTask = "export";
constexpr int64_t kStaging = int64_t{1} << 20;  // bytes

}  // namespace

HfSharedWriter::HfSharedWriter(const fs::path& folder, std::vector<model::TensorSpec> tensors,
                               Coordinator& ranks, const ExportOptions& options)
    : folder_(folder),
      tensors_(std::move(tensors)),
      ranks_(ranks),
      shards_(cut_into_shards(tensors_, options.max_shard_bytes)),
      staging_(static_cast<size_t>(kStaging)) {
  place_tensors();
  std::string problem;
  try {
    if (ranks_.rank() == 0) make_files();
  } catch (const DeviceError& error) {
    problem = error.what();
  }
  try {
    agree(ranks_, kTask, problem);
  } catch (const std::exception&) {
    remove_unfinished();
    throw;
  }
  try {
    for (const HfShard& shard : shards_) {
      files_.push_back(File::open_for_writing(unfinished(folder_, shard)));
    }
  } catch (const DeviceError& error) {
    problem_ = error.what();
  }
}

HfSharedWriter::~HfSharedWriter() {
  if (!published_) remove_unfinished();
}

void HfSharedWriter::remove_unfinished() const {
  if (ranks_.rank() != 0) return;
  std::error_code ignored;
  for (const HfShard& shard : shards_) fs::remove(unfinished(folder_, shard), ignored);
}

void HfSharedWriter::place_tensors() {
  for (size_t s = 0; s < shards_.size(); ++s) {
    const HfShard& shard = shards_[s];
    headers_.push_back(model::safetensors_header(
        std::span(tensors_.data() + shard.first, shard.last - shard.first), {}));
    auto offset = static_cast<int64_t>(headers_.back().size());
    for (size_t t = shard.first; t < shard.last; ++t) {
      places_.emplace(tensors_[t].name, Place{t, s, offset});
      offset += tensors_[t].bytes();
    }
  }
}

void HfSharedWriter::make_files() const {
  make_folders(folder_);
  for (size_t s = 0; s < shards_.size(); ++s) {
    const fs::path path = unfinished(folder_, shards_[s]);
    remove_tree(path);
    File file = File::create(path);
    const std::string& header = headers_[s];
    file.write_at(header.data(), static_cast<int64_t>(header.size()), 0);
    file.resize(static_cast<int64_t>(header.size()) + shards_[s].bytes);
    file.close();
  }
}

void HfSharedWriter::write(std::string_view tensor, const mesh::Box& box, const float* data) {
  if (!problem_.empty()) return;
  const Place& place = places_.at(tensor);
  try {
    for (const mesh::Run& run :
         mesh::copy_runs(box, mesh::whole(tensors_[place.tensor].shape))) {
      write_run(place, run.to, data + run.from, run.count);
    }
  } catch (const DeviceError& error) {
    problem_ = error.what();
  }
}

void HfSharedWriter::write_run(const Place& place, int64_t element, const float* data,
                               int64_t count) {
  const DType dtype = tensors_[place.tensor].dtype;
  const int64_t size = size_of(dtype);
  for (int64_t done = 0; done < count;) {
    const int64_t part = std::min(count - done, kStaging / size);
    convert_from_f32(dtype, data + done, part, staging_.data());
    files_[place.shard].write_at(staging_.data(), part * size,
                                 place.offset + (element + done) * size);
    done += part;
  }
}

std::vector<FileRecord> HfSharedWriter::hashed() const {
  std::vector<FileRecord> records;
  for (const HfShard& shard : shards_) {
    const File file = File::open(unfinished(folder_, shard));
    records.push_back({shard.name, file.size(), hash_of(file, file.size())});
  }
  return records;
}

std::vector<FileRecord> HfSharedWriter::finish() {
  try {
    for (File& file : files_) {
      file.sync();
      file.close();
    }
  } catch (const DeviceError& error) {
    if (problem_.empty()) problem_ = error.what();
  }
  agree(ranks_, kTask, problem_);
  std::vector<FileRecord> files;
  std::string problem;
  try {
    if (ranks_.rank() == 0) files = publish_shards(folder_, tensors_, shards_, hashed());
    published_ = true;
  } catch (const DeviceError& error) {
    problem = error.what();
  }
  agree(ranks_, kTask, problem);
  return files;
}

}  // namespace trireme::checkpoint
