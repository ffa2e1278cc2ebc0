// Bad input, as a user meets it: exit code 2, one sentence that names what is wrong, nothing
// trained; the other ranks do not repeat it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "support/program.h"
#include "support/tiny_tokenizer.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

class BadInput : public testing::Test {
 protected:
  Outcome train(const Flags& flags) const {
    return work_.run(command("train", with(work_.flags(), flags)));
  }
  /// Exactly `lines` lines with all of `parts`; no step was made.
  void expect_refused(const Outcome& outcome, const Words& parts, int lines = 1) const {
    EXPECT_EQ(outcome.code, 2) << outcome.text();
    EXPECT_EQ(count(outcome.err, "\n"), lines) << outcome.err;
    for (const std::string& part : parts) {
      EXPECT_TRUE(has(outcome.err, part)) << part << " in " << outcome.err;
    }
    const fs::path metrics = work_ / "out/metrics.jsonl";
    EXPECT_TRUE(!fs::exists(metrics) || fs::file_size(metrics) == 0);
  }
  Workplace work_;
};

// Settings ----------------------------------------------------------------------------------

TEST_F(BadInput, FlagsThatDoNotExistAreToldWithTheNearest) {
  expect_refused(train({{"learing_rate", "1"}}),
                 {"unknown flag --learing_rate (did you mean 'learning_rate'?)"});
  expect_refused(train({{"zero-stag", "1"}}), {"--zero-stag", "'zero_stage'"});
  expect_refused(train({{"qwertyuiop", "1"}}), {"unknown flag --qwertyuiop"});
}

TEST_F(BadInput, ValuesThatDoNotFitAreToldWithWhatWould) {
  expect_refused(train({{"learning_rate", "fast"}}), {"learning_rate = fast: ", "number"});
  expect_refused(train({{"zero_stage", "4"}}), {"zero_stage = 4: ", "[0, 3]"});
  expect_refused(train({{"optim", "adafactor"}}), {"optim = adafactor: not supported yet"});
  expect_refused(train({{"fp16", "true"}}), {"fp16"});
}

TEST_F(BadInput, AllContradictionsAreToldAtOnce) {
  const Outcome outcome = train({{"learing_rate", "1"}, {"max_steps", "0"}, {"bf16", "maybe"}});
  expect_refused(outcome, {"learing_rate", "max_steps = 0", "bf16 = maybe"},
                 4);  // a title and one line each
}

/// A file of stage 3 as people have it: its sizes are of 8 data ranks.
TEST_F(BadInput, ADeepspeedFileRunsWhereItsSizesFitAndItsKeysAreBuilt) {
  const fs::path cases = fs::path(TRIREME_SOURCE_DIR) / "tests/data/config/cases";
  const Flags flags = with(work_.flags(), {{"deepspeed", cases / "ds_config_z3_on_device.json"},
                                           {"gradient_accumulation_steps", "8"},
                                           {"bf16", "true"},
                                           {"max_steps", "2"}});
  expect_refused(train(with(flags, {{"deepspeed", cases / "ds_config_z3.json"}})),
                 {"zero_optimization.offload_optimizer.device = cpu", "offload_param.device = cpu"},
                 3);
  const Words words = command("train", flags);
  expect_refused(work_.run(launched(2, words)),
                 {"x 2 data ranks = 32: set train_batch_size to 32, or gradient_accumulation_steps "
                  "to 32, or per_device_train_batch_size to 8, or run on 8 data ranks"},
                 2);
  const Outcome outcome = work_.run(launched(8, words));
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(has(outcome.out, "ZeRO stage = 3")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "& accumulation) = 128")) << outcome.out;
}

