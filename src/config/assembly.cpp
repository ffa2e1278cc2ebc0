#include "config/assembly.h"

#include <fmt/format.h>

#include "config/problems.h"
#include "config/value.h"

namespace trireme::config {
namespace {

std::string_view without_dashes(std::string_view origin) {
  return origin.starts_with("--") ? origin.substr(2) : origin;
}

/// "seed = 1", "seed = 1 in train.yaml".
std::string assigned(const std::string& origin, const std::string& value) {
  if (!origin.starts_with("--")) return said(origin, value);
  return fmt::format("{} = {}", without_dashes(origin), value);
}

}  // namespace

void Assembly::take_messages(const Reading& reading) {
  problems_.insert(problems_.end(), reading.problems.begin(), reading.problems.end());
  result_.notices.insert(result_.notices.end(), reading.notices.begin(), reading.notices.end());
}

bool Assembly::is_another_spelling(const Setting& setting) const {
  return !table_.at(setting.option).maps_to.empty();
}

void Assembly::apply_typed(const Reading& reading) {
  take_messages(reading);
  Origins layer;
  for (const Setting& setting : reading.settings) {
    if (!is_another_spelling(setting)) apply_typed(setting, layer);
  }
  for (const Setting& setting : reading.settings) {
    if (is_another_spelling(setting)) apply_other_spelling(setting, layer);
  }
}

void Assembly::apply_typed(const Setting& setting, Origins& layer) {
  const Option& row = table_.at(setting.option);
  const bool first = result_.typed.insert(setting.option).second;
  if (row.support != Support::honoured) {
    if (first && row.support == Support::meaningless) {
      result_.notices.push_back(
          fmt::format("{} has no effect: {}", without_dashes(setting.origin), row.help));
    }
    return;
  }
  if (row.bare == "" && setting.value == "" && !first) return;
  try {
    const Json before = row.get(config());
    row.set(config(), setting.value);
    note_replaced(setting, before, row.get(config()), layer, setting.option);
  } catch (const BadValue& bad) {
    problems_.push_back(
        fmt::format("{}: {}", assigned(setting.origin, shown(setting.value)), bad.what()));
  }
  layer[setting.option] = result_.origins[setting.option] = setting.origin;
}

/// Twice in one source: the last counts, as everywhere; two names of one setting are both meant. A
/// later source replaces an earlier one.
void Assembly::note_replaced(const Setting& setting, const Json& before, const Json& now,
                             const Origins& layer, std::string_view name) {
  const std::string option(name);
  if (before == now || before == "") return;
  if (const auto here = layer.find(option); here != layer.end()) {
    if (here->second != setting.origin) {
      problems_.push_back(fmt::format("{} contradicts {}: they are one setting; give one",
                                      said(here->second, shown(before)),
                                      said(setting.origin, shown(now))));
    } else {
      result_.notices.push_back(fmt::format("{} is given twice, {} and {}: the last counts",
                                            setting.origin, shown(before), shown(now)));
    }
  } else if (knows(option)) {
    result_.notices.push_back(fmt::format("{} replaces {}",
                                          said(setting.origin, shown(setting.value)),
                                          said(result_.origins.at(option), shown(before))));
  }
}

void Assembly::apply_other_spelling(const Setting& setting, Origins& layer) {
  const Option& row = table_.at(setting.option);
  const Json value = row.translate(setting.value);
  result_.typed.insert(setting.option);
  if (value.is_null()) return;
  const Option& target = table_.at(row.maps_to);
  const std::string name(target.name);
  const Json before = target.get(config());
  target.set(config(), value);
  const Json now = target.get(config());
  const auto here = layer.find(name);
  if (here != layer.end() && before != target.get(RunConfig{}) && before != now) {
    problems_.push_back(fmt::format("{} contradicts {}: give one",
                                    said(here->second, shown(before)),
                                    said(setting.origin, shown(setting.value))));
  } else if (here == layer.end()) {
    note_replaced(setting, before, now, layer, name);
  }
  result_.typed.insert(name);
  layer[name] = result_.origins[name] = setting.origin;
}

void Assembly::apply_beside(const Reading& reading, std::string_view way_out) {
  take_messages(reading);
  for (const Setting& setting : reading.settings) {
    const Option& row = table_.at(setting.option);
    const auto earlier = result_.origins.find(setting.option);
    const bool known = earlier != result_.origins.end();
    if (known && setting.value.is_null()) continue;  // "auto": what was said holds
    RunConfig changed = config();
    row.set(changed, setting.value);
    const Json before = row.get(config());
    const Json after = row.get(changed);
    if (known && before != after) {
      result_.contradictions.push_back(
          fmt::format("{} contradicts {}: make them equal{}", said(setting.origin, shown(after)),
                      said(earlier->second, shown(before)),
                      result_.typed.contains(setting.option) ? way_out : ""));
      continue;
    }
    config() = std::move(changed);
    if (!known) result_.origins[setting.option] = setting.origin;
  }
}

void Assembly::apply_below(const Reading& reading, std::string_view only) {
  for (const Setting& setting : reading.settings) {
    if (!only.empty() && setting.option != only) continue;
    const Option& row = table_.at(setting.option);
    const auto earlier = result_.origins.find(setting.option);
    RunConfig changed = config();
    row.set(changed, setting.value);
    if (earlier == result_.origins.end()) {
      config() = std::move(changed);
      result_.origins[setting.option] = setting.origin;
    } else if (earlier->second != setting.origin && row.get(changed) != row.get(config())) {
      result_.notices.push_back(fmt::format("{} is not used: {}",
                                            said(setting.origin, shown(row.get(changed))),
                                            said(earlier->second, shown(row.get(config())))));
    }
  }
}

}  // namespace trireme::config
