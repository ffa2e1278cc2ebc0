// The safetensors container: 8 bytes of header length (little endian), a JSON header, then the data
// of all tensors without gaps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace trireme::model {

struct TensorInfo {
  std::string name;
  std::string dtype_name;      // "F32", "BF16", "I64", ...
  std::optional<DType> dtype;  // of what can be read here: f32, bf16, f16
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of the first byte in the file
  int64_t bytes = 0;
};

/// A name, a shape and a dtype to write. f32, bf16, f16 or u8.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t bytes() const;
};

/// Everything before the data: length, then the header padded with spaces to 8 bytes. Tensors lie
/// in the given order. `metadata` becomes "__metadata__" beside format = pt.
std::string safetensors_header(std::span<const TensorSpec> tensors,
                               const std::vector<std::pair<std::string, std::string>>& metadata);

/// One file, opened and checked whole (header at most 100 MB and inside the file; every offset,
/// shape, dtype and name; no gap, overlap or trailing byte) before anything of it is believed.
/// Reads ranges only; the file is never mapped. Errors are DataErrors naming the file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// nullptr when there is none of that name.
  const TensorInfo* find(std::string_view name) const;
  const File& file() const { return file_; }

 private:
  File file_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // into tensors_
};

}  // namespace trireme::model
