// Models by their names on the Hugging Face hub, as far as they are in its local cache. Nothing is
// fetched.
//
//   CACHE/models--ORG--NAME/refs/REVISION       the commit that a branch or tag stands for
//   CACHE/models--ORG--NAME/snapshots/COMMIT/   its files, as links to ../../blobs
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"

namespace trireme::model {

/// Where the cache may be, in the order in which it is searched: HF_HUB_CACHE, else
/// HUGGINGFACE_HUB_CACHE, else HF_HOME/hub (HF_HOME is XDG_CACHE_HOME/huggingface or
/// ~/.cache/huggingface when unset); then TRANSFORMERS_CACHE.
std::vector<std::filesystem::path> hub_caches(const Variables& variables);

/// The folder with the config.json that `name` stands for: a folder, or a hub id "ORG/NAME" or
/// "NAME", with "@REVISION" (a branch, tag or commit) or else "main". Throws ConfigError about
/// `field`: no such folder, no such model in the cache and the command that fetches it, or a folder
/// without config.json.
std::filesystem::path find_model_folder(std::string_view field, const std::string& name,
                                        const Variables& variables);
std::filesystem::path find_model_folder(std::string_view field, const std::string& name);

}  // namespace trireme::model
