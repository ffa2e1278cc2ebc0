#include "config/document.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/value.h"

namespace trireme::config {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxNodes = 100'000;

class YamlReader {
 public:
  explicit YamlReader(std::string_view origin) : origin_(origin) {}

  Json convert(const YAML::Node& node, int depth = 0) {
    if (depth > kMaxDepth) fail(node, fmt::format("more than {} levels", kMaxDepth));
    if (++nodes_ > kMaxNodes) fail(node, fmt::format("more than {} values", kMaxNodes));
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        return scalar(node);
      case YAML::NodeType::Sequence: {
        Json items = Json::array();
        for (const YAML::Node& item : node) items.push_back(convert(item, depth + 1));
        return items;
      }
      case YAML::NodeType::Map:
        return map(node, depth);
      case YAML::NodeType::Null:
      case YAML::NodeType::Undefined:
        break;
    }
    return nullptr;
  }

 private:
  [[noreturn]] void fail(const YAML::Node& node, std::string_view what) const {
    throw DataError(fmt::format("{}:{}: {}", origin_, node.Mark().line + 1, what));
  }

  Json scalar(const YAML::Node& node) const {
    const std::string& text = node.Scalar();
    if (!is_utf8(text)) fail(node, "broken UTF-8");
    const bool quoted = node.Tag() == "!";
    if (!quoted && (text == "~" || lower_case(text) == "null" || text.empty())) return nullptr;
    return text;
  }

  Json map(const YAML::Node& node, int depth) {
    Json object = Json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) fail(node, "a key that is no word");
      const std::string& name = entry.first.Scalar();
      if (!is_utf8(name)) fail(entry.first, "broken UTF-8");
      if (name == "<<") fail(entry.first, "merge keys (<<) are not supported");
      if (object.contains(name))
        fail(entry.first, fmt::format("{} is given twice", printable(name)));
      object[name] = convert(entry.second, depth + 1);
    }
    return object;
  }

  std::string origin_;
  int64_t nodes_ = 0;
};

}  // namespace

Json parse_yaml(std::string_view text, std::string_view origin) {
  try {
    return YamlReader(origin).convert(YAML::Load(std::string(text)));
  } catch (const YAML::Exception& error) {
    throw DataError(fmt::format("{}:{}: {}", origin, error.mark.line + 1, error.msg));
  }
}

Json read_document(const std::string& path) {
  std::error_code unreadable;
  if (std::filesystem::status(path, unreadable).type() == std::filesystem::file_type::not_found) {
    throw DataError(fmt::format("{}: there is no such file; give the path of a YAML or JSON file",
                                printable(path)));
  }
  const std::string extension = lower_case(std::filesystem::path(path).extension().string());
  if (extension == ".json")
    return read_json(path, {.max_bytes = kMaxBytes, .max_depth = kMaxDepth});
  if (extension != ".yaml" && extension != ".yml") {
    throw DataError(
        fmt::format("{}: a configuration file ends in .yaml, .yml or .json", printable(path)));
  }
  return parse_yaml(read_text_file(path, kMaxBytes), printable(path));
}

}  // namespace trireme::config
