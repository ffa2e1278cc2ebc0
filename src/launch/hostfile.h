// deepspeed's words for where ranks run: host files, --include and --exclude.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

struct HostSlots {
  std::string host;
  int slots = 0;
  bool operator==(const HostSlots&) const = default;
};

/// Lines "host slots=N"; '#' begins a comment. Throws DataError `path:line: ...`.
std::vector<HostSlots> read_hostfile(const std::string& path);

struct HostFilter {
  std::string host;
  std::vector<int> slots;  // empty: all
  bool operator==(const HostFilter&) const = default;
};

/// "host@host:0,2" of --include and --exclude. Throws ConfigError about `field`.
std::vector<HostFilter> parse_host_filter(std::string_view field, std::string_view text);

}  // namespace trireme::launch