TEST_F(BadInput, DeepspeedKeysThatDoNotExistAreToldWithTheNearest) {
  write_text(work_ / "ds.json", R"({"zero_optimization": {"stag": 2}})");
  expect_refused(train({{"deepspeed", work_ / "ds.json"}}),
                 {"zero_optimization.stag", "'stage'", "ds.json"});
  expect_refused(train({{"deepspeed", R"({"gradient_cliping": 1})"}}),
                 {"gradient_cliping", "'gradient_clipping'"});
  expect_refused(
      train({{"deepspeed", R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"}}),
      {"offload_optimizer"});
  write_text(work_ / "ds.json", R"({"bf16": {"enabled": true)");
  expect_refused(train({{"deepspeed", work_ / "ds.json"}}), {"ds.json"});
  expect_refused(train({{"deepspeed", work_ / "no.json"}}), {"no.json"});
}

TEST_F(BadInput, ABatchTripleThatDoesNotMultiplyIsToldWithWhatWould) {
  expect_refused(train({{"train_batch_size", "7"}, {"gradient_accumulation_steps", "2"}}),
                 {"train_batch_size 7", "per_device_train_batch_size 2",
                  "gradient_accumulation_steps 2", "set train_batch_size to 4"});
  const Outcome ranks =
      work_.run(launched(3, command("train", with(work_.flags(), {{"train_batch_size", "8"}}))));
  expect_refused(ranks, {"8 is no multiple of per_device_train_batch_size 2 x 3 data ranks"}, 2);
}

// Data --------------------------------------------------------------------------------------

TEST_F(BadInput, ABrokenRowIsToldByLineBeforeAnythingStarts) {
  const struct {
    std::string row, what;
  } cases[] = {
      {R"({"input_ids": [1, 2)", "is not valid JSON"},
      {R"({"input_ids": [1, 67]})", "67"},
      {R"({"input_ids": [1, -2]})", "-2"},
      {R"({"input_ids": [1, 2], "labels": [1]})", "labels"},
      {R"({"tokens": [1, 2]})", "input_ids"},
      {R"([1, 2])", "object"},
  };
  for (const auto& [row, what] : cases) {
    std::string rows;
    for (int line = 1; line < 40; ++line) rows += "{\"input_ids\": [1, 2, 3]}\n";
    write_text(work_ / "bad.jsonl", rows + row + "\n" + rows);
    const std::string place = (work_ / "bad.jsonl").string() + ":40: ";
    expect_refused(train({{"data_path", work_ / "bad.jsonl"}}), {place, what});
    EXPECT_FALSE(fs::exists(work_ / "out"));
  }
}

TEST_F(BadInput, ABrokenRowOfTheEvaluationSetIsToldAtTheStart) {
  write_text(work_ / "bad.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": 3}\n");
  expect_refused(train({{"eval_path", work_ / "bad.jsonl"}, {"eval_strategy", "steps"}}),
                 {"bad.jsonl:2: "});
}

TEST_F(BadInput, FilesWithoutRowsOrNotThereAreTold) {
  write_text(work_ / "empty.jsonl", "");
  expect_refused(train({{"data_path", work_ / "empty.jsonl"}}), {"empty.jsonl: the file has no"});
  expect_refused(train({{"data_path", work_ / "none.jsonl"}}),
                 {"none.jsonl: there is no such file"});
  expect_refused(train({{"data_path", work_ / "model"}}), {"model: "});
  expect_refused(train({{"data_path", work_ / std::string(300, 'a')}}), {"File name too long"});
}

TEST_F(BadInput, RowsWithoutALabelToLearnAreTold) {
  write_text(work_ / "masked.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n");
  expect_refused(train({{"data_path", work_ / "masked.jsonl"}}),
                 {"masked.jsonl: there is nothing to learn"});
  expect_refused(train({{"max_seq_length", "1"}}),
                 {"of samples of at most 1 tokens", "or a longer max_seq_length"});
}

TEST_F(BadInput, LongRowsOfTheEvaluationSetAreCounted) {
  write_text(work_ / "eval.jsonl", "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [1, 2, 3, 4]}\n");
  const Outcome outcome = train({{"eval_path", work_ / "eval.jsonl"},
                                 {"do_eval", "true"},
                                 {"max_seq_length", "3"},
                                 {"on_long", "skip"}});
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(
      has(outcome.out, "Samples of evaluation over max_seq_length = 0 truncated, 1 skipped"))
      << outcome.out;
}

TEST_F(BadInput, TextWithoutATokenizerIsTold) {
  write_text(work_ / "text.jsonl", "{\"text\": \"a\"}\n");
  expect_refused(train({{"data_path", work_ / "text.jsonl"}}), {"tokenizer.json"});
}

// Places ------------------------------------------------------------------------------------

TEST_F(BadInput, FoldersThatCannotBeUsedAreTold) {
  expect_refused(train({{"model_name_or_path", "/nonexistent/model"}}),
                 {"model_name_or_path = /nonexistent/model: there is no such folder"});
  expect_refused(train({{"model_name_or_path", work_ / "tmp"}}), {"has no config.json"});
  expect_refused(train({{"output_dir", work_ / "data.jsonl/out"}}),
                 {"output_dir = ", "data.jsonl is not a folder"});
  expect_refused(train({{"output_dir", work_ / std::string(300, 'a')}}),
                 {"output_dir = ", "File name too long; give another one"});
  expect_refused(train({{"output_dir", work_ / "data.jsonl"}}),
                 {"output_dir = ", "data.jsonl is not a folder"});
}

TEST_F(BadInput, AFolderThatMayNotBeWrittenIsTold) {
  fs::create_directory(work_ / "out");
  // As somebody without rights, where there is the right to become one.
  const std::string script = fmt::format(
      R"(chmod 755 "{0}"; chmod 555 "{0}/out"; exec setpriv --reuid=65534 --clear-groups "$@")",
      work_.path().string());
  const Outcome probe = work_.run_shell("setpriv --reuid=65534 --clear-groups true", {});
  if (probe.code != 0) GTEST_SKIP() << "SKIPPED: cannot become another user here";
  const Outcome outcome = work_.run_shell(script, command("train", work_.flags()));
  expect_refused(outcome, {"output_dir = ", "Permission denied"});
  const Outcome rows = work_.run_shell(
      fmt::format(R"(chmod 777 "{0}/out"; chmod 000 "{0}/data.jsonl"; )", work_.path().string()) +
          R"(exec setpriv --reuid=65534 --clear-groups "$@")",
      command("train", work_.flags()));
  expect_refused(rows, {"data.jsonl: ", "Permission denied", "give a file that you may read"});
}

TEST_F(BadInput, AFolderThatAnotherRunWritesToIsTold) {
  fs::create_directory(work_ / "out");
  const Words words = command("train", work_.flags());
  const std::string held = fmt::format(R"(exec flock "{}/out" "$@")", work_.path().string());
  expect_refused(work_.run_shell(held, words), {"output_dir = ", "another run is writing to it"});
  EXPECT_EQ(work_.run(words).code, 0);
}

// Weights -----------------------------------------------------------------------------------

/// A model folder with weights, and ways to break them.
class BadWeights : public BadInput {
 protected:
  BadWeights() {
    EXPECT_EQ(work_
                  .run(command("train",
                               with(work_.flags(), {{"max_steps", "1"}, {"output_dir", folder()}})))
                  .code,
              0);
    const std::string bytes = read_bytes(weights());
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header_ = Json::parse(bytes.substr(8, length));
    data_ = bytes.substr(8 + length);
  }
  fs::path folder() const { return work_ / "weights"; }
  fs::path weights() const { return folder() / "model.safetensors"; }
  void write_raw(uint64_t length, const std::string& rest) const {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    write_text(weights(), bytes + rest);
  }
  void write(const Json& header) const {
    const std::string text = header.dump();
    write_raw(text.size(), text + data_);
  }
  Outcome use() const {
    return train({{"model_name_or_path", folder()}, {"init_from_config", "false"}});
  }
  static constexpr const char* kNorm = "model.norm.weight";
  Json header_;
  std::string data_;
};

TEST_F(BadWeights, SoundOnesAreUsed) {
  write(header_);
  const Outcome outcome = use();
  EXPECT_EQ(outcome.code, 0) << outcome.text();
}

TEST_F(BadWeights, MissingAndExtraTensorsAreNamed) {
  Json header = header_;
  header["model.extra.weight"] = header[kNorm];
  header.erase(kNorm);
  write(header);
  expect_refused(use(), {weights().parent_path(), kNorm, "model.extra.weight"});
}

TEST_F(BadWeights, AMisshapenTensorIsNamedWithBothShapes) {
  Json header = header_;
  header["lm_head.weight"]["shape"] = {32, 67};
  write(header);
  expect_refused(use(), {"lm_head.weight", "(32, 67)", "(67, 32)"});
}

TEST_F(BadWeights, ATruncatedFileIsNamed) {
  write(header_);
  fs::resize_file(weights(), fs::file_size(weights()) - 1);
  expect_refused(use(), {weights()});
  fs::resize_file(weights(), 5);
  expect_refused(use(), {weights()});
}

TEST_F(BadWeights, HeaderBombsAreNotBelieved) {
  for (const uint64_t length : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 40}) {
    write_raw(length, "{}");
    expect_refused(use(), {weights()});
  }
  const std::string deep(1'000'000, '[');
  write_raw(deep.size(), deep);
  expect_refused(use(), {weights()});
  Json header = header_;
  header[kNorm]["data_offsets"] = {0, uint64_t{1} << 62};
  write(header);
  expect_refused(use(), {weights(), kNorm});
  header[kNorm]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
  write(header);
  expect_refused(use(), {weights(), kNorm});
}

TEST_F(BadWeights, AnIndexMayNotLeaveTheFolder) {
  fs::rename(weights(), work_ / "stolen.safetensors");
  Json map;
  for (const auto& [name, entry] : header_.items()) {
    if (name != "__metadata__") map[name] = "../stolen.safetensors";
  }
  write_text(folder() / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  expect_refused(use(), {"model.safetensors.index.json", "../stolen.safetensors"});
}

TEST_F(BadWeights, NoneAtAllAreMissed) {
  fs::remove(weights());
  expect_refused(use(), {folder(), "no model.safetensors"});
}

// Several ranks -----------------------------------------------------------------------------

TEST_F(BadInput, RanksSayItOnce) {
  write_text(work_ / "bad.jsonl", "{\"input_ids\": [1, 2]}\nnonsense\n");
  const struct {
    Flags flags;
    std::string sentence;
  } cases[] = {{{{"learing_rate", "1"}}, "trireme: unknown flag --learing_rate"},
               {{{"data_path", work_ / "bad.jsonl"}}, "bad.jsonl:2: "},
               {{{"init_from_config", "false"}}, "no model.safetensors and"}};
  for (const auto& [flags, sentence] : cases) {
    const Outcome outcome = work_.run(launched(3, command("train", with(work_.flags(), flags))));
    EXPECT_EQ(count(outcome.err, sentence), 1) << outcome.err;
    expect_refused(outcome, {"trireme launch: rank 0 (pid "}, 2);
    work_.expect_nothing_left();
  }
}

TEST_F(BadInput, WhatOneRankMeetsIsSaidOnceAndByThatRank) {
  // The log of rank 0 cannot grow; rank 1 then loses its peer, which is not news.
  const Outcome outcome = work_.run_shell(
      R"(ulimit -f 32; exec "$@")",
      launched(2, command("train", with(work_.flags(), {{"max_steps", "100000"}}))));
  EXPECT_EQ(outcome.code, 1) << outcome.text();
  EXPECT_EQ(count(outcome.err, "\n"), 2) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("trireme: write(")) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "\ntrireme launch: rank 0 (pid ")) << outcome.err;
}

