#include "checkpoint/folders.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <functional>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/manifest.h"

namespace trireme::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kOf = "-of-";
constexpr std::string_view kPointer = "latest";
constexpr std::string_view kRun = "run_id";

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (code != std::errc{} || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  if (folder_name(step) != name) return std::nullopt;  // leading zeros
  return step;
}

/// The only line of a small file; nullopt when it cannot be read.
std::optional<std::string> line_of(const fs::path& path) {
  try {
    std::string line = read_text_file(path, 4096);
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return line;
  } catch (const std::exception&) {
    return std::nullopt;  // it only saves a guess
  }
}

/// The step that `latest` names; nullopt when there is none or it makes no sense.
std::optional<int64_t> pointed_step(const fs::path& output_dir) {
  const auto name = line_of(output_dir / kPointer);
  return name ? step_of(*name) : std::nullopt;
}

/// nullopt without a sound manifest.
std::optional<std::string> run_of(const fs::path& checkpoint) {
  try {
    return read_manifest(checkpoint).run;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// Empty when there is no such file.
std::vector<int64_t> identity_of(const fs::path& file) {
  struct stat s {};
  if (::stat(file.c_str(), &s) != 0) return {};
  return {static_cast<int64_t>(s.st_dev), static_cast<int64_t>(s.st_ino), s.st_size,
          s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
}

}  // namespace

std::optional<std::string> KnownRuns::run_of(const fs::path& checkpoint) {
  std::vector<int64_t> file = identity_of(checkpoint / kManifestName);
  if (const auto known = known_.find(checkpoint);
      known != known_.end() && known->second.file == file) {
    return known->second.run;
  }
  ++manifests_read_;
  std::optional<std::string> run = checkpoint::run_of(checkpoint);
  if (run) known_[checkpoint] = {std::move(file), *run};
  return run;
}

std::string folder_name(int64_t step) { return fmt::format("{}{}", kPrefix, step); }

std::vector<CheckpointFolder> list_folders(const fs::path& output_dir) {
  std::vector<CheckpointFolder> folders;
  for (const std::string& name : list_folder(output_dir)) {
    const auto step = step_of(name);
    const fs::path path = output_dir / name;
    std::error_code ignored;
    if (!step || !fs::is_directory(path, ignored)) continue;
    folders.push_back({*step, path, fs::exists(path / kManifestName, ignored)});
  }
  const int64_t pointed = pointed_step(output_dir).value_or(INT64_MAX);
  const bool usable = std::any_of(folders.begin(), folders.end(), [&](const CheckpointFolder& f) {
    return f.step == pointed && f.has_manifest;
  });
  std::sort(folders.begin(), folders.end(),
            [&](const CheckpointFolder& a, const CheckpointFolder& b) {
              const bool a_beyond = usable && a.step > pointed;
              const bool b_beyond = usable && b.step > pointed;
              return a_beyond != b_beyond ? b_beyond : a.step > b.step;
            });
  return folders;
}

std::vector<CheckpointFolder> folders_of_run(const fs::path& output_dir, std::string_view run,
                                             bool with_unreadable, KnownRuns* known) {
  KnownRuns none;
  KnownRuns& runs = known == nullptr ? none : *known;
  const std::optional<int64_t> latest = pointed_step(output_dir);
  bool latest_is_of_another = false;
  std::vector<CheckpointFolder> folders = list_folders(output_dir);
  std::erase_if(folders, [&](const CheckpointFolder& folder) {
    if (!folder.has_manifest) return true;
    const std::optional<std::string> its_run = runs.run_of(folder.path);
    const bool of_another = its_run && *its_run != run;
    if (of_another && folder.step == latest) latest_is_of_another = true;
    return of_another || (!its_run && !with_unreadable);
  });
  if (latest_is_of_another) {
    std::ranges::sort(folders, std::greater(), &CheckpointFolder::step);
  }
  return folders;
}

std::vector<CheckpointFolder> folders_of_other_runs(const fs::path& output_dir,
                                                    std::string_view run) {
  std::vector<CheckpointFolder> folders = list_folders(output_dir);
  std::erase_if(folders, [&](const CheckpointFolder& folder) {
    return !folder.has_manifest || run_of(folder.path).value_or(std::string(run)) == run;
  });
  return folders;
}

std::vector<fs::path> folders_set_aside(const fs::path& output_dir) {
  std::vector<fs::path> folders;
  for (const std::string& name : list_folder(output_dir)) {
    const size_t of = name.find(kOf);
    std::error_code ignored;
    if (of == std::string::npos || !step_of(std::string_view(name).substr(0, of))) continue;
    if (fs::exists(output_dir / name / kManifestName, ignored)) {
      folders.push_back(output_dir / name);
    }
  }
  std::ranges::sort(folders);
  return folders;
}

fs::path find_of_run(const fs::path& output_dir, std::string_view run, int64_t step) {
  std::vector<fs::path> folders = {output_dir / folder_name(step)};
  for (const fs::path& aside : folders_set_aside(output_dir)) {
    if (aside.filename().string().starts_with(fmt::format("{}{}", folder_name(step), kOf))) {
      folders.push_back(aside);
    }
  }
  const auto found =
      std::ranges::find_if(folders, [&](const fs::path& folder) { return run_of(folder) == run; });
  return found == folders.end() ? fs::path() : *found;
}

std::string new_run_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

std::string current_run(const fs::path& output_dir) {
  if (const auto run = line_of(output_dir / kRun)) return *run;
  for (const CheckpointFolder& folder : list_folders(output_dir)) {
    if (const auto run = run_of(folder.path)) return *run;
  }
  return "";
}

void begin_run(const fs::path& output_dir, std::string_view run) {
  make_folders(output_dir);
  replace_file(output_dir / kRun, fmt::format("{}\n", run));
}

void point_to(const fs::path& output_dir, int64_t step) {
  replace_file(output_dir / kPointer, folder_name(step) + "\n");
}

std::string set_aside(const fs::path& checkpoint, std::string_view run) {
  std::error_code ignored;
  if (!fs::exists(checkpoint, ignored)) return "";
  const std::string its_run = run_of(checkpoint).value_or("unknown");
  if (its_run == run) return "";
  const std::string name = fmt::format("{}{}{}", checkpoint.filename().string(), kOf,
                                       its_run.empty() ? "earlier" : its_run);
  fs::path aside = checkpoint.parent_path() / name;
  for (int i = 2; fs::exists(aside, ignored); ++i) {
    aside = checkpoint.parent_path() / fmt::format("{}-{}", name, i);
  }
  rename_path(checkpoint, aside);
  return aside.filename().string();
}

void swap_into_place(const fs::path& temporary, const fs::path& final_path) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_NOREPLACE) ==
      0) {
    return;
  }
  if (errno == EEXIST) {
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) ==
        0) {
      return;
    }
  }
  if (errno != EINVAL && errno != ENOSYS) {
    throw_errno("rename", fmt::format("{}' to '{}", temporary.string(), final_path.string()));
  }
  // A file system that knows neither flag: two steps.
  std::error_code ignored;
  if (!fs::exists(final_path, ignored)) return rename_path(temporary, final_path);
  fs::path aside = temporary;
  aside += "-old";
  rename_path(final_path, aside);
  rename_path(temporary, final_path);
  rename_path(aside, temporary);
}

