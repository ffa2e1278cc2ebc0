// Packed runs: their steps, on any number of ranks, broken off and resumed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/program.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTokens = 48;
constexpr int64_t kPacksPerStep = 6;

class PackedRuns : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    write_rows(work_ / "eval.jsonl", 17, 2);
    std::istringstream rows(read_bytes(work_ / "data.jsonl"));
    for (std::string row; std::getline(rows, row);) {
      tokens_ += std::ssize(Json::parse(row).at("input_ids"));
      ++num_rows_;
    }
  }
  Flags flags(int ranks, const Flags& more = {}) const {
    return with(
        with(work_.flags(), {{"packing", "true"},
                             {"packing_strategy", GetParam()},
                             {"max_seq_length", std::to_string(kMaxTokens)},
                             {"per_device_train_batch_size", std::to_string(kPacksPerStep / ranks)},
                             {"max_steps", "-1"},
                             {"num_train_epochs", "3"},
                             {"eval_path", work_ / "eval.jsonl"},
                             {"eval_strategy", "epoch"},
                             {"save_strategy", "steps"},
                             {"save_steps", "4"}}),
        more);
  }
  std::string train(int ranks, const Flags& flags) const {
    const Outcome outcome = work_.run(launched(ranks, command("train", flags)));
    EXPECT_EQ(outcome.code, 0) << outcome.text();
    return outcome.out;
  }
  std::vector<Json> lines() const { return read_metrics(work_ / "out/metrics.jsonl"); }
  bool wraps() const { return GetParam() == "wrapped"; }

  Workplace work_;
  int64_t num_rows_ = 0;
  int64_t tokens_ = 0;
};

void expect_near(const std::vector<Json>& lines, const std::vector<Json>& reference) {
  ASSERT_EQ(lines.size(), reference.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const auto& [field, value] : reference[i].items()) {
      ASSERT_TRUE(lines[i].contains(field)) << field;
      const bool rounded = field == "loss" || field == "eval_loss" || field == "grad_norm";
      const double tolerance = rounded ? 1e-4 * value.get<double>() : 0;
      if (field == "clip_coef") continue;  // of the norm
      if (!value.is_number()) {
        EXPECT_EQ(lines[i].at(field), value) << field;
      } else {
        EXPECT_NEAR(lines[i].at(field).get<double>(), value.get<double>(), tolerance)
            << field << " of line " << i;
      }
    }
  }
}

TEST_P(PackedRuns, CountPacksAndTrainEveryTokenOnceAnEpoch) {
  const std::string out = train(1, flags(1));
  const int64_t packs = (tokens_ + kMaxTokens - 1) / kMaxTokens;  // bfd needs no more of these rows
  const double room = static_cast<double>(packs * kMaxTokens);
  const std::string words =
      wraps()
          ? fmt::format("Packing = 50 rows in {} blocks of 48 tokens\n", packs)
          : fmt::format("Packing = 50 samples in {} packs of at most 48 tokens, {:.1f} % full\n",
                        packs, 100 * static_cast<double>(tokens_) / room);
  EXPECT_TRUE(has(out, words)) << words << out;
  EXPECT_TRUE(has(out, "Packing of evaluation = 17 ")) << out;
  const int64_t steps = (packs + kPacksPerStep - 1) / kPacksPerStep;
  int64_t trained = 0;
  std::vector<Json> updates;
  for (const Json& line : lines()) {
    if (line.contains("loss")) updates.push_back(line);
  }
  ASSERT_EQ(std::ssize(updates), 3 * steps);
  for (int64_t s = 0; s < steps; ++s) {
    trained += updates[static_cast<size_t>(s)].at("trained_tokens").get<int64_t>();
  }
  // The first token of a sample, or of a block, is predicted by none.
  EXPECT_EQ(trained, tokens_ - (wraps() ? packs : num_rows_));
  EXPECT_EQ(updates[static_cast<size_t>(steps - 1)].at("epoch"), 1.0);
  EXPECT_EQ(updates.back().at("epoch"), 3.0);
}

TEST_P(PackedRuns, GoOnAsIfNothingHadBeen) {
  train(1, flags(1));
  const std::vector<Json> unbroken = lines();
  const std::string model = read_bytes(work_ / "out/model.safetensors");
  fs::rename(work_ / "out", work_ / "unbroken");
  train(2, flags(2, {{"zero_stage", "3"}}));
  expect_near(lines(), unbroken);
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    fs::remove_all(work_ / "out");
    fs::copy(work_ / "unbroken", work_ / "out", fs::copy_options::recursive);
    const std::string out =
        train(ranks, flags(ranks, {{"resume_from_checkpoint", work_ / "out/checkpoint-4"}}));
    EXPECT_FALSE(has(out, "resume: ")) << out;  // the same run
    if (ranks > 1) {
      expect_near(lines(), unbroken);
      continue;
    }
    EXPECT_EQ(lines(), unbroken);
    EXPECT_EQ(read_bytes(work_ / "out/model.safetensors"), model);
  }
}

TEST_P(PackedRuns, AnotherPackingIsSaidOnAResume) {
  train(1, flags(1, {{"num_train_epochs", "1"}}));
  const std::string out = train(
      1, flags(1, {{"packing", "false"}, {"max_steps", "5"}, {"resume_from_checkpoint", "true"}}));
  EXPECT_TRUE(has(out, fmt::format("resume: packing is \"none\", the run that saved this "
                                   "checkpoint had \"{}\"",
                                   GetParam())))
      << out;
}

INSTANTIATE_TEST_SUITE_P(Strategies, PackedRuns, testing::Values("bfd", "wrapped"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace trireme::test
