#include "config/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "config/document.h"
#include "config/value.h"

namespace trireme::config {
namespace {

using namespace std::string_view_literals;

constexpr std::array kLlamaFactory = {"stage"sv, "finetuning_type"sv, "dataset"sv, "dataset_dir"sv,
                                      "template"sv};
constexpr std::array kAxolotl = {"base_model"sv,   "datasets"sv,         "test_datasets"sv,
                                 "sequence_len"sv, "micro_batch_size"sv, "val_set_size"sv,
                                 "adapter"sv};
constexpr std::array kAccelerate = {"compute_environment"sv, "distributed_type"sv};
constexpr std::array kDeepspeed = {"zero_optimization"sv, "train_micro_batch_size_per_gpu"sv};

int64_t count_of(const Json& root, std::span<const std::string_view> names) {
  return std::ranges::count_if(names, [&](std::string_view name) { return root.contains(name); });
}

/// `at[name]`, where an index is a number.
Json* child(Json& at, const std::string& name) {
  if (at.is_null()) at = Json::object();
  if (at.is_object()) return &at[name];
  if (!at.is_array()) return nullptr;
  size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool fits = error == std::errc() && end == name.data() + name.size() && index < at.size();
  return fits ? &at[index] : nullptr;
}

bool patch(Json& root, std::string_view key, Json value) {
  Json* at = &root;
  while (at != nullptr) {
    const auto dot = std::min(key.find('.'), key.size());
    std::string name(key.substr(0, dot));
    if (at == &root) std::ranges::replace(name, '-', '_');
    at = child(*at, name);
    if (dot == key.size()) break;
    key.remove_prefix(dot + 1);
  }
  if (at == nullptr) return false;
  *at = std::move(value);
  return true;
}

Json override_value(const std::string& text) {
  try {
    return parse_yaml(text, "the value");
  } catch (const DataError&) {
    return text;  // a word that only looks like YAML
  }
}

/// Our names and Hugging Face's: what is meaningless is told among the notices.
class PlainReader final : public ImportReader {
 public:
  using ImportReader::ImportReader;

 private:
  void on_ignored(const std::string& path, const Json& value, std::string_view why) override {
    SchemaReader::on_ignored(path, value, why);
  }
};

Import read_plain(const Json& root, const OptionTable& table, const std::string& source) {
  const Schema no_keys_of_its_own;
  return {PlainReader(no_keys_of_its_own, table, source).read(root), ""};
}

/// Files that belong to a flag of their own.
std::optional<std::string> misplaced(const Json& root, const std::string& source) {
  if (count_of(root, kAccelerate) > 0) {
    return fmt::format("{} is a configuration of accelerate: give it as --accelerate_config {}",
                       source, source);
  }
  if (count_of(root, kDeepspeed) > 0) {
    return fmt::format("{} is a configuration of DeepSpeed: give it as --deepspeed {}", source,
                       source);
  }
  return std::nullopt;
}

}  // namespace

Import read_config_file(const std::string& path,
                        const std::vector<std::pair<std::string, std::string>>& overrides,
                        const OptionTable& table) {
  Import failed;
  Reading& reading = failed.reading;
  reading.source = path.empty() ? "the arguments" : printable(path);
  Json root = Json::object();
  if (!path.empty()) {
    try {
      root = read_document(path);
      if (root.is_null()) root = Json::object();
    } catch (const std::runtime_error& error) {
      reading.problems.push_back(error.what());
      return failed;
    }
  }
  if (!root.is_object()) {
    reading.problems.push_back(fmt::format("{}: expects names and values", reading.source));
    return failed;
  }
  for (const auto& [key, value] : overrides) {
    if (!patch(root, key, override_value(value))) {
      reading.problems.push_back(fmt::format("{}={}: there is no such place in {}", printable(key),
                                             printable(value), reading.source));
    }
  }
  if (auto line = misplaced(root, reading.source)) {
    reading.problems.push_back(std::move(*line));
    return failed;
  }
  const int64_t axolotl = count_of(root, kAxolotl);
  const int64_t llama_factory = count_of(root, kLlamaFactory);
  Import result = axolotl > llama_factory ? import_axolotl(root, table, reading.source)
                  : llama_factory > 0     ? import_llama_factory(root, table, reading.source)
                                          : read_plain(root, table, reading.source);
  result.reading.problems.insert(result.reading.problems.begin(), reading.problems.begin(),
                                 reading.problems.end());
  return result;
}

}  // namespace trireme::config
