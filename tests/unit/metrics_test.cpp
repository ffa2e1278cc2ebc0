// Watching a run: exact strings, the log across a resume, the progress line on a real terminal.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "metrics/console.h"
#include "metrics/metrics_file.h"
#include "metrics/reporter.h"
#include "metrics/text.h"
#include "support/temp_folder.h"

namespace trireme::metrics {
namespace {

namespace fs = std::filesystem;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using test::message_of;
using test::TempFolder;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Step n of a run of losses 8, 7, 6, ... that trains 100 tokens a step, one second each.
StepRecord step_record(int64_t step) {
  return {.step = step,
          .epoch = static_cast<double>(step) / 4,
          .loss = 9.0 - static_cast<double>(step),
          .grad_norm = 1.5,
          .clip_coef = 0.66666622222251852,
          .learning_rate = 5e-05,
          .trained_tokens = 100,
          .input_tokens = 128,
          .samples = 4,
          .step_seconds = 1,
          .skipped_steps = 0};
}

StepRecord skipped_record(int64_t step) {
  StepRecord record = step_record(step);
  record.loss = record.grad_norm = kNan;
  record.skipped_steps = 1;
  record.skipped = true;
  return record;
}

TEST(MetricsText, NumbersReadBackExactly) {
  EXPECT_EQ(json_number(0.1), "0.1");
  EXPECT_EQ(json_number(1.0), "1.0");
  EXPECT_EQ(json_number(5e-05), "5e-05");
  EXPECT_EQ(json_number(1e22), "1e+22");
  EXPECT_EQ(json_number(kNan), "NaN");
  EXPECT_EQ(json_number(-kInfinity), "-Infinity");
  for (const double value : {1.0 / 3, 2.2250738585072014e-308, 4.9406564584124654e-324,
                             1.7976931348623157e308, 6.9077552789821368, 9007199254740993.0}) {
    EXPECT_EQ(std::strtod(json_number(value).c_str(), nullptr), value) << json_number(value);
  }
}

TEST(MetricsText, PeopleReadRoundedNumbers) {
  EXPECT_EQ(rounded(2.34567, 4), "2.3457");
  EXPECT_EQ(rounded(2.0, 4), "2.0");
  EXPECT_EQ(rounded(kNan, 4), "nan");
  EXPECT_EQ(significant(0.000049999999, 6), "5e-05");
  EXPECT_EQ(significant(1.23456789, 6), "1.23457");
  EXPECT_EQ(significant(kInfinity, 6), "inf");
  EXPECT_EQ(thousands(0), "0");
  EXPECT_EQ(thousands(999), "999");
  EXPECT_EQ(thousands(1000), "1,000");
  EXPECT_EQ(thousands(-1234567), "-1,234,567");
  EXPECT_EQ(duration(7.9), "00:07");
  EXPECT_EQ(duration(3723), "1:02:03");
  EXPECT_EQ(duration(kNan), "?");
  EXPECT_EQ(short_count(512), "512");
  EXPECT_EQ(short_count(999.7), "1.00k");
  EXPECT_EQ(short_count(10234), "10.2k");
  EXPECT_EQ(short_count(3412345), "3.41M");
}

TEST(MetricsText, BannerSaysWhatPeopleGrep) {
  RunFacts facts{.num_examples = 12345,
                 .num_train_epochs = 3,
                 .per_device_batch_size = 4,
                 .total_batch_size = 16,
                 .gradient_accumulation_steps = 2,
                 .total_steps = 2316,
                 .num_trainable_parameters = 494032768,
                 .steps_per_epoch = 772,
                 .more = {{"ZeRO stage", "3"}}};
  const std::string fresh =
      "***** Running training *****\n"
      "  Num examples = 12,345\n"
      "  Num Epochs = 3\n"
      "  Instantaneous batch size per device = 4\n"
      "  Total train batch size (w. parallel, distributed & accumulation) = 16\n"
      "  Gradient Accumulation steps = 2\n"
      "  Total optimization steps = 2,316\n"
      "  Number of trainable parameters = 494,032,768\n"
      "  ZeRO stage = 3\n";
  EXPECT_EQ(training_banner(facts), fresh);
  facts.resumed_step = 800;
  EXPECT_EQ(training_banner(facts),
            fresh +
                "  Continuing training from checkpoint, will skip to saved global_step\n"
                "  Continuing training from epoch 1\n"
                "  Continuing training from global step 800\n");
  EXPECT_EQ(evaluation_banner(10, 8),
            "***** Running Evaluation *****\n  Num examples = 10\n  Batch size = 8\n");
}

TEST(MetricsText, MemoryTableAddsUpBySpace) {
  const std::vector<MemoryRow> rows = {{"weights", 2097152, "device"},
                                       {"optimizer moments", 8388608, "device"},
                                       {"batches", 1000, "pinned"}};
  EXPECT_EQ(memory_table("Planned memory, rank 0", rows),
            "Planned memory, rank 0\n"
            "  owner              space        bytes        size\n"
            "  weights            device   2,097,152     2.0 MiB\n"
            "  optimizer moments  device   8,388,608     8.0 MiB\n"
            "  batches            pinned       1,000      1000 B\n"
            "  total              device  10,485,760    10.0 MiB\n"
            "  total              pinned       1,000      1000 B\n");
}

TEST(MetricsFile, WritesOneExactLineAStep) {
  TempFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  MetricsFile file(path, 0);
  file.step(step_record(1));
  file.step(skipped_record(2));
  file.evaluation(
      {.step = 2, .epoch = 0.5, .loss = 6.1, .seconds = 0.5, .samples = 10, .batches = 5});
  EXPECT_EQ(read_text(path),
            "{\"step\": 1, \"epoch\": 0.25, \"loss\": 8.0, \"grad_norm\": 1.5, "
            "\"clip_coef\": 0.6666662222225185, \"learning_rate\": 5e-05, \"trained_tokens\": 100, "
            "\"tokens_per_second\": 128.0, \"step_seconds\": 1.0, \"skipped_steps\": 0}\n"
            "{\"step\": 2, \"epoch\": 0.5, \"loss\": NaN, \"grad_norm\": NaN, "
            "\"clip_coef\": 0.6666662222225185, \"learning_rate\": 5e-05, \"trained_tokens\": 100, "
            "\"tokens_per_second\": 128.0, \"step_seconds\": 1.0, \"skipped_steps\": 1}\n"
            "{\"step\": 2, \"epoch\": 0.5, \"eval_loss\": 6.1, \"eval_runtime\": 0.5, "
            "\"eval_samples_per_second\": 20.0, \"eval_steps_per_second\": 10.0}\n");
}

TEST(MetricsFile, ResumeCutsBackToTheCheckpoint) {
  TempFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  std::string kept;
  {
    MetricsFile file(path, 0);
    file.step(step_record(1));
    file.step(skipped_record(2));
    StepRecord third = step_record(3);
    third.skipped_steps = 1;
    file.step(third);
    file.evaluation({.step = 3, .loss = 5});
    kept = read_text(path);
    file.step(step_record(4));
    file.evaluation({.step = 4, .loss = 4});
  }
  write_text(path, read_text(path) + "{\"step\": 5, \"ep");  // as a kill leaves it

  std::vector<StepRecord> replayed;
  MetricsFile file(path, 3, [&](const StepRecord& record) { replayed.push_back(record); });
  EXPECT_EQ(read_text(path), kept);
  ASSERT_EQ(replayed.size(), 3u);
  for (size_t i = 0; i < replayed.size(); ++i) {
    EXPECT_EQ(replayed[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(replayed[i].skipped, i == 1);
    EXPECT_EQ(replayed[i].trained_tokens, 100);
    EXPECT_EQ(replayed[i].input_tokens, 128);
    EXPECT_EQ(replayed[i].ends_epoch, false);
  }
  EXPECT_EQ(replayed[2].loss, 6.0);
  file.step(step_record(4));
  EXPECT_EQ(read_text(path).find(kept), 0u);
  EXPECT_FALSE(fs::exists(path.string() + ".tmp"));
}

TEST(MetricsFile, CuttingBackNothingLeavesTheFileAlone) {
  TempFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  cut_back(path, "step", 5);
  EXPECT_FALSE(fs::exists(path));
  MetricsFile(path, 0).step(step_record(1));
  const std::string before = read_text(path);
  cut_back(path, "step", 5);
  EXPECT_EQ(read_text(path), before);
}

TEST(MetricsFile, FreshRunKeepsTheEarlierLogAside) {
  TempFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  write_text(path, "earlier\n");
  MetricsFile file(path, 0);
  EXPECT_EQ(read_text(path), "");
  EXPECT_EQ(read_text(path.string() + ".old"), "earlier\n");
}

TEST(MetricsFile, ForeignLineIsNamed) {
  TempFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  MetricsFile(path, 0).step(step_record(1));
  write_text(path, read_text(path) + "{\"loss\": 3}\n");
  EXPECT_EQ(message_of<DataError>([&] { cut_back(path, "step", 1); }),
            path.string() + ":2: not a line of metrics");
}

TEST(MetricsFile, AFullDiskIsAnErrorThatNamesTheFile) {
  TempFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  MetricsFile file(path, 0);
  file.step(step_record(1));
  const std::string first = read_text(path);
  // Room for half a line more.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight{first.size() * 3 / 2, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string said = message_of<DeviceError>([&] { file.step(step_record(2)); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(said, "write('" + path.string() + "'): File too large");
  EXPECT_GT(read_text(path).size(), first.size());
  cut_back(path, "step", 2);  // the half line goes when the run is resumed
  EXPECT_EQ(read_text(path), first);
}

TEST(Reporter, OtherRanksTouchNothing) {
  TempFolder folder;
  config::RunConfig config;
  config.output_dir = (folder / "run").string();
  Reporter reporter(config, {.rank = 1});
  reporter.begin({});
  reporter.step(step_record(1));
  reporter.sync();
  reporter.finish();
  EXPECT_FALSE(fs::exists(config.output_dir));
}

TEST(Reporter, UnwritableOutputNamesTheFolder) {
  TempFolder folder;
  write_text(folder / "run", "a file");
  config::RunConfig config;
  config.output_dir = (folder / "run" / "deeper").string();
  EXPECT_EQ(message_of<DeviceError>([&] { Reporter(config, {}); }),
            "mkdir('" + config.output_dir + "'): Not a directory");
}

class Recorder : public Sink {
 public:
  explicit Recorder(std::vector<std::string>* calls) : calls_(calls) {}
  void begin(const RunFacts&) override { calls_->push_back("begin"); }
  void step(const StepRecord& record) override {
    calls_->push_back("step " + std::to_string(record.step));
  }
  void log(const LogRecord& record) override {
    calls_->push_back(fmt::format("log {} of loss {}", record.step, record.loss));
  }
  void evaluation(const EvalRecord&) override { calls_->push_back("evaluation"); }
  void sync() override { calls_->push_back("sync"); }
  void finish(const Summary&) override { calls_->push_back("finish"); }

 private:
  std::vector<std::string>* calls_;
};

TEST(Reporter, TrainLossIsOverTokensAcrossAResumeWithoutSkippedSteps) {
  std::vector<std::string> calls;
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(std::make_unique<Recorder>(&calls));
  Reporter reporter(std::move(sinks), {.steps = 2});
  reporter.replay(step_record(1));  // loss 8
  reporter.begin({});
  StepRecord second = step_record(2);  // loss 7
  second.trained_tokens = 300;
  reporter.step(second);
  reporter.step(skipped_record(3));
  reporter.evaluation({});
  reporter.sync();
  const Summary summary = reporter.finish();
  EXPECT_EQ(summary.loss, (800 + 7.0 * 300) / 400);
  EXPECT_EQ(summary.skipped_steps, 1);
  EXPECT_EQ(summary.epoch, 0.75);
  EXPECT_EQ(calls, (std::vector<std::string>{"begin", "log 2 of loss 7.25", "step 2", "step 3",
                                             "evaluation", "sync", "finish"}));
}

/// A console on two descriptors, with a clock that the test turns. It hears of steps and lines of
/// the log as from a reporter.
class ConsoleTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const int fd : {master_, slave_, lines_[0], lines_[1]}) ::close(fd);
  }

