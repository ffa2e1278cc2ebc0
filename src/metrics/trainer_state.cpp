#include "metrics/trainer_state.h"

#include <cmath>
#include <map>
#include <utility>

#include "base/file.h"

namespace trireme::metrics {

namespace {

Json sorted(const Json& object) {
  std::map<std::string, Json> members;
  for (const auto& [name, value] : object.items()) members.emplace(name, value);
  Json result = Json::object();
  for (auto& [name, value] : members) result[name] = std::move(value);
  return result;
}

Json speeds(const std::string& prefix, double seconds, double samples, double steps) {
  return {{prefix + "_runtime", seconds},
          {prefix + "_samples_per_second", samples},
          {prefix + "_steps_per_second", steps}};
}

void append(Json& to, const Json& from) {
  for (const auto& [name, value] : from.items()) to[name] = value;
}

Json evaluated(const EvalRecord& record) {
  const auto rate = [&](int64_t count) {
    return record.seconds > 0 ? static_cast<double>(count) / record.seconds : 0.0;
  };
  Json results = {{"epoch", record.epoch}, {"eval_loss", record.loss}};
  append(results, speeds("eval", record.seconds, rate(record.samples), rate(record.batches)));
  return results;
}

double rounded_loss(double loss) { return std::round(loss * 1e4) / 1e4; }

}  // namespace

TrainerState::TrainerState(const std::filesystem::path& folder, const Pace& pace, const Json& saved)
    : folder_(folder), pace_(pace) {
  if (saved.is_null()) return;
  log_history_ = saved.value("log_history", Json::array());
  for (const Json& line : log_history_) {
    if (!line.contains("eval_loss")) continue;
    evaluated_ = line;
    evaluated_.erase("step");
  }
  epoch_ = saved.value("epoch", 0.0);
  input_tokens_ = saved.value("num_input_tokens_seen", int64_t{0});
}

void TrainerState::begin(const RunFacts& facts) {
  facts_ = facts;
  step_ = facts.resumed_step;
}

void TrainerState::step(const StepRecord& record) {
  step_ = record.step;
  epoch_ = record.epoch;
  input_tokens_ += record.input_tokens;
}

void TrainerState::log(const LogRecord& record) {
  log_history_.push_back({{"epoch", record.epoch},
                          {"grad_norm", record.grad_norm},
                          {"learning_rate", record.learning_rate},
                          {"loss", rounded_loss(record.loss)},
                          {"step", record.step}});
}

void TrainerState::evaluation(const EvalRecord& record) {
  evaluated_ = evaluated(record);
  Json line = evaluated_;
  line["step"] = record.step;
  log_history_.push_back(std::move(line));
}

std::string TrainerState::text() const {
  const Json control = {{"should_epoch_stop", false},
                        {"should_evaluate", false},
                        {"should_log", false},
                        {"should_save", true},
                        {"should_training_stop", step_ >= facts_.total_steps}};
  const Json state = {
      {"best_global_step", best_ ? Json(best_->step) : Json()},
      {"best_metric", best_ ? Json(best_->metric) : Json()},
      {"best_model_checkpoint",
       best_ && !best_->checkpoint.empty() ? Json(best_->checkpoint) : Json()},
      {"epoch", epoch_},
      {"eval_steps", pace_.eval_steps},
      {"global_step", step_},
      {"is_hyper_param_search", false},
      {"is_local_process_zero", true},
      {"is_world_process_zero", true},
      {"log_history", log_history_},
      {"logging_steps", pace_.logging_steps},
      {"max_steps", facts_.total_steps},
      {"num_input_tokens_seen", input_tokens_},
      {"num_train_epochs", facts_.num_train_epochs},
      {"save_steps", pace_.save_steps},
      {"stateful_callbacks",
       {{"TrainerControl", {{"args", control}, {"attributes", Json::object()}}}}},
      {"total_flos", facts_.flops_per_token * static_cast<double>(input_tokens_)},
      {"train_batch_size", facts_.per_device_batch_size},
      {"trial_name", nullptr},
      {"trial_params", nullptr},
  };
  return dump_json(state, 2) + "\n";
}

void TrainerState::finish(const Summary& summary) {
  Json trained = {{"epoch", summary.epoch},
                  {"total_flos", facts_.flops_per_token * static_cast<double>(input_tokens_)},
                  {"train_loss", summary.loss},
                  {"skipped_steps", summary.skipped_steps}};
  append(trained,
         speeds("train", summary.seconds, summary.samples_per_second, summary.steps_per_second));
  Json all = {{"epoch", summary.epoch}};
  const auto write = [&](const std::string& name, const Json& results) {
    replace_file(folder_ / (name + "_results.json"), dump_json(sorted(results), 4) + "\n");
  };
  if (!evaluated_.is_null()) {
    append(all, evaluated_);
    write("eval", evaluated_);
  }
  append(all, trained);
  write("train", trained);
  write("all", all);
  trained["step"] = step_;
  log_history_.push_back(sorted(trained));
  replace_file(folder_ / "trainer_state.json", text());
}

}  // namespace trireme::metrics
