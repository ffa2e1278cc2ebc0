#include "config/scheduler_kwargs.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "config/option_builders.h"
#include "config/schedule.h"

namespace trireme::config {
namespace {

using enum Scheduler;

constexpr double kMaxSteps = 1e15;

struct Kwarg {
  KwargFacts facts;
  ValueRule rule;
  std::function<void(SchedulerKwargs&, const Json&)> set;
  std::function<Json(const SchedulerKwargs&)> get;
};

template <typename T>
Kwarg kwarg(std::string_view name, std::optional<T> SchedulerKwargs::*member, Range range,
            std::vector<Scheduler> schedulers, std::string_view help) {
  return {{name, help, std::move(schedulers)},
          {.kind = std::is_integral_v<T> ? Kind::integer : Kind::real, .range = range},
          [member](SchedulerKwargs& kwargs, const Json& value) { kwargs.*member = value.get<T>(); },
          [member](const SchedulerKwargs& kwargs) {
            return kwargs.*member ? Json(*(kwargs.*member)) : Json();
          }};
}

Kwarg curve(std::string_view name, std::optional<Curve> SchedulerKwargs::*member,
            std::vector<Scheduler> schedulers, std::string_view help) {
  ValueRule rule{.kind = Kind::choice};
  for (const auto& each : enum_words(Curve{})) rule.choices.push_back({each.word, "", ""});
  return {{name, help, std::move(schedulers)},
          std::move(rule),
          [member](SchedulerKwargs& kwargs, const Json& value) {
            Curve chosen{};
            build::store(chosen, value);
            kwargs.*member = chosen;
          },
          [member](const SchedulerKwargs& kwargs) {
            return kwargs.*member ? build::load(*(kwargs.*member)) : Json();
          }};
}

std::vector<Kwarg> kwargs_of_all() {
  using K = SchedulerKwargs;
  constexpr Range kAny = {};
  constexpr Range kNotNegative = {.low = 0};
  constexpr Range kPositive = {.low = 0, .low_open = true};
  constexpr Range kShare = {.low = 0, .high = 1};
  constexpr Range kSteps = {.low = 0, .high = kMaxSteps};
  const std::vector<Scheduler> floored = {cosine_with_min_lr, cosine_warmup_with_min_lr};
  return {
      kwarg("num_cycles", &K::num_cycles, kAny,
            {cosine, cosine_with_restarts, cosine_with_min_lr, cosine_warmup_with_min_lr,
             warmup_stable_decay},
            "waves of the cosine, 0.5; cosine_with_restarts: restarts, 1"),
      kwarg("lr_end", &K::lr_end, kNotNegative, {polynomial}, "last rate, 1e-7"),
      kwarg("power", &K::power, kNotNegative, {polynomial}, "exponent, 1"),
      kwarg("timescale", &K::timescale, kPositive, {inverse_sqrt},
            "steps of one unit of time: those of the warm-up, or 10000 without"),
      kwarg("min_lr", &K::min_lr, kNotNegative, floored, "lowest rate; this or min_lr_rate"),
      kwarg("min_lr_rate", &K::min_lr_rate, kShare, floored, "the same as a share of the peak"),
      kwarg("warmup_lr_rate", &K::warmup_lr_rate, kShare, {cosine_warmup_with_min_lr},
            "first rate as a share of the peak; else the warm-up begins with one step of it"),
      kwarg("num_decay_steps", &K::num_decay_steps, kSteps, {warmup_stable_decay},
            "steps of the decay; must be given"),
      kwarg("num_stable_steps", &K::num_stable_steps, kSteps, {warmup_stable_decay},
            "steps at the peak; else all that warm-up and decay leave"),
      kwarg("min_lr_ratio", &K::min_lr_ratio, kShare, {warmup_stable_decay},
            "first and last rate as a share of the peak, 0"),
      curve("warmup_type", &K::warmup_type,
            {warmup_stable_decay, warmup_lr, warmup_decay_lr, warmup_cosine_lr},
            "course of the warm-up: linear, cosine or 1-sqrt; DeepSpeed's: log or linear"),
      curve("decay_type", &K::decay_type, {warmup_stable_decay},
            "course of the decay: cosine, linear or 1-sqrt"),
      kwarg("warmup_min_lr", &K::warmup_min_lr, kNotNegative, {warmup_lr, warmup_decay_lr},
            "first rate, 0"),
      kwarg("warmup_min_ratio", &K::warmup_min_ratio, kShare, {warmup_cosine_lr},
            "first rate as a share of the peak, 0"),
      kwarg("cos_min_ratio", &K::cos_min_ratio, kShare, {warmup_cosine_lr},
            "last rate as a share of the peak, 0.0001"),
      kwarg("total_num_steps", &K::total_num_steps, {.low = 1, .high = kMaxSteps},
            {warmup_decay_lr, warmup_cosine_lr}, "steps of the schedule; else those of the run"),
  };
}

bool takes(const Kwarg& kwarg, Scheduler scheduler) {
  return std::ranges::find(kwarg.facts.schedulers, scheduler) != kwarg.facts.schedulers.end();
}

std::string names_for(const std::vector<Kwarg>& all, Scheduler scheduler) {
  std::string names;
  for (const Kwarg& each : all) {
    if (takes(each, scheduler))
      names += fmt::format("{}{}", names.empty() ? "" : ", ", each.facts.name);
  }
  return names.empty() ? "none" : names;
}

bool is_deepspeed(Scheduler scheduler) {
  return scheduler == warmup_lr || scheduler == warmup_decay_lr || scheduler == warmup_cosine_lr;
}

void check_values(const RunConfig& config, std::vector<std::string>* problems) {
  const SchedulerKwargs& kwargs = config.lr_scheduler_kwargs;
  const std::string_view word = word_of(config.lr_scheduler_type);
  const auto problem = [&](std::string_view what) {
    problems->push_back(fmt::format("lr_scheduler_type = {}: {}", word, what));
  };
  switch (config.lr_scheduler_type) {
    case cosine_with_min_lr:
    case cosine_warmup_with_min_lr:
      if (kwargs.min_lr.has_value() == kwargs.min_lr_rate.has_value()) {
        problem("needs min_lr or min_lr_rate, one of them, in --lr_scheduler_kwargs");
      }
      break;
    case warmup_stable_decay:
      if (!kwargs.num_decay_steps) {
        problem("needs num_decay_steps: give --lr_scheduler_kwargs '{\"num_decay_steps\": N}'");
      }
      break;
    case polynomial:
      if (config.learning_rate <= kwargs.lr_end.value_or(kDefaultPolynomialEnd)) {
        problem(fmt::format("learning_rate {} must be above lr_end {}", config.learning_rate,
                            kwargs.lr_end.value_or(kDefaultPolynomialEnd)));
      }
      break;
    default:
      break;
  }
  const bool log_fits = is_deepspeed(config.lr_scheduler_type);
  const auto misfit = [&](std::string_view name, std::optional<Curve> curve) {
    const bool fits = !curve || *curve == Curve::linear || (*curve == Curve::log) == log_fits;
    if (!fits) {
      problem(fmt::format("{} = {}: expects {}", name, word_of(*curve),
                          log_fits ? "log or linear" : "linear, cosine or 1-sqrt"));
    }
  };
  misfit("warmup_type", kwargs.warmup_type);
  misfit("decay_type", kwargs.decay_type);
}

}  // namespace

std::vector<KwargFacts> scheduler_kwargs() {
  std::vector<KwargFacts> facts;
  for (const Kwarg& each : kwargs_of_all()) facts.push_back(each.facts);
  return facts;
}

SchedulerKwargs parse_scheduler_kwargs(const Json& object) {
  if (!object.is_object()) throw BadValue("expects a JSON object");
  const std::vector<Kwarg> all = kwargs_of_all();
  std::vector<std::string_view> names;
  for (const Kwarg& each : all) names.push_back(each.facts.name);
  SchedulerKwargs result;
  for (const auto& [name, value] : object.items()) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      throw BadValue(
          fmt::format("no scheduler takes {}{}", printable(name), did_you_mean(name, names)));
    }
    if (value.is_null()) continue;
    const Kwarg& row = all[static_cast<size_t>(found - names.begin())];
    try {
      row.set(result, coerce_json(row.rule, value));
    } catch (const BadValue& bad) {
      throw BadValue(fmt::format("{} = {}: {}", name, shown(value), bad.what()));
    }
  }
  return result;
}

Json scheduler_kwargs_json(const SchedulerKwargs& kwargs) {
  Json object = Json::object();
  for (const Kwarg& each : kwargs_of_all()) {
    if (Json value = each.get(kwargs); !value.is_null()) {
      object[std::string(each.facts.name)] = std::move(value);
    }
  }
  return object;
}

std::vector<std::string> check_schedule(const RunConfig& config) {
  std::vector<std::string> problems;
  const std::vector<Kwarg> all = kwargs_of_all();
  for (const Kwarg& each : all) {
    if (each.get(config.lr_scheduler_kwargs).is_null() || takes(each, config.lr_scheduler_type)) {
      continue;
    }
    problems.push_back(fmt::format("lr_scheduler_kwargs has {}: lr_scheduler_type {} takes {}",
                                   each.facts.name, word_of(config.lr_scheduler_type),
                                   names_for(all, config.lr_scheduler_type)));
  }
  check_values(config, &problems);
  return problems;
}

}  // namespace trireme::config
