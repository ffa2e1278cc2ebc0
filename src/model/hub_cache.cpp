#include "model/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/error.h"
#include "base/file.h"

namespace trireme::model {
namespace {

namespace fs = std::filesystem;

struct HubId {
  std::string repository;  // "ORG/NAME" or "NAME"
  std::string revision;    // empty: main
};

bool is_hub_name(std::string_view text) {
  const bool plain = std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  });
  const auto slashes = std::ranges::count(text, '/');
  return plain && !text.empty() && slashes <= 1 && std::isalnum(text.front()) != 0 &&
         text.back() != '/';
}

std::optional<HubId> parse_hub_id(const std::string& name) {
  const size_t at = std::min(name.find('@'), name.size());
  HubId id{name.substr(0, at), at < name.size() ? name.substr(at + 1) : ""};
  if (!is_hub_name(id.repository)) return std::nullopt;
  // A revision names files of the cache: it must not lead out of it.
  const bool leads_out = id.revision.starts_with('/') || id.revision.find("..") != id.revision.npos;
  return leads_out ? std::nullopt : std::optional(id);
}

/// The snapshot in one cache; empty when it is not there.
fs::path snapshot(const fs::path& cache, const HubId& id) {
  std::string folder = "models--" + id.repository;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) {
    folder.replace(slash, 1, "--");
  }
  const fs::path model = cache / folder;
  const std::string revision = id.revision.empty() ? "main" : id.revision;
  std::string commit = revision;
  std::error_code ignored;
  if (fs::is_regular_file(model / "refs" / revision, ignored)) {
    constexpr int64_t kLongestCommit = 256;
    commit = read_text_file(model / "refs" / revision, kLongestCommit);
    commit.erase(std::min(commit.find_first_of("\r\n"), commit.size()));
  }
  const bool plain = !commit.empty() && commit.find('/') == std::string::npos && commit != "..";
  const fs::path found = model / "snapshots" / commit;
  return plain && fs::is_directory(found, ignored) ? found : fs::path();
}

std::string fetch_command(const HubId& id) {
  return id.revision.empty()
             ? fmt::format("`hf download {}`", id.repository)
             : fmt::format("`hf download {} --revision {}`", id.repository, id.revision);
}

}  // namespace

std::vector<fs::path> hub_caches(const Variables& variables) {
  std::vector<fs::path> caches;
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto given = variables(name); given && caches.empty()) caches.emplace_back(*given);
  }
  if (caches.empty()) {
    const fs::path cache = user_cache(variables).value_or("/.cache");
    caches.push_back(fs::path(variables("HF_HOME").value_or(cache / "huggingface")) / "hub");
  }
  if (const auto given = variables("TRANSFORMERS_CACHE")) caches.emplace_back(*given);
  return caches;
}

fs::path find_model_folder(std::string_view field, const std::string& name,
                           const Variables& variables) {
  std::error_code ignored;
  if (fs::exists(fs::path(name) / "config.json", ignored)) return name;
  if (fs::is_directory(name, ignored)) {
    throw ConfigError(field, name,
                      "this folder has no config.json; give a Hugging Face model folder");
  }
  const auto id = parse_hub_id(name);
  if (!id) {
    throw ConfigError(field, name, "there is no such folder; give a Hugging Face model folder");
  }
  const std::vector<fs::path> caches = hub_caches(variables);
  for (const fs::path& cache : caches) {
    const fs::path found = snapshot(cache, *id);
    if (found.empty()) continue;
    if (fs::exists(found / "config.json", ignored)) return found;
    throw ConfigError(field, name,
                      fmt::format("{} has no config.json; fetch the rest with {}", found.string(),
                                  fetch_command(*id)));
  }
  throw ConfigError(field, name,
                    fmt::format("there is no such folder, and it is not in the Hugging Face cache "
                                "{}; fetch it with {}",
                                caches.front().string(), fetch_command(*id)));
}

fs::path find_model_folder(std::string_view field, const std::string& name) {
  return find_model_folder(field, name, process_variables());
}

}  // namespace trireme::model
