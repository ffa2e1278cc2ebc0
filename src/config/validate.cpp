#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "config/scheduler_kwargs.h"
#include "config/words.h"

namespace trireme::config {
namespace {

class Rules {
 public:
  Rules(ParseResult& result, const ParseSettings& settings)
      : result_(result), config_(result.config), settings_(settings) {}

  std::vector<std::string> check() {
    check_required();
    check_packing();
    check_steps();
    check_schedule_parts();
    check_saving();
    check_evaluation();
    check_state();
    check_pipeline();
    check_zero();
    return std::move(problems_);
  }

 private:
  bool given(const std::string& name) const { return result_.origins.contains(name); }
  /// By this name of it, as a flag or a key of a file.
  bool given_as(const std::string& option, const std::string& name) const {
    const auto origin = result_.origins.find(option);
    return origin != result_.origins.end() &&
           (origin->second == "--" + name || origin->second.starts_with(name + " in "));
  }

  void check_required() {
    if (config_.model_name_or_path.empty()) {
      problems_.push_back("model_name_or_path is missing: give --model_name_or_path FOLDER");
    }
    if (config_.data_path.empty() && settings_.needs_data) {
      problems_.push_back("data_path is missing: give --data_path FILE.jsonl");
    }
    if (config_.output_dir.empty()) {
      problems_.push_back("output_dir = \"\": give a folder");
    }
    if (given("deepspeed") && config_.deepspeed.empty()) {
      problems_.push_back("deepspeed has no file: give --deepspeed FILE.json");
    }
  }

  void check_packing() {
    const bool wraps = config_.packing_strategy == PackingStrategy::wrapped;
    const bool packs_evaluation = config_.packs_evaluation();
    if (config_.packing && wraps && given_as("packing", "neat_packing")) {
      problems_.push_back(
          "packing_strategy = wrapped: with neat_packing samples do not see each other; give bfd, "
          "or packing instead");
    }
    if (!config_.packing && !packs_evaluation && given("packing_strategy")) {
      result_.notices.push_back("packing_strategy has no effect: packing = false");
    }
    const bool all_wrapped = config_.packing && (packs_evaluation || !config_.evaluates());
    if (all_wrapped && wraps && given("on_long")) {
      result_.notices.push_back(
          "on_long has no effect: packing_strategy = wrapped leaves nothing of long samples out");
    }
    if (!config_.evaluates() && given("eval_packing")) {
      result_.notices.push_back("eval_packing has no effect: nothing is evaluated");
    }
  }

  void check_steps() {
    if (config_.max_steps == 0) {
      problems_.push_back("max_steps = 0: expects at least 1, or -1 to train num_train_epochs");
    }
    if (config_.max_steps > 0 && given("num_train_epochs")) {
      result_.notices.push_back(
          fmt::format("num_train_epochs has no effect: max_steps = {}", config_.max_steps));
    }
    const bool warms_up = config_.lr_scheduler_type != Scheduler::constant;
    if (!warms_up && config_.warmup_steps != 0) {
      result_.notices.push_back(
          "warmup_steps has no effect: lr_scheduler_type constant does not warm up; "
          "constant_with_warmup does");
    }
    if (config_.optim == Optimizer::sgd) {
      for (const char* name : {"adam_beta1", "adam_beta2", "adam_epsilon"}) {
        if (given(name)) {
          result_.notices.push_back(fmt::format("{} has no effect: optim = sgd", name));
        }
      }
    }
  }

  void check_schedule_parts() {
    const std::optional<int64_t> total = config_.lr_scheduler_kwargs.total_num_steps;
    if (total && config_.max_steps > 0 && *total != config_.max_steps) {
      result_.contradictions.push_back(
          fmt::format("total_num_steps {} ({}) contradicts max_steps {}: make them equal, or write "
                      "\"auto\"",
                      *total, result_.origins.at("lr_scheduler_kwargs"), config_.max_steps));
    }
    if (!result_.contradictions.empty()) return;  // of which schedule is not clear
    for (std::string& line : check_schedule(config_)) problems_.push_back(std::move(line));
  }

  void check_saving() {
    if (config_.save_strategy == SaveStrategy::steps && config_.save_steps == 0) {
      problems_.push_back(
          "save_steps = 0: expects a number of steps above 0, or --save_strategy no");
    }
    if (config_.save_strategy != SaveStrategy::steps && given("save_steps")) {
      result_.notices.push_back(fmt::format("save_steps has no effect: save_strategy = {}",
                                            word_of(config_.save_strategy)));
    }
    if (config_.logging_strategy != Strategy::steps && given("logging_steps")) {
      result_.notices.push_back(fmt::format("logging_steps has no effect: logging_strategy = {}",
                                            word_of(config_.logging_strategy)));
    }
  }

