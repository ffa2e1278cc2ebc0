#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "doctor/checks.h"
#include "host/cpu_topology.h"

namespace trireme::doctor {
namespace {

std::set<std::string> cpu_flags(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

Finding instructions(const std::set<std::string>& flags) {
  Finding finding{Verdict::good, "instructions", "", ""};
  for (const char* name : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (flags.contains(name))
      finding.text += (finding.text.empty() ? "" : ", ") + std::string(name);
  }
  if (finding.text.empty()) {
    return {Verdict::note, "instructions", "neither AVX2 nor AVX-512",
            "matrix products will be slow; use a newer processor"};
  }
  if (!flags.contains("avx512_bf16")) {
    finding.verdict = Verdict::note;
    finding.text += "; bf16 is converted to f32 (no avx512_bf16)";
  }
  return finding;
}

}  // namespace

Findings check_cpu(const std::filesystem::path& root) {
  const host::CpuTopology cpu = host::read_cpu_topology();
  std::string text = fmt::format("{}: {} cores, {} hardware threads, {} NUMA nodes", cpu.model,
                                 cpu.num_cores, cpu.num_logical, cpu.num_numa_nodes);
  Findings findings = {{Verdict::good, "CPU", text, ""}};
  if (cpu.quota_cores > 0 && cpu.quota_cores < cpu.num_cores) {
    findings.push_back({Verdict::note, "CPU quota",
                        fmt::format("the control group allows {:.1f} cores", cpu.quota_cores),
                        "raise it, or start no more ranks than that"});
  }
  findings.push_back(instructions(cpu_flags(root)));
  return findings;
}

}  // namespace trireme::doctor
