#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/text.h"
#include "doctor/checks.h"

namespace trireme::doctor {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// "MemAvailable:   123 kB" in bytes; 0 when it is not told.
int64_t meminfo(const std::filesystem::path& root, const std::string& name) {
  std::ifstream file(root / "proc/meminfo");
  std::string word;
  int64_t kibibytes = 0;
  while (file >> word) {
    if (word == name + ":" && file >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

/// The limit of the control group, of either version.
int64_t group_limit(const std::filesystem::path& root) {
  for (const char* path :
       {"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(root / path);
    int64_t bytes = 0;
    if (file >> bytes) return bytes;  // "max" is no number
  }
  return kUnlimited;
}

}  // namespace

Findings check_memory(const std::filesystem::path& root) {
  constexpr int64_t kLittle = int64_t{2} << 30;
  const int64_t total = meminfo(root, "MemTotal");
  const int64_t limit = group_limit(root);
  const int64_t available = std::min(meminfo(root, "MemAvailable"), limit);
  Finding finding{Verdict::good, "memory",
                  human_bytes(available) + " available of " + human_bytes(total), ""};
  if (limit < total) finding.text += ", the control group allows " + human_bytes(limit);
  if (available < kLittle) {
    finding.verdict = Verdict::note;
    finding.remedy = "`trireme plan` says what a run takes; more ranks or ZeRO 3 take less each";
  }
  return {finding};
}

}  // namespace trireme::doctor
