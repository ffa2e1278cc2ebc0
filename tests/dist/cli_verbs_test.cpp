// What the verbs print.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "config/option.h"
#include "support/program.h"
#include "support/tiny_tokenizer.h"

namespace trireme::test {
namespace {

class Verbs : public testing::Test {
 protected:
  Workplace work_;
};

TEST_F(Verbs, HelpIsThereForEach) {
  const Outcome all = work_.run({"--help"});
  EXPECT_EQ(all.code, 0);
  for (const std::string verb :
       {"train", "launch", "plan", "tokenize", "checkpoint", "selftest", "doctor"}) {
    EXPECT_TRUE(has(all.out, "\n  " + verb + " ")) << all.out;
    const Outcome outcome = work_.run({verb, "--help"});
    EXPECT_EQ(outcome.code, 0) << outcome.text();
    EXPECT_GT(count(outcome.out, "\n"), 3) << outcome.out;
    EXPECT_EQ(outcome.err, "");
  }
  const Outcome none = work_.run({});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err, all.out);
}

TEST_F(Verbs, HelpOfTrainListsEverySettingThatActs) {
  const Outcome train = work_.run({"train", "--help"});
  const Outcome plan = work_.run({"plan", "--help"});
  for (const config::Option& row : config::train_options()) {
    const std::string flag = "  --" + std::string(row.name) + " ";
    EXPECT_EQ(has(train.out, flag), row.support == config::Support::honoured) << flag;
    EXPECT_EQ(has(plan.out, flag), row.support == config::Support::honoured) << flag;
  }
  EXPECT_TRUE(has(plan.out, "  --world_size INT")) << plan.out;
  EXPECT_TRUE(train.out.starts_with("usage: trireme train [")) << train.out;
  EXPECT_TRUE(plan.out.starts_with("usage: trireme plan [")) << plan.out;
}

TEST_F(Verbs, TokenizePrintsOneLineARow) {
  write_tokenizer(work_ / "tokenizer", tiny_tokenizer({{"a", "b"}}));
  write_text(work_ / "text.jsonl", "{\"text\": \"ab!\"}\n{\"text\": \"\"}\n{\"text\": \"ba\"}\n");
  const Outcome outcome =
      work_.run({"tokenize", "--tokenizer", work_ / "tokenizer", work_ / "text.jsonl"});
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_EQ(outcome.out,
            "{\"input_ids\": [256, 33]}\n{\"input_ids\": []}\n{\"input_ids\": [98, 97]}\n");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Verbs, DoctorSaysWhatARunWouldMiss) {
  const Words cpu{"doctor", "--device", "cpu"};
  const auto doctor = [&](const Words& more) {
    Words words = cpu;
    words.insert(words.end(), more.begin(), more.end());
    return work_.run(words);
  };
  const Outcome good = doctor({"--output_dir", work_ / "out"});
  EXPECT_EQ(good.code, 0) << good.text();
  EXPECT_TRUE(has(good.out, "\nok    loopback ")) << good.out;
  EXPECT_FALSE(std::filesystem::exists(work_ / "out"));
  const Outcome folder = doctor({"--output_dir", work_ / "data.jsonl/out"});
  EXPECT_EQ(folder.code, 1) << folder.text();
  EXPECT_TRUE(has(folder.out, "\nBAD   output folder ")) << folder.out;
  const store::Fd taken = store::listen_on({"127.0.0.1", 0}, 1);
  const int port = store::bound_port(taken);
  const Outcome busy = doctor({fmt::format("--master-port={}", port)});
  EXPECT_EQ(busy.code, 1) << busy.text();
  EXPECT_TRUE(has(busy.out, fmt::format("\nBAD   port {}", port))) << busy.out;
  const Outcome unknown = doctor({"--outptu_dir", "x"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(has(unknown.err, "doctor does not know '--outptu_dir'")) << unknown.err;
}

// Plans -------------------------------------------------------------------------------------

/// The rows of the table of planned memory: "owner space bytes" each.
Words memory_rows(const std::string& text) {
  Words rows;
  std::istringstream stream(text);
  std::string line;
  while (std::getline(stream, line) && line.rfind("Planned memory", 0) != 0) {
  }
  while (std::getline(stream, line) && line.rfind("  ", 0) == 0) rows.push_back(line);
  return rows;
}

TEST_F(Verbs, APlanIsWhatARunAllocates) {
  std::mt19937 random(7);
  const auto pick = [&](const Words& words) { return words[random() % words.size()]; };
  write_rows(work_ / "eval.jsonl", 5, 3);
  for (int round = 0; round < 8; ++round) {
    Flags flags = with(work_.flags(),
                       {{"zero_stage", pick({"0", "1", "2", "3"})},
                        {"bf16", pick({"true", "false"})},
                        {"optim", pick({"adamw", "sgd"})},
                        {"recompute", pick({"none", "activation", "block", "attention:1,none"})},
                        {"per_device_train_batch_size", pick({"1", "3", "5"})},
                        {"gradient_accumulation_steps", pick({"1", "2", "5"})},
                        {"overlap_comm", pick({"true", "false"})},
                        {"packing", pick({"true", "false"})},
                        {"reduce_dtype", pick({"float32", "bfloat16"})},
                        {"max_steps", "2"}});
    if (flags.at("bf16") == "true") {
      flags = with(flags, {{"master_dtype", pick({"float32", "bfloat16"})},
                           {"moment_dtype", pick({"float32", "bfloat16"})}});
    }
    if (pick({"yes", "no"}) == "yes") {
      flags = with(flags, {{"eval_path", work_ / "eval.jsonl"}, {"eval_strategy", "steps"}});
    }
    const int ranks = 1 + round % 3;
    const Outcome run = work_.run(launched(ranks, command("train", flags)));
    const Outcome plan =
        work_.run(command("plan", with(flags, {{"world_size", std::to_string(ranks)}})));
    ASSERT_EQ(run.code, 0) << run.text();
    ASSERT_EQ(plan.code, 0) << plan.text();
    EXPECT_GT(memory_rows(run.out).size(), 8U) << run.out;
    EXPECT_EQ(memory_rows(plan.out), memory_rows(run.out)) << fmt::format("{}", run.out);
  }
}

TEST_F(Verbs, PlanPrintsTheProgramUnderBothSpellings) {
  Words words = command("plan", with(work_.flags(), {{"world_size", "4"}, {"zero_stage", "3"}}));
  const Outcome summary = work_.run(words);
  EXPECT_EQ(summary.code, 0) << summary.text();
  EXPECT_FALSE(has(summary.out, "all_gather"));
  EXPECT_FALSE(std::filesystem::exists(work_ / "out"));
  words.push_back("--print_program");
  const Outcome program = work_.run(words);
  EXPECT_EQ(program.code, 0) << program.text();
  EXPECT_TRUE(program.out.starts_with(summary.out));
  EXPECT_TRUE(has(program.out, "all_gather")) << program.out;
  EXPECT_TRUE(has(program.out, "reduce_scatter")) << program.out;
  words.back() = "--print-program";
  EXPECT_EQ(work_.run(words).out, program.out);
  words.push_back("--expand");
  EXPECT_GT(count(work_.run(words).out, "\n"), count(program.out, "\n"));
}

TEST_F(Verbs, PlanNeedsNoDataAndNoRanks) {
  const Outcome outcome =
      work_.run({"plan", "--model_name_or_path", work_ / "model", "--world_size", "1024",
                 "--zero_stage", "3", "--rank", "1023"});
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(has(outcome.out, "Planned memory of each of 1024 ranks")) << outcome.out;
}

TEST_F(Verbs, PlanCountsPacks) {
  const Flags flags = with(work_.flags(), {{"packing", "true"}, {"max_seq_length", "32"}});
  const Outcome known = work_.run(command("plan", flags));
  EXPECT_EQ(known.code, 0) << known.text();
  EXPECT_TRUE(has(known.out, "Packing: 50 samples in 21 packs of at most 32 tokens, "))
      << known.out;
  EXPECT_TRUE(has(known.out, "Largest micro-batch: 64 tokens in ")) << known.out;
  Flags unknown = flags;
  unknown.erase("data_path");
  const Outcome most = work_.run(command("plan", unknown));
  EXPECT_EQ(most.code, 0) << most.text();
  EXPECT_TRUE(has(most.out, "Largest micro-batch: 64 tokens in 64 sequences, the longest 32"))
      << most.out;
}

// Checkpoints -------------------------------------------------------------------------------

TEST_F(Verbs, CheckpointsAreListedVerifiedAndExported) {
  const Flags flags = with(work_.flags(), {{"save_strategy", "steps"}, {"save_steps", "2"}});
  ASSERT_EQ(work_.run(launched(2, command("train", flags))).code, 0);
  const Outcome list = work_.run({"checkpoint", "list", work_ / "out"});
  EXPECT_EQ(list.code, 0);
  EXPECT_LT(list.out.find("checkpoint-4"), list.out.find("checkpoint-2")) << list.out;
  EXPECT_EQ(work_.run({"checkpoint", "verify", work_ / "out"}).code, 0);
  const Outcome exported = work_.run(
      {"checkpoint", "export", work_ / "out/checkpoint-4", work_ / "model", work_ / "exported"});
  EXPECT_EQ(exported.code, 0) << exported.text();
  write_text(work_ / "file", "");
  for (const auto& [to, why] : {std::pair{"model", "is MODEL_DIR"},
                                {"out/checkpoint-2", "is a checkpoint"},
                                {"file", "is not a folder; give another one"}}) {
    const Outcome refused = work_.run(
        {"checkpoint", "export", work_ / "out/checkpoint-4", work_ / "model", work_ / to});
    EXPECT_EQ(refused.code, 2) << refused.text();
    EXPECT_TRUE(has(refused.err, "TO = " + (work_ / to).string()) && has(refused.err, why))
        << refused.err;
  }
  // A model folder again: the next run starts from it.
  const Outcome next =
      work_.run(command("train", with(work_.flags(), {{"model_name_or_path", work_ / "exported"},
                                                      {"init_from_config", "false"},
                                                      {"output_dir", work_ / "next"}})));
  EXPECT_EQ(next.code, 0) << next.text();
  const std::string replaces = "at the end the trained model replaces its weights";
  EXPECT_FALSE(has(next.out, replaces)) << next.out;
  const Outcome over =
      work_.run(command("train", with(work_.flags(), {{"model_name_or_path", work_ / "exported"},
                                                      {"init_from_config", "false"},
                                                      {"output_dir", work_ / "exported"}})));
  EXPECT_EQ(over.code, 0) << over.text();
  EXPECT_TRUE(has(over.out, replaces)) << over.out;
}

// Pipelines and layouts ---------------------------------------------------------------------

TEST_F(Verbs, PlanDrawsThePipeline) {
  const Flags flags = with(work_.flags(), {{"pipeline_parallel_size", "2"},
                                           {"pipeline_schedule", "zero_bubble"},
                                           {"gradient_accumulation_steps", "3"},
                                           {"world_size", "4"},
                                           {"print_schedule", "true"},
                                           {"schedule_svg", work_ / "pipeline.svg"}});
  const Outcome outcome = work_.run(command("plan", flags));
  ASSERT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(has(outcome.out, "Planned memory of each of 2 ranks of stage 0")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "Pipeline zero_bubble: 2 stages, 3 micro-batches")) << outcome.out;
  for (const char* part :
       {"\n    0 F0", "\n    1 ...", "W2", "embed", "- head", "by the formula"}) {
    EXPECT_TRUE(has(outcome.out, part)) << part << outcome.out;
  }
  EXPECT_TRUE(has(outcome.out, "Stages (their programs meet without deadlock)\n    0  "))
      << outcome.out;
  const std::string svg = read_bytes(work_ / "pipeline.svg");
  EXPECT_TRUE(has(svg, "<svg ") && has(svg, ">stage 1</text>") && has(svg, "</svg>"));
}

TEST_F(Verbs, SelftestComparesRandomLayoutsWithTheSingleProcess) {
  const Words words = {"selftest", "--layouts", "--count", "12", "--seed", "2026"};
  const Outcome outcome = work_.run(words);
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_EQ(count(outcome.out, "  agrees "), 12) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "All 12 layouts agree with the single process.")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "\n  2026  dp")) << outcome.out;
  EXPECT_EQ(work_.run(words).out, outcome.out);  // the seed decides everything
}

