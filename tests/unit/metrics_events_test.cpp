// TensorBoard's events and DeepSpeed's tables, read back.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "metrics/deepspeed_monitor.h"
#include "metrics/event_file.h"
#include "metrics/log_window.h"
#include "support/temp_folder.h"

namespace trireme::metrics {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A reader of its own ------------------------------------------------------------------------

/// The fields of a protocol buffer, in order; numbers as 8 bytes.
std::vector<std::pair<uint64_t, std::string>> fields(std::string_view bytes) {
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(0));
      bytes.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  const auto take = [&](uint64_t count) {
    if (count > bytes.size()) throw std::out_of_range("a field is longer than its message");
    const std::string taken(bytes.substr(0, count));
    bytes.remove_prefix(count);
    return taken;
  };
  std::vector<std::pair<uint64_t, std::string>> found;
  while (!bytes.empty()) {
    const uint64_t key = varint();
    switch (key & 7) {
      case 0: {
        const uint64_t value = varint();
        found.emplace_back(key >> 3, std::string(reinterpret_cast<const char*>(&value), 8));
        break;
      }
      case 1:
        found.emplace_back(key >> 3, take(8));
        break;
      case 2:
        found.emplace_back(key >> 3, take(varint()));
        break;
      default:
        found.emplace_back(key >> 3, take(4));
    }
  }
  return found;
}

std::string field(std::string_view bytes, uint64_t number) {
  for (const auto& [key, value] : fields(bytes)) {
    if (key == number) return value;
  }
  return "";
}

template <typename T>
T as(const std::string& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

struct Events {
  std::vector<std::string> versions, texts;
  std::vector<int64_t> restarts;
  std::map<std::string, std::map<int64_t, float>> scalars;  // tag -> step -> value
};

/// Reads a file as TensorBoard does: what a restart makes void is gone.
void read_events(const fs::path& path, Events* events) {
  const std::string file = read_text(path);
  for (std::string_view left = file; !left.empty();) {
    ASSERT_GE(left.size(), 16U);
    const std::string length_bytes(left.substr(0, 8));
    const auto length = as<uint64_t>(length_bytes);
    ASSERT_LE(length + 16, left.size());
    const std::string event(left.substr(12, length));
    ASSERT_EQ(as<uint32_t>(std::string(left.substr(8, 4))), masked_crc32c(length_bytes));
    ASSERT_EQ(as<uint32_t>(std::string(left.substr(12 + length, 4))), masked_crc32c(event));
    left.remove_prefix(length + 16);

    EXPECT_GT(as<double>(field(event, 1)), 1.6e9);
    const auto step = as<int64_t>(field(event, 2));
    const std::string version = field(event, 3), summary = field(event, 5);
    if (!version.empty()) events->versions.push_back(version);
    if (!field(event, 7).empty()) {
      EXPECT_EQ(as<int64_t>(field(field(event, 7), 1)), 1);
      events->restarts.push_back(step);
      for (auto& [tag, values] : events->scalars) {
        values.erase(values.lower_bound(step), values.end());
      }
    }
    for (const auto& [key, value] : fields(summary)) {
      const std::string tag = field(value, 1);
      if (field(value, 2).empty()) {
        EXPECT_EQ(field(field(field(value, 9), 1), 1), "text");
        events->texts.push_back(tag + ": " + field(field(value, 8), 8));
      } else {
        events->scalars[tag][step] = as<float>(field(value, 2));
      }
    }
  }
}

Events read_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Events events;
  for (const fs::path& file : files) {
    EXPECT_EQ(file.filename().string().rfind("events.out.tfevents.1", 0), 0U) << file;
    read_events(file, &events);
  }
  return events;
}

using Values = std::map<int64_t, float>;

StepRecord step_record(int64_t step) {
  return {.step = step,
          .epoch = static_cast<double>(step) / 4,
          .loss = 9.0 - static_cast<double>(step),
          .grad_norm = 1.5,
          .learning_rate = 0.25,
          .trained_tokens = 100 * step,
          .input_tokens = 128,
          .step_seconds = 1};
}

/// Tells of a step as the reporter does, with a line of the log where one is due.
void tell(EventLog& log, LogWindow& window, const StepRecord& record) {
  if (const auto line = window.add(record)) log.log(*line);
  log.step(record);
}

// Tests --------------------------------------------------------------------------------------

TEST(EventRecords, HaveTheChecksumOfTheFormat) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);  // RFC 3720's polynomial
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
}

