// The folders of one output_dir: checkpoint-N, the pointer file `latest`, half-written ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

struct CheckpointFolder {
  int64_t step = 0;
  std::filesystem::path path;
  bool has_manifest = false;
};

std::string folder_name(int64_t step);  // "checkpoint-500"

/// Every folder named checkpoint-N, in the order in which a resume tries them: the one that
/// `latest` names, earlier ones from the newest, then those beyond it (left by a run that was
/// resumed from an earlier step). Without a usable `latest`: from the newest. An absent output_dir
/// has none.
std::vector<CheckpointFolder> list_folders(const std::filesystem::path& output_dir);

/// Writes `latest`, atomically and durably.
void point_to(const std::filesystem::path& output_dir, int64_t step);

/// Moves `temporary` to `final_path` in one step, also when a folder is there already: that one is
/// then at `temporary`. Not yet durable: fsync the parent.
void swap_into_place(const std::filesystem::path& temporary,
                     const std::filesystem::path& final_path);

/// Removes half-written checkpoints (checkpoint-*.tmp-*). The caller is the only run that writes to
/// output_dir.
void remove_leftovers(const std::filesystem::path& output_dir);

/// Keeps `limit` checkpoints, the first of list_folders, and removes the others; that of
/// `best_step` is among them, and one more than a limit of 1 where it is not the first. Folders
/// without a manifest are not ours and stay. 0: keeps all. Returns the names removed.
std::vector<std::string> rotate(const std::filesystem::path& output_dir, int64_t limit,
                                std::optional<int64_t> best_step = {});

}  // namespace trireme::checkpoint
