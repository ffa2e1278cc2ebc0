// The run around the session: what its host does while steps run, and when it gives up.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <set>

#include "base/json.h"
#include "checkpoint/hf_export.h"
#include "exec/executor.h"
#include "support/backends.h"
#include "support/recording_device.h"
#include "support/run_world.h"
#include "support/source_folder.h"
#include "support/temp_folder.h"
#include "train/state_sources.h"
#include "train/step_trace.h"

namespace trireme::testing {
namespace {

std::filesystem::path golden() { return source_folder() / "tests/golden/data/qwen2"; }

std::vector<std::string> arguments(const std::filesystem::path& model,
                                   const std::filesystem::path& output, int steps) {
  return {"--model_name_or_path",
          model.string(),
          "--data_path",
          (golden() / "train.jsonl").string(),
          "--output_dir",
          output.string(),
          "--max_steps",
          std::to_string(steps),
          "--zero_stage",
          "3",
          "--save_strategy",
          "no",
          "--logging_steps",
          "1",
          "--learning_rate",
          "1e-3",
          "--per_device_train_batch_size",
          "2",
          "--gradient_accumulation_steps",
          "2"};
}

/// Ends of training steps and waits of the host, in the order in which one rank asked for them.
class HostLog {
 public:
  explicit HostLog(const std::vector<std::string>& calls) {
    bool trains = false;
    for (const std::string& call : calls) {
      trains |= call.find("step_control") != std::string::npos;
      if (const int ticket = number(call, "compute: record "); is_ticket(ticket)) {
        if (trains) steps.push_back(ticket);
        trains = false;
      }
      if (const int event = number(call, "host waits for "); event >= 0) {
        waits.push_back({event, steps.size()});
      }
    }
  }

  struct Wait {
    int event = 0;
    size_t steps_enqueued = 0;
  };
  std::vector<int> steps;  // the event that each training step ends with
  std::vector<Wait> waits;