TEST_F(BadInput, ARunWhoseGradientsAreNeverFiniteStops) {
  const Flags flags = {
      {"learning_rate", "1e30"}, {"max_steps", "50"}, {"max_consecutive_skips", "3"}};
  const Outcome outcome = work_.run(launched(2, command("train", with(work_.flags(), flags))));
  EXPECT_EQ(outcome.code, 1) << outcome.text();
  EXPECT_TRUE(has(outcome.err, "the gradient was not finite 3 times in a row")) << outcome.err;
  EXPECT_EQ(count(outcome.err, "\ntrireme: ") + outcome.err.starts_with("trireme: "), 1);
  EXPECT_FALSE(fs::exists(work_ / "out/model.safetensors"));
  const std::string metrics = read_bytes(work_ / "out/metrics.jsonl");
  EXPECT_TRUE(has(metrics, "\"grad_norm\": NaN")) << metrics;
  EXPECT_TRUE(has(metrics, "\"skipped_steps\": 3")) << metrics;
}

// Other verbs -------------------------------------------------------------------------------

TEST_F(BadInput, AFileOfSettingsThatIsNotThere) {
  for (const char* field :
       {"deepspeed", "fsdp_config", "accelerate_config", "parallelism_config"}) {
    expect_refused(train({{field, "/nonexistent/x.json"}}),
                   {fmt::format("{} = /nonexistent/x.json: there is no such file; give the path of "
                                "a JSON file, or the JSON itself",
                                field)});
  }
}

