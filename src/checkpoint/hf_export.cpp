#include "checkpoint/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/convert.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/fit.h"
#include "checkpoint/reader.h"

namespace trireme::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kStaging = int64_t{1} << 20;  // bytes

}  // namespace

HfWriter::HfWriter(const fs::path& folder, std::vector<model::TensorSpec> tensors,
                   const ExportOptions& options)
    : folder_(folder),
      tensors_(std::move(tensors)),
      options_(options),
      shards_(cut_into_shards(tensors_, options.max_shard_bytes)),
      staging_(static_cast<size_t>(kStaging)) {
  check(!tensors_.empty(), "a model without tensors");
}

HfWriter::~HfWriter() {
  file_.reset();
  if (published_) return;
  std::error_code ignored;
  for (const HfShard& shard : shards_) fs::remove(unfinished(folder_, shard), ignored);
  if (made_folder_) fs::remove(folder_, ignored);  // empty, or it stays
}

void HfWriter::open_next_shard() {
  const HfShard& shard = shards_[written_.size()];
  if (written_.empty()) {
    std::error_code ignored;
    made_folder_ = !fs::exists(folder_, ignored);
    make_folders(folder_);
  }
  remove_tree(unfinished(folder_, shard));
  file_ = std::make_unique<host::StreamWriter>(unfinished(folder_, shard), options_.write);
  const std::span<const model::TensorSpec> tensors(tensors_.data() + shard.first,
                                                   shard.last - shard.first);
  const std::string header = model::safetensors_header(tensors, {});
  file_->write(header.data(), static_cast<int64_t>(header.size()));
}

void HfWriter::close_shard() {
  file_->finish();
  written_.push_back({shards_[written_.size()].name, file_->bytes(), file_->hashes().front()});
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

std::vector<FileRecord> HfWriter::finish() {
  append(nullptr, 0);  // tensors without elements at the end
  if (!problem_.empty()) throw DeviceError(problem_);
  check(tensor_ == tensors_.size(), "tensor '{}' is not complete", tensors_[tensor_].name);
  auto files = publish_shards(folder_, tensors_, shards_, written_);
  published_ = true;
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

void export_checkpoint(const fs::path& checkpoint, const ExportedModel& model, const fs::path& to,
                       DType dtype, const ExportOptions& options) {
  constexpr std::string_view kMaster = "master";
  constexpr int64_t kPiece = int64_t{4} << 20;  // elements
  std::optional<HfWriter> writer;
  const auto write_all = [&](CheckpointReader& reader) {
    if (reader.manifest().only_model()) {
      throw ConfigError("checkpoint", checkpoint.string(),
                        "it holds only the model (save_only_model), and is its Hugging Face folder "
                        "already; use it as it is");
    }
    if (const std::string problem = misfit(reader.manifest(), model.tensors); !problem.empty()) {
      throw ConfigError("MODEL_DIR", model.folder.string(),
                        fmt::format("{} is of another model: {}; give the model_name_or_path of "
                                    "the run that saved it",
                                    checkpoint.string(), problem));
    }
    std::vector<model::TensorSpec> tensors;
    for (const TensorEntry& tensor : reader.manifest().tensors) {
      tensors.push_back({tensor.name, dtype, tensor.shape});
    }
    const FillTensor fill = [&](const model::TensorSpec& tensor, int64_t begin, int64_t count,
                                float* out) {
      for (const mesh::Box& box :
           mesh::boxes_of_range(mesh::whole(tensor.shape), begin, begin + count)) {
        reader.read(tensor.name, kMaster, tensor.shape, box, out);
        out += box.size();
      }
    };
    writer.emplace(to, tensors, options);
    stream_tensors(tensors, kPiece, fill, &*writer);
  };
  SingleRank alone;
  open_named(checkpoint, "checkpoint", alone, write_all);
  writer->finish();
  copy_model_files(model.folder, to, dtype);
}

}  // namespace trireme::checkpoint
