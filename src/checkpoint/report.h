// The texts of `trireme checkpoint list` and `trireme checkpoint verify`.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::checkpoint {

struct Report {
  std::string text;  // lines, the last one ended
  bool good = true;
};

/// A table of the checkpoints in `output_dir`, in the order in which a resume tries them: name,
/// ranks, files, size, and whether the manifest is sound and its files are there, each as long as
/// it was written. Good when all are; what is in the files is not read.
Report list_report(const std::filesystem::path& output_dir);

/// Re-hashes all files of a checkpoint folder, or of every checkpoint in an output_dir. Good when
/// there is at least one checkpoint and all are whole.
Report verify_report(const std::filesystem::path& folder);

}  // namespace trireme::checkpoint