  /// Lines go to a pipe; the bar to the pipe too (no terminal), or to a terminal of `columns`.
  Console open(int64_t logging_steps, unsigned short columns = 0) {
    window_ = LogWindow({.steps = logging_steps});
    EXPECT_EQ(::pipe2(lines_, O_NONBLOCK), 0);
    if (columns == 0) return Console(options(lines_[1], lines_[1]));
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::openpty(&master_, &slave_, nullptr, nullptr, &size), 0);
    EXPECT_EQ(::fcntl(master_, F_SETFL, O_NONBLOCK), 0);
    return Console(options(slave_, slave_));
  }

  ConsoleOptions options(int line_fd, int bar_fd) {
    return {.line_fd = line_fd, .bar_fd = bar_fd, .unicode = unicode_, .clock = [this] {
              return now_;
            }};
  }

  void step(Console& console, const StepRecord& record) {
    if (const auto line = window_.add(record)) console.log(*line);
    console.step(record);
  }

  /// What was written since the last call.
  std::string said() {
    std::string text;
    char buffer[4096];
    const int fd = master_ >= 0 ? master_ : lines_[0];
    for (ssize_t size = 0; (size = ::read(fd, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(size));
    }
    return text;
  }

  LogWindow window_{{}};
  double now_ = 100;
  bool unicode_ = true;
  int lines_[2] = {-1, -1};
  int master_ = -1, slave_ = -1;
};

TEST_F(ConsoleTest, WithoutATerminalPlainLines) {
  Console console = open(2);
  RunFacts facts{.total_steps = 8};
  console.begin(facts);
  EXPECT_EQ(said(), training_banner(facts));
  step(console, step_record(1));
  EXPECT_EQ(said(), "");
  now_ += 10;
  StepRecord second = step_record(2);  // loss 7
  second.trained_tokens = 300;
  step(console, second);
  EXPECT_EQ(said(),
            "{'loss': 7.25, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.5, 'step': 2, "
            "'tokens_per_second': 128.0, 'time_left': '00:30'}\n");
  console.evaluation(
      {.step = 2, .epoch = 0.5, .loss = 6.12345, .seconds = 2, .samples = 10, .batches = 5});
  EXPECT_EQ(said(),
            "{'eval_loss': 6.1235, 'eval_runtime': 2.0, 'eval_samples_per_second': 5.0, "
            "'eval_steps_per_second': 2.5, 'epoch': 0.5}\n");
  console.finish({.seconds = 12.34567,
                  .samples_per_second = 1.5,
                  .steps_per_second = 0.25,
                  .tokens_per_second = 99,
                  .loss = 7.5,
                  .epoch = 2});
  EXPECT_EQ(said(),
            "{'train_runtime': 12.3457, 'train_samples_per_second': 1.5, "
            "'train_steps_per_second': 0.25, 'train_tokens_per_second': 99.0, "
            "'train_loss': 7.5, 'epoch': 2.0}\n");
  console.finish({.loss = 7.5, .skipped_steps = 3, .epoch = 2});
  EXPECT_NE(said().find("'train_loss': 7.5, 'skipped_steps': 3, 'epoch': 2.0}\n"),
            std::string::npos);
}

TEST_F(ConsoleTest, SkippedStepIsSaidAndLeftOutOfTheMean) {
  Console console = open(2);
  console.begin({.total_steps = 8});
  said();
  step(console, step_record(1));
  step(console, skipped_record(2));
  EXPECT_EQ(said(),
            "{'loss': 8.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.5, 'step': 2, "
            "'tokens_per_second': 128.0, 'time_left': '00:00'}\n"
            "step 2: update skipped, gradient norm is nan; weights unchanged (1 skipped so far)\n");
  StepRecord empty = skipped_record(3);
  empty.trained_tokens = 0;
  empty.grad_norm = 0;
  empty.skipped_steps = 2;
  step(console, empty);
  EXPECT_EQ(said(),
            "step 3: update skipped, no trained tokens; weights unchanged (2 skipped so far)\n");
}

TEST_F(ConsoleTest, LongSilenceIsBroken) {
  Console console = open(500);
  console.begin({.total_steps = 100, .resumed_step = 10});
  said();
  now_ += 29;
  step(console, step_record(11));
  EXPECT_EQ(said(), "");
  now_ += 31;
  step(console, step_record(12));
  EXPECT_EQ(said(),
            "step 12/100 [01:00<44:00, 30.00s/it, loss -3, norm 1.5, lr 5e-05, 128 tok/s]\n");
  step(console, step_record(13));
  EXPECT_EQ(said(), "");
}

TEST_F(ConsoleTest, OnATerminalTheLineIsRedrawnInPlace) {
  Console console = open(2, 90);
  console.begin({.total_steps = 8});
  const std::string banner = said();
  const std::string first = "\r  0%|" + std::string(40, ' ') + "| 0/8 [00:00<?]";
  EXPECT_EQ(banner.substr(banner.rfind('\r')), first);

  now_ += 0.05;  // too soon to redraw
  step(console, step_record(1));
  EXPECT_EQ(said(), "");
  now_ += 1.95;
  step(console, step_record(2));
  const std::string line =
      "{'loss': 7.5, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.5, 'step': 2, "
      "'tokens_per_second': 128.0, 'time_left': '00:06'}\r\n";
  EXPECT_EQ(said(), "\r" + std::string(first.size() - 1, ' ') + "\r" + line +
                        "\r 25%|████            | 2/8 [00:02<00:06, 1.00it/s, loss 7, "
                        "norm 1.5, lr 5e-05, 128 tok/s]");
  now_ += 1;
  step(console, step_record(3));
  EXPECT_EQ(said(),
            "\r 38%|██████          | 3/8 [00:03<00:05, 1.00it/s, loss 6, norm 1.5, "
            "lr 5e-05, 128 tok/s]");
}

TEST_F(ConsoleTest, ANarrowTerminalNeverWraps) {
  unicode_ = false;
  for (const unsigned short columns : {80, 70, 60, 20}) {
    {
      Console console = open(100, columns);
      console.begin({.total_steps = 1000});
      now_ += 1000;
      step(console, step_record(500));
    }
    const std::string text = said();
    ASSERT_EQ(text.substr(text.size() - 2), "\r\n") << "the destructor leaves a fresh line";
    const std::string bar = text.substr(text.rfind('\r', text.size() - 3) + 1);
    EXPECT_LE(bar.size() - 2, columns - 1u) << bar;
    EXPECT_EQ(bar.find(" 50%|"), 0u) << bar;
    for (const int fd : {master_, slave_, lines_[0], lines_[1]}) ::close(fd);
  }
  master_ = slave_ = lines_[0] = lines_[1] = -1;
}

TEST_F(ConsoleTest, AClosedPipeDoesNotEndTheRun) {
  std::signal(SIGPIPE, SIG_IGN);
  Console console = open(1);
  ::close(lines_[0]);
  console.begin({.total_steps = 2});
  step(console, step_record(1));
  std::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace trireme::metrics
