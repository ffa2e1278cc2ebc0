// What readers of Hugging Face's and LLaMA-Factory's files find: the lines of the log, its
// trainer_state.json and trainer_log.jsonl.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/file.h"
#include "base/json.h"
#include "metrics/log_window.h"
#include "metrics/trainer_log.h"
#include "metrics/trainer_state.h"
#include "support/temp_folder.h"

namespace trireme::metrics {
namespace {

using config::Strategy;
using test::TempFolder;

/// Step n of a run of losses 8, 7, ... with 4 steps an epoch; 100 trained and 128 computed tokens.
StepRecord step_record(int64_t step) {
  StepRecord record;
  record.step = step;
  record.epoch = static_cast<double>(step) / 4;
  record.loss = 9.0 - static_cast<double>(step);
  record.grad_norm = 1.5;
  record.learning_rate = 5e-05;
  record.trained_tokens = 100;
  record.input_tokens = 128;
  record.samples = 4;
  record.step_seconds = 1;
  record.ends_epoch = step % 4 == 0;
  return record;
}

std::vector<int64_t> lines_of(const LogPace& pace) {
  LogWindow window(pace);
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= 10; ++step) {
    if (const auto line = window.add(step_record(step))) steps.push_back(line->step);
  }
  return steps;
}

TEST(LogWindow, LinesComeAsAskedFor) {
  EXPECT_EQ(lines_of({.steps = 3}), (std::vector<int64_t>{3, 6, 9}));
  EXPECT_EQ(lines_of({.steps = 3, .first_step = true}), (std::vector<int64_t>{1, 3, 6, 9}));
  EXPECT_EQ(lines_of({.strategy = Strategy::epoch}), (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(lines_of({.strategy = Strategy::no}), (std::vector<int64_t>{}));
}

TEST(LogWindow, TheLossIsOfTheTokensSinceTheLineBefore) {
  LogWindow window({.steps = 2});
  window.add(step_record(1));
  StepRecord second = step_record(2);
  second.trained_tokens = 300;
  EXPECT_EQ(window.add(second)->loss, (8.0 * 100 + 7.0 * 300) / 400);
  window.add(step_record(3));
  StepRecord skipped = step_record(4);
  skipped.loss = std::numeric_limits<double>::quiet_NaN();
  skipped.skipped = true;
  const auto line = window.add(skipped);
  EXPECT_EQ(line->loss, 6.0);
  EXPECT_EQ(line->tokens_per_second, 128);
  EXPECT_EQ(line->input_tokens, 4 * 128);
}

void tell(Sink& sink, int64_t from, int64_t to) {
  LogWindow window({.steps = 2});
  for (int64_t step = 1; step <= to; ++step) {
    const auto line = window.add(step_record(step));
    if (step < from) continue;
    if (line) sink.log(*line);
    sink.step(step_record(step));
    if (step == 4) {
      sink.evaluation(
          {.step = 4, .epoch = 1, .loss = 5.5, .seconds = 2, .samples = 10, .batches = 5});
    }
  }
}

RunFacts facts(int64_t resumed_step = 0) {
  return {.num_train_epochs = 2,
          .per_device_batch_size = 4,
          .total_steps = 8,
          .resumed_step = resumed_step,
          .flops_per_token = 1000};
}

constexpr const char* kStateAtStep4 = R"({
  "best_global_step": 4,
  "best_metric": 5.5,
  "best_model_checkpoint": "out/checkpoint-4",
  "epoch": 1.0,
  "eval_steps": 4,
  "global_step": 4,
  "is_hyper_param_search": false,
  "is_local_process_zero": true,
  "is_world_process_zero": true,
  "log_history": [
    {
      "epoch": 0.5,
      "grad_norm": 1.5,
      "learning_rate": 5e-05,
      "loss": 7.5,
      "step": 2
    },
    {
      "epoch": 1.0,
      "grad_norm": 1.5,
      "learning_rate": 5e-05,
      "loss": 5.5,
      "step": 4
    },
    {
      "epoch": 1.0,
      "eval_loss": 5.5,
      "eval_runtime": 2.0,
      "eval_samples_per_second": 5.0,
      "eval_steps_per_second": 2.5,
      "step": 4
    }
  ],
  "logging_steps": 2,
  "max_steps": 8,
  "num_input_tokens_seen": 512,
  "num_train_epochs": 2,
  "save_steps": 4,
  "stateful_callbacks": {
    "TrainerControl": {
      "args": {
        "should_epoch_stop": false,
        "should_evaluate": false,
        "should_log": false,
        "should_save": true,
        "should_training_stop": false
      },
      "attributes": {}
    }
  },
  "total_flos": 512000.0,
  "train_batch_size": 4,
  "trial_name": null,
  "trial_params": null
}
)";

TEST(TrainerState, IsWhatHuggingFaceWrites) {
  const TempFolder folder;
  TrainerState state(folder.path(), {.logging_steps = 2, .eval_steps = 4, .save_steps = 4}, Json());
  state.begin(facts());
  tell(state, 1, 4);
  state.set_best({.step = 4, .metric = 5.5, .checkpoint = "out/checkpoint-4"});
  EXPECT_EQ(state.text(), kStateAtStep4);
}

TEST(TrainerState, GoesOnAfterAResumeAsIfThereHadBeenNone) {
  const TempFolder folder;
  TrainerState unbroken(folder.path(), {}, Json());
  unbroken.begin(facts());
  tell(unbroken, 1, 5);
  const std::string saved = unbroken.text();
  tell(unbroken, 6, 8);
  TrainerState resumed(folder.path(), {}, parse_json(saved, "saved"));
  resumed.begin(facts(5));
  EXPECT_EQ(resumed.text(), saved);
  tell(resumed, 6, 8);
  EXPECT_EQ(resumed.text(), unbroken.text());
  resumed.finish({.epoch = 2});
  EXPECT_EQ(read_json(folder / "eval_results.json").at("eval_loss"), 5.5) << "of step 4";
}

TEST(TrainerState, TheResultsLieBesideIt) {
  const TempFolder folder;
  TrainerState state(folder.path(), {}, Json());
  state.begin(facts());
  tell(state, 1, 8);
  state.finish({.seconds = 10,
                .samples_per_second = 3.2,
                .steps_per_second = 0.8,
                .loss = 4.5,
                .skipped_steps = 2,
                .epoch = 2});
  const auto read = [&](const std::string& name) { return read_json(folder / name); };
  const Json train = {{"epoch", 2.0},
                      {"skipped_steps", 2},
                      {"total_flos", 1024000.0},
                      {"train_loss", 4.5},
                      {"train_runtime", 10.0},
                      {"train_samples_per_second", 3.2},
                      {"train_steps_per_second", 0.8}};
  const Json evaluation = {{"epoch", 1.0},
                           {"eval_loss", 5.5},
                           {"eval_runtime", 2.0},
                           {"eval_samples_per_second", 5.0},
                           {"eval_steps_per_second", 2.5}};
  EXPECT_EQ(read("train_results.json"), train);
  EXPECT_EQ(read("eval_results.json"), evaluation);
  const Json all = read("all_results.json");
  EXPECT_EQ(all.size(), train.size() + evaluation.size() - 1);
  EXPECT_EQ(all.at("epoch"), 2.0);
  EXPECT_EQ(all.at("eval_loss"), 5.5);
  EXPECT_EQ(all.at("train_loss"), 4.5);
  EXPECT_EQ(all.at("skipped_steps"), 2);
  const Json state_file = read("trainer_state.json");
  const Json& last = state_file.at("log_history").back();
  EXPECT_EQ(last.at("step"), 8);
  EXPECT_EQ(last.at("train_loss"), 4.5);
  EXPECT_EQ(last.begin().key(), "epoch");
  EXPECT_EQ(state_file.at("stateful_callbacks")
                .at("TrainerControl")
                .at("args")
                .at("should_training_stop"),
            true);
}

TEST(TrainerState, NotANumberIsKeptAsPythonDoes) {
  const TempFolder folder;
  TrainerState state(folder.path(), {}, Json());
  state.begin(facts());
  state.log({.step = 1,
             .loss = std::numeric_limits<double>::quiet_NaN(),
             .grad_norm = std::numeric_limits<double>::infinity()});
  EXPECT_NE(state.text().find("\"loss\": NaN"), std::string::npos) << state.text();
  EXPECT_NE(state.text().find("\"grad_norm\": Infinity"), std::string::npos);
  TrainerState resumed(folder.path(), {}, parse_json(state.text(), "saved"));
  EXPECT_NE(resumed.text().find("\"loss\": NaN"), std::string::npos);
}

TEST(TrainerLog, HasTheKeysOfLlamaFactory) {
  const TempFolder folder;
  const auto path = folder / "trainer_log.jsonl";
  double now = 100;
  TrainerLog log(path, 0, [&] { return now; });
  log.begin(facts());
  now += 3725;
  tell(log, 1, 4);
  const std::string kept =
      "{\"current_steps\": 2, \"total_steps\": 8, \"loss\": 7.5, \"lr\": 5e-05, "
      "\"epoch\": 0.5, \"percentage\": 25.0, \"elapsed_time\": \"1:02:05\", "
      "\"remaining_time\": \"3:06:15\", \"throughput\": 128.0, \"total_tokens\": 256}\n";
  const std::string later =
      "{\"current_steps\": 4, \"total_steps\": 8, \"loss\": 5.5, \"lr\": 5e-05, "
      "\"epoch\": 1.0, \"percentage\": 50.0, \"elapsed_time\": \"1:02:05\", "
      "\"remaining_time\": \"1:02:05\", \"throughput\": 128.0, \"total_tokens\": 512}\n"
      "{\"current_steps\": 4, \"total_steps\": 8, \"eval_loss\": 5.5, \"epoch\": 1.0, "
      "\"percentage\": 50.0, \"elapsed_time\": \"1:02:05\", \"remaining_time\": "
      "\"1:02:05\"}\n";
  const int64_t all = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(read_text_file(path, all), kept + later);
  TrainerLog resumed(path, 3, [&] { return now; });
  EXPECT_EQ(read_text_file(path, all), kept);
}

}  // namespace
}  // namespace trireme::metrics
