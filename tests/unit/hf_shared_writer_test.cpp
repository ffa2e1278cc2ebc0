// Several ranks write one model folder.
#include "checkpoint/hf_shared_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "model/hf_weights.h"
#include "support/temp_folder.h"
#include "support/thread_coordinator.h"

namespace trireme::checkpoint {
namespace {

using test::TempFolder;
using test::run_ranks;

constexpr int kRanks = 3;

std::vector<model::TensorSpec> tensors() {
  return {{"cols", DType::f32, {5, 6}}, {"rows", DType::bf16, {7, 4}}, {"whole", DType::f32, {3}}};
}

float value_of(int64_t element) { return static_cast<float>(element) * 0.5f; }

mesh::Box box_of(const model::TensorSpec& tensor, int rank) {
  mesh::Box box = mesh::whole(tensor.shape);
  if (tensor.name == "whole") {
    if (rank > 0) box.extent[0] = 0;
    return box;
  }
  const size_t dim = tensor.name == "cols" ? 1 : 0;
  const int64_t size = tensor.shape[dim];
  box.start[dim] = size * rank / kRanks;
  box.extent[dim] = size * (rank + 1) / kRanks - box.start[dim];
  return box;
}

void write_boxes(HfSharedWriter& writer, int rank) {
  for (const model::TensorSpec& tensor : tensors()) {
    const mesh::Box box = box_of(tensor, rank);
    std::vector<float> data(static_cast<size_t>(box.size()));
    for (const mesh::Run& run : mesh::copy_runs(mesh::whole(tensor.shape), box)) {
      for (int64_t i = 0; i < run.count; ++i) {
        data[static_cast<size_t>(run.to + i)] = value_of(run.from + i);
      }
    }
    writer.write(tensor.name, box, data.data());
  }
}

void expect_complete(const std::filesystem::path& folder) {
  model::HfWeights weights(folder);
  for (const model::TensorSpec& tensor : tensors()) {
    const mesh::Box whole = mesh::whole(tensor.shape);
    std::vector<float> data(static_cast<size_t>(whole.size()));
    weights.read_box(tensor.name, whole, data.data());
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_EQ(data[i], value_of(static_cast<int64_t>(i))) << tensor.name << " " << i;
    }
  }
}

TEST(HfSharedWriter, RanksWriteTheirBoxesOfOneModel) {
  for (int64_t shard_bytes : {int64_t{1} << 30, int64_t{64}}) {
    const TempFolder folder;
    const auto errors = run_ranks(kRanks, [&](Coordinator& ranks) {
      HfSharedWriter writer(folder.path(), tensors(), ranks, {.max_shard_bytes = shard_bytes});
      write_boxes(writer, ranks.rank());
      const auto files = writer.finish();
      EXPECT_EQ(files.empty(), ranks.rank() != 0);
      for (const FileRecord& record : files) {
        const File file = File::open(folder.path() / record.name);
        EXPECT_EQ(file.size(), record.bytes);
        EXPECT_EQ(hash_of(file, record.bytes), record.hash);
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(kRanks));
    expect_complete(folder.path());
  }
}

TEST(HfSharedWriter, WhatOneRankCannotWriteEndsAll) {
  const TempFolder folder;
  const std::filesystem::path file = folder.path() / "not_a_folder";
  write_new_file(file, "x");
  const auto errors =
      run_ranks(kRanks, [&](Coordinator& ranks) { HfSharedWriter(file, tensors(), ranks); });
  for (const std::string& error : errors) {
    EXPECT_TRUE(error.starts_with("export: rank 0: ")) << error;
  }
}

/// A file-size limit strikes rank 0 when it makes the files: the first is then there already.
TEST(HfSharedWriter, FilesThatCouldNotBeMadeAreCleared) {
  const TempFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{64, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto errors = run_ranks(
      kRanks, [&](Coordinator& ranks) { HfSharedWriter(folder.path(), tensors(), ranks); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  for (const std::string& error : errors) {
    EXPECT_TRUE(error.starts_with("export: rank 0: ")) << error;
    EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  }
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

TEST(HfSharedWriter, AnUnfinishedFolderIsCleared) {
  const TempFolder folder;
  const auto errors = run_ranks(kRanks, [&](Coordinator& ranks) {
    HfSharedWriter writer(folder.path(), tensors(), ranks);
    write_boxes(writer, ranks.rank());
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

}  // namespace
}  // namespace trireme::checkpoint
