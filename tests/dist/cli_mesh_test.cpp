// Tensor- and pipeline-parallel runs from the command line.
#include <gtest/gtest.h>

#include "support/program.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

const Flags kThreeBanks = {{"tensor_parallel_size", "2"}, {"pipeline_parallel_size", "2"}};

class MeshRuns : public testing::Test {
 protected:
  /// Twelve samples a step for any number of data ranks; a checkpoint after half of the steps.
  Flags flags(int data_ranks, const Flags& more) const {
    return with(with(work_.flags(),
                     {{"per_device_train_batch_size", std::to_string(6 / data_ranks)},
                      {"gradient_accumulation_steps", "2"},
                      {"max_steps", "6"},
                      {"lr_scheduler_type", "constant"},
                      {"eval_path", work_ / "eval.jsonl"},
                      {"eval_strategy", "steps"},
                      {"eval_steps", "3"},
                      {"save_strategy", "steps"},
                      {"save_steps", "3"}}),
                more);
  }
  std::vector<Json> train(int ranks, const Flags& flags) {
    const Outcome outcome = work_.run(launched(ranks, command("train", flags)));
    EXPECT_EQ(outcome.code, 0) << outcome.text();
    EXPECT_FALSE(has(outcome.out, "resume: ")) << outcome.out;  // the same run on every layout
    EXPECT_TRUE(fs::exists(work_ / "out/model.safetensors"));
    return read_metrics(work_ / "out/metrics.jsonl");
  }
  void SetUp() override { write_rows(work_ / "eval.jsonl", 7, 2); }

  Workplace work_;
};

void expect_near(const std::vector<Json>& lines, const std::vector<Json>& reference) {
  ASSERT_EQ(lines.size(), reference.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const char* field : {"loss", "eval_loss"}) {
      ASSERT_EQ(lines[i].contains(field), reference[i].contains(field));
      if (!lines[i].contains(field)) continue;
      const double expected = reference[i].at(field);
      EXPECT_NEAR(lines[i].at(field).get<double>(), expected, 1e-4 * expected) << field << " " << i;
    }
  }
}

TEST_F(MeshRuns, TrainAsOneProcessAndContinueOnAnyLayout) {
  const std::vector<Json> alone = train(1, flags(1, {}));
  const struct {
    int data_ranks;
    int ranks;
    Flags flags;
  } layouts[] = {{1, 4, kThreeBanks},
                 {2, 4, {{"pipeline_parallel_size", "2"}, {"zero_stage", "2"}}},
                 {1, 2, {{"tensor_parallel_size", "2"}}},
                 {3, 3, {{"zero_stage", "3"}}},
                 {6, 6, {{"zero_stage", "3"}, {"shard_group_size", "3"}}}};
  for (const auto& [data_ranks, ranks, more] : layouts) {
    // What the layout before saved goes on here.
    const Flags resumed = with(more, {{"resume_from_checkpoint", work_ / "out/checkpoint-3"}});
    expect_near(train(ranks, flags(data_ranks, resumed)), alone);
    fs::remove_all(work_ / "out");
    expect_near(train(ranks, flags(data_ranks, more)), alone);
  }
}

TEST_F(MeshRuns, WhatCannotBeCutIsTold) {
  const Outcome heads =
      work_.run(launched(3, command("train", flags(1, {{"tensor_parallel_size", "3"}}))));
  EXPECT_EQ(heads.code, 2) << heads.text();
  EXPECT_TRUE(has(heads.err, "tensor_parallel_size = 3: the ")) << heads.err;
  const Outcome layers = work_.run(command(
      "plan", flags(1, {{"world_size", "8"}, {"pipeline_parallel_size", "8"}})));
  EXPECT_EQ(layers.code, 2) << layers.text();
  EXPECT_TRUE(has(layers.err, "pipeline_parallel_size")) << layers.err;
}

}  // namespace
}  // namespace trireme::test
