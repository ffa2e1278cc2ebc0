// Saving and loading where things go wrong: killed at every point, a full disk, damaged files. What
// must hold: a complete earlier checkpoint, or the new one, is found and is whole; every rank
// learns the same reason; nothing half-written stays.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>
#include <regex>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/folders.h"
#include "checkpoint_support.h"
#include "support/temp_folder.h"

namespace trireme::checkpoint {
namespace {

using test::message_of;
using test::TempFolder;

constexpr int kRanks = 3;

/// How a forked child that ran `body` ended: its exit code, or 128 + signal.
int run_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void save_good(const std::filesystem::path& folder, int64_t step) {
  // Small blocks, so that files have many.
  const auto errors =
      save_on_threads({.output_dir = folder, .step = step, .block_bytes = 512}, kRanks);
  ASSERT_EQ(errors, std::vector<std::string>(kRanks));
}

/// Names in the folder that are neither checkpoint-N nor the pointer.
std::vector<std::string> leftovers(const std::filesystem::path& folder) {
  std::vector<std::string> names = list_folder(folder);
  std::erase_if(names, [](const std::string& name) {
    return name == "latest" || name.find(".tmp") == std::string::npos;
  });
  return names;
}

int64_t newest_whole_step(const std::filesystem::path& folder) {
  SingleRank alone;
  const auto found = find_newest(folder, alone);
  if (!found) return -1;
  EXPECT_EQ(sample_difference(found->folder), "");
  return CheckpointReader(found->folder).step();
}

/// Every rank that passes `point` does `what`.
SaveRequest request_with(const std::filesystem::path& folder, int64_t step, SavePoint point,
                         const std::function<void()>& what) {
  SaveRequest request{.output_dir = folder, .step = step};
  request.at_point = [=](SavePoint reached) {
    if (reached == point) what();
  };
  return request;
}

class SavePointTest : public testing::TestWithParam<int> {
 protected:
  SavePoint point() const { return static_cast<SavePoint>(GetParam()); }
  /// What a resume finds when step 1 was saved and saving step 2 ended here.
  int64_t expected_step() const { return point() >= SavePoint::pointer_written ? 2 : 1; }
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(All, SavePointTest, testing::Range(0, kNumSavePoints));

TEST_P(SavePointTest, KilledThereLeavesAWholeCheckpoint) {
  save_good(folder_.path(), 1);
  SaveRequest request = request_with(folder_.path(), 2, point(), [] { ::raise(SIGKILL); });
  request.save_total_limit = 1;
  EXPECT_EQ(run_child([&] { save_on_threads(request, kRanks); }), 128 + SIGKILL);
  EXPECT_EQ(newest_whole_step(folder_.path()), expected_step());
  save_good(folder_.path(), 3);
  EXPECT_EQ(newest_whole_step(folder_.path()), 3);
  EXPECT_TRUE(leftovers(folder_.path()).empty()) << "the next save removes what was half-written";
}

TEST_P(SavePointTest, FailingThereTellsAllRanksAndLeavesNothing) {
  save_good(folder_.path(), 1);
  const SaveRequest request = request_with(
      folder_.path(), 2, point(), [] { throw DeviceError("write('x'): Input/output error"); });
  const std::vector<std::string> errors = save_on_threads(request, kRanks);
  if (point() >= SavePoint::pointer_written) {  // safe already: a warning
    EXPECT_EQ(errors, std::vector<std::string>(kRanks));
    EXPECT_EQ(newest_whole_step(folder_.path()), 2);
    return;
  }
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_NE(error.find("checkpoint-2 was not saved: rank 0: write('x'): Input/output error"),
              std::string::npos)
        << error;
  }
  EXPECT_TRUE(leftovers(folder_.path()).empty());
  EXPECT_EQ(newest_whole_step(folder_.path()), 1);
}

TEST_P(SavePointTest, LosingARankThereFreesTheOthers) {
  save_good(folder_.path(), 1);
  const SaveRequest request = request_with(folder_.path(), 2, point(), [] {
    throw CommError("lost");  // leaves the rank's function as a dying rank would
  });
  for (const std::string& error : save_on_threads(request, kRanks)) EXPECT_NE(error, "");
  EXPECT_EQ(newest_whole_step(folder_.path()), expected_step());
}

TEST(CheckpointFault, OnlyTheFailingRankIsNamed) {
  const TempFolder folder;
  const Cut cut = random_cut(kRanks, 1);
  const std::vector<std::string> errors = test::run_ranks(kRanks, [&](Coordinator& ranks) {
    SaveRequest request{.output_dir = folder.path(), .step = 2};
    if (ranks.rank() == 2) {
      request.at_point = [](SavePoint point) {
        if (point == SavePoint::half_written)
          throw DeviceError("pwrite('y'): No space left on device");
      };
    }
    save_sample(request, cut, ranks);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "checkpoint-2 was not saved: rank 2: pwrite('y'): No space left on device");
  }
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

TEST(CheckpointFault, UnwritableOutputIsToldToAll) {
  const TempFolder folder;
  write_new_file(folder / "file", "x");
  const auto errors = save_on_threads({.output_dir = folder / "file" / "out", .step = 1}, kRanks);
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("checkpoint-1 was not saved: rank 0: mkdir("), std::string::npos) << error;
  }
}

/// A file-size limit strikes each rank in the middle of its file, wherever the disk is.
TEST(CheckpointFault, FileSizeLimit) {
  const TempFolder folder;
  save_good(folder.path(), 1);
  EXPECT_EQ(run_child([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{6000, RLIM_INFINITY};
              ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
              const auto errors = save_on_threads({.output_dir = folder.path(), .step = 2}, kRanks);
              for (const std::string& error : errors) {
                EXPECT_EQ(error, errors[0]);
                EXPECT_NE(error.find("File too large"), std::string::npos) << error;
              }
            }),
            0);
  EXPECT_TRUE(leftovers(folder.path()).empty());
  EXPECT_EQ(newest_whole_step(folder.path()), 1);
}

/// Runs `body` with a small tmpfs mounted on `folder`, in a mount namespace of its own; 77 when
/// this machine does not allow that.
int run_on_small_disk(const std::filesystem::path& folder, const char* options,
                      const std::function<void()>& body) {
  return run_child([&] {
    const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("none", folder.c_str(), "tmpfs", 0, options) == 0;
    if (!mounted) ::_exit(77);
    body();
  });
}

void expect_told_to_all(const std::vector<std::string>& errors, std::string_view reason) {
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_NE(error.find(reason), std::string::npos) << error;
  }
}

