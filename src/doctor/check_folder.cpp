#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "doctor/checks.h"

namespace trireme::doctor {
namespace {

namespace fs = std::filesystem;

/// The folder itself, or the nearest one above it that is there.
fs::path existing(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder);
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

struct FileSystem {
  int64_t magic;
  const char* name;
};
constexpr FileSystem kTmpfs = {0x01021994, "tmpfs"};
// From the manual page statfs(2) and the file systems' own headers.
constexpr FileSystem kFileSystems[] = {kTmpfs,
                                       {0xef53, "ext4"},
                                       {0x58465342, "xfs"},
                                       {0x9123683e, "btrfs"},
                                       {0x6969, "nfs"},
                                       {0x794c7630, "overlay"},
                                       {0x65735546, "fuse"},
                                       {0x0bd00bd0, "lustre"},
                                       {0x47504653, "gpfs"},
                                       {0x00c36400, "ceph"},
                                       {0x19830326, "beegfs"},
                                       {0x2fc12fc1, "zfs"},
                                       {0xff534d42, "cifs"}};

std::string kind_of(int64_t magic) {
  for (const FileSystem& each : kFileSystems) {
    if (each.magic == magic) return each.name;
  }
  return fmt::format("of kind {:#x}", magic);
}

}  // namespace

Findings check_folder(const fs::path& folder) {
  constexpr int64_t kLittle = int64_t{10} << 30;
  const std::string subject = "output folder";
  const fs::path there = existing(folder);
  try {
    const fs::path probe = there / fmt::format(".trireme-doctor-{}", getpid());
    write_new_file(probe, "probe");
    rename_path(probe, probe.string() + ".renamed");
    sync_folder(there);
    fs::remove(probe.string() + ".renamed");
  } catch (const DeviceError& error) {
    return {{Verdict::bad, subject, error.what(), "give a folder that you may write to"}};
  }
  struct statfs status {};
  if (statfs(there.c_str(), &status) != 0) throw_errno("statfs", there.string());
  const bool volatile_space = status.f_type == kTmpfs.magic;
  const int64_t free = free_bytes(there);
  Findings findings = {
      {volatile_space ? Verdict::note : Verdict::good, subject,
       fmt::format("{} can be written to ({})", there.string(), kind_of(status.f_type)),
       volatile_space ? "what lies in memory is lost when the machine restarts" : ""}};
  findings.push_back(
      {free < kLittle ? Verdict::note : Verdict::good, "free space", human_bytes(free),
       free < kLittle ? "a checkpoint takes 14 bytes a parameter (8 with bf16 state); "
                        "make room, or set "
                        "--save_total_limit"
                      : ""});
  return findings;
}

}  // namespace trireme::doctor