TEST_F(BadInput, VersionIsSaid) {
  const Outcome outcome = work_.run({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(outcome.out.starts_with("trireme 0.")) << outcome.out;
}

TEST_F(BadInput, VerbsAndTheirArguments) {
  const struct {
    Words words;
    std::string sentence;
  } cases[] = {
      {{"trian"}, "'trian' is not a verb of trireme (did you mean 'train'?)"},
      {{"launch", "--nproc", "2", "--", "train"}, "--nproc is not an option of launch"},
      {{"launch", "--nproc_per_node", "0", "--", "train"}, "nproc_per_node = 0"},
      {{"launch", "--nproc_per_node", "2"}, "launch needs a command"},
      {{"plan", "--model_name_or_path", work_ / "model", "--world_size", "0"}, "world_size = 0"},
      {{"plan", "--model_name_or_path", work_ / "model", "--world_size", "1e12"},
       "world_size = 1e12: expects an integer in [1, 1048576]"},
      {{"plan", "--model_name_or_path", work_ / "model", "--rank", "1"}, "rank = 1"},
      {{"plan", "--model_name_or_path", work_ / "model", "--max_seq_length", "1e9"},
       "a micro-batch may be of 8000000000 tokens, and 2147483647 are the most"},
      {{"tokenize", "x.jsonl"}, "tokenize needs --tokenizer DIR"},
      {{"tokenize", "--tokenizer", work_ / "model", work_ / "data.jsonl"}, "data.jsonl"},
      {{"checkpoint", "list"}, "checkpoint list does not fit"},
      {{"checkpoint", "list", "/nonexistent"}, "/nonexistent: there is no such folder"},
      {{"checkpoint", "verify", "/nonexistent"}, "/nonexistent: there is no such folder"},
      {{"launch", "--hostfile", "/nonexistent", "train"}, "hostfile = /nonexistent: there is no"},
      {{"plan", "--model_name_or_path", work_ / "model", "--expand"},
       "expand = true: goes with --print_program"},
      {{"plan", "--model_name_or_path", work_ / "model", "--schedule_svg", "/nonexistent/x.svg"},
       "schedule_svg = /nonexistent/x.svg: "},
  };
  for (const auto& [words, sentence] : cases) {
    const Outcome outcome = work_.run(words);
    expect_refused(outcome, {sentence});
  }
  write_text(work_ / "text.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n");
  write_tokenizer(work_ / "tokenizer", tiny_tokenizer());
  expect_refused(work_.run({"tokenize", "--tokenizer", work_ / "tokenizer", work_ / "text.jsonl"}),
                 {"text.jsonl:2: "});
}

}  // namespace
}  // namespace trireme::test
