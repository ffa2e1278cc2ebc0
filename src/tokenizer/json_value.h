// A value of a JSON file that knows its place, so that errors name it.
#pragma once

#include <simdjson.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trireme::tokenizer {

/// A parsed file; owns the text and the tree. Not movable: values point into it.
class JsonFile {
 public:
  /// DataError for a file that cannot be read, is larger than `max_bytes` or is no JSON.
  JsonFile(const std::filesystem::path& path, int64_t max_bytes);
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  const std::string& path() const { return path_; }
  const simdjson::dom::element& root() const { return root_; }

 private:
  std::string path_;
  simdjson::dom::parser parser_;
  simdjson::dom::element root_;
};

/// A borrowed value. The accessors throw DataError "path: 'place' ..." on a missing key or
/// another type.
class JsonValue {
 public:
  explicit JsonValue(const JsonFile& file) : JsonValue(file, file.root(), "the file") {}

  [[noreturn]] void fail(std::string_view what) const {
    throw DataError(fmt::format("{}: {} {}", file_->path(), place_, what));
  }
  const std::string& place() const { return place_; }
  const JsonFile& file() const { return *file_; }

  /// nullopt for an absent key and for null.
  std::optional<JsonValue> find(std::string_view key) const;
  JsonValue at(std::string_view key) const;
  std::optional<std::string_view> string() const;  // nullopt for another type
  std::string_view string_at(std::string_view key) const;
  /// `absent` for an absent key and for null.
  bool flag(std::string_view key, bool absent) const;
  int64_t integer() const;
  simdjson::dom::array array() const;
  simdjson::dom::object object() const;
  JsonValue item(simdjson::dom::element element, size_t index) const {
    return {*file_, element, fmt::format("{}[{}]", place_, index)};
  }

 private:
  JsonValue(const JsonFile& file, simdjson::dom::element element, std::string place)
      : file_(&file), element_(element), place_(std::move(place)) {}

  const JsonFile* file_;
  simdjson::dom::element element_;
  std::string place_;
};

}  // namespace trireme::tokenizer