TEST(CheckpointFault, FullDisk) {
  const TempFolder folder;
  const int code = run_on_small_disk(folder.path(), "size=256k", [&] {
    save_good(folder.path(), 1);
    // The disk fills while ranks write: the room was there when it was checked.
    SaveRequest request{.output_dir = folder.path(), .step = 2};
    request.at_point = [&](SavePoint point) {
      if (point == SavePoint::folder_made) {
        std::ofstream(folder / "filler", std::ios::app) << std::string(256 << 10, 'x');
      }
    };
    expect_told_to_all(save_on_threads(request, kRanks), "No space left on device");
    EXPECT_TRUE(leftovers(folder.path()).empty());
    EXPECT_EQ(newest_whole_step(folder.path()), 1);
    // And is seen to be full beforehand.
    expect_told_to_all(save_on_threads({.output_dir = folder.path(), .step = 3}, kRanks),
                       "left, the checkpoint needs");
    remove_tree(folder / "filler");
    save_good(folder.path(), 4);
    EXPECT_EQ(newest_whole_step(folder.path()), 4);
  });
  if (code == 77) GTEST_SKIP() << "no permission to mount a tmpfs; FileSizeLimit covers the path";
  EXPECT_EQ(code, 0);
}

TEST(CheckpointFault, DiskOutOfInodes) {
  const TempFolder folder;
  const int code = run_on_small_disk(folder.path(), "size=4m,nr_inodes=9", [&] {
    save_good(folder.path(), 1);  // root, folder, 3 files, manifest, latest: 2 left
    expect_told_to_all(save_on_threads({.output_dir = folder.path(), .step = 2}, kRanks),
                       "No space left on device");
    EXPECT_TRUE(leftovers(folder.path()).empty());
    EXPECT_EQ(newest_whole_step(folder.path()), 1);
  });
  if (code == 77) GTEST_SKIP() << "no permission to mount a tmpfs";
  EXPECT_EQ(code, 0);
}