 private:
  static int number(const std::string& call, const std::string& prefix) {
    return call.starts_with(prefix) ? std::stoi(call.substr(prefix.size())) : -1;
  }
  /// The executor numbers the ends of programs first.
  static bool is_ticket(int event) { return event >= 0 && event <= exec::Executor::kTicketsKept; }
};

TEST(Run, TheHostWaitsOnceAStepForTheStepBefore) {
  const int ranks = std::min(2, max_ranks());
  const test::TempFolder temporary;
  std::vector<std::vector<std::string>> calls(static_cast<size_t>(ranks));
  class KeepingDevice final : public ForwardingDevice {
   public:
    KeepingDevice(std::unique_ptr<RecordingDevice> inner, std::vector<std::string>& calls)
        : ForwardingDevice(static_cast<device::Device&>(*inner)),
          inner_(std::move(inner)),
          calls_(calls) {}
    ~KeepingDevice() override { calls_ = inner_->take(); }

   private:
    std::unique_ptr<RecordingDevice> inner_;
    std::vector<std::string>& calls_;
  };
  constexpr int kSteps = 8;
  const auto errors = run_in_process(
      arguments(golden(), temporary / "out", kSteps), ranks, [&](int rank, device::Device& device) {
        return std::make_unique<KeepingDevice>(std::make_unique<RecordingDevice>(device),
                                               calls[static_cast<size_t>(rank)]);
      });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  for (const auto& of_rank : calls) {
    const HostLog log(of_rank);
    ASSERT_EQ(log.steps.size(), static_cast<size_t>(kSteps));
    for (size_t enqueued = 1; enqueued < kSteps; ++enqueued) {
      std::vector<int> waited;
      for (const HostLog::Wait& wait : log.waits) {
        if (wait.steps_enqueued == enqueued) waited.push_back(wait.event);
      }
      // Step `enqueued` is already there when the host looks at the one before.
      const std::vector<int> before =
          enqueued > 1 ? std::vector<int>{log.steps[enqueued - 2]} : std::vector<int>{};
      EXPECT_EQ(waited, before) << "with " << enqueued << " steps enqueued";
    }
    EXPECT_EQ(std::count(of_rank.begin(), of_rank.end(), "host waits for everything"), 0);
  }
}

TEST(Run, SaysOnceWhatTheBackendHasToSay) {
  const test::TempFolder temporary;
  ::testing::internal::CaptureStdout();
  const auto errors = run_in_process(arguments(golden(), temporary / "out", 2),
                                     std::min(2, max_ranks()), {}, {"the sky is blue"});
  const std::string said = ::testing::internal::GetCapturedStdout();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  const size_t first = said.find("note: the sky is blue\n");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("the sky is blue", first + 20), std::string::npos) << said;
}

/// `--profile_steps`: the streams of those steps by the program's names, and nothing else changes.
TEST(Run, TracesTheStepsItIsAskedFor) {
  const int ranks = std::min(2, max_ranks());
  const test::TempFolder temporary;
  std::vector<std::string> losses;
  for (const std::string range : {"none", "2:3"}) {
    std::vector<std::string> args = arguments(golden(), temporary / range, 4);
    args.insert(args.end(), {"--profile_steps", range});
    for (const std::string& error : run_in_process(args, ranks)) ASSERT_EQ(error, "");
    std::ifstream metrics(temporary / range / "metrics.jsonl");
    std::string text;
    for (std::string line; std::getline(metrics, line);) {
      text += line.substr(0, line.find("\"tokens_per_second\"")) + "\n";
    }
    losses.push_back(text);
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_FALSE(std::filesystem::exists(temporary / "none" / train::StepTrace::file_name(0)));
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(temporary / "2:3" / train::StepTrace::file_name(rank));
    const Json trace = Json::parse(file);
    std::set<std::string> names, tracks;
    std::set<int64_t> steps;
    for (const Json& event : trace.at("traceEvents")) {
      EXPECT_EQ(event.at("pid"), rank);
      if (event.at("ph") == "X") {
        names.insert(event.at("name"));
        steps.insert(event.at("args").at("run").get<int64_t>());
      } else if (event.at("name") == "thread_name") {
        tracks.insert(event.at("args").at("name"));
      }
    }
    EXPECT_EQ(steps, (std::set<int64_t>{1, 2}));
    for (const char* name : {"forward block.0", "backward block.1", "linear", "adamw"}) {
      EXPECT_TRUE(names.contains(name)) << name;
    }
    EXPECT_TRUE(tracks.contains("compute"));
    EXPECT_TRUE(tracks.contains("copy_in"));
    EXPECT_EQ(tracks.contains("comm.dp"), ranks > 1);
  }
}

TEST(Run, RefusesToTraceStepsItDoesNotHave) {
  const test::TempFolder temporary;
  std::vector<std::string> args = arguments(golden(), temporary / "out", 4);
  args.insert(args.end(), {"--profile_steps", "5:6"});
  for (const std::string& error : run_in_process(args, 1)) {
    EXPECT_EQ(error, "profile_steps = 5:6: this run has 4 steps");
  }
}

/// A weight that is no number makes every gradient one: nothing is trained, and the run ends.
TEST(Run, EndsAfterTooManySkips) {
  const int ranks = std::min(2, max_ranks());
  const test::TempFolder broken;
  const model::ModelGraph model = model::build_model(model::read_model_config(golden()));
  std::vector<model::TensorSpec> tensors;
  for (const model::Parameter& parameter : model.parameters) {
    tensors.push_back({parameter.name, DType::f32, parameter.shape});
  }
  {
    train::FolderSource source(golden(), model);
    checkpoint::HfWriter writer(broken.path(), tensors);
    for (const model::Parameter& parameter : model.parameters) {
      std::vector<float> whole(static_cast<size_t>(parameter.size()));
      source.read(parameter, plan::Plane::master, mesh::whole(parameter.shape), whole.data());
      if (parameter.name == "model.norm.weight") {
        whole[3] = std::numeric_limits<float>::quiet_NaN();
      }
      writer.append(whole.data(), parameter.size());
    }
    writer.finish();
    std::filesystem::copy(golden() / "config.json", broken / "config.json");
  }
  std::vector<std::string> args = arguments(broken.path(), broken / "out", 9);
  args.insert(args.end(), {"--max_consecutive_skips", "3"});
  for (const std::string& error : run_in_process(args, ranks)) {
    EXPECT_NE(error.find("step 3: the gradient was not finite 3 times in a row"), std::string::npos)
        << error;
  }
  std::ifstream metrics(broken / "out/metrics.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(metrics, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_NE(lines[i].find("\"grad_norm\": NaN"), std::string::npos) << lines[i];
    EXPECT_NE(lines[i].find("\"skipped_steps\": " + std::to_string(i + 1)), std::string::npos)
        << lines[i];
  }
}

}  // namespace
}  // namespace trireme::testing
