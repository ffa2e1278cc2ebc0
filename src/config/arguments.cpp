#include "config/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "config/value.h"

namespace trireme::config {
namespace {

class Reader {
 public:
  Reader(std::span<const std::string> args, const OptionTable& table)
      : args_(args), table_(table) {}

  Arguments read() {
    while (next_ < args_.size()) {
      const std::string& word = args_[next_++];
      if (word == "--help" || word == "-h") {
        result_.help = true;
      } else if (word.starts_with("--") && word.size() > 2) {
        read_flag(std::string_view(word).substr(2));
      } else {
        read_word(word, next_ == 1);
      }
    }
    return std::move(result_);
  }

 private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    result_.flags.problems.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  /// A word that belongs to no flag: the configuration file, or key=value.
  void read_word(const std::string& word, bool first) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos && equals > 0) {
      result_.overrides.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    } else if (first && !word.empty()) {
      result_.config_file = word;
    } else {
      problem("unexpected argument '{}': settings are given as --name value", printable(word));
    }
  }

  void read_flag(std::string_view flag) {
    const auto equals = std::min(flag.find('='), flag.size());
    const std::string_view name = flag.substr(0, equals);
    const auto [row, negated] = table_.find(name);
    if (row == nullptr) {
      problem("unknown flag --{}{}", printable(name), suggestion(name));
      if (equals == flag.size()) skip_values();
      return;
    }
    std::optional<std::string> text;
    if (equals < flag.size()) text = flag.substr(equals + 1);
    if (negated) {
      if (text) {
        problem("--{} takes no value; give --{} {}", name, row->name, printable(*text));
      } else {
        add(*row, name, "false");
      }
      return;
    }
    if (!text) text = following_value(*row);
    if (text) {
      add(*row, name, *text);
    } else {
      problem("--{} needs a value", printable(name));
    }
  }

  bool at_value() const { return next_ < args_.size() && !args_[next_].starts_with("--"); }

  void skip_values() {
    while (at_value()) ++next_;
  }

  std::optional<std::string> following_value(const Option& row) {
    const bool boolean = row.rule.kind == Kind::boolean;
    if (!at_value() || (boolean && args_[next_].find('=') != std::string::npos)) {
      if (boolean) return "true";
      return row.bare ? std::optional<std::string>(*row.bare) : std::nullopt;
    }
    std::string text = args_[next_++];
    if (row.rule.kind == Kind::list) {
      while (at_value()) text += " " + args_[next_++];
    }
    return text;
  }

  std::string suggestion(std::string_view name) const {
    std::string words = did_you_mean(name, table_.names());
    return words.empty() ? "; --help lists what there is" : words;
  }

  void add(const Option& row, std::string_view name, const std::string& text) {
    std::string spelled(name);
    std::ranges::replace(spelled, '-', '_');
    try {
      result_.flags.settings.push_back(
          {std::string(row.name), checked_value(row, text), "--" + spelled});
    } catch (const BadValue& bad) {
      problem("{} = {}: {}", spelled, text.empty() ? "\"\"" : printable(text), bad.what());
    }
  }

  std::span<const std::string> args_;
  const OptionTable& table_;
  size_t next_ = 0;
  Arguments result_;
};

}  // namespace

Arguments read_arguments(std::span<const std::string> args, const OptionTable& table) {
  return Reader(args, table).read();
}

}  // namespace trireme::config
