#include "launch/meeting.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "store/proof.h"

namespace trireme::launch {
namespace {

/// A folder that only this user can enter, made when absent.
std::string private_folder(const Environment& environment) {
  const auto runtime = environment("XDG_RUNTIME_DIR");
  const std::string path =
      runtime ? *runtime + "/trireme"
              : fmt::format("{}/trireme-{}", std::filesystem::temp_directory_path().string(),
                            geteuid());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) throw_errno("mkdir", path);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) throw_errno("lstat", path);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    throw ConfigError("token folder", path, "it must be yours alone (mode 0700); remove it");
  }
  return path;
}

}  // namespace

std::string meeting_path(const std::string& job, const std::string& shared_folder,
                         const Environment& environment) {
  const std::string name = "token-" + store::to_hex(store::sha256(job)).substr(0, 16);
  if (!shared_folder.empty()) return shared_folder + "/." + name;
  return private_folder(environment) + "/" + name;
}

void write_meeting(const std::string& path, const Meeting& meeting) {
  const std::string draft = path + ".new";
  std::filesystem::remove(draft);  // of a job that was killed here
  std::string text = meeting.token;
  if (meeting.endpoint) text += "\n" + store::to_string(*meeting.endpoint);
  check(store::write_token(draft, text), "{} is there again", draft);
  rename_path(draft, path);
}

std::optional<Meeting> read_meeting(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  std::string text;
  try {
    text = store::read_token(path);
  } catch (const ConfigError&) {
    if (!std::filesystem::exists(path)) return std::nullopt;  // removed meanwhile
    throw;
  }
  Meeting meeting;
  const size_t end = text.find('\n');
  meeting.token = text.substr(0, end);
  if (end != std::string::npos)
    meeting.endpoint = store::parse_endpoint(path, text.substr(end + 1));
  return meeting;
}

}  // namespace trireme::launch
