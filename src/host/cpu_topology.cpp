#include "host/cpu_topology.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

namespace trireme::host {

namespace {

namespace fs = std::filesystem;

/// First line of a small file of the kernel's.
std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::string read_model(const fs::path& root) {
  std::ifstream file(root / "proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

/// "max 100000" or "150000 100000" of version 2.
std::optional<double> read_cpu_max(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

/// The two files of version 1.
std::optional<double> read_cfs_quota(const fs::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us");
  std::ifstream period_file(folder / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

/// The smallest quota of this process's control groups and all their parents; 0: none.
double read_quota(const fs::path& root) {
  std::ifstream groups(root / "proc/self/cgroup");
  std::string line;
  double smallest = 0;
  while (std::getline(groups, line)) {  // "0::/path" or "4:cpu,cpuacct:/path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
    const fs::path mount = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/cpu");
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();;
         group = group.parent_path()) {
      const auto quota = unified ? read_cpu_max(mount / group) : read_cfs_quota(mount / group);
      if (quota && (smallest == 0 || *quota < smallest)) smallest = *quota;
      if (group.empty()) break;
    }
  }
  return smallest;
}

}  // namespace

int CpuTopology::usable_cores() const {
  int cores = num_cores;
  if (quota_cores > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota_cores)));
  return std::max(cores, 1);
}

CpuTopology read_cpu_topology(const fs::path& root, const std::vector<int>& allowed) {
  CpuTopology topology;
  topology.model = read_model(root);
  topology.num_logical = std::max(1, static_cast<int>(allowed.size()));
  topology.quota_cores = read_quota(root);
  std::set<std::string> cores;
  std::set<std::string> nodes;
  for (const int cpu : allowed) {
    const fs::path folder = root / fmt::format("sys/devices/system/cpu/cpu{}", cpu);
    // The list of hardware threads of a core names the core.
    cores.insert(
        first_line(folder / "topology/thread_siblings_list").value_or(fmt::format("cpu{}", cpu)));
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("node")) nodes.insert(name);
    }
  }
  topology.num_cores = std::max<int>(1, static_cast<int>(cores.size()));
  topology.num_numa_nodes = std::max<int>(1, static_cast<int>(nodes.size()));
  return topology;
}

CpuTopology read_cpu_topology() {
  // Machines may have more processors than cpu_set_t holds: grow until the kernel is content.
  std::vector<int> allowed;
  for (int capacity = 1024; capacity <= (1 << 20) && allowed.empty(); capacity *= 4) {
    cpu_set_t* mask = CPU_ALLOC(capacity);
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (::sched_getaffinity(0, bytes, mask) == 0) {
      for (int cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, mask)) allowed.push_back(cpu);
      }
    }
    CPU_FREE(mask);
  }
  return read_cpu_topology("/", allowed);
}

}  // namespace trireme::host