  void check_evaluation() {
    const bool often = config_.eval_strategy != Strategy::no;
    if (config_.evaluates() && config_.eval_path.empty()) {
      const std::string what =
          often ? fmt::format("eval_strategy = {}", word_of(config_.eval_strategy))
                : std::string(config_.do_eval ? "do_eval = true" : "eval_on_start = true");
      problems_.push_back(what + ": needs --eval_path FILE.jsonl");
    }
    if (!config_.evaluates() && given("eval_path")) {
      result_.notices.push_back("eval_path has no effect: eval_strategy = no");
    }
    if (config_.eval_strategy != Strategy::steps && given("eval_steps")) {
      result_.notices.push_back(fmt::format("eval_steps has no effect: eval_strategy = {}",
                                            word_of(config_.eval_strategy)));
    }
    if (!often && given("eval_delay")) {
      result_.notices.push_back("eval_delay has no effect: eval_strategy = no");
    }
    if (!often && config_.save_strategy == SaveStrategy::best) {
      problems_.push_back("save_strategy = best: needs --eval_strategy and --eval_path");
    }
    if (config_.load_best_model_at_end) check_best(often);
  }

  /// The best model must be one that is saved.
  void check_best(bool evaluates) {
    const auto problem = [&](std::string_view what) {
      problems_.push_back(fmt::format("load_best_model_at_end = true: {}", what));
    };
    const auto save = config_.save_strategy;
    if (!evaluates) return problem("needs --eval_strategy and --eval_path");
    if (save == SaveStrategy::best) return;
    if (word_of(save) != word_of(config_.eval_strategy)) {
      return problem(fmt::format(
          "eval_strategy {} and save_strategy {} must be the same, or save_strategy best",
          word_of(config_.eval_strategy), word_of(save)));
    }
    const double every = config_.eval_steps > 0 ? config_.eval_steps : config_.logging_steps;
    const double evaluations = config_.save_steps / every;
    const bool alike = (every < 1) == (config_.save_steps < 1);
    if (save == SaveStrategy::steps && config_.save_steps > 0 &&
        (!alike || std::abs(evaluations - std::round(evaluations)) > 1e-9 || evaluations < 1)) {
      problem(fmt::format("save_steps {} must be a multiple of eval_steps {}", config_.save_steps,
                          every));
    }
  }

  void check_state() {
    std::map<std::string, std::string> makers;  // keys of files -> what they make bfloat16
    const auto check_one = [&](const std::string& name, Precision kept) {
      if (kept != Precision::bfloat16 || config_.bf16) return;
      const std::string& origin = result_.origins.at(name);
      if (origin.starts_with("--") || origin.starts_with(name)) {
        problems_.push_back(
            fmt::format("{} = bfloat16: needs --bf16 true, or make it float32", name));
      } else {
        std::string& made = makers[origin];
        made += (made.empty() ? "" : " and ") + name;
      }
    };
    check_one("master_dtype", config_.master_dtype);
    check_one("moment_dtype", config_.moment_dtype);
    for (const auto& [origin, made] : makers) {
      problems_.push_back(
          fmt::format("{} makes {} bfloat16, which needs bf16 true: give that, or leave this out",
                      origin, made));
    }
    if (config_.optim == Optimizer::sgd && given("moment_dtype")) {
      result_.notices.push_back("moment_dtype has no effect: optim = sgd");
    }
  }

  void check_pipeline() {
    const int64_t stages = config_.pipeline_parallel_size;
    const int64_t chunks = config_.virtual_pipeline_size;
    const bool interleaved = config_.pipeline_schedule == PipelineSchedule::interleaved;
    if (chunks > 1 && stages == 1) {
      problems_.push_back(fmt::format(
          "virtual_pipeline_size = {}: needs pipeline_parallel_size of at least 2", chunks));
    } else if (chunks > 1 && !interleaved) {
      problems_.push_back(fmt::format(
          "virtual_pipeline_size = {}: goes with --pipeline_schedule interleaved, not {}", chunks,
          word_of(config_.pipeline_schedule)));
    } else if (chunks == 1 && interleaved && stages > 1) {
      problems_.push_back(
          "pipeline_schedule = interleaved: needs virtual_pipeline_size of at least 2");
    }
    if (stages == 1 && given("pipeline_schedule")) {
      result_.notices.push_back("pipeline_schedule has no effect: there is one pipeline stage");
    }
    const auto parts = static_cast<int64_t>(config_.pipeline_layers.size());
    if (parts > 0 && parts != stages * chunks) {
      problems_.push_back(
          fmt::format("pipeline_layers has {} parts: pipeline_parallel_size {} x "
                      "virtual_pipeline_size {} = {} are expected",
                      parts, stages, chunks, stages * chunks));
    }
    if (stages == 1 && config_.tensor_parallel_size == 1 && given("rank_order")) {
      result_.notices.push_back("rank_order has no effect: all ranks are data ranks");
    }
  }

  void check_zero() {
    if (config_.zero.stage == 3) return;
    for (const char* name : {"stage3_prefetch_bucket_size", "stage3_max_live_parameters",
                             "stage3_max_reuse_distance", "stage3_param_persistence_threshold"}) {
      if (given(name)) {
        result_.notices.push_back(
            fmt::format("{} has no effect: zero_stage = {}", name, config_.zero.stage));
      }
    }
  }

  ParseResult& result_;
  RunConfig& config_;
  const ParseSettings& settings_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> validate(ParseResult& result, const ParseSettings& settings) {
  return Rules(result, settings).check();
}

}  // namespace trireme::config
