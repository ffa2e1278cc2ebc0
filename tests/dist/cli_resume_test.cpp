// Resuming: on other layouts, past damaged checkpoints, after a disk was full.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "checkpoint/folders.h"
#include "support/program.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

/// Twelve samples a step whatever the ranks, checkpoints at steps 3, 6, ...
class Resume : public testing::Test {
 protected:
  Flags flags(int ranks, int stage, int steps) const {
    return with(work_.flags(), {{"per_device_train_batch_size", std::to_string(12 / ranks)},
                                {"zero_stage", std::to_string(stage)},
                                {"max_steps", std::to_string(steps)},
                                {"lr_scheduler_type", "constant"},
                                {"save_strategy", "steps"},
                                {"save_steps", "3"}});
  }
  Outcome train(int ranks, const Flags& flags) const {
    return work_.run(launched(ranks, command("train", flags)));
  }
  Outcome train_alone(const Flags& flags) const { return work_.run(command("train", flags)); }
  fs::path out(const std::string& name) const { return work_ / "out" / name; }
  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& folder : checkpoint::list_folders(work_ / "out")) {
      names.push_back(folder.path.filename());
    }
    return names;
  }

  Workplace work_;
};

int lines_of(const fs::path& file) { return fs::exists(file) ? count(read_bytes(file), "\n") : 0; }

void expect_losses_near(const std::vector<Json>& lines, const std::vector<Json>& reference,
                        double tolerance) {
  ASSERT_EQ(lines.size(), reference.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const double expected = reference[i].at("loss");
    EXPECT_EQ(lines[i].at("step"), reference[i].at("step"));
    EXPECT_EQ(lines[i].at("trained_tokens"), reference[i].at("trained_tokens"));
    EXPECT_NEAR(lines[i].at("loss").get<double>(), expected, tolerance * expected) << i;
  }
}

TEST_F(Resume, OnOtherRanksAndStagesTheRunGoesOn) {
  ASSERT_EQ(train(4, flags(4, 3, 12)).code, 0);
  const std::vector<Json> unbroken = read_metrics(out("metrics.jsonl"));
  fs::rename(work_ / "out", work_ / "unbroken");
  for (const auto& [ranks, stage] : {std::pair{3, 1}, {2, 2}, {1, 0}, {3, 3}}) {
    fs::remove_all(work_ / "out");
    fs::copy(work_ / "unbroken", work_ / "out", fs::copy_options::recursive);
    const std::string from = out("checkpoint-6");
    const Outcome outcome =
        train(ranks, with(flags(ranks, stage, 12), {{"resume_from_checkpoint", from}}));
    ASSERT_EQ(outcome.code, 0) << outcome.text();
    EXPECT_TRUE(has(outcome.out, "Continuing training from checkpoint")) << outcome.out;
    const std::vector<Json> resumed = read_metrics(out("metrics.jsonl"));
    // Lines 7 to 12 of the first run were cut off and written anew.
    ASSERT_EQ(resumed.size(), 12U);
    EXPECT_EQ(std::vector(resumed.begin(), resumed.begin() + 6),
              std::vector(unbroken.begin(), unbroken.begin() + 6));
    expect_losses_near({resumed[6]}, {unbroken[6]}, 1e-6);
    expect_losses_near(resumed, unbroken, 1e-4);
  }
}

TEST_F(Resume, WhatWillNotBeAsItWasIsSaid) {
  ASSERT_EQ(train_alone(flags(1, 0, 3)).code, 0);
  const Outcome outcome = train_alone(with(flags(1, 0, 4), {{"resume_from_checkpoint", "true"},
                                                            {"optim", "sgd"},
                                                            {"lr_scheduler_type", "cosine"},
                                                            {"learning_rate", "2e-2"}}));
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(has(outcome.out,
                  "resume: learning_rate is 0.02, the run that saved this checkpoint "
                  "had 0.01"))
      << outcome.out;
  EXPECT_TRUE(has(outcome.out, R"(resume: optim is "sgd", )")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, R"(resume: lr_scheduler_type is "cosine", )")) << outcome.out;
}

