// Evaluation, the best model and what is left in output_dir, of runs as people start them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "support/program.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

/// Twelve steps on two ranks, evaluated every second one on samples that nobody can learn: soon the
/// loss on them only grows.
class Outputs : public testing::Test {
 protected:
  Outputs() { write_rows(work_ / "eval.jsonl", 9, 3); }

  Flags flags(const Flags& more) const {
    return with(with(work_.flags(), {{"zero_stage", "3"},
                                     {"max_steps", "12"},
                                     {"learning_rate", "3e-2"},
                                     {"lr_scheduler_type", "constant"},
                                     {"eval_path", work_ / "eval.jsonl"},
                                     {"eval_strategy", "steps"},
                                     {"eval_steps", "2"},
                                     {"logging_steps", "4"}}),
                more);
  }
  Outcome train(const Flags& more) const {
    return work_.run(launched(2, command("train", flags(more))));
  }
  void train_well(const Flags& more) const {
    const Outcome outcome = train(more);
    ASSERT_EQ(outcome.code, 0) << outcome.text();
  }
  fs::path out(const std::string& name) const { return work_ / "out" / name; }
  Json read(const std::string& name) const { return read_json(out(name)); }
  std::vector<int64_t> saved_steps() const {
    std::vector<int64_t> steps;
    for (const auto& folder : checkpoint::list_folders(work_ / "out")) steps.push_back(folder.step);
    std::ranges::sort(steps);
    return steps;
  }
  /// (step, eval_loss) of every evaluation in metrics.jsonl.
  std::vector<std::pair<int64_t, double>> evaluations() const {
    std::vector<std::pair<int64_t, double>> found;
    for (const Json& line : read_metrics(out("metrics.jsonl"))) {
      if (line.contains("eval_loss")) found.emplace_back(line.at("step"), line.at("eval_loss"));
    }
    return found;
  }

  Workplace work_;
};

int64_t best_of(const std::vector<std::pair<int64_t, double>>& evaluations) {
  return std::ranges::min_element(evaluations, {}, &std::pair<int64_t, double>::second)->first;
}

TEST_F(Outputs, TheBestModelIsKeptAndExported) {
  train_well({{"save_strategy", "steps"},
              {"save_steps", "2"},
              {"save_total_limit", "1"},
              {"load_best_model_at_end", "true"}});
  const auto evaluated = evaluations();
  ASSERT_EQ(evaluated.size(), 6U);
  const int64_t best = best_of(evaluated);
  ASSERT_LT(best, 12) << "the last model is the best: nothing is seen here";
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{best, 12}));
  const std::string folder = fmt::format("checkpoint-{}", best);
  EXPECT_EQ(read_bytes(out("model.safetensors")), read_bytes(out(folder) / "model.safetensors"));
  EXPECT_NE(read_bytes(out("model.safetensors")),
            read_bytes(out("checkpoint-12") / "model.safetensors"));
  const Json state = read("trainer_state.json");
  EXPECT_EQ(state.at("best_global_step"), best);
  EXPECT_EQ(state.at("best_model_checkpoint"), out(folder).string());
  EXPECT_EQ(state.at("best_metric"), evaluated[static_cast<size_t>(best / 2 - 1)].second);
}

TEST_F(Outputs, TheBestSurvivesAResume) {
  const Flags more = {{"save_strategy", "steps"},
                      {"save_steps", "2"},
                      {"load_best_model_at_end", "true"},
                      {"num_train_epochs", "1"}};
  train_well(more);
  const std::string best_model = read_bytes(out("model.safetensors"));
  const std::string state = read_bytes(out("trainer_state.json"));
  ASSERT_LT(best_of(evaluations()), 10);
  train_well(with(more, {{"resume_from_checkpoint", out("checkpoint-10")}}));
  EXPECT_TRUE(read_bytes(out("model.safetensors")) == best_model);
  EXPECT_EQ(read("trainer_state.json").at("best_metric"),
            parse_json(state, "state").at("best_metric"));
}

/// The run is resumed after another one has taken the place of its best checkpoint.
TEST_F(Outputs, TheBestIsFoundWhereItGaveWay) {
  const Flags saves = {{"save_strategy", "steps"}, {"save_steps", "2"}};
  train_well(with(saves, {{"load_best_model_at_end", "true"}}));
  const std::string best_model = read_bytes(out("model.safetensors"));
  const int64_t best = best_of(evaluations());
  const std::string run = checkpoint::read_manifest(out("checkpoint-12")).run;
  train_well(with(saves, {{"seed", "7"}}));
  const auto aside = [&](int64_t step) {
    return out(fmt::format("checkpoint-{}-of-{}", step, run));
  };
  const Flags again = with(
      saves, {{"load_best_model_at_end", "true"}, {"resume_from_checkpoint", aside(12).string()}});
  train_well(again);
  EXPECT_TRUE(read_bytes(out("model.safetensors")) == best_model);
  EXPECT_EQ(read("trainer_state.json").at("best_model_checkpoint"), aside(best).string());

  // One that is gone is not looked for at the end: the other run's is not taken for it.
  fs::remove_all(aside(best));
  const Outcome resumed = train(again);
  EXPECT_EQ(resumed.code, 0) << resumed.text();
  EXPECT_EQ(
      count(resumed.out, fmt::format("resume: there is no checkpoint of the best model so far "
                                     "(step {}, eval_loss ",
                                     best)),
      1)
      << resumed.out;
  EXPECT_TRUE(read_bytes(out("model.safetensors")) == read_bytes(aside(12) / "model.safetensors"));
  EXPECT_EQ(read("trainer_state.json").at("best_model_checkpoint"), Json());
}

