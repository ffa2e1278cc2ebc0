// Which processors this process may use.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::host {

struct CpuTopology {
  std::string model;         // "AMD EPYC 9354 32-Core Processor"; "unknown" when not told
  int num_logical = 1;       // hardware threads the affinity mask allows
  int num_cores = 1;         // distinct cores among them
  double quota_cores = 0.0;  // processor time the control groups allow, in cores; 0: no limit
  int num_numa_nodes = 1;    // nodes with at least one allowed hardware thread

  /// Threads worth starting for arithmetic: cores, cut to the quota (rounded up); at least 1.
  int usable_cores() const;
};

/// Reads the affinity mask, /proc and /sys. Never fails: what cannot be read counts as unlimited.
CpuTopology read_cpu_topology();

/// The same from a copy of these trees under `root` and a given affinity mask, for tests.
CpuTopology read_cpu_topology(const std::filesystem::path& root, const std::vector<int>& allowed);

}  // namespace trireme::host
