// Hub ids in a cache made as huggingface_hub makes it.
#include "model/hub_cache.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "base/error.h"
#include "support/temp_folder.h"

namespace trireme::model {
namespace {

namespace fs = std::filesystem;
using Values = std::map<std::string, std::string, std::less<>>;

Variables of(Values values) {
  return [values = std::move(values)](std::string_view name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

class HubCache : public ::testing::Test {
 protected:
  HubCache() {
    write(cache() / "models--Org--Name.1/refs/main", "c0ffee");
    write(cache() / "models--Org--Name.1/refs/pr/7", "beef\n");
    for (const char* commit : {"c0ffee", "beef"}) {
      const fs::path snapshot = cache() / "models--Org--Name.1/snapshots" / commit;
      write(cache() / "models--Org--Name.1/blobs" / commit, "{}");
      fs::create_directories(snapshot);
      fs::create_symlink(fs::path("../../blobs") / commit, snapshot / "config.json");
    }
    write(cache() / "models--gpt2/refs/main", "f00d");
    fs::create_directories(cache() / "models--gpt2/snapshots/f00d");
    write(folder_ / "plain/config.json", "{}");
  }
  fs::path cache() const { return folder_ / "hub"; }
  fs::path find(const std::string& name, const Values& values) const {
    return find_model_folder("model", name, of(values));
  }
  fs::path find(const std::string& name) const { return find(name, {{"HF_HOME", folder_.path()}}); }
  std::string refusal(const std::string& name) const {
    return test::message_of<ConfigError>([&] { find(name); });
  }
  fs::path snapshot(const std::string& commit) const {
    return cache() / "models--Org--Name.1/snapshots" / commit;
  }

  test::TempFolder folder_;
};

TEST_F(HubCache, AnIdIsTheSnapshotOfARevision) {
  EXPECT_EQ(find("Org/Name.1"), snapshot("c0ffee"));
  EXPECT_EQ(find("Org/Name.1@main"), snapshot("c0ffee"));
  EXPECT_EQ(find("Org/Name.1@pr/7"), snapshot("beef"));
  EXPECT_EQ(find("Org/Name.1@beef"), snapshot("beef"));
  EXPECT_EQ(find(folder_ / "plain"), folder_ / "plain");
}

TEST_F(HubCache, IsWhereTheVariablesSay) {
  EXPECT_EQ(find("Org/Name.1", {{"HF_HUB_CACHE", cache()}, {"HF_HOME", "/nowhere"}}),
            snapshot("c0ffee"));
  EXPECT_EQ(find("Org/Name.1", {{"HUGGINGFACE_HUB_CACHE", cache()}}), snapshot("c0ffee"));
  EXPECT_EQ(find("Org/Name.1", {{"TRANSFORMERS_CACHE", cache()}}), snapshot("c0ffee"));
  EXPECT_EQ(hub_caches(of({{"HOME", "/h"}})).at(0), "/h/.cache/huggingface/hub");
  EXPECT_EQ(hub_caches(of({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})).at(0), "/x/huggingface/hub");
}

TEST_F(HubCache, WhatIsAbsentIsToldWithTheCommandThatFetchesIt) {
  const std::string cache_path = cache();
  EXPECT_EQ(refusal("Org/Other"),
            "model = Org/Other: there is no such folder, and it is not in the Hugging Face cache " +
                cache_path + "; fetch it with `hf download Org/Other`");
  EXPECT_TRUE(refusal("Org/Name.1@dead")
                  .ends_with("fetch it with `hf download Org/Name.1 --revision dead`"));
  EXPECT_EQ(refusal("gpt2"), "model = gpt2: " + cache_path +
                                 "/models--gpt2/snapshots/f00d has no config.json; fetch the rest "
                                 "with `hf download gpt2`");
}

TEST_F(HubCache, WhatIsNoIdIsToldAsAFolder) {
  for (const char* name : {"/no/where", "../Org", "a/b/c", "~/model", "Org/", "Org/Name.1@../../x",
                           "Org/Name.1@/etc"}) {
    EXPECT_EQ(refusal(name), "model = " + std::string(name) +
                                 ": there is no such folder; give a Hugging Face model folder");
  }
  EXPECT_TRUE(refusal(folder_.path())
                  .ends_with("this folder has no config.json; give a Hugging Face model folder"));
}

}  // namespace
}  // namespace trireme::model
