#include "checkpoint/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/checked_file.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"

namespace trireme::checkpoint {

namespace {

constexpr std::string_view kRow = "{:<{}} {:>6} {:>6} {:>11}  {}\n";

/// Of the column of names, in characters.
size_t width_of(const std::vector<std::filesystem::path>& renamed) {
  size_t width = 24;
  for (const auto& path : renamed) width = std::max(width, path.filename().string().size());
  return width;
}

void add_row(const CheckpointFolder& folder, const std::string& run, size_t width, Report* report) {
  const std::string name = folder.path.filename().string();
  if (!folder.has_manifest) {
    report->text += fmt::format(kRow, name, width, "-", "-", "-", "not a checkpoint of trireme");
    return;
  }
  try {
    const Manifest manifest = read_manifest(folder.path);
    for (const FileEntry& entry : manifest.files) CheckedFile(folder.path, entry.file);
    report->text += fmt::format(kRow, name, width, manifest.world_size, manifest.files.size(),
                                human_bytes(manifest.total_bytes()),
                                manifest.run == run ? "complete" : "complete, of another run");
  } catch (const std::runtime_error& error) {
    report->text += fmt::format(kRow, name, width, "-", "-", "-", error.what());
    report->good = false;
  }
}

void verify_one(const std::filesystem::path& folder, Report* report) {
  std::vector<std::string> problems;
  try {
    CheckpointReader reader(folder);
    SingleRank alone;
    problems = reader.verify(alone);
    if (problems.empty()) {
      report->text +=
          fmt::format("{}: {} files, {}, all as they were written\n", folder.string(),
                      reader.manifest().files.size(), human_bytes(reader.manifest().total_bytes()));
    }
  } catch (const std::runtime_error& error) {
    problems = {error.what()};
  }
  for (const std::string& problem : problems) {
    report->text += fmt::format("{}: {}\n", folder.string(), problem);
    report->good = false;
  }
}

void check_folder(const std::filesystem::path& folder) {
  std::error_code unreadable;
  if (!std::filesystem::is_directory(folder, unreadable)) {
    throw ConfigError(
        fmt::format("{}: there is no such folder; give an output_dir, or one of its checkpoints",
                    folder.string()));
  }
}

}  // namespace

Report list_report(const std::filesystem::path& output_dir) {
  check_folder(output_dir);
  Report report;
  const std::vector<CheckpointFolder> folders = list_folders(output_dir);
  const auto aside = folders_set_aside(output_dir);
  if (folders.empty() && aside.empty())
    return {fmt::format("no checkpoints in {}\n", output_dir.string()), true};
  const size_t width = width_of(aside);
  report.text = fmt::format(kRow, "checkpoint", width, "ranks", "files", "size", "state");
  const std::string run = current_run(output_dir);
  for (const CheckpointFolder& folder : folders) add_row(folder, run, width, &report);
  for (const auto& path : aside) add_row({.path = path, .has_manifest = true}, run, width, &report);
  return report;
}

Report verify_report(const std::filesystem::path& folder) {
  check_folder(folder);
  Report report;
  std::error_code unreadable;
  if (std::filesystem::exists(folder / kManifestName, unreadable)) {
    verify_one(folder, &report);
    return report;
  }
  for (const CheckpointFolder& found : list_folders(folder)) {
    if (found.has_manifest) verify_one(found.path, &report);
  }
  for (const auto& path : folders_set_aside(folder)) verify_one(path, &report);
  if (report.text.empty()) return {fmt::format("no checkpoints in {}\n", folder.string()), false};
  return report;
}

}  // namespace trireme::checkpoint
