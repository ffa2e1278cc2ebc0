#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/math.h"
#include "base/text.h"

namespace trireme::checkpoint {

namespace {

constexpr std::string_view kFormat = "trireme checkpoint";
constexpr int64_t kVersion = 2;
constexpr JsonLimits kLimits = {.max_bytes = int64_t{1} << 30, .max_depth = 64};
constexpr size_t kMaxRank = 8;
constexpr int64_t kHashBytes = sizeof(Hash128);
// {"xxh3": "<32 digits>",
constexpr std::string_view kHashBefore = "{\"xxh3\": \"";
constexpr std::string_view kHashAfter = "\",\n";
constexpr size_t kFirstLine = kHashBefore.size() + 32 + kHashAfter.size();

/// One element a line.
std::string lines_of(const Json& array) {
  std::string text = "[";
  for (size_t i = 0; i < array.size(); ++i) {
    text += fmt::format("{}\n{}", i == 0 ? "" : ",", dump_json(array[i]));
  }
  return text + "]";
}

int64_t number(const Json& json, std::string_view what) {
  if (!json.is_number_integer() ||
      (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) || json.get<int64_t>() < 0) {
    throw DataError(fmt::format("{} is not a whole number", what));
  }
  return json.get<int64_t>();
}

std::string text(const Json& json, std::string_view what) {
  if (!json.is_string()) throw DataError(fmt::format("{} is not a string", what));
  return json.get<std::string>();
}

std::vector<int64_t> numbers(const Json& json, std::string_view what) {
  if (!json.is_array() || json.size() > kMaxRank) {
    throw DataError(fmt::format("{} is not a list of at most {} numbers", what, kMaxRank));
  }
  std::vector<int64_t> result;
  for (const Json& item : json) result.push_back(number(item, what));
  return result;
}

const Json& member(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) {
    throw DataError(fmt::format("key '{}' is missing", key));
  }
  return object[key];
}

const Json& list(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_array()) throw DataError(fmt::format("'{}' is not a list", key));
  return value;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         name.find('/') == std::string_view::npos && printable(name, 255) == name;
}

/// Where a file's list of hashes lies, and that it fits the size of the file.
void read_list_place(const Json& json, FileRecord* file) {
  const std::vector<int64_t> place = numbers(json, "the place of a list of hashes");
  if (place.size() != 2 || place[0] < 1 || place[1] < 1 || place[1] > file->bytes ||
      place[1] > INT64_MAX / 2) {
    throw DataError(fmt::format("the list of hashes of '{}' lies nowhere", file->name));
  }
  file->block_bytes = std::min(place[0], place[1]);
  file->list_offset = place[1];
  const int64_t room = file->bytes - file->list_offset;
  if (room % kHashBytes != 0 || room / kHashBytes != file->num_blocks()) {
    throw DataError(fmt::format("the list of hashes of '{}' has another size", file->name));
  }
}

/// Every box lies inside its tensor and its file.
void check_box(const Manifest& manifest, const FileEntry& file, const BoxEntry& entry) {
  const auto fail = [&](std::string_view what) {
    throw DataError(fmt::format("a box of file '{}' {}", file.file.name, what));
  };
  if (entry.tensor >= static_cast<int64_t>(manifest.tensors.size()) ||
      entry.plane >= static_cast<int64_t>(manifest.planes.size())) {
    fail("names an unknown tensor or plane");
  }
  const std::vector<int64_t>& shape = manifest.tensors[static_cast<size_t>(entry.tensor)].shape;
  if (entry.box.start.size() != shape.size() || entry.box.extent.size() != shape.size()) {
    fail("has the wrong number of dimensions");
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (entry.box.start[d] > shape[d] || entry.box.extent[d] > shape[d] - entry.box.start[d]) {
      fail("reaches out of its tensor");
    }
  }
  const DType dtype = manifest.planes[static_cast<size_t>(entry.plane)].dtype;
  const int64_t bytes = entry.box.size() * size_of(dtype);
  const int64_t end = file.file.has_list() ? file.file.list_offset : file.file.bytes;
  if (entry.offset > end || bytes > end - entry.offset) {
    fail("reaches out of the file");
  }
}

/// Bytes of the whole tensor; a DataError when no file could hold it.
void check_shape(const TensorEntry& tensor) {
  int64_t bytes = sizeof(float);
  for (const int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      throw DataError(fmt::format("the shape of tensor '{}' is too large", printable(tensor.name)));
    }
  }
}

