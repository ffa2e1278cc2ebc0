// How rows of the option table are written down. For the files that hold rows.
#pragma once

#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "config/option.h"
#include "config/scheduler_kwargs.h"
#include "config/value.h"
#include "config/words.h"

namespace trireme::config::build {

template <typename T>
constexpr bool kIsOptional = false;
template <typename T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <typename T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>) {
    return Kind::boolean;
  }
  if constexpr (std::is_integral_v<T> || kIsOptional<T>) return Kind::integer;
  if constexpr (std::is_floating_point_v<T>) return Kind::real;
  if constexpr (std::is_enum_v<T>) return Kind::choice;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return Kind::list;
  return Kind::text;
}

template <typename T>
void store(T& target, const Json& value) {
  if constexpr (std::is_enum_v<T>) {
    const auto& word = value.get_ref<const std::string&>();
    for (const auto& [each, name] : enum_words(T{})) {
      if (name == word) {
        target = each;
        return;
      }
    }
    check(false, "no enumerator is called {}", word);
  } else if constexpr (kIsOptional<T>) {
    target = value.is_null() ? T{} : T(value.get<typename T::value_type>());
  } else if constexpr (std::is_same_v<T, SchedulerKwargs>) {
    target = parse_scheduler_kwargs(given_object(value));
  } else if constexpr (std::is_same_v<T, std::vector<RecomputeSpan>>) {
    target = parse_recompute(value.get_ref<const std::string&>());
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    target = parse_block_counts(value.get_ref<const std::string&>());
  } else if constexpr (std::is_same_v<T, StepRange>) {
    target = parse_step_range(value.get_ref<const std::string&>());
  } else {
    target = value.get<T>();
  }
}

template <typename T>
Json load(const T& source) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(word_of(source));
  } else if constexpr (kIsOptional<T>) {
    return source ? Json(*source) : Json(nullptr);
  } else if constexpr (std::is_same_v<T, SchedulerKwargs>) {
    return scheduler_kwargs_json(source);
  } else if constexpr (std::is_same_v<T, std::vector<RecomputeSpan>>) {
    return recompute_words(source);
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    return fmt::format("{}", fmt::join(source, ","));
  } else if constexpr (std::is_same_v<T, StepRange>) {
    return step_range_words(source);
  } else {
    return source;
  }
}

/// A row of `T`; `place(config)` is the field, of a const or a mutable RunConfig.
template <typename T, typename Place>
Option row(std::string_view name, OptionGroup group, Place place, std::string_view help) {
  Option option;
  option.name = name;
  option.group = group;
  option.rule.kind = kind_of<T>();
  option.help = help;
  option.set = [place](RunConfig& config, const Json& value) { store<T>(place(config), value); };
  option.get = [place](const RunConfig& config) { return load<T>(place(config)); };
  if constexpr (std::is_enum_v<T>) {
    for (const auto& each : enum_words(T{})) option.rule.choices.push_back({each.word, "", ""});
  }
  return option;
}

template <typename T>
Option field(std::string_view name, OptionGroup group, T RunConfig::*member,
             std::string_view help) {
  return row<T>(
      name, group, [member](auto& config) -> auto& { return config.*member; }, help);
}

template <typename T>
Option field(std::string_view name, OptionGroup group, T ZeroConfig::*member,
             std::string_view help) {
  return row<T>(
      name, group, [member](auto& config) -> auto& { return config.zero.*member; }, help);
}

inline Option path(std::string_view name, OptionGroup group, std::string RunConfig::*member,
                   std::string_view help) {
  Option option = field(name, group, member, help);
  option.rule.kind = Kind::path;
  return option;
}

inline Option document(std::string_view name, OptionGroup group, std::string RunConfig::*member,
                       std::string_view help) {
  Option option = field(name, group, member, help);
  option.rule.kind = Kind::document;
  return option;
}

inline Option steps(std::string_view name, OptionGroup group, double RunConfig::*member,
                    std::string_view help) {
  Option option = field(name, group, member, help);
  option.rule.kind = Kind::steps;
  return option;
}

inline Option meaningless(std::string_view name, OptionGroup group, Kind kind,
                          std::string_view why) {
  Option option;
  option.name = name;
  option.group = group;
  option.support = Support::meaningless;
  option.rule.kind = kind;
  option.rule.unset = "none";
  option.help = why;
  return option;
}

inline Option refused(std::string_view name, OptionGroup group, Kind kind,
                      std::vector<Json> neutral, std::string_view why) {
  Option option = meaningless(name, group, kind, why);
  option.support = Support::refused;
  option.neutral = std::move(neutral);
  return option;
}

inline Option another_spelling(std::string_view name, OptionGroup group, Kind kind,
                               std::string_view maps_to, Json (*translate)(const Json&),
                               std::string_view help) {
  Option option = meaningless(name, group, kind, help);
  option.support = Support::honoured;
  option.rule.unset = {};
  option.maps_to = maps_to;
  option.translate = translate;
  return option;
}

/// Names of Hugging Face, TRL, LLaMA-Factory and axolotl that do not act here.
void append_other_names(std::vector<Option>& rows);

}  // namespace trireme::config::build