TEST_F(Resume, StateOfAnotherTypeIsConvertedAndSaid) {
  const auto train_as = [&](const std::string& type, int steps, const std::string& resume) {
    return train_alone(with(flags(1, 0, steps), {{"bf16", "true"},
                                                 {"master_dtype", type},
                                                 {"moment_dtype", type},
                                                 {"resume_from_checkpoint", resume}}));
  };
  ASSERT_EQ(train_as("float32", 3, "false").code, 0);
  const Outcome narrow = train_as("bfloat16", 6, "true");
  EXPECT_EQ(narrow.code, 0) << narrow.text();
  EXPECT_TRUE(has(narrow.out,
                  "resume: checkpoint-3: its masters are rounded to the nearest bfloat16, its "
                  "moments are rounded to the nearest bfloat16"))
      << narrow.out;
  EXPECT_TRUE(has(narrow.out, "bf16, bf16 masters and bf16 moments, fp32 gradients"));
  const Outcome same = train_as("bfloat16", 9, "true");
  EXPECT_EQ(same.code, 0) << same.text();
  EXPECT_FALSE(has(same.out, "bfloat16, its")) << same.out;
  const Outcome wide = train_as("float32", 12, "true");
  EXPECT_EQ(wide.code, 0) << wide.text();
  EXPECT_TRUE(has(wide.out,
                  "resume: checkpoint-9: its masters become float32 as they are, its moments "
                  "become float32 as they are"))
      << wide.out;
}

TEST_F(Resume, GradientsThatTravelAsBf16ContinueBitForBit) {
  const auto flags_of = [&](const std::string& type, int steps) {
    return with(flags(2, 2, steps), {{"bf16", "true"}, {"reduce_dtype", type}});
  };
  const Outcome first = train(2, flags_of("bfloat16", 6));
  ASSERT_EQ(first.code, 0) << first.text();
  EXPECT_TRUE(has(first.out, "bf16, summed in fp32")) << first.out;
  const std::vector<Json> unbroken = read_metrics(out("metrics.jsonl"));
  const auto resumed = [&](const std::string& type) {
    const Outcome outcome =
        train(2, with(flags_of(type, 6), {{"resume_from_checkpoint", out("checkpoint-3")}}));
    EXPECT_EQ(outcome.code, 0) << outcome.text();
    EXPECT_EQ(has(outcome.out, R"(resume: reduce_dtype is "float32", )"), type == "float32")
        << outcome.out;
    return read_metrics(out("metrics.jsonl"));
  };
  EXPECT_EQ(resumed("bfloat16"), unbroken);
  const std::vector<Json> wide = resumed("float32");
  EXPECT_NE(wide, unbroken);
  expect_losses_near(wide, unbroken, 1e-2);
}

TEST_F(Resume, MomentsThatWereNotSavedAreMissed) {
  ASSERT_EQ(train_alone(with(flags(1, 0, 3), {{"optim", "sgd"}})).code, 0);
  const Outcome outcome = train_alone(with(flags(1, 0, 4), {{"resume_from_checkpoint", "true"}}));
  EXPECT_EQ(outcome.code, 2) << outcome.text();
  EXPECT_TRUE(has(outcome.err, "optim = adamw: ")) << outcome.err;
}