void remove_leftovers(const fs::path& output_dir) {
  for (const std::string& name : list_folder(output_dir)) {
    const size_t dot = name.find(".tmp-");
    if (dot != std::string::npos && step_of(name.substr(0, dot))) remove_tree(output_dir / name);
  }
}

std::vector<std::string> rotate(const fs::path& output_dir, std::string_view run, int64_t limit,
                                std::optional<int64_t> best_step, KnownRuns* known) {
  if (limit <= 0) return {};
  std::vector<CheckpointFolder> folders = folders_of_run(output_dir, run, false, known);
  const auto best = std::ranges::find(folders, best_step, [](const CheckpointFolder& folder) {
    return std::optional(folder.step);
  });
  if (best != folders.end() && best != folders.begin()) {
    limit = std::max<int64_t>(limit, 2);
    std::rotate(folders.begin() + 1, best, best + 1);
  }
  std::vector<std::string> removed;
  for (size_t i = static_cast<size_t>(limit); i < folders.size(); ++i) {
    // Renamed first: a removal cut short leaves no folder that looks complete, and what it leaves
    // is a leftover.
    fs::path aside = folders[i].path;
    aside += ".tmp-removed";
    remove_tree(aside);
    rename_path(folders[i].path, aside);
    remove_tree(aside);
    removed.push_back(folders[i].path.filename().string());
  }
  return removed;
}

}  // namespace trireme::checkpoint
