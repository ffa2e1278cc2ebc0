#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/math.h"
#include "base/text.h"

namespace trireme::model {

namespace {

constexpr int64_t kMaxHeader = 100'000'000;
constexpr int64_t kMaxTensors = 1'000'000;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxName = 512;

struct DTypeRow {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;  // that is written here; u8 is not read
};
constexpr std::array<DTypeRow, 15> kDTypes = {{{"F32", 32, DType::f32},
                                               {"BF16", 16, DType::bf16},
                                               {"F16", 16, DType::f16},
                                               {"F64", 64, std::nullopt},
                                               {"F8_E4M3", 8, std::nullopt},
                                               {"F8_E5M2", 8, std::nullopt},
                                               {"I64", 64, std::nullopt},
                                               {"I32", 32, std::nullopt},
                                               {"I16", 16, std::nullopt},
                                               {"I8", 8, std::nullopt},
                                               {"U64", 64, std::nullopt},
                                               {"U32", 32, std::nullopt},
                                               {"U16", 16, std::nullopt},
                                               {"U8", 8, DType::u8},
                                               {"BOOL", 8, std::nullopt}}};

/// Turns the events of the header into tensors; relative offsets are kept in TensorInfo::offset.
class HeaderReader : public JsonEvents {
 public:
  std::vector<TensorInfo> tensors;

  void begin_object() override {
    if (++depth_ > 2) fail("an object inside a tensor's description");
    if (depth_ == 2 && !in_metadata()) begin_tensor();
  }
  void end_object() override {
    if (depth_-- == 2 && !in_metadata()) end_tensor();
  }
  void key(std::string_view name) override {
    if (depth_ == 1) {
      if (name.empty() || printable(name, kMaxName) != name) {
        fail("a name that is empty, longer than 512 bytes or not printable");
      }
      tensor_ = name;
      return;
    }
    field_ = name;
    if (in_metadata()) return;
    if (name != "dtype" && name != "shape" && name != "data_offsets") {
      fail(fmt::format("an unknown key '{}'", printable(name)));
    }
  }
  void begin_array() override {
    if (depth_ != 2 || in_metadata() || field_ == "dtype" || in_array_) fail("a misplaced array");
    in_array_ = true;
    (field_ == "shape" ? has_shape_ : has_offsets_) = true;
  }
  void end_array() override { in_array_ = false; }
  void text(std::string_view value) override {
    if (depth_ == 2 && in_metadata()) return;
    if (depth_ != 2 || field_ != "dtype") fail("a misplaced string");
    tensors.back().dtype_name = value;
  }
  void scalar(const Json& value) override {
    if (!in_array_) fail("a value where an object or array belongs");
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) {
      fail("a dimension or offset that is not a whole number below 2^63");
    }
    std::vector<int64_t>& numbers = field_ == "shape" ? tensors.back().shape : offsets_;
    if (numbers.size() == kMaxRank) fail("more than 8 dimensions");
    numbers.push_back(value.get<int64_t>());
  }

 private:
  bool in_metadata() const { return tensor_ == "__metadata__"; }

  void begin_tensor() {
    if (static_cast<int64_t>(tensors.size()) == kMaxTensors) fail("more than a million tensors");
    tensors.emplace_back().name = tensor_;
    offsets_.clear();
    has_shape_ = false;
    has_offsets_ = false;
  }