TEST(EventLogs, HoldHuggingFaceTags) {
  const TempFolder folder;
  EventLog log({.folder = folder.path(), .arguments = "{\"seed\": 42}"});
  LogWindow window({.steps = 2});
  log.begin({});
  for (int64_t step = 1; step <= 4; ++step) tell(log, window, step_record(step));
  log.evaluation({.step = 4, .epoch = 1, .loss = 6.5, .seconds = 2, .samples = 10, .batches = 4});
  log.finish({.seconds = 4,
              .samples_per_second = 8,
              .steps_per_second = 1,
              .tokens_per_second = 128,
              .loss = 7});
  const Events events = read_folder(folder.path());
  EXPECT_EQ(events.versions, std::vector<std::string>{"brain.Event:2"});
  EXPECT_EQ(events.texts, std::vector<std::string>{"args/text_summary: {\"seed\": 42}"});
  EXPECT_TRUE(events.restarts.empty());
  // Of all tokens since the last: (8 x 100 + 7 x 200) / 300, (6 x 300 + 5 x 400) / 700.
  const std::map<std::string, Values> expected = {
      {"train/loss", {{2, 2200.0f / 300}, {4, 3800.0f / 700}}},
      {"train/grad_norm", {{2, 1.5f}, {4, 1.5f}}},
      {"train/learning_rate", {{2, 0.25f}, {4, 0.25f}}},
      {"train/epoch", {{2, 0.5f}, {4, 1.0f}}},
      {"perf/tokens_per_second", {{2, 128.0f}, {4, 128.0f}}},
      {"eval/loss", {{4, 6.5f}}},
      {"eval/runtime", {{4, 2.0f}}},
      {"eval/samples_per_second", {{4, 5.0f}}},
      {"eval/steps_per_second", {{4, 2.0f}}},
      {"train/train_runtime", {{4, 4.0f}}},
      {"train/train_samples_per_second", {{4, 8.0f}}},
      {"train/train_steps_per_second", {{4, 1.0f}}},
      {"train/train_loss", {{4, 7.0f}}},
  };
  EXPECT_EQ(events.scalars, expected);
}

TEST(EventLogs, OfAResumedRunMakeVoidWhatCameAfterItsCheckpoint) {
  const TempFolder folder;
  for (const int64_t resumed : {0, 2}) {
    EventLog log({.folder = folder.path(), .resumed_step = resumed});
    LogWindow window({.steps = 1});
    for (int64_t step = resumed + 1; step <= 3; ++step) {
      StepRecord record = step_record(step);
      if (resumed > 0) record.grad_norm = 2;
      tell(log, window, record);
    }
    log.sync();
  }
  const Events events = read_folder(folder.path());
  EXPECT_EQ(events.versions.size(), 2U);
  EXPECT_EQ(events.restarts, std::vector<int64_t>{3});
  EXPECT_EQ(events.scalars.at("train/grad_norm"), (Values{{1, 1.5f}, {2, 1.5f}, {3, 2.0f}}));
}

TEST(EventsFolder, IsTheOneAskedForElseOneOfTheRun) {
  const TempFolder folder;
  EXPECT_EQ(events_folder(folder.path(), "logs", 0), "logs");
  const fs::path fresh = events_folder(folder.path(), "", 0);
  EXPECT_EQ(fresh.parent_path(), folder / "runs");
  EXPECT_TRUE(std::regex_match(fresh.filename().string(),
                               std::regex("[A-Z][a-z]{2}[0-3][0-9]_([0-9]{2}-){2}[0-9]{2}_.+")))
      << fresh;
  EXPECT_EQ(events_folder(folder.path(), "", 5).parent_path(), folder / "runs");
  fs::create_directories(folder / "runs/old");
  fs::create_directories(folder / "runs/new");
  fs::last_write_time(folder / "runs/old",
                      fs::last_write_time(folder / "runs/new") - std::chrono::seconds(10));
  EXPECT_EQ(events_folder(folder.path(), "", 5), folder / "runs/new");
  EXPECT_NE(events_folder(folder.path(), "", 0), folder / "runs/new");
}

TEST(DeepspeedMonitors, WriteEveryStepOverTheSamplesSeen) {
  const TempFolder folder;
  for (const int64_t resumed : {0, 2}) {
    DeepspeedMonitor monitor({folder / "events", folder / "tables"});
    monitor.begin({.total_batch_size = 16, .resumed_step = resumed});
    for (int64_t step = resumed + 1; step <= 3; ++step) monitor.step(step_record(step));
    monitor.finish({});
  }
  EXPECT_EQ(read_text(folder / "tables/Train_Samples_train_loss.csv"),
            "step,train_loss\n16,8.0\n32,7.0\n48,6.0\n");
  EXPECT_EQ(read_text(folder / "tables/Train_Samples_lr.csv"),
            "step,lr\n16,0.25\n32,0.25\n48,0.25\n");
  const Events events = read_folder(folder / "events");
  EXPECT_EQ(events.scalars.at("Train/Samples/train_loss"),
            (Values{{16, 8.0f}, {32, 7.0f}, {48, 6.0f}}));
  EXPECT_EQ(events.scalars.at("Train/Samples/lr").size(), 3U);
  EXPECT_EQ(events.restarts, std::vector<int64_t>{33});
}

TEST(DeepspeedMonitors, ATornRowIsDropped) {
  const TempFolder folder;
  std::ofstream(folder / "Train_Samples_lr.csv") << "step,lr\n16,0.25\n32,0.2";
  DeepspeedMonitor monitor({"", folder.path()});
  monitor.begin({.total_batch_size = 16, .resumed_step = 2});
  EXPECT_EQ(read_text(folder / "Train_Samples_lr.csv"), "step,lr\n16,0.25\n");
}

}  // namespace
}  // namespace trireme::metrics
