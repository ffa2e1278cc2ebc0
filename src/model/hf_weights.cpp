#include "model/hf_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/box_reader.h"

namespace trireme::model {

namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr size_t kMaxListed = 8;

/// Buffers, not parameters, that old folders carry.
bool is_known_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 4> kEndings = {
      ".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached",
      ".attn.masked_bias"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_plain_file_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.size() <= 255 && name[0] != '.' &&
         name.find_first_of("/\\") == std::string_view::npos && printable(name, 255) == name;
}

/// Tensor names by file name.
std::map<std::string, std::vector<std::string>> read_index(const std::filesystem::path& path) {
  const Json index = read_json(path, {.max_bytes = 100'000'000, .max_depth = 8});
  const Json* map = nullptr;
  if (index.is_object() && index.contains("weight_map")) map = &index["weight_map"];
  if (map == nullptr || !map->is_object()) {
    throw DataError(fmt::format("{}: 'weight_map' is missing or not an object", path.string()));
  }
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      throw DataError(
          fmt::format("{}: tensor '{}' is said to be in {}, which is not the name of a "
                      ".safetensors file in this folder",
                      path.string(), printable(tensor), printable(dump_json(file))));
    }
    shards[file.get<std::string>()].push_back(tensor);
  }
  if (shards.empty()) throw DataError(fmt::format("{}: 'weight_map' is empty", path.string()));
  return shards;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelGraph& model) {
  std::vector<ExpectedTensor> tensors;
  for (const Parameter& parameter : model.parameters) {
    tensors.push_back({parameter.name, parameter.shape});
  }
  return tensors;
}

HfWeights::HfWeights(const std::filesystem::path& folder) : folder_(folder) {
  const auto holds = [&](std::string_view name) {
    std::error_code unreadable;  // counts as absent; opening something would say why
    return std::filesystem::exists(folder / name, unreadable);
  };
  if (holds(kSingle)) {
    open(folder / kSingle);
    return;
  }
  if (holds(kIndex)) {
    open_shards(folder / kIndex);
    return;
  }
  const bool pickled = holds("pytorch_model.bin") || holds("pytorch_model.bin.index.json");
  throw DataError(fmt::format("{}: no {} and no {} in this folder{}", folder.string(), kSingle,
                              kIndex,
                              pickled ? " (pytorch_model.bin can run code when it is loaded and is "
                                        "not read; save the model as safetensors)"
                                      : ""));
}

void HfWeights::open(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const SafetensorsFile& file = *files_.back();
  for (const TensorInfo& tensor : file.tensors()) {
    const auto [place, added] = places_.emplace(tensor.name, Place{&file, &tensor});
    if (!added) {
      throw DataError(fmt::format("{}: tensor '{}' is also in {}", path.string(), tensor.name,
                                  place->second.file->path().filename().string()));
    }
  }
}

void HfWeights::open_shards(const std::filesystem::path& index_path) {
  for (const auto& [name, tensors] : read_index(index_path)) {
    std::error_code unreadable;
    if (std::filesystem::status(folder_ / name, unreadable).type() ==
        std::filesystem::file_type::not_found) {
      throw DataError(fmt::format("{}: names {}, which is not in this folder; fetch all its files",
                                  index_path.string(), name));
    }
    open(folder_ / name);
    const SafetensorsFile& file = *files_.back();
    for (const std::string& tensor : tensors) {
      if (file.find(tensor) == nullptr) {
        throw DataError(fmt::format("{}: lists tensor '{}' in {}, where it is not",
                                    index_path.string(), printable(tensor), name));
      }
    }
    if (file.tensors().size() != tensors.size()) {
      for (const TensorInfo& tensor : file.tensors()) {
        if (std::find(tensors.begin(), tensors.end(), tensor.name) != tensors.end()) continue;
        throw DataError(fmt::format("{}: tensor '{}' is not listed in {}", file.path().string(),
                                    tensor.name, kIndex));
      }
    }
  }
}

std::vector<const TensorInfo*> HfWeights::tensors() const {
  std::vector<const TensorInfo*> result;
  for (const auto& file : files_) {
    for (const TensorInfo& tensor : file->tensors()) result.push_back(&tensor);
  }
  return result;
}

const TensorInfo* HfWeights::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.tensor;
}

const std::filesystem::path& HfWeights::file_of(std::string_view name) const {
  const auto found = places_.find(name);
  check(found != places_.end(), "there is no tensor '{}' in {}", name, folder_.string());
  return found->second.file->path();
}

void HfWeights::check_against(std::span<const ExpectedTensor> expected,
                              std::span<const std::string_view> tolerated) const {
  std::vector<std::string> problems;
  std::unordered_map<std::string_view, bool> known;
  for (const ExpectedTensor& tensor : expected) {
    known.emplace(tensor.name, true);
    const auto found = places_.find(tensor.name);
    if (found == places_.end()) {
      problems.push_back(fmt::format("tensor '{}' {} is missing from {}", tensor.name,
                                     shape_text(tensor.shape), folder_.string()));
      continue;
    }
    const TensorInfo& info = *found->second.tensor;
    const std::string file = found->second.file->path().string();
    if (info.shape != tensor.shape) {
      problems.push_back(fmt::format("tensor '{}' in {} has shape {} where config.json asks for {}",
                                     tensor.name, file, shape_text(info.shape),
                                     shape_text(tensor.shape)));
    } else if (!info.dtype) {
      problems.push_back(fmt::format("tensor '{}' in {} is {}, but only F32, BF16 and F16 are read",
                                     tensor.name, file, info.dtype_name));
    }
  }
  for (const TensorInfo* tensor : tensors()) {
    if (known.contains(tensor->name) || is_known_buffer(tensor->name)) continue;
    if (std::find(tolerated.begin(), tolerated.end(), tensor->name) != tolerated.end()) continue;
    problems.push_back(fmt::format("tensor '{}' {} in {} has no place in this model", tensor->name,
                                   shape_text(tensor->shape), file_of(tensor->name).string()));
  }
  if (problems.empty()) return;
  throw DataError(fmt::format("{}: the weights do not fit config.json: {}", folder_.string(),
                              join_some(problems, kMaxListed)));
}

void HfWeights::read_box(std::string_view name, const mesh::Box& box, float* out) {
  const auto found = places_.find(name);
  check(found != places_.end(), "there is no tensor '{}' in {}", name, folder_.string());
  const TensorInfo& tensor = *found->second.tensor;
  check(tensor.dtype.has_value(), "tensor '{}' is {}", name, tensor.dtype_name);
  const mesh::Box whole = mesh::whole(tensor.shape);
  mesh::Box inside;
  const bool contained = box.size() == 0 || (mesh::intersect(whole, box, &inside) && inside == box);
  check(contained, "box {} of tensor '{}' {}", mesh::to_string(box), name,
        shape_text(tensor.shape));
  bytes_read_ +=
      read_shared_box({&found->second.file->file(), tensor.offset, *tensor.dtype, whole}, box, out);
}

}  // namespace trireme::model