std::string bytes_of(const std::filesystem::path& path) {
  return read_text_file(path, int64_t{1} << 30);
}

void overwrite(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

class DamageTest : public testing::Test {
 protected:
  void SetUp() override {
    save_good(folder_.path(), 1);
    save_good(folder_.path(), 2);
  }
  std::filesystem::path newest() const { return folder_ / "checkpoint-2"; }

  /// All ranks skip checkpoint-2, saying why, and load checkpoint-1, cut as it was saved or
  /// otherwise.
  void expect_fallback(const std::string& file, const std::string& what) {
    expect_fallback(file, what, random_cut(kRanks, ++cuts_ % 2 == 0 ? 1 : cuts_),
                    [](Coordinator&, CheckpointReader&, const auto& read) { return read(); });
  }
  /// `around(ranks, reader, read)` returns read().
  template <typename Around>
  void expect_fallback(const std::string& file, const std::string& what, const Cut& cut,
                       const Around& around) {
    std::vector<std::string> skipped(kRanks);
    const auto errors = test::run_ranks(kRanks, [&](Coordinator& ranks) {
      const auto& mine = cut[static_cast<size_t>(ranks.rank())];
      std::vector<std::vector<float>> loaded;
      const auto found = find_newest(folder_.path(), ranks, [&](CheckpointReader& reader) {
        loaded = around(ranks, reader, [&] { return read_boxes(reader, mine); });
      });
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->folder.filename(), "checkpoint-1") << what;
      EXPECT_EQ(found->manifest.step, 1);
      EXPECT_EQ(loaded, sample_boxes(1, mine));
      if (found->skipped.size() == 1) {
        skipped[static_cast<size_t>(ranks.rank())] = found->skipped[0];
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(kRanks)) << what;
    EXPECT_TRUE(skipped[0].starts_with("checkpoint-2 skipped: ")) << what << skipped[0];
    EXPECT_NE(skipped[0].find(file), std::string::npos) << what << skipped[0];
    EXPECT_EQ(skipped, std::vector<std::string>(kRanks, skipped[0]));
  }
  TempFolder folder_;
  uint32_t cuts_ = 0;
};

TEST_F(DamageTest, AnyFlippedByteOfAnyFileIsFound) {
  std::mt19937 random(3);
  for (const std::string& name : list_folder(newest())) {
    const std::string good = bytes_of(newest() / name);
    std::vector<size_t> places = {0, 7, 8, 40, 100, good.size() / 2, good.size() - 1};
    for (int i = 0; i < 8; ++i) places.push_back(random() % good.size());
    for (const size_t at : places) {
      std::string bad = good;
      bad[at] ^= static_cast<char>(1 << random() % 8);
      overwrite(newest() / name, bad);
      expect_fallback(name, name + " byte " + std::to_string(at) + ": ");
    }
    overwrite(newest() / name, good);
  }
  EXPECT_EQ(newest_whole_step(folder_.path()), 2);
}

/// What one rank alone read wrongly must not be trained from by any: not by it, nor by the others.
TEST_F(DamageTest, WhatOneRankAloneSawCountsForAll) {
  const Cut cut = random_cut(kRanks, 1);
  const std::string name = "rank-00001-of-00003.safetensors";
  const std::string good = bytes_of(newest() / name);
  std::string bad = good;
  bad[good.size() / 2] ^= 4;
  const auto rank_1_sees_it = [&](Coordinator& ranks, CheckpointReader& reader, const auto& read) {
    if (ranks.rank() != 1 || reader.step() != 2) return read();
    overwrite(newest() / name, bad);
    auto values = read();
    overwrite(newest() / name, good);  // good again when the ranks check what nobody read
    return values;
  };
  expect_fallback(name, "flipped for one rank", cut, rank_1_sees_it);
  EXPECT_EQ(newest_whole_step(folder_.path()), 2);
}

TEST_F(DamageTest, TruncatedGrownSwappedAndMissingFilesAreFound) {
  for (const std::string& name : list_folder(newest())) {
    const std::string good = bytes_of(newest() / name);
    for (const size_t size : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 1}) {
      overwrite(newest() / name, good.substr(0, size));
      expect_fallback(name, name + " cut to " + std::to_string(size) + ": ");
    }
    overwrite(newest() / name, good + "x");
    expect_fallback(name, name + " grown: ");
    if (name != kManifestName) {
      overwrite(newest() / name, bytes_of(folder_ / "checkpoint-1" / name));
      expect_fallback(name, name + " of another step: ");
      remove_tree(newest() / name);
      expect_fallback(name, name + " missing: ");
    }
    overwrite(newest() / name, good);
  }
  EXPECT_EQ(newest_whole_step(folder_.path()), 2);
  // Without its manifest a folder is no checkpoint at all.
  remove_tree(newest() / kManifestName);
  EXPECT_EQ(newest_whole_step(folder_.path()), 1);
}

TEST_F(DamageTest, NoneLeftIsAnErrorAndANamedOneIsNotReplaced) {
  for (const char* name : {"checkpoint-1", "checkpoint-2"}) {
    overwrite(folder_ / name / "rank-00000-of-00003.safetensors", "x");
  }
  SingleRank alone;
  const std::string message = message_of<DataError>([&] { find_newest(folder_.path(), alone); });
  EXPECT_NE(message.find("no checkpoint can be used: checkpoint-2 skipped: rank-00000-of-00003"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("checkpoint-1 skipped"), std::string::npos);
  EXPECT_TRUE(
      message.ends_with("; name another one, or leave resume_from_checkpoint out to start afresh"));
  EXPECT_NE(
      message_of<ConfigError>([&] { open_named(newest(), "resume_from_checkpoint", alone); })
          .find("resume_from_checkpoint = " + newest().string() +
                ": it cannot be used: rank-00000-of-00003.safetensors has 1 bytes instead of"),
      std::string::npos);
}

/// Manifests with a right hash and wrong contents.
TEST_F(DamageTest, HostileManifests) {
  const std::string good = bytes_of(newest() / kManifestName);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string body = good.substr(good.find('\n') + 1);
    const size_t at = body.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    body.replace(at, from.size(), to);
    overwrite(newest() / kManifestName, "{\"xxh3\": \"" + to_hex(hash128(body)) + "\",\n" + body);
    return message_of<DataError>([&] { CheckpointReader reader(newest()); });
  };
  EXPECT_EQ(with("\"version\": 2", "\"version\": 2"), "");
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"rank-00000-of", "../rank-00000-of"},
      {"\"version\": 2", "\"version\": 3"},
      {"\"version\": 2", "\"version\": 0"},
      {"\"list\": [512, ", "\"list\": [100, "},
      {"\"list\": [512, ", "\"list\": [0, "},
      {"\"list\": [512, ", "\"list\": [1, 512, "},
      {"\"list\": [512, ", "\"list\": [512, 9"},
      {"trireme checkpoint", "another"},
      {"\"step\": 2", "\"step\": -2"},
      {"\"boxes\": [[0, 0, ", "\"boxes\": [[99, 0, "},
      {"\"boxes\": [[0, 0, ", "\"boxes\": [[0, 99, "},
      {"\"boxes\": [[0, 0, ", "\"boxes\": [[0, 0, 9"},
      {"\"boxes\": [[0, 0, ", "\"boxes\": [[0, 0, -1, "},
      {"[40, 24]", "[4000000000000000000, 24]"},
      {"[40, 24]", "[41, 24]"},
      {"[40, 24]", "[40]"},
      {"[40, 24]", "[1, 1, 1, 1, 1, 1, 1, 40, 24]"},
      {"\"tensors\": [", "\"tensors\": {}, \"x\": ["},
      {"\"planes\"", "\"plans\""},
      {"\"bytes\": ", "\"bytes\": \"1\", \"x\": "},
  };
  for (const auto& [from, to] : changes) {
    const std::string message = with(from, to);
    EXPECT_TRUE(message.starts_with((newest() / kManifestName).string())) << to << ": " << message;
  }
}

