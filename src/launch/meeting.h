// What rank 0 of a job without our launcher leaves for the other ranks: a file that only the user
// can read, named after the job.
#pragma once

#include <optional>
#include <string>

#include "launch/ranks.h"
#include "store/socket.h"

namespace trireme::launch {

struct Meeting {
  std::string token;
  std::optional<store::Endpoint> endpoint;  // of the store, where the others cannot know it
  bool operator==(const Meeting&) const = default;
};

/// The file of `job`: in a folder of this user on this host (XDG_RUNTIME_DIR, else the temporary
/// folder), or in `shared_folder`, which all hosts see, when that is not empty. ConfigError for a
/// private folder that others may enter.
std::string meeting_path(const std::string& job, const std::string& shared_folder,
                         const Environment& environment);

/// Replaces what is there, so that a reader sees the old file or the new one.
void write_meeting(const std::string& path, const Meeting& meeting);

/// nullopt when there is no file. ConfigError as store::read_token.
std::optional<Meeting> read_meeting(const std::string& path);

}  // namespace trireme::launch