Manifest parse(std::string_view body_text, const std::string& path) {
  const Json body = parse_json(body_text, path, kLimits);
  if (text(member(body, "format"), "'format'") != kFormat) throw DataError("of another format");
  if (const int64_t version = number(member(body, "version"), "'version'");
      version < 1 || version > kVersion) {
    throw DataError(
        fmt::format("version {} is none of those that are read here, 1 to {}", version, kVersion));
  }
  Manifest manifest;
  manifest.step = number(member(body, "step"), "'step'");
  if (body.contains("run")) manifest.run = text(body["run"], "'run'");
  if (!manifest.run.empty() && !is_plain_name(manifest.run))
    throw DataError("'run' is no plain name");
  manifest.world_size = number(member(body, "world_size"), "'world_size'");
  manifest.state = member(body, "state");
  for (const Json& plane : list(body, "planes")) {
    manifest.planes.push_back(plane_from_json(plane));
  }
  for (const Json& tensor : list(body, "tensors")) {
    if (!tensor.is_array() || tensor.size() != 2) throw DataError("a tensor is not [name, shape]");
    manifest.tensors.push_back({text(tensor[0], "a tensor's name"), numbers(tensor[1], "a shape")});
    check_shape(manifest.tensors.back());
  }
  for (const Json& file : list(body, "files")) {
    manifest.files.push_back(file_entry_from_json(file));
    for (const BoxEntry& box : manifest.files.back().boxes) {
      check_box(manifest, manifest.files.back(), box);
    }
  }
  if (const std::string problem = tiling_problem(manifest); !problem.empty()) {
    throw DataError(problem);
  }
  return manifest;
}

}  // namespace

FileRecord record_of(std::string name, std::string_view text) {
  return {std::move(name), static_cast<int64_t>(text.size()), hash128(text)};
}

int64_t FileRecord::num_blocks() const {
  return has_list() ? ceil_div(list_offset, block_bytes) : 1;
}

std::pair<int64_t, int64_t> FileRecord::block(int64_t index) const {
  if (!has_list()) return {0, bytes};
  return {index * block_bytes, std::min(list_offset, (index + 1) * block_bytes)};
}

int64_t Manifest::find_plane(std::string_view name) const {
  const auto found = std::find_if(planes.begin(), planes.end(),
                                  [&](const PlaneEntry& plane) { return plane.name == name; });
  return found == planes.end() ? -1 : found - planes.begin();
}

int64_t Manifest::find_tensor(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorEntry& tensor) { return tensor.name == name; });
  return found == tensors.end() ? -1 : found - tensors.begin();
}

int64_t Manifest::total_bytes() const {
  int64_t bytes = 0;
  for (const FileEntry& entry : files) bytes += entry.file.bytes;
  return bytes;
}

Json to_json(const std::vector<PlaneEntry>& planes) {
  Json list = Json::array();
  for (const PlaneEntry& plane : planes) {
    if (plane.dtype == DType::f32) {
      list.push_back(plane.name);
    } else {
      list.push_back(Json::array({plane.name, std::string(name_of(plane.dtype))}));
    }
  }
  return list;
}

PlaneEntry plane_from_json(const Json& json) {
  if (!json.is_array()) return {text(json, "a plane"), DType::f32};
  if (json.size() != 2) throw DataError("a plane is not [name, type]");
  const std::string type = text(json[1], "a plane's type");
  if (type != name_of(DType::bf16)) {
    throw DataError(fmt::format("a plane is of type '{}', not bf16", printable(type)));
  }
  return {text(json[0], "a plane"), DType::bf16};
}

Json to_json(const FileEntry& entry) {
  Json boxes = Json::array();
  for (const BoxEntry& box : entry.boxes) {
    boxes.push_back({box.tensor, box.plane, box.offset, box.box.start, box.box.extent});
  }
  Json json = {{"name", entry.file.name},
               {"bytes", entry.file.bytes},
               {"xxh3", to_hex(entry.file.hash)},
               {"boxes", std::move(boxes)}};
  if (entry.file.has_list()) json["list"] = {entry.file.block_bytes, entry.file.list_offset};
  return json;
}

