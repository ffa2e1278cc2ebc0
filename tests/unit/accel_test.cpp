// The search for CUDA libraries, in folders made for the purpose.
#include <gtest/gtest.h>

#include <fstream>

#include "accel/cuda_loader.h"
#include "accel/library_search.h"
#include "base/error.h"
#include "support/temp_folder.h"

namespace trireme::accel {
namespace {

namespace fs = std::filesystem;

const LibraryName kCudnn{"libcudnn.so.9", "nvidia_cudnn_cu13"};

void put(const fs::path& file) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "x";
}

/// Packages of a Python with cuDNN of that version.
void put_wheel(const fs::path& prefix, const std::string& version) {
  const fs::path packages = prefix / "lib/python3.12/site-packages";
  put(packages / "nvidia/cudnn/lib/libcudnn.so.9");
  fs::create_directories(packages / ("nvidia_cudnn_cu13-" + version + ".dist-info"));
}

/// A search that starts in `root` alone.
SearchEnvironment only(const test::TempFolder& root) {
  SearchEnvironment environment;
  environment.root = root.path().string();
  return environment;
}

TEST(Version, OrdersByNumbersAndUnknownIsLowest) {
  EXPECT_EQ(parse_version("9.19.0.56").numbers, (std::vector<int>{9, 19, 0}));
  EXPECT_LT(parse_version("9.9.1"), parse_version("9.19.0"));
  EXPECT_LT(parse_version(""), parse_version("1"));
  EXPECT_EQ(to_string(parse_version("2.28.9-cuda13")), "2.28.9");
  EXPECT_EQ(to_string({}), "unknown");
}

TEST(LibrarySearch, FindsNothingWhereNothingIs) {
  const test::TempFolder root;
  EXPECT_FALSE(find_library(kCudnn, library_folders(only(root))).has_value());
}

TEST(LibrarySearch, FindsTheWheelsOfAVirtualEnvironmentThroughItsPython) {
  const test::TempFolder root;
  put_wheel(root / "venv", "9.19.0.56");
  put(root / "system/bin/python3.12");
  fs::create_directories(root / "venv/bin");
  // The environment's python3 is a link out of it, as venv makes it.
  fs::create_symlink(root / "system/bin/python3.12", root / "venv/bin/python3");
  SearchEnvironment environment = only(root);
  environment.path = (root / "nowhere").string() + ":" + (root / "venv/bin").string();
  const auto found = find_library(kCudnn, library_folders(environment));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, root / "venv/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9");
  EXPECT_EQ(to_string(found->version), "9.19.0");
}

TEST(LibrarySearch, TakesTheNewestWhereverItLies) {
  const test::TempFolder root;
  put_wheel(root / "venv", "9.10.2.21");
  const fs::path system = root / "usr/lib/x86_64-linux-gnu";
  put(system / "libcudnn.so.9.20.1");
  fs::create_symlink("libcudnn.so.9.20.1", system / "libcudnn.so.9");
  SearchEnvironment environment = only(root);
  environment.virtual_env = (root / "venv").string();
  const auto found = find_library(kCudnn, library_folders(environment));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, system / "libcudnn.so.9");
  EXPECT_EQ(to_string(found->version), "9.20.1");
}

TEST(LibrarySearch, TakesTheFirstOfEqualsAndKnownBeforeUnknown) {
  const test::TempFolder root;
  put(root / "first/libcudnn.so.9");
  put(root / "second/libcudnn.so.9");
  SearchEnvironment environment = only(root);
  environment.library_path = (root / "first").string() + "::" + (root / "second").string();
  EXPECT_EQ(find_library(kCudnn, library_folders(environment))->path, root / "first/libcudnn.so.9");
  put_wheel(root / "usr/local", "9.19.0");
  EXPECT_EQ(to_string(find_library(kCudnn, library_folders(environment))->version), "9.19.0");
}

TEST(CudaLoader, SaysInOneSentenceWhatIsMissing) {
  const CudaSight sight = look_for_cuda();
  if (sight.num_devices > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_FALSE(sight.why_not.empty());
  try {
    load_cuda();
    FAIL() << "loaded CUDA without a GPU";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("device cuda: " + sight.why_not)) << text;
    EXPECT_TRUE(text.ends_with("or pass --device cpu")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace trireme::accel