/// The child of CheckpointOrder, run under strace.
TEST(CheckpointOrder, DISABLED_SaveForTrace) {
  const char* folder = std::getenv("TRIREME_TRACED_FOLDER");
  ASSERT_NE(folder, nullptr);
  const auto errors = save_on_threads({.output_dir = folder, .step = 2, .save_total_limit = 1}, 2);
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

/// Where in a trace the first call that `pattern` finds is over.
size_t place(const std::vector<std::string>& calls, const std::string& pattern) {
  const std::regex expression(pattern);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!std::regex_search(calls[i], expression)) continue;
    // A call that another thread interrupts is over where the trace has its thread again.
    if (calls[i].find("<unfinished") == std::string::npos) return i;
    const std::string thread = calls[i].substr(0, calls[i].find(' ') + 1);
    for (size_t k = i + 1; k < calls.size(); ++k) {
      if (calls[k].starts_with(thread)) return k;
    }
  }
  ADD_FAILURE() << "no call like " << pattern;
  return 0;
}

/// A page cache survives kill -9, so only the order of calls shows that power may fail at any time.
TEST(CheckpointOrder, EverythingIsDurableBeforeItIsNeededAndOldOnesGoLast) {
  if (std::system("strace -o /dev/null true >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "strace is not installed or not permitted: the order of fsync and rename is "
                    "NOT checked";
  }
  const TempFolder folder;
  const TempFolder scratch;
  save_good(folder.path(), 1);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      "ASAN_OPTIONS=detect_leaks=0 TRIREME_TRACED_FOLDER='" + folder.path().string() +
      "' strace -f -y -o '" + (scratch / "trace").string() +
      "' -e trace=fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir '" + self +
      "' --gtest_also_run_disabled_tests --gtest_filter=CheckpointOrder.DISABLED_SaveForTrace"
      " >/dev/null 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::vector<std::string> calls;
  std::ifstream trace(scratch / "trace");
  for (std::string line; std::getline(trace, line);) calls.push_back(line);

  const std::string name = folder.path().filename().string();
  const std::string temporary = "/checkpoint-2\\.tmp-\\w+";
  const std::vector<std::string> order = {
      "fsync\\(\\d+<.*" + temporary + "/manifest\\.json>",
      "fsync\\(\\d+<.*" + temporary + ">",
      "rename\\w*\\(.*" + temporary + "\", .*/checkpoint-2\"",
      "fsync\\(\\d+<.*/" + name + ">",
      "fsync\\(\\d+<.*/latest\\.tmp>",
      "rename\\w*\\(.*/latest\\.tmp\", .*/latest\"",
      "rename\\w*\\(.*/checkpoint-1\", ",
  };
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    EXPECT_LT(place(calls, order[i]), place(calls, order[i + 1])) << order[i + 1];
  }
  for (const char* file : {"rank-00000-of-00002", "rank-00001-of-00002"}) {
    const std::string data = "fsync\\(\\d+<.*" + temporary + "/" + file + "\\.safetensors>";
    EXPECT_LT(place(calls, data), place(calls, order[0]));
  }
  EXPECT_EQ(newest_whole_step(folder.path()), 2);
}

}  // namespace
}  // namespace trireme::checkpoint
