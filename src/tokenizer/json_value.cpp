#include "tokenizer/json_value.h"

#include "base/file.h"

namespace trireme::tokenizer {

JsonFile::JsonFile(const std::filesystem::path& path, int64_t max_bytes) : path_(path.string()) {
  const std::string text = read_text_file(path, max_bytes);
  if (const auto failure = parser_.parse(text).get(root_)) {
    throw DataError(fmt::format("{}: {}", path_, simdjson::error_message(failure)));
  }
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  simdjson::dom::element value;
  if (object().at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return JsonValue(
      *file_, value,
      place_ == "the file" ? fmt::format("'{}'", key) : fmt::format("'{}' of {}", key, place_));
}

JsonValue JsonValue::at(std::string_view key) const {
  auto value = find(key);
  if (!value) fail(fmt::format("has no '{}'", key));
  return *std::move(value);
}

std::optional<std::string_view> JsonValue::string() const {
  std::string_view text;
  if (element_.get(text) != simdjson::SUCCESS) return std::nullopt;
  return text;
}

std::string_view JsonValue::string_at(std::string_view key) const {
  const JsonValue value = at(key);
  const auto text = value.string();
  if (!text) value.fail("is not a string");
  return *text;
}

bool JsonValue::flag(std::string_view key, bool absent) const {
  const auto value = find(key);
  if (!value) return absent;
  bool result = false;
  if (value->element_.get(result) != simdjson::SUCCESS) value->fail("is not true or false");
  return result;
}

int64_t JsonValue::integer() const {
  int64_t result = 0;
  if (element_.get(result) != simdjson::SUCCESS) fail("is not an integer");
  return result;
}

simdjson::dom::array JsonValue::array() const {
  simdjson::dom::array result;
  if (element_.get(result) != simdjson::SUCCESS) fail("is not a list");
  return result;
}

simdjson::dom::object JsonValue::object() const {
  simdjson::dom::object result;
  if (element_.get(result) != simdjson::SUCCESS) fail("is not an object");
  return result;
}

}  // namespace trireme::tokenizer