TEST_F(Resume, AFreshRunLeavesTheCheckpointsOfAnEarlierOne) {
  ASSERT_EQ(train_alone(flags(1, 0, 6)).code, 0);
  const std::vector<Json> first = read_metrics(out("metrics.jsonl"));
  const Flags again =
      with(flags(1, 0, 4), {{"save_steps", "4"}, {"save_total_limit", "1"}, {"seed", "7"}});
  const Outcome outcome = train_alone(again);
  ASSERT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(has(outcome.out,
                  "holds checkpoint-6, checkpoint-3 of another run; this one neither "
                  "goes on from them nor removes them"))
      << outcome.out;
  EXPECT_EQ(checkpoints(),
            (std::vector<std::string>{"checkpoint-4", "checkpoint-3", "checkpoint-6"}));

  // A run that has saved none yet has none to go on from.
  const Flags none = with(flags(1, 0, 4), {{"save_strategy", "no"}});
  ASSERT_EQ(train_alone(none).code, 0);
  const Outcome resumed = train_alone(with(flags(1, 0, 8), {{"resume_from_checkpoint", "true"}}));
  EXPECT_EQ(resumed.code, 2) << resumed.text();
  EXPECT_TRUE(has(resumed.err,
                  "there is no checkpoint of the run that was started last (only "
                  "checkpoint-4, checkpoint-3, checkpoint-6 of another one)"))
      << resumed.err;
  // Nor does a launcher that starts it again.
  const Outcome restarted =
      work_.run_shell(R"(TORCHELASTIC_RESTART_COUNT=1 exec "$@")", command("train", none));
  EXPECT_EQ(restarted.code, 0) << restarted.text();
  EXPECT_FALSE(has(restarted.out, "Continuing training")) << restarted.out;
  const Outcome named =
      train_alone(with(flags(1, 0, 8), {{"resume_from_checkpoint", out("checkpoint-6")}}));
  EXPECT_EQ(named.code, 0) << named.text();
  // Now the folder is the first run's again, and the note is of the second's.
  EXPECT_TRUE(has(named.out,
                  "holds checkpoint-4 of another run; this one neither goes on from it nor "
                  "removes it"))
      << named.out;
  // So are the logs, and none of the three runs in between lost its own.
  const std::vector<Json> lines = read_metrics(out("metrics.jsonl"));
  ASSERT_EQ(lines.size(), 8U);
  EXPECT_EQ(std::vector(lines.begin(), lines.begin() + 6), first);
  int metrics = 0, logs = 0;
  for (const auto& entry : fs::directory_iterator(work_ / "out")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("metrics-of-")) {
      ++metrics;
      EXPECT_EQ(read_metrics(entry.path()).size(), 4U) << name;
    }
    logs += name.starts_with("trainer_log-of-") ? 1 : 0;
  }
  EXPECT_EQ(metrics, 3);
  EXPECT_EQ(logs, 3);
}

