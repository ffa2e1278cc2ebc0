#include "checkpoint/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/convert.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/reader.h"

namespace trireme::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr int64_t kStaging = int64_t{1} << 20;  // bytes

/// model.safetensors, its index, or a shard of any number.
bool is_weight_file(const std::string& name) {
  return name == kSingle || name == kIndex ||
         (name.starts_with("model-") && name.ends_with(".safetensors"));
}

FileRecord record_of(const std::string& name, std::string_view text) {
  return {name, static_cast<int64_t>(text.size()), hash128(text)};
}

}  // namespace

HfWriter::HfWriter(const fs::path& folder, std::vector<model::TensorSpec> tensors,
                   const ExportOptions& options)
    : folder_(folder),
      tensors_(std::move(tensors)),
      options_(options),
      staging_(static_cast<size_t>(kStaging)) {
  check(!tensors_.empty(), "a model without tensors");
  cut_into_shards();
}

HfWriter::~HfWriter() {
  file_.reset();
  if (published_) return;
  std::error_code ignored;
  for (const Shard& shard : shards_) fs::remove(temporary(shard.name), ignored);
}

fs::path HfWriter::temporary(const std::string& name) const { return folder_ / (name + ".tmp"); }

void HfWriter::cut_into_shards() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const int64_t bytes = tensors_[t].bytes();
    const int64_t before = shards_.empty() ? 0 : shards_.back().bytes;
    if (shards_.empty() || (before > 0 && bytes > 0 && before + bytes > options_.max_shard_bytes)) {
      shards_.push_back({"", t, t, 0});
    }
    shards_.back().last = t + 1;
    shards_.back().bytes += bytes;
  }
  for (size_t s = 0; s < shards_.size(); ++s) {
    shards_[s].name = shards_.size() == 1
                          ? std::string(kSingle)
                          : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards_.size());
  }
}

void HfWriter::open_next_shard() {
  const Shard& shard = shards_[written_.size()];
  if (written_.empty()) make_folders(folder_);
  remove_tree(temporary(shard.name));
  file_ = std::make_unique<host::StreamWriter>(temporary(shard.name), options_.write);
  const std::span<const model::TensorSpec> tensors(tensors_.data() + shard.first,
                                                   shard.last - shard.first);
  const std::string header = model::safetensors_header(tensors, {});
  file_->write(header.data(), static_cast<int64_t>(header.size()));
}

void HfWriter::close_shard() {
  file_->finish();
  written_.push_back({shards_[written_.size()].name, file_->bytes(), file_->hash()});
  file_.reset();
}

void HfWriter::append(const float* data, int64_t count) {
  if (!problem_.empty()) return;
  try {
    take(data, count);
  } catch (const DeviceError& error) {
    problem_ = error.what();
  }
}

void HfWriter::take(const float* data, int64_t count) {
  while (true) {
    if (tensor_ == tensors_.size()) {
      check(count == 0, "{} elements after the last tensor", count);
      return;
    }
    const model::TensorSpec& tensor = tensors_[tensor_];
    const int64_t size = size_of(tensor.dtype);
    const int64_t left = tensor.bytes() / size - element_;
    if (count == 0 && left > 0) return;
    if (file_ == nullptr) open_next_shard();
    const int64_t part = std::min({count, left, kStaging / size});
    convert_from_f32(tensor.dtype, data, part, staging_.data());
    file_->write(staging_.data(), part * size);
    element_ += part;
    data += part;
    count -= part;
    if (part < left) continue;
    ++tensor_;
    element_ = 0;
    if (tensor_ == shards_[written_.size()].last) close_shard();
  }
}

std::string HfWriter::index_text() const {
  int64_t total = 0;
  Json map = Json::object();
  for (const Shard& shard : shards_) {
    total += shard.bytes;
    for (size_t t = shard.first; t < shard.last; ++t) map[tensors_[t].name] = shard.name;
  }
  return dump_json({{"metadata", {{"total_size", total}}}, {"weight_map", map}}, 2) + "\n";
}

std::vector<FileRecord> HfWriter::finish() {
  append(nullptr, 0);  // tensors without elements at the end
  if (!problem_.empty()) throw DeviceError(problem_);
  check(tensor_ == tensors_.size(), "tensor '{}' is not complete", tensors_[tensor_].name);
  return publish();
}

