// kill -9 of a rank or of the launcher at any moment, resumed until the run is done: weights,
// moments and the log are bit for bit those of a run that nobody killed. TRIREME_KILLS says how
// often (10).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "support/program.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using store::Clock;

/// Runs with accumulation (the last step of an epoch has less), several epochs, evaluation.
struct Layout {
  int ranks;
  Flags flags;
};

std::vector<Layout> layouts() {
  return {{2, {{"zero_stage", "3"}}},
          {1, {{"zero_stage", "0"}}},
          {2, {{"zero_stage", "1"}, {"bf16", "true"}, {"reduce_dtype", "bf16"}}},
          {3, {{"zero_stage", "2"}, {"optim", "sgd"}}},
          {4,
           {{"tensor_parallel_size", "2"},
            {"pipeline_parallel_size", "2"},
            {"pipeline_schedule", "zero_bubble"}}}};
}

class Killer {
 public:
  explicit Killer(int kills) : left_(kills) {}

  bool done() const { return left_ == 0; }

  /// Runs a layout to its end, killing it on the way, and compares it with its unbroken run.
  void attack(const Layout& layout) {
    make_reference(layout);
    while (!run_once(layout)) {
    }
    compare();
  }

 private:
  Words words(const Layout& layout, bool resume) const {
    Flags flags = with(work_.flags(), {{"output_dir", work_ / "out"},
                                       {"gradient_accumulation_steps", "3"},
                                       {"max_steps", "36"},
                                       {"save_strategy", "steps"},
                                       {"save_steps", "4"},
                                       {"save_total_limit", "2"},
                                       {"eval_strategy", "steps"},
                                       {"eval_steps", "6"},
                                       {"eval_path", work_ / "eval.jsonl"}});
    flags = with(flags, layout.flags);
    if (resume) flags["resume_from_checkpoint"] = "true";
    return launched(layout.ranks, command("train", flags), {"--master_port", port_});
  }

  void make_reference(const Layout& layout) {
    write_rows(work_ / "eval.jsonl", 7, 2);
    for (const char* folder : {"unbroken", "out"}) fs::remove_all(work_ / folder);
    const auto begin = Clock::now();
    const Outcome outcome = work_.run(words(layout, false));
    duration_ = std::chrono::duration<double>(Clock::now() - begin).count();
    ASSERT_EQ(outcome.code, 0) << outcome.text();
    fs::rename(work_ / "out", work_ / "unbroken");  // its files name the folder it ran in
  }

  /// Whether the run got to its end.
  bool run_once(const Layout& layout) {
    const auto checkpoints = checkpoint::list_folders(work_ / "out");
    auto job = work_.start(words(layout, !checkpoints.empty()));
    const std::string story = left_ > 0 ? kill_it(*job, layout.ranks) : "left alone";
    const int code = job->finish();
    if (code == 0) return true;
    EXPECT_EQ(code, 128 + SIGKILL) << story << "\n" << job->err();
    EXPECT_GT(left_, 0) << story;
    work_.expect_nothing_left();
    if (testing::Test::HasFailure()) throw std::runtime_error(story);
    --left_;
    return false;
  }

  /// At a random moment of an unbroken run's length: the launcher or one of the ranks.
  std::string kill_it(Running& job, int ranks) {
    const double moment = std::uniform_real_distribution(0.0, duration_)(random_);
    std::this_thread::sleep_for(std::chrono::duration<double>(moment));
    const int launcher = job.process().pid();
    const std::vector<int> workers = children_of(launcher);
    const auto pick = static_cast<size_t>(random_() % (static_cast<unsigned>(ranks) + 1));
    if (pick >= workers.size()) {
      job.process().signal(SIGKILL);
      return fmt::format("the launcher, after {:.3f} s", moment);
    }
    kill(workers[pick], SIGKILL);
    return fmt::format("rank {}, after {:.3f} s", pick, moment);
  }

  /// A file without what the clock wrote.
  static std::string content(const fs::path& file) {
    if (file.extension() == ".jsonl") return Json(read_metrics(file)).dump();
    if (file.extension() != ".json") return read_bytes(file);
    if (file.filename() != checkpoint::kManifestName) return without_clock(read_json(file)).dump();
    checkpoint::Manifest manifest = checkpoint::read_manifest(file.parent_path());
    manifest.run.clear();
    // Its hash is that of what the clock wrote too.
    std::erase_if(manifest.files, [](const checkpoint::FileEntry& entry) {
      return entry.file.name == "trainer_state.json";
    });
    return checkpoint::format_manifest(manifest);
  }

  void compare() const {
    const fs::path broken = work_ / "out";
    const fs::path unbroken = work_ / "unbroken";
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(unbroken)) {
      if (entry.is_regular_file()) names.push_back(fs::relative(entry.path(), unbroken));
    }
    EXPECT_GT(names.size(), 8U);
    for (const std::string& name : names) {
      if (name == "run_config.json" || name == "run_id") continue;
      const std::string mine = content(broken / name), whole = content(unbroken / name);
      EXPECT_TRUE(mine == whole) << name << (name.ends_with(".json") ? ": " + mine + whole : "");
    }
    for (const auto& entry : fs::directory_iterator(broken)) {
      // A log that began anew once.
      if (entry.path().filename().string().find("-of-") != std::string::npos) continue;
      EXPECT_TRUE(fs::exists(unbroken / entry.path().filename())) << entry.path() << " is left";
    }
  }

  Workplace work_;
  const std::string port_ = std::to_string(quiet_port());
  std::mt19937 random_{20260};
  double duration_ = 0;
  int left_;
};

TEST(Kill, AtAnyMomentARunIsResumedAsIfNothingHadBeen) {
  const char* asked = std::getenv("TRIREME_KILLS");
  Killer killer(asked != nullptr ? std::stoi(asked) : 10);
  for (size_t round = 0; !killer.done(); ++round) {
    const std::vector<Layout> all = layouts();
    killer.attack(all[round % all.size()]);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace trireme::test
