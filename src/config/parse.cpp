#include "config/parse.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/arguments.h"
#include "config/deepspeed.h"
#include "config/problems.h"
#include "config/validate.h"
#include "config/value.h"

namespace trireme::config {
namespace {

/// Applies flags, then the file, to one ParseResult.
class Assembly {
 public:
  Assembly(const OptionTable& table, const ParseSettings& settings)
      : table_(table), settings_(settings) {}

  ParseResult assemble(Arguments arguments) {
    problems_ = std::move(arguments.problems);
    for (const TypedOption& option : arguments.options) {
      if (option.row->maps_to.empty()) apply_flag(option);
    }
    for (const TypedOption& option : arguments.options) {
      if (!option.row->maps_to.empty()) apply_other_spelling(option);
    }
    if (!result_.config.deepspeed.empty()) apply_file();
    settle_recompute();
    settle_report_to();
    for (std::string& line : validate(result_, settings_)) problems_.push_back(std::move(line));
    if (!problems_.empty()) {
      problems_.insert(problems_.end(), result_.contradictions.begin(),
                       result_.contradictions.end());
      throw_if_any(problems_);
    }
    return std::move(result_);
  }

 private:
  RunConfig& config() { return result_.config; }

  void apply_flag(const TypedOption& option) {
    const Option& row = *option.row;
    const std::string name(row.name);
    if (row.support != Support::honoured) {
      const bool first = result_.typed.insert(name).second;
      if (first && row.support == Support::meaningless) {
        result_.notices.push_back(fmt::format("{} has no effect: {}", option.spelled, row.help));
      }
      return;
    }
    if (row.bare == "" && option.value == "" && result_.typed.contains(name)) return;
    try {
      const Json before = row.get(config());
      row.set(config(), option.value);
      note_repetition(option, before);
    } catch (const BadValue& bad) {
      problems_.push_back(
          fmt::format("{} = {}: {}", option.spelled, shown(option.value), bad.what()));
    }
    result_.typed.insert(name);
    result_.origins[name] = "--" + option.spelled;
  }

  /// Twice the same flag: the last counts, as everywhere. Two names of one setting: both are meant.
  void note_repetition(const TypedOption& option, const Json& before) {
    const std::string name(option.row->name);
    const auto earlier = result_.origins.find(name);
    const Json now = option.row->get(config());
    if (earlier == result_.origins.end() || before == now || before == "") return;
    const std::string spelled = "--" + option.spelled;
    if (earlier->second != spelled) {
      problems_.push_back(fmt::format("{} {} contradicts {} {}: they are one setting; give one",
                                      earlier->second, shown(before), spelled, shown(now)));
    } else {
      result_.notices.push_back(fmt::format("{} is given twice, {} and {}: the last counts",
                                            spelled, shown(before), shown(now)));
    }
  }

  void apply_other_spelling(const TypedOption& option) {
    const Json value = option.row->translate(option.value);
    result_.typed.insert(std::string(option.row->name));
    if (value.is_null()) return;
    const Option& target = table_.at(option.row->maps_to);
    const std::string name(target.name);
    const std::string spelled = "--" + option.spelled;
    const Json before = target.get(config());
    target.set(config(), value);
    const auto earlier = result_.origins.find(name);
    const bool known = earlier != result_.origins.end() && before != target.get(RunConfig{});
    if (known && before != target.get(config())) {
      problems_.push_back(fmt::format("{} {} contradicts {} {}: give one", earlier->second,
                                      shown(before), spelled, shown(option.value)));
    }
    result_.typed.insert(name);
    result_.origins[name] = spelled;
  }

  void apply_file() {
    DeepspeedReading reading = read_deepspeed(config().deepspeed, table_);
    problems_.insert(problems_.end(), reading.problems.begin(), reading.problems.end());
    result_.notices.insert(result_.notices.end(), reading.notices.begin(), reading.notices.end());
    for (const DeepspeedValue& value : reading.values) apply_value(value, reading.source);
    if (reading.logarithmic_warmup && config().warmup_steps != 0) {
      problems_.push_back(fmt::format(
          "scheduler.params.warmup_type = log in {}: not supported yet; write \"linear\" (log is "
          "what DeepSpeed does when it is left out), or drop scheduler and give "
          "--lr_scheduler_type",
          reading.source));
    }
    if (reading.total_num_steps && *reading.total_num_steps != config().max_steps) {
      result_.contradictions.push_back(fmt::format(
          "scheduler.params.total_num_steps = {} in {}: the schedule ends with the run; write "
          "\"auto\", or give --max_steps {}",
          *reading.total_num_steps, reading.source, *reading.total_num_steps));
    }
  }

  void apply_value(const DeepspeedValue& value, const std::string& source) {
    const Option& row = table_.at(value.option);
    const auto earlier = result_.origins.find(value.option);
    const bool known = earlier != result_.origins.end();
    const std::string origin = value.key + " in " + source;
    if (known && value.value.is_null()) return;  // "auto": what was said holds
    RunConfig changed = config();
    row.set(changed, value.value);
    const Json before = row.get(config());
    const Json after = row.get(changed);
    if (known && before != after) {
      result_.contradictions.push_back(fmt::format(
          "{} contradicts {}: make them equal{}", said(origin, shown(after)),
          said(earlier->second, shown(before)),
          result_.typed.contains(value.option) ? ", or write \"auto\" in the file" : ""));
      return;
    }
    config() = std::move(changed);
    if (!known) result_.origins[value.option] = origin;
  }

  void settle_recompute() {
    if (config().gradient_checkpointing && !result_.typed.contains("recompute")) {
      config().recompute = {{Recompute::block, -1}};
    }
  }

  void settle_report_to() {
    std::vector<std::string> kept;
    for (const std::string& name : config().report_to) {
      if (name == "jsonl") kept = {name};
      if (name == "jsonl" || name == "none") continue;
      result_.notices.push_back(fmt::format(
          "report_to {} has no effect: not supported yet; metrics.jsonl has every update", name));
    }
    config().report_to = std::move(kept);
  }

  const OptionTable& table_;
  const ParseSettings& settings_;
  ParseResult result_;
  std::vector<std::string> problems_;
};

}  // namespace

ParseResult parse(std::span<const std::string> args, const ParseSettings& settings) {
  std::vector<Option> rows = train_options();
  rows.insert(rows.end(), settings.extra.begin(), settings.extra.end());
  const OptionTable table(std::move(rows));
  Arguments arguments = read_arguments(args, table);
  if (arguments.help) {
    ParseResult result;
    result.help = true;
    return result;
  }
  return Assembly(table, settings).assemble(std::move(arguments));
}

}  // namespace trireme::config