TEST_F(Verbs, SelftestComparesEveryLayoutOfSoManyRanks) {
  const Outcome outcome = work_.run({"selftest", "--layouts", "--every", "--ranks", "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_EQ(count(outcome.out, "  agrees "), 16) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "All 16 layouts agree with the single process.")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "\n    16  dp1 tp3 pp1 zero0 ga6 bf16;")) << outcome.out;
}

TEST_F(Verbs, SelftestRefusesWhatItDoesNotKnow) {
  const Words every = {"selftest", "--layouts", "--every"};
  const auto with = [](Words words, const char* flag) {
    words.push_back(flag);
    return words;
  };
  for (const auto& [words, part] : std::vector<std::pair<Words, std::string>>{
           {{"selftest"}, "give --layouts"},
           {{"selftest", "--every"}, "give --layouts"},
           {{"selftest", "--layoust"}, "did you mean"},
           {{"selftest", "--layouts", "--count=0"}, "count"},
           {with(every, "--count=3"), "count = 3: goes with random layouts"},
           {with(every, "--seed=1"), "seed = 1: goes with random layouts"},
           {with(every, "--ranks=2000"), "ranks = 2000: give at most 1024"},
           {{"selftest", "what"}, "takes flags alone"}}) {
    const Outcome outcome = work_.run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.text();
    EXPECT_TRUE(has(outcome.err, part)) << outcome.err;
  }
}

}  // namespace
}  // namespace trireme::test
