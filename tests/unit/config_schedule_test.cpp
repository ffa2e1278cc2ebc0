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
                     "--learning_rate", text("learning_rate"), "--warmup_steps",
                     text("warmup_steps")})
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
  EXPECT_EQ(runs, 12);
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