FileEntry file_entry_from_json(const Json& json) {
  FileEntry entry;
  entry.file.name = text(member(json, "name"), "a file's name");
  if (!is_plain_name(entry.file.name)) {
    throw DataError(fmt::format("'{}' is no plain file name", printable(entry.file.name)));
  }
  entry.file.bytes = number(member(json, "bytes"), "the size of a file");
  const auto hash = parse_hash128(text(member(json, "xxh3"), "a hash"));
  if (!hash) throw DataError("a hash is not 32 hexadecimal digits");
  entry.file.hash = *hash;
  if (json.contains("list")) read_list_place(json["list"], &entry.file);
  for (const Json& box : list(json, "boxes")) {
    if (!box.is_array() || box.size() != 5) throw DataError("a box is not a list of five");
    entry.boxes.push_back({number(box[0], "a tensor's index"),
                           number(box[1], "a plane's index"),
                           {numbers(box[3], "the start of a box"), numbers(box[4], "an extent")},
                           number(box[2], "an offset")});
  }
  return entry;
}

std::string tiling_problem(const Manifest& manifest) {
  std::map<std::pair<int64_t, int64_t>, std::vector<const mesh::Box*>> boxes_of;
  for (const FileEntry& file : manifest.files) {
    for (const BoxEntry& entry : file.boxes) {
      if (entry.box.size() > 0) boxes_of[{entry.tensor, entry.plane}].push_back(&entry.box);
    }
  }
  for (auto& [key, boxes] : boxes_of) {
    const TensorEntry& tensor = manifest.tensors[static_cast<size_t>(key.first)];
    const std::string& plane = manifest.planes[static_cast<size_t>(key.second)].name;
    int64_t covered = 0;
    for (const mesh::Box* box : boxes) covered += box->size();
    if (covered != mesh::num_elements(tensor.shape)) {
      return fmt::format("the boxes of plane '{}' of tensor '{}' hold {} elements instead of {}",
                         plane, tensor.name, covered, mesh::num_elements(tensor.shape));
    }
    if (tensor.shape.empty()) continue;
    // Equal counts and no overlap: covered exactly once. Only boxes that share rows are compared.
    const auto row = [](const mesh::Box* box) { return box->start[0]; };
    std::sort(boxes.begin(), boxes.end(),
              [&](const mesh::Box* a, const mesh::Box* b) { return row(a) < row(b); });
    for (size_t i = 0; i < boxes.size(); ++i) {
      const int64_t end = row(boxes[i]) + boxes[i]->extent[0];
      for (size_t k = i + 1; k < boxes.size() && row(boxes[k]) < end; ++k) {
        mesh::Box common;
        if (!mesh::intersect(*boxes[i], *boxes[k], &common)) continue;
        return fmt::format("boxes {} and {} of plane '{}' of tensor '{}' overlap",
                           mesh::to_string(*boxes[i]), mesh::to_string(*boxes[k]), plane,
                           tensor.name);
      }
    }
  }
  return "";
}

std::string format_manifest(const Manifest& manifest) {
  Json tensors = Json::array();
  for (const TensorEntry& tensor : manifest.tensors) {
    tensors.push_back({tensor.name, tensor.shape});
  }
  Json files = Json::array();
  for (const FileEntry& entry : manifest.files) files.push_back(to_json(entry));
  const std::string body = fmt::format(
      "\"format\": \"{}\",\n\"version\": {},\n\"step\": {},\n\"run\": {},\n\"world_size\": "
      "{},\n\"state\": {},\n"
      "\"planes\": {},\n\"tensors\": {},\n\"files\": {}\n}}\n",
      kFormat, kVersion, manifest.step, dump_json(manifest.run), manifest.world_size,
      dump_json(manifest.state), dump_json(to_json(manifest.planes)), lines_of(tensors),
      lines_of(files));
  return fmt::format("{}{}{}{}", kHashBefore, to_hex(hash128(body)), kHashAfter, body);
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  const std::string whole = read_text_file(path, kLimits.max_bytes);
  const std::string_view view = whole;
  const auto hash = parse_hash128(view.substr(std::min(kHashBefore.size(), view.size()), 32));
  if (!view.starts_with(kHashBefore) || !hash || view.size() < kFirstLine ||
      view.substr(kFirstLine - kHashAfter.size(), kHashAfter.size()) != kHashAfter ||
      hash128(view.substr(kFirstLine)) != *hash) {
    throw DataError(fmt::format("{}: damaged (its hash does not fit its text)", path.string()));
  }
  try {
    return parse(whole, path.string());
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

Hash128 hash_of(const File& file, int64_t bytes) {
  constexpr int64_t kHashPiece = int64_t{4} << 20;
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(kHashPiece);
  Hasher hasher;
  for (int64_t at = 0; at < bytes; at += kHashPiece) {
    const int64_t part = std::min(kHashPiece, bytes - at);
    file.read_at(piece.get(), part, at);
    hasher.update(piece.get(), part);
  }
  return hasher.digest();
}

}  // namespace trireme::checkpoint
