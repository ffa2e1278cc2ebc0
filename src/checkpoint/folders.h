// The folders of one output_dir: checkpoint-N, the pointer file `latest`, half-written ones.
//
// A run that starts afresh has an id, which its manifests carry, as do those of every run that goes
// on from them; `run_id` names the run that output_dir is used by. Checkpoints of other runs are
// neither taken instead of a damaged one nor removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

struct CheckpointFolder {
  int64_t step = 0;
  std::filesystem::path path;
  bool has_manifest = false;
};

/// Whose checkpoints are: each manifest is read once, and again only when it is another file.
class KnownRuns {
 public:
  /// The run that a folder's manifest names; nullopt without a sound one.
  std::optional<std::string> run_of(const std::filesystem::path& checkpoint);
  int64_t manifests_read() const { return manifests_read_; }

 private:
  struct Known {
    std::vector<int64_t> file;  // what tells it from another file
    std::string run;
  };
  std::map<std::filesystem::path, Known> known_;  // by folder
  int64_t manifests_read_ = 0;
};

std::string folder_name(int64_t step);  // "checkpoint-500"

/// Every folder named checkpoint-N, in the order in which a resume tries them: the one that
/// `latest` names, earlier ones from the newest, then those beyond it (left by a run that was
/// resumed from an earlier step). Without a usable `latest`: from the newest. An absent output_dir
/// has none.
std::vector<CheckpointFolder> list_folders(const std::filesystem::path& output_dir);

/// The checkpoints of one run, in the order of list_folders; from the newest where `latest` names
/// one of another run. Of an unreadable manifest nobody knows whose it is: such folders are listed
/// when `with_unreadable`. `known`: of earlier calls; null: nothing is known.
std::vector<CheckpointFolder> folders_of_run(const std::filesystem::path& output_dir,
                                             std::string_view run, bool with_unreadable = false,
                                             KnownRuns* known = nullptr);

/// Those whose manifests name another run.
std::vector<CheckpointFolder> folders_of_other_runs(const std::filesystem::path& output_dir,
                                                    std::string_view run);

/// Those that set_aside renamed, by name.
std::vector<std::filesystem::path> folders_set_aside(const std::filesystem::path& output_dir);

/// The checkpoint of `run` after update `step`, also where set_aside renamed it; "" without one.
std::filesystem::path find_of_run(const std::filesystem::path& output_dir, std::string_view run,
                                  int64_t step);

/// 16 random hexadecimal digits.
std::string new_run_id();
/// What `run_id` says; without it, the run of the first checkpoint of list_folders; else "".
std::string current_run(const std::filesystem::path& output_dir);
/// Writes `run_id`, atomically and durably; makes output_dir.
void begin_run(const std::filesystem::path& output_dir, std::string_view run);

/// Writes `latest`, atomically and durably.
void point_to(const std::filesystem::path& output_dir, int64_t step);

/// Makes room for checkpoint-N of `run`: a folder that is not that run's gets the name
/// checkpoint-N-of-OTHER, where a resume finds it when it is named. Returns that name; "" when
/// there was none. Not yet durable.
std::string set_aside(const std::filesystem::path& checkpoint, std::string_view run);

/// Moves `temporary` to `final_path` in one step, also when a folder is there already: that one is
/// then at `temporary`. Not yet durable: fsync the parent.
void swap_into_place(const std::filesystem::path& temporary,
                     const std::filesystem::path& final_path);

/// Removes half-written checkpoints (checkpoint-*.tmp-*). The caller is the only run that writes to
/// output_dir.
void remove_leftovers(const std::filesystem::path& output_dir);

/// Keeps `limit` checkpoints of a run, the first of list_folders, and removes the others; that of
/// `best_step` is among them, and one more than a limit of 1 where it is not the first. What is of
/// other runs or has no manifest stays. 0: keeps all. Returns the names removed.
std::vector<std::string> rotate(const std::filesystem::path& output_dir, std::string_view run,
                                int64_t limit, std::optional<int64_t> best_step = {},
                                KnownRuns* known = nullptr);

}  // namespace trireme::checkpoint
