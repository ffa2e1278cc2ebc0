// Learning rates against those of Hugging Face's get_scheduler.
#include "config/schedule.h"
#include "unit/config_support.h"

namespace trireme::config {
namespace {

TEST(Schedule, EqualsHuggingFace) {
  const Json golden = parse_json(test_data("schedules.json"), "schedules.json");
  int64_t runs = 0;
  for (const Json& run : golden.at("runs")) {
    const auto text = [&](const char* key) { return dump_json(run.at(key)); };
    const RunConfig config =
        parse_words({"--lr_scheduler_type", run.at("lr_scheduler_type").get<std::string>(),
                     "--lr_scheduler_kwargs", text("lr_scheduler_kwargs"), "--learning_rate",
                     text("learning_rate"), "--warmup_steps", text("warmup_steps")})
            .config;
    const auto total = run.at("total_steps").get<int64_t>();
    const std::vector<double> rates = schedule_table(config, total);
    const Json& expected = run.at("lr_used_at_step");
    ASSERT_EQ(static_cast<int64_t>(rates.size()), total + 1);
    ASSERT_GE(expected.size(), rates.size());
    for (size_t step = 0; step < rates.size(); ++step) {
      const auto rate = expected.at(step).get<double>();
      EXPECT_NEAR(rates[step], rate, 1e-12 * std::abs(rate) + 1e-20)
          << run.at("lr_scheduler_type") << " step " << step;
    }
    ++runs;
  }
  EXPECT_EQ(runs, 54);
}

TEST(Schedule, EqualsDeepSpeed) {
  const Json golden = parse_json(test_data("deepspeed_schedules.json"), "deepspeed_schedules.json");
  int64_t runs = 0;
  for (const Json& run : golden.at("runs")) {
    const Json file = {
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", run.at("learning_rate")}}}}},
        {"scheduler", {{"type", run.at("type")}, {"params", run.at("params")}}}};
    const RunConfig config = parse_words({"--deepspeed", dump_json(file)}).config;
    const std::vector<double> rates = schedule_table(config, run.at("total_steps").get<int64_t>());
    const Json& expected = run.at("lr_used_at_step");
    ASSERT_EQ(expected.size(), rates.size());
    for (size_t step = 0; step < rates.size(); ++step) {
      const auto rate = expected.at(step).get<double>();
      EXPECT_NEAR(rates[step], rate, 1e-12 * std::abs(rate) + 1e-20)
          << dump_json(file) << " step " << step;
    }
    ++runs;
  }
  EXPECT_EQ(runs, 20);
}

TEST(Schedule, SaysWhatItCannotBeMadeOf) {
  const auto error = [](std::string_view scheduler, const std::string& kwargs) {
    return parse_error(
        {"--lr_scheduler_type", std::string(scheduler), "--lr_scheduler_kwargs", kwargs});
  };
  EXPECT_EQ(error("linear", R"({"power": 2})"),
            "lr_scheduler_kwargs has power: lr_scheduler_type linear takes none");
  EXPECT_EQ(error("polynomial", R"({"powr": 2})"),
            "lr_scheduler_kwargs = {\"powr\": 2}: no scheduler takes powr (did you mean 'power'?)");
  EXPECT_EQ(error("polynomial", R"({"lr_end": 1})"),
            "lr_scheduler_type = polynomial: learning_rate 5e-05 must be above lr_end 1");
  EXPECT_EQ(error("polynomial", R"({"power": "x"})"),
            "lr_scheduler_kwargs = {\"power\": \"x\"}: power = x: expects a number at least 0");
  EXPECT_TRUE(contains(error("cosine_with_min_lr", "{}"), "needs min_lr or min_lr_rate"));
  EXPECT_TRUE(contains(error("cosine_with_min_lr", R"({"min_lr": 0, "min_lr_rate": 0})"),
                       "needs min_lr or min_lr_rate, one of them"));
  EXPECT_TRUE(contains(error("warmup_stable_decay", "{}"), "needs num_decay_steps"));
  EXPECT_TRUE(
      contains(error("warmup_stable_decay", R"({"num_decay_steps": 1, "decay_type": "log"})"),
               "decay_type = log: expects linear, cosine or 1-sqrt"));
  EXPECT_TRUE(contains(error("WarmupLR", R"({"warmup_type": "cosine"})"),
                       "warmup_type = cosine: expects log or linear"));
  EXPECT_TRUE(contains(error("cosine", "no/such.json"), "no/such.json"));
  EXPECT_EQ(error("cosine", R"({"num_cycles": "2"})"), "");
}

TEST(Schedule, SharesOfAllStepsAreRoundedUp) {
  EXPECT_EQ(count_steps(0, 100), 0);
  EXPECT_EQ(count_steps(0.03, 101), 4);
  EXPECT_EQ(count_steps(5, 100), 5);
  RunConfig config;
  config.warmup_steps = 0.1;
  config.learning_rate = 1.0;
  const std::vector<double> rates = schedule_table(config, 15);  // 2 updates of warm-up
  EXPECT_EQ(rates[0], 0.0);
  EXPECT_EQ(rates[1], 0.5);
  EXPECT_EQ(rates[2], 1.0);
  EXPECT_EQ(rates[15], 0.0);
}

TEST(Schedule, HoldsForNoStepsAndForMoreWarmupThanSteps) {
  RunConfig config;
  config.learning_rate = 1.0;
  EXPECT_EQ(schedule_table(config, 0).size(), 1u);
  config.warmup_steps = 10;
  const std::vector<double> rates = schedule_table(config, 5);
  EXPECT_EQ(rates[5], 0.5);
}

}  // namespace
}  // namespace trireme::config
