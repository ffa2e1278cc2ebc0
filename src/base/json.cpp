#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json_parser.h"
#include "base/text.h"

namespace trireme {

namespace {

/// Builds the document. Appends members without ordered_json's linear search for the key: the
/// parser refuses duplicates.
class DocumentBuilder : public JsonEvents {
 public:
  Json document;

  void begin_object() override { open_.push_back(place(Json::object())); }
  void key(std::string_view name) override { key_ = name; }
  void end_object() override { open_.pop_back(); }
  void begin_array() override { open_.push_back(place(Json::array())); }
  void end_array() override { open_.pop_back(); }
  void text(std::string_view value) override { place(Json(std::string(value))); }
  void scalar(const Json& value) override { place(Json(value)); }

 private:
  Json* place(Json&& value) {
    if (open_.empty()) {
      document = std::move(value);
      return &document;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(key_, std::move(value));
    return &members.back().second;
  }

  std::vector<Json*> open_;  // only the innermost may grow, so the pointers stay valid
  std::string key_;
};

}  // namespace

void parse_json_events(std::string_view text, std::string_view origin, const JsonLimits& limits,
                       JsonEvents& events) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    throw DataError(fmt::format("{}: {} of JSON, more than the {} allowed", origin,
                                human_bytes(static_cast<int64_t>(text.size())),
                                human_bytes(limits.max_bytes)));
  }
  detail::JsonParser parser(text, limits.max_depth, events);
  try {
    parser.parse_document();
  } catch (const DataError& error) {
    const auto end =
        text.begin() + static_cast<std::ptrdiff_t>(std::min(parser.offset(), text.size()));
    const auto line = std::count(text.begin(), end, '\n') + 1;
    throw DataError(fmt::format("{}:{}: {}", origin, line, error.what()));
  }
}

Json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits) {
  DocumentBuilder builder;
  parse_json_events(text, origin, limits, builder);
  return std::move(builder.document);
}

Json read_json(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path.string(), limits);
}

namespace {

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void dump_number(double value, std::string* out) {
  if (std::isnan(value)) {
    *out += "NaN";
  } else if (std::isinf(value)) {
    *out += value > 0 ? "Infinity" : "-Infinity";
  } else {
    *out += Json(value).dump();
  }
}

void dump_value(const Json& value, int indent, int level, std::string* out) {
  const bool object = value.is_object();
  if (value.is_number_float()) return dump_number(value.get<double>(), out);
  if (value.is_string()) {
    *out += quoted(value.get_ref<const std::string&>());
    return;
  }
  if (!object && !value.is_array()) {
    *out += value.dump();
    return;
  }
  const auto new_line = [&](int depth) {
    if (indent < 0) return;
    *out += '\n';
    out->append(static_cast<size_t>(indent * depth), ' ');
  };
  *out += object ? '{' : '[';
  bool first = true;
  for (auto item = value.begin(); item != value.end(); ++item) {
    if (!first) *out += indent < 0 ? ", " : ",";
    first = false;
    new_line(level + 1);
    if (object) *out += quoted(item.key()) + ": ";
    dump_value(*item, indent, level + 1, out);
  }
  if (!first) new_line(level);
  *out += object ? '}' : ']';
}

}  // namespace

std::string dump_json(const Json& value, int indent) {
  std::string result;
  dump_value(value, indent, 0, &result);
  return result;
}

}  // namespace trireme