  void end_tensor() {
    TensorInfo& tensor = tensors.back();
    if (tensor.dtype_name.empty() || !has_shape_ || !has_offsets_ || offsets_.size() != 2) {
      fail("dtype, shape and two data_offsets are needed");
    }
    const auto row = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeRow& candidate) {
      return candidate.name == tensor.dtype_name;
    });
    if (row == kDTypes.end())
      fail(fmt::format("an unknown dtype '{}'", printable(tensor.dtype_name)));
    if (row->dtype != DType::u8) tensor.dtype = row->dtype;
    if (offsets_[0] > offsets_[1]) fail("data_offsets that run backwards");
    int64_t bits = row->bits;
    for (const int64_t dim : tensor.shape) {
      if (__builtin_mul_overflow(bits, dim, &bits)) fail("a shape of more than 2^63 bits");
    }
    tensor.offset = offsets_[0];
    tensor.bytes = offsets_[1] - offsets_[0];
    if (bits / 8 != tensor.bytes) {
      fail(fmt::format("its shape needs {} bytes, its data_offsets span {}", bits / 8,
                       tensor.bytes));
    }
  }

  [[noreturn]] void fail(std::string_view what) const {
    if (tensor_.empty()) throw DataError(std::string(what));
    throw DataError(fmt::format("tensor '{}': {}", printable(tensor_), what));
  }

  int depth_ = 0;
  bool in_array_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::string tensor_;
  std::string field_;
  std::vector<int64_t> offsets_;
};

/// The tensors lie one behind the other from `begin` to `end` of the file.
void check_layout(const std::string& path, int64_t begin, int64_t end,
                  const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  int64_t expected = 0;
  for (const TensorInfo* tensor : order) {
    if (tensor->offset != expected) {
      throw DataError(
          fmt::format("{}: tensor '{}' starts at data byte {}, {} the end of the one "
                      "before it ({})",
                      path, tensor->name, tensor->offset,
                      tensor->offset < expected ? "before" : "after", expected));
    }
    expected = tensor->offset + tensor->bytes;
    if (expected > end - begin) {
      throw DataError(
          fmt::format("{}: tensor '{}' ends at data byte {}, the file at {} (truncated?)", path,
                      tensor->name, expected, end - begin));
    }
  }
  if (expected != end - begin) {
    throw DataError(
        fmt::format("{}: {} bytes after the last tensor", path, end - begin - expected));
  }
}

}  // namespace

int64_t TensorSpec::bytes() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count = checked_mul(count, dim);
  return checked_mul(count, size_of(dtype));
}

std::string safetensors_header(std::span<const TensorSpec> tensors,
                               const std::vector<std::pair<std::string, std::string>>& metadata) {
  Json header = Json::object();
  Json& about = header["__metadata__"];
  about["format"] = "pt";
  for (const auto& [key, value] : metadata) about[key] = value;
  Json::object_t::Container& members = header.get_ref<Json::object_t&>();
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const auto row = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeRow& candidate) {
      return candidate.dtype == tensor.dtype;
    });
    check(row != kDTypes.end(), "tensor '{}' cannot be written as {}", tensor.name,
          name_of(tensor.dtype));
    const int64_t end = offset + tensor.bytes();
    members.emplace_back(
        tensor.name,
        Json{{"dtype", row->name}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  check(static_cast<int64_t>(text.size()) <= kMaxHeader, "{} tensors need a header of {} bytes",
        tensors.size(), text.size());
  std::string result(8, '\0');
  for (size_t i = 0; i < 8; ++i) result[i] = static_cast<char>(text.size() >> (8 * i));
  return result + text;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(File::open(path)) {
  const std::string name = path.string();
  const int64_t size = file_.size();
  if (size < 8) throw DataError(fmt::format("{}: {} bytes, too short for safetensors", name, size));
  std::array<uint8_t, 8> prefix;
  file_.read_at(prefix.data(), 8, 0);
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(prefix[i]) << (8 * i);
  const int64_t most = std::min(size - 8, kMaxHeader);
  if (length > static_cast<uint64_t>(most)) {
    throw DataError(
        fmt::format("{}: a header of {} bytes is announced, at most {} are possible "
                    "(truncated, or not safetensors?)",
                    name, length, most));
  }
  const auto header_bytes = static_cast<int64_t>(length);
  std::string header(length, '\0');
  file_.read_at(header.data(), header_bytes, 8);
  HeaderReader reader;
  parse_json_events(header, name, {.max_bytes = kMaxHeader, .max_depth = 4}, reader);
  tensors_ = std::move(reader.tensors);
  check_layout(name, 8 + header_bytes, size, tensors_);
  index_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].offset += 8 + header_bytes;
    index_.emplace(tensors_[i].name, i);
  }
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace trireme::model
