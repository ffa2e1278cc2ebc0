#include "data/row_parser.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace trireme::data {
namespace {

using simdjson::dom::element;

simdjson::dom::object parse_object(simdjson::dom::parser* parser, std::string_view line,
                                   int64_t number) {
  element root;
  if (const auto error = parser->parse(line.data(), line.size(), false).get(root)) {
    throw LineError(number, fmt::format("is not valid JSON: {}", simdjson::error_message(error)));
  }
  simdjson::dom::object object;
  if (root.get(object) != simdjson::SUCCESS) throw LineError(number, "is not a JSON object");
  return object;
}

// Of equal keys the last counts, as in Python; null counts as absent.
std::optional<element> find(const simdjson::dom::object& object, std::string_view key) {
  std::optional<element> result;
  for (const auto [name, value] : object) {
    if (name == key) result = value;
  }
  if (result && result->is_null()) return std::nullopt;
  return result;
}

element require(const simdjson::dom::object& object, std::string_view key, int64_t number) {
  const auto value = find(object, key);
  if (!value) throw LineError(number, fmt::format("has no \"{}\", which the first row has", key));
  return *value;
}

std::string_view text_of(const simdjson::dom::object& row, std::string_view key, int64_t number) {
  const element value = require(row, key, number);
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) return text;
  throw LineError(number, fmt::format("\"{}\" is not a string{}", key,
                                      value.is_array() && key != "text"
                                          ? " (messages are not supported yet; write them as the "
                                            "text that the model's chat template gives)"
                                          : ""));
}

simdjson::dom::array list(const element& value, std::string_view key, int64_t number) {
  simdjson::dom::array result;
  if (value.get(result) != simdjson::SUCCESS) {
    throw LineError(number, fmt::format("\"{}\" is not a list", key));
  }
  return result;
}

// Appends integers that are in [0, vocab_size) or, if allowed, kNotTrained.
void append_integers(const simdjson::dom::array& values, std::string_view key, int64_t number,
                     int64_t vocab_size, bool allow_not_trained, std::vector<int32_t>* out) {
  int64_t index = 0;
  for (const auto value : values) {
    int64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS) {
      throw LineError(number, fmt::format("\"{}\"[{}] is not an integer", key, index));
    }
    const bool good = (id >= 0 && id < vocab_size) || (allow_not_trained && id == kNotTrained);
    if (!good) {
      throw LineError(
          number, fmt::format("\"{}\"[{}] is {}, not {}in 0..{} (the vocabulary)", key, index, id,
                              allow_not_trained ? "-100 or " : "", vocab_size - 1));
    }
    out->push_back(static_cast<int32_t>(id));
    ++index;
  }
}

}  // namespace

std::string_view RowParser::parse_text(std::string_view line, int64_t number) {
  check(shape_ == RowShape::text, "a row of another shape read as text");
  return text_of(parse_object(&parser_, line, number), "text", number);
}

RowParser::Prompted RowParser::parse_prompted(std::string_view line, int64_t number) {
  check(shape_ == RowShape::prompt, "a row of another shape read as a prompt");
  const simdjson::dom::object row = parse_object(&parser_, line, number);
  return {text_of(row, "prompt", number), text_of(row, "completion", number)};
}

int64_t RowParser::parse_ids(std::string_view line, int64_t number, int64_t vocab_size,
                             std::vector<int32_t>* tokens) {
  check(shape_ == RowShape::ids, "a row of another shape read as ids");
  const simdjson::dom::object row = parse_object(&parser_, line, number);
  const size_t begin = tokens->size();
  append_integers(list(require(row, "input_ids", number), "input_ids", number), "input_ids", number,
                  vocab_size, false, tokens);
  const size_t size = tokens->size() - begin;
  if (size == 0) throw LineError(number, "\"input_ids\" is empty");
  const auto labels = find(row, "labels");
  if (!labels) return static_cast<int64_t>(size);
  append_integers(list(*labels, "labels", number), "labels", number, vocab_size, true, tokens);
  const size_t num_labels = tokens->size() - begin - size;
  if (num_labels != size) {
    throw LineError(
        number, fmt::format("\"labels\" has {} entries for {} \"input_ids\"", num_labels, size));
  }
  const auto middle = tokens->begin() + static_cast<int64_t>(begin + size);
  if (std::equal(middle, tokens->end(), middle - static_cast<int64_t>(size))) {
    tokens->resize(begin + size);
  }
  return static_cast<int64_t>(size);
}

RowShape RowParser::shape_of(std::string_view line, int64_t number) {
  simdjson::dom::parser parser;
  const simdjson::dom::object row = parse_object(&parser, line, number);
  if (find(row, "input_ids")) return RowShape::ids;
  if (find(row, "text")) return RowShape::text;
  if (find(row, "prompt") && find(row, "completion")) return RowShape::prompt;
  std::string keys;
  for (const auto [name, value] : row)
    keys += fmt::format("{}\"{}\"", keys.empty() ? "" : ", ", name);
  throw LineError(number, fmt::format("has neither \"text\" nor \"prompt\" and \"completion\" nor "
                                      "\"input_ids\" (its keys: {})",
                                      keys.empty() ? "none" : keys));
}

RowShape detect_row_shape(const JsonlFile& file) {
  std::string buffer;
  int64_t line = 0;  // of the chunk's start
  std::optional<RowShape> shape;
  try {
    for (int64_t chunk = 0; chunk < file.num_chunks() && !shape; ++chunk) {
      const std::string_view lines = file.read_chunk(chunk, &buffer);
      for_each_line(lines, [&](std::string_view text, int64_t number) {
        if (!shape) shape = RowParser::shape_of(text, number);
      });
      if (!shape) line += std::count(lines.begin(), lines.end(), '\n');
    }
  } catch (const LineError& error) {
    throw DataError(fmt::format("{}:{}: {}", file.path(), line + error.line + 1, error.what()));
  }
  if (!shape) throw DataError(fmt::format("{}: the file has no rows", file.path()));
  return *shape;
}

}  // namespace trireme::data