/// It waits for its second rank, which never comes, and is killed.
TEST_F(Resume, AFreshRunThatDiesBeforeItsRanksMeetIsNotTakenForTheEarlierOne) {
  ASSERT_EQ(train_alone(flags(1, 0, 3)).code, 0);
  const std::vector<Json> first = read_metrics(out("metrics.jsonl"));
  const std::string earlier = read_bytes(out("run_id"));
  auto rank_0 = work_.start(command("train", flags(2, 0, 3)), rank_environment(0, 2, free_port()));
  const auto deadline = store::Clock::now() + kPatience;
  while (read_bytes(out("run_id")) == earlier && store::Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_NE(read_bytes(out("run_id")), earlier);
  rank_0->process().signal(SIGKILL);
  EXPECT_EQ(rank_0->finish(), 128 + SIGKILL);

  const Outcome resumed = train_alone(with(flags(1, 0, 6), {{"resume_from_checkpoint", "true"}}));
  EXPECT_EQ(resumed.code, 2) << resumed.text();
  EXPECT_TRUE(has(resumed.err,
                  "there is no checkpoint of the run that was started last (only checkpoint-3 of "
                  "another one)"))
      << resumed.err;
  const Outcome restarted =
      work_.run_shell(R"(TORCHELASTIC_RESTART_COUNT=1 exec "$@")",
                      command("train", with(flags(1, 0, 2), {{"seed", "7"}})));
  EXPECT_EQ(restarted.code, 0) << restarted.text();
  EXPECT_FALSE(has(restarted.out, "Continuing training")) << restarted.out;

  // The earlier one is still there, with its log.
  ASSERT_EQ(
      train_alone(with(flags(1, 0, 6), {{"resume_from_checkpoint", out("checkpoint-3")}})).code, 0);
  const std::vector<Json> lines = read_metrics(out("metrics.jsonl"));
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(std::vector(lines.begin(), lines.begin() + 3), first);
}

/// Once before the first checkpoint, once after it.
TEST_F(Resume, TheLauncherStartsAKilledRunAgainAndItGoesOn) {
  const Flags all = with(flags(2, 3, 15), {{"debug_comm_delay_ms", "10"}});
  ASSERT_EQ(train(2, all).code, 0);
  fs::rename(work_ / "out", work_ / "unbroken");
  auto job = work_.start(launched(2, command("train", all), {"--max_restarts", "2"}));
  for (const int steps : {1, 8}) {
    const auto deadline = store::Clock::now() + kPatience;
    while (lines_of(out("metrics.jsonl")) < steps && store::Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const std::vector<int> ranks = children_of(job->process().pid());
    ASSERT_EQ(ranks.size(), 2U) << job->err();
    kill(ranks[static_cast<size_t>(steps) % 2], SIGKILL);
    // The next start cuts the log, or begins it anew.
    while (lines_of(out("metrics.jsonl")) >= steps && store::Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  EXPECT_EQ(job->finish(), 0) << job->err();
  EXPECT_EQ(count(job->err(), "starting all ranks again"), 2) << job->err();
  EXPECT_TRUE(has(job->out(), "Continuing training from checkpoint")) << job->out();
  EXPECT_EQ(read_metrics(out("metrics.jsonl")), read_metrics(work_ / "unbroken" / "metrics.jsonl"));
  EXPECT_EQ(read_bytes(out("model.safetensors")),
            read_bytes(work_ / "unbroken" / "model.safetensors"));
}

TEST_F(Resume, OtherRowsAreSaidAlsoWhereTheyAreAsMany) {
  ASSERT_EQ(train_alone(flags(1, 0, 3)).code, 0);
  const std::string said = "resume: the hash of data_path's samples is ";
  fs::rename(work_ / "data.jsonl", work_ / "moved.jsonl");
  const Flags moved = {{"resume_from_checkpoint", "true"}, {"data_path", work_ / "moved.jsonl"}};
  const Outcome same = train_alone(with(flags(1, 0, 4), moved));
  EXPECT_EQ(same.code, 0) << same.text();
  EXPECT_FALSE(has(same.out, said)) << same.out;
  write_rows(work_ / "moved.jsonl", 50, 2);
  const Outcome other = train_alone(with(flags(1, 0, 5), moved));
  EXPECT_EQ(other.code, 0) << other.text();
  EXPECT_TRUE(has(other.out, said)) << other.out;
  EXPECT_FALSE(has(other.out, "resume: num_samples")) << other.out;
}

TEST_F(Resume, AFreshRunWithoutItsWeightsLeavesTheFolderToTheEarlierOne) {
  ASSERT_EQ(train_alone(flags(1, 0, 3)).code, 0);
  const Outcome refused = train_alone(with(flags(1, 0, 3), {{"init_from_config", "false"}}));
  EXPECT_EQ(refused.code, 2) << refused.text();
  EXPECT_TRUE(has(refused.err, "no model.safetensors")) << refused.err;
  EXPECT_EQ(train_alone(with(flags(1, 0, 6), {{"resume_from_checkpoint", "true"}})).code, 0);
}

TEST_F(Resume, ARunThatIsDoneSaysSo) {
  ASSERT_EQ(train_alone(flags(1, 0, 3)).code, 0);
  const Outcome outcome = train_alone(with(flags(1, 0, 3), {{"resume_from_checkpoint", "true"}}));
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(has(outcome.out, "nothing is left to train: the checkpoint is at step 3 of 3"));
}

TEST_F(Resume, ACheckpointOfAnotherModelIsTheUsersError) {
  ASSERT_EQ(train_alone(flags(1, 0, 3)).code, 0);
  const Flags again = with(flags(2, 3, 4), {{"resume_from_checkpoint", "true"}});
  const std::vector<std::pair<ModelSpec, std::string>> others = {
      {{.layers = 1}, "is not in this model"},
      {{.layers = 3}, "parameters of this model"},
      {{.vocab_size = 70}, "'model.embed_tokens.weight' has shape (67, "}};
  for (const auto& [spec, sentence] : others) {
    write_model(work_ / "other", spec);
    const Outcome outcome = train(2, with(again, {{"model_name_or_path", work_ / "other"}}));
    EXPECT_EQ(outcome.code, 2) << outcome.text();
    EXPECT_EQ(count(outcome.err, "checkpoint-3: it is of another model: "), 1) << outcome.err;
    EXPECT_TRUE(has(outcome.err, sentence)) << outcome.err;
  }
}

/// Tensor ranks share samples, data ranks have samples of their own.
TEST_F(Resume, OnlyDataRanksChangeTheSamplesOfAStep) {
  ASSERT_EQ(train(2, with(flags(1, 0, 3), {{"tensor_parallel_size", "2"}})).code, 0);
  const auto resumed = [&](int ranks) {
    const Outcome outcome =
        train(ranks, with(flags(1, 0, 4), {{"resume_from_checkpoint", out("checkpoint-3")}}));
    EXPECT_EQ(outcome.code, 0) << outcome.text();
    return outcome.out;
  };
  EXPECT_FALSE(has(resumed(1), "resume: samples_per_step"));
  EXPECT_TRUE(has(resumed(2),
                  "resume: samples_per_step is 24, the run that saved this checkpoint "
                  "had 12"));
}

TEST_F(Resume, KeepsTheNewestCheckpointsAndPointsToTheLast) {
  ASSERT_EQ(train(2, with(flags(2, 3, 14), {{"save_total_limit", "2"}})).code, 0);
  EXPECT_EQ(checkpoints(), (std::vector<std::string>{"checkpoint-14", "checkpoint-12"}));
  EXPECT_EQ(read_bytes(out("latest")), "checkpoint-14\n");
}

TEST_F(Resume, AFlippedByteSendsItToTheCheckpointBefore) {
  ASSERT_EQ(train(2, flags(2, 3, 9)).code, 0);
  const std::vector<Json> unbroken = read_metrics(out("metrics.jsonl"));
  const fs::path damaged = out("checkpoint-9") / "rank-00001-of-00002.safetensors";
  std::string bytes = read_bytes(damaged);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_text(damaged, bytes);

  const Outcome verified = work_.run({"checkpoint", "verify", work_ / "out"});
  EXPECT_EQ(verified.code, 1);
  EXPECT_TRUE(has(verified.out, "rank-00001-of-00002.safetensors is damaged")) << verified.out;

  const Outcome named =
      train(2, with(flags(2, 3, 9), {{"resume_from_checkpoint", out("checkpoint-9")}}));
  EXPECT_EQ(named.code, 2) << named.text();
  EXPECT_EQ(count(named.err, "rank-00001-of-00002.safetensors is damaged"), 1) << named.err;

  const Outcome resumed = train(2, with(flags(2, 3, 9), {{"resume_from_checkpoint", "true"}}));
  EXPECT_EQ(resumed.code, 0) << resumed.text();
  EXPECT_EQ(count(resumed.out, "checkpoint-9 skipped: rank-00001-of-00002.safetensors is damaged"),
            1)
      << resumed.out;
  EXPECT_EQ(read_metrics(out("metrics.jsonl")), unbroken);
  EXPECT_EQ(work_.run({"checkpoint", "verify", work_ / "out"}).code, 0) << "step 9 is saved anew";
}

TEST_F(Resume, WithoutACheckpointIsTheUsersError) {
  const Outcome none = train(2, with(flags(2, 3, 3), {{"resume_from_checkpoint", "true"}}));
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(count(none.err, "there is no checkpoint in"), 1) << none.err;
  const std::string missing = out("checkpoint-77");
  const Outcome named = train(2, with(flags(2, 3, 3), {{"resume_from_checkpoint", missing}}));
  EXPECT_EQ(named.code, 2);
  EXPECT_EQ(count(named.err, "resume_from_checkpoint = " + missing + ": there is no such folder"),
            1)
      << named.err;
}

// A full disk -------------------------------------------------------------------------------

/// Step 6 is not saved, for files may not grow on one rank: the other says so too and does not
/// wait, what was saved before is whole, and the run goes on from there when there is room again.
TEST_F(Resume, AFileThatCannotGrowEndsAllRanksAndIsNamed) {
  ASSERT_EQ(train(2, flags(2, 3, 6)).code, 0);
  const std::vector<Json> unbroken = read_metrics(out("metrics.jsonl"));
  const std::string weights = read_bytes(out("model.safetensors"));
  fs::remove_all(work_ / "out");
  ASSERT_EQ(train(2, flags(2, 3, 3)).code, 0);
  const Words words = command("train", with(flags(2, 3, 6), {{"resume_from_checkpoint", "true"}}));
  for (const int full : {0, 1}) {
    const int port = free_port();
    auto spoiled =
        work_.start_shell(R"(ulimit -f 32; exec "$@")", words, rank_environment(full, 2, port));
    auto other = work_.start(words, rank_environment(1 - full, 2, port));
    for (Running* rank : {spoiled.get(), other.get()}) {
      EXPECT_EQ(rank->finish(), 1);
      EXPECT_TRUE(
          has(rank->err(), fmt::format("checkpoint-6 was not saved: rank {}: write(", full)))
          << rank->err();
      EXPECT_TRUE(has(rank->err(), "safetensors")) << rank->err();
      EXPECT_TRUE(has(rank->err(), "File too large")) << rank->err();
      EXPECT_EQ(count(rank->err(), "\n"), 1) << rank->err();
    }
    EXPECT_EQ(checkpoints(), std::vector<std::string>{"checkpoint-3"});
    EXPECT_EQ(work_.run({"checkpoint", "verify", work_ / "out"}).code, 0);
  }
  ASSERT_EQ(train(2, with(flags(2, 3, 6), {{"resume_from_checkpoint", "true"}})).code, 0);
  EXPECT_EQ(read_metrics(out("metrics.jsonl")), unbroken);
  EXPECT_TRUE(read_bytes(out("model.safetensors")) == weights);
}

/// Not a save: the log. The other rank is told why, and at once.
TEST_F(Resume, ALogThatCannotGrowEndsAllRanksWithItsSentence) {
  const Words words = command("train", with(flags(2, 3, 100000), {{"save_strategy", "no"}}));
  const int port = free_port();
  auto rank_0 =
      work_.start_shell(R"(ulimit -f 32; exec "$@")", words, rank_environment(0, 2, port));
  auto rank_1 = work_.start(words, rank_environment(1, 2, port));
  for (Running* rank : {rank_0.get(), rank_1.get()}) {
    EXPECT_EQ(rank->finish(), 1);
    EXPECT_TRUE(has(rank->err(), "metrics.jsonl'): File too large")) << rank->err();
    EXPECT_EQ(count(rank->err(), "\n"), 1) << rank->err();
  }
}

/// A real small disk, on machines where a user may mount one in a namespace of his own.
TEST_F(Resume, AFullDiskEndsTheRunAndLeavesWhatWasSaved) {
  if (work_.run_shell("unshare --user --map-root-user --mount true", {}).code != 0) {
    GTEST_SKIP() << "SKIPPED: no mount namespaces here, a full disk was not tried";
  }
  fs::create_directory(work_ / "out");
  const std::string script = fmt::format(R"(
    unshare --user --map-root-user --mount bash -c '
      mount -t tmpfs -o size=900k tmpfs "{0}" || exit 77
      "$@"; code=$?
      ls "{0}"
      "$1" checkpoint verify "{0}" || exit 78
      exit $code' bash "$@")",
                                         (work_ / "out").string());
  const Outcome outcome = work_.run_shell(script, command("train", flags(1, 0, 30)));
  EXPECT_EQ(outcome.code, 1) << outcome.text();
  EXPECT_TRUE(has(outcome.err, "was not saved: rank 0: ")) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "No space left on device") ||
              has(outcome.err, " left, the checkpoint needs "))
      << outcome.err;
  EXPECT_EQ(count(outcome.err, "\n"), 1) << outcome.err;
  EXPECT_FALSE(has(outcome.out, ".tmp\n")) << outcome.out;
}

}  // namespace
}  // namespace trireme::test