std::vector<FileRecord> HfWriter::publish() {
  std::vector<FileRecord> files = written_;
  for (const FileRecord& file : written_) rename_path(temporary(file.name), folder_ / file.name);
  published_ = true;
  if (shards_.size() > 1) {
    const std::string text = index_text();
    replace_file(folder_ / kIndex, text);
    files.push_back(record_of(std::string(kIndex), text));
  }
  sync_folder(folder_);
  for (const std::string& name : list_folder(folder_)) {
    const bool ours = std::any_of(files.begin(), files.end(),
                                  [&](const FileRecord& file) { return file.name == name; });
    if (is_weight_file(name) && !ours) remove_tree(folder_ / name);
  }
  return files;
}

void stream_tensors(const std::vector<model::TensorSpec>& tensors, int64_t piece_elements,
                    const FillTensor& fill, HfWriter* writer) {
  std::vector<float> piece;
  for (const model::TensorSpec& tensor : tensors) {
    const int64_t count = tensor.bytes() / size_of(tensor.dtype);
    for (int64_t begin = 0; begin < count; begin += piece_elements) {
      const int64_t part = std::min(piece_elements, count - begin);
      piece.resize(static_cast<size_t>(part));
      fill(tensor, begin, part, piece.data());
      if (writer != nullptr) writer->append(piece.data(), part);
    }
  }
}

namespace {

constexpr std::array<std::string_view, 12> kModelFiles = {"config.json",
                                                          "generation_config.json",
                                                          "tokenizer.json",
                                                          "tokenizer_config.json",
                                                          "chat_template.jinja",
                                                          "chat_template.json",
                                                          "special_tokens_map.json",
                                                          "added_tokens.json",
                                                          "vocab.json",
                                                          "merges.txt",
                                                          "tokenizer.model",
                                                          "spiece.model"};
constexpr int64_t kMaxModelFile = int64_t{256} << 20;

std::string_view hf_name_of(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

/// The text of config.json with its dtype set; as it was when that is its dtype already.
std::string with_dtype(const std::string& text, const fs::path& path, DType dtype) {
  Json config = parse_json(text, path.string());
  if (!config.is_object()) throw DataError(fmt::format("{}: no JSON object", path.string()));
  bool named = false;
  bool changed = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!config.contains(key)) continue;
    named = true;
    if (config[key] == hf_name_of(dtype)) continue;
    config[key] = hf_name_of(dtype);
    changed = true;
  }
  if (!named) config["torch_dtype"] = hf_name_of(dtype);
  return named && !changed ? text : dump_json(config, 2) + "\n";
}

}  // namespace

std::vector<FileRecord> copy_model_files(const fs::path& from, const fs::path& to, DType dtype) {
  make_folders(to);
  std::vector<FileRecord> files;
  for (const std::string_view name : kModelFiles) {
    std::error_code unreadable;
    if (!fs::exists(from / name, unreadable)) continue;
    const std::string original = read_text_file(from / name, kMaxModelFile);
    const bool config = name == "config.json";
    const std::string text = config ? with_dtype(original, from / name, dtype) : original;
    const bool same_file = fs::equivalent(from, to, unreadable);
    if (!same_file || text != original) replace_file(to / name, text);
    files.push_back(record_of(std::string(name), text));
  }
  return files;
}

void export_checkpoint(const fs::path& checkpoint, const fs::path& model_folder, const fs::path& to,
                       DType dtype, const ExportOptions& options) {
  constexpr std::string_view kMaster = "master";
  constexpr int64_t kPiece = int64_t{4} << 20;  // elements
  CheckpointReader reader(checkpoint);
  std::vector<model::TensorSpec> tensors;
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (reader.find(tensor.name, kMaster) == nullptr) continue;
    tensors.push_back({tensor.name, dtype, tensor.shape});
  }
  HfWriter writer(to, tensors, options);
  const FillTensor fill = [&](const model::TensorSpec& tensor, int64_t begin, int64_t count,
                              float* out) {
    for (const mesh::Box& box :
         mesh::boxes_of_range(mesh::whole(tensor.shape), begin, begin + count)) {
      reader.read(tensor.name, kMaster, tensor.shape, box, out);
      out += box.size();
    }
  };
  stream_tensors(tensors, kPiece, fill, &writer);
  writer.finish();
  copy_model_files(model_folder, to, dtype);
}

}  // namespace trireme::checkpoint
