// The weights of a Hugging Face folder: model.safetensors, or the shards that
// model.safetensors.index.json lists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mesh/box.h"
#include "model/graph.h"
#include "model/safetensors.h"

namespace trireme::model {

/// A tensor that a model needs.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

/// Of all parameters.
std::vector<ExpectedTensor> expected_tensors(const ModelGraph& model);

class HfWeights {
 public:
  /// Opens and checks every file. DataError for a broken file, an index that names a path instead
  /// of a file, that lists a tensor its file lacks, or files with unlisted or doubled tensors.
  explicit HfWeights(const std::filesystem::path& folder);

  /// All tensors, file by file. `file_of` gives the path of the one that holds a tensor.
  std::vector<const TensorInfo*> tensors() const;
  /// nullptr when there is none of that name.
  const TensorInfo* find(std::string_view name) const;
  const std::filesystem::path& file_of(std::string_view name) const;

  /// Throws one DataError that names the tensors missing, misshapen, of a dtype that cannot be
  /// read, or superfluous, with file, expected and found shape. Not superfluous: buffers that old
  /// versions of transformers saved (rotary frequencies, causal masks), and those of `tolerated`
  /// (lm_head.weight of a tied model).
  void check_against(std::span<const ExpectedTensor> expected,
                     std::span<const std::string_view> tolerated = {}) const;

  /// The box of a tensor as f32, dense and row-major. Reads only the bytes it needs. May be called
  /// for tensors that passed check_against.
  void read_box(std::string_view name, const mesh::Box& box, float* out);
  /// Bytes of tensor data read so far.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Place {
    const SafetensorsFile* file;
    const TensorInfo* tensor;
  };
  void open(const std::filesystem::path& path);
  void open_shards(const std::filesystem::path& index_path);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string_view, Place> places_;
  int64_t bytes_read_ = 0;
};

}  // namespace trireme::model