/// Another output_dir: the best so far is beside the checkpoint that is resumed from, whatever that
/// folder was called before.
TEST_F(Outputs, TheBestIsLoadedFromTheFolderThatWasResumedFrom) {
  const Flags more = {
      {"save_strategy", "steps"}, {"save_steps", "2"}, {"load_best_model_at_end", "true"}};
  train_well(more);
  const std::string best_model = read_bytes(out("model.safetensors"));
  const std::string best = fmt::format("checkpoint-{}", best_of(evaluations()));
  fs::rename(work_ / "out", work_ / "moved");
  const auto resume = [&](const Flags& flags) { train_well(with(more, flags)); };
  resume({{"resume_from_checkpoint", (work_ / "moved/checkpoint-8").string() + "/"},
          {"save_total_limit", "1"}});
  EXPECT_TRUE(read_bytes(out("model.safetensors")) == best_model);
  EXPECT_EQ(read("trainer_state.json").at("best_model_checkpoint"),
            (work_ / "moved" / best).string());
  EXPECT_EQ(saved_steps(), std::vector<int64_t>{12}) << "the best is not among them";

  // From there, where it is not beside the checkpoint, but where that says.
  resume({{"resume_from_checkpoint", "true"}});
  EXPECT_TRUE(read_bytes(out("model.safetensors")) == best_model);

  // In the moved folder it is kept and named like any other.
  resume({{"output_dir", work_ / "moved"},
          {"resume_from_checkpoint", work_ / "moved/checkpoint-10"},
          {"save_total_limit", "1"}});
  EXPECT_EQ(read_json(work_ / "moved/trainer_state.json").at("best_model_checkpoint"),
            (work_ / "moved" / best).string());
  EXPECT_TRUE(fs::exists(work_ / "moved" / best));
  EXPECT_FALSE(fs::exists(work_ / "moved/checkpoint-10"));
}

TEST_F(Outputs, SaveStrategyBestSavesEachNewBestModel) {
  train_well({{"save_strategy", "best"}});
  std::vector<int64_t> expected;
  double lowest = 1e30;
  for (const auto& [step, loss] : evaluations()) {
    if (loss < lowest) expected.push_back(step);
    lowest = std::min(lowest, loss);
  }
  EXPECT_EQ(saved_steps(), expected);
  EXPECT_LT(expected.size(), 6U);
}

TEST_F(Outputs, TheLogsOfAResumedRunAreThoseOfAnUnbrokenOne) {
  const Flags more = {{"save_strategy", "steps"}, {"save_steps", "6"}};
  train_well(more);
  const auto history = [&] { return without_clock(read("trainer_state.json")).at("log_history"); };
  const auto trainer_log = [&] { return read_metrics(out("trainer_log.jsonl")); };
  const auto unbroken = history();
  const auto unbroken_log = trainer_log();
  ASSERT_EQ(unbroken.size(), 3U + 6U + 1U) << "lines, evaluations, the summary";
  ASSERT_EQ(unbroken_log.size(), 3U + 6U);
  const Json saved = read("checkpoint-6/trainer_state.json");
  EXPECT_EQ(saved.at("global_step"), 6);
  EXPECT_EQ(saved.at("log_history").size(), 1U + 3U);
  train_well(with(more, {{"resume_from_checkpoint", out("checkpoint-6")}}));
  EXPECT_EQ(history(), unbroken) << "step 8 ends a line that began before the checkpoint";
  EXPECT_EQ(trainer_log(), unbroken_log);
}

TEST_F(Outputs, TheResultsAreThereAtTheEnd) {
  train_well({{"eval_strategy", "no"}, {"do_eval", "true"}});
  const auto evaluated = evaluations();
  ASSERT_EQ(evaluated.size(), 1U);
  EXPECT_EQ(evaluated[0].first, 12);
  EXPECT_EQ(read("eval_results.json").at("eval_loss"), evaluated[0].second);
  EXPECT_EQ(read("all_results.json").at("eval_loss"), evaluated[0].second);
  EXPECT_GT(read("train_results.json").at("train_loss"), 0);
  EXPECT_EQ(read("all_results.json").at("train_loss"), read("train_results.json").at("train_loss"));
}

TEST_F(Outputs, ACheckpointOfTheModelAloneIsAModelFolderAndNoMore) {
  const Flags more = {{"save_strategy", "steps"}, {"save_steps", "6"}, {"save_only_model", "true"}};
  train_well(more);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(out("checkpoint-6"))) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"config.json", "manifest.json", "model.safetensors",
                                             "trainer_state.json"}));
  EXPECT_EQ(work_.run({"checkpoint", "verify", work_ / "out"}).code, 0);
  const Outcome resumed = train(with(more, {{"resume_from_checkpoint", "true"}}));
  EXPECT_EQ(resumed.code, 2) << resumed.text();
  EXPECT_EQ(count(resumed.err,
                  "it holds only the model (save_only_model); to start from its "
                  "weights give it as --model_name_or_path"),
            1)
      << resumed.err;
  train_well({{"model_name_or_path", out("checkpoint-6")},
              {"init_from_config", "false"},
              {"output_dir", work_ / "next"}});
}

TEST_F(Outputs, SharesThatCouldLoseTheBestModelAreRefused) {
  const Outcome outcome = train({{"eval_steps", "0.2"},
                                 {"save_strategy", "steps"},
                                 {"save_steps", "0.4"},
                                 {"load_best_model_at_end", "true"}});
  EXPECT_EQ(outcome.code, 2) << outcome.text();
  EXPECT_EQ(count(outcome.err,
                  "load_best_model_at_end = true: of 12 steps, save_steps 0.4 makes 5 "
                  "and eval_steps 0.2 makes 3, of which the first must be a multiple"),
            1)
      << outcome.err;
}

}  // namespace
}  // namespace trireme::test
