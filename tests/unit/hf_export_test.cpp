#include "checkpoint/hf_export.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint_support.h"
#include "model/hf_weights.h"
#include "support/temp_folder.h"

namespace trireme::checkpoint {
namespace {

using model::TensorSpec;
using test::message_of;
using test::TempFolder;
using Names = std::vector<std::string>;

std::vector<TensorSpec> specs(DType dtype) {
  return {{"a", dtype, {30, 10}},
          {"empty", dtype, {0, 3}},
          {"b", dtype, {7}},
          {"c", dtype, {20, 20}},
          {"last_empty", dtype, {0}}};
}

float value_of(const std::string& tensor, int64_t i) {
  return static_cast<float>((tensor[0] * 31 + i * 7) % 251) - 125.0f;  // exact in every dtype
}

void fill(const TensorSpec& tensor, int64_t begin, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = value_of(tensor.name, begin + i);
}

std::vector<FileRecord> write_model(const std::filesystem::path& folder, DType dtype,
                                    int64_t max_shard_bytes, int64_t piece) {
  HfWriter writer(folder, specs(dtype), {.max_shard_bytes = max_shard_bytes});
  stream_tensors(specs(dtype), piece, fill, &writer);
  return writer.finish();
}

void expect_model(const std::filesystem::path& folder, DType dtype) {
  model::HfWeights weights(folder);
  for (const TensorSpec& spec : specs(dtype)) {
    ASSERT_NE(weights.find(spec.name), nullptr) << spec.name;
    EXPECT_EQ(weights.find(spec.name)->dtype, dtype);
    const mesh::Box box = mesh::whole(spec.shape);
    std::vector<float> values(static_cast<size_t>(box.size()));
    weights.read_box(spec.name, box, values.data());
    for (int64_t i = 0; i < box.size(); ++i) {
      ASSERT_EQ(values[static_cast<size_t>(i)], value_of(spec.name, i)) << spec.name;
    }
  }
}

Names sorted_names(const std::filesystem::path& folder) {
  Names names = list_folder(folder);
  std::sort(names.begin(), names.end());
  return names;
}

TEST(HfExport, OneFileOrShardsInEveryDType) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const int64_t size = size_of(dtype);
    for (const int64_t piece : {1, 13, 1000}) {
      const TempFolder folder;
      EXPECT_EQ(write_model(folder.path(), dtype, 1 << 20, piece).size(), 1u);
      expect_model(folder.path(), dtype);
      // The second write replaces the first by shards: (a, empty), (b), (c, last_empty).
      const auto files = write_model(folder.path(), dtype, 300 * size, piece);
      EXPECT_EQ(sorted_names(folder.path()),
                (Names{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                       "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
      expect_model(folder.path(), dtype);
      const Json index = read_json(folder / "model.safetensors.index.json");
      EXPECT_EQ(index["metadata"]["total_size"], 707 * size);
      EXPECT_EQ(index["weight_map"]["last_empty"], "model-00003-of-00003.safetensors");
      for (const FileRecord& file : files) {
        const std::string text = read_text_file(folder / file.name, 1 << 20);
        EXPECT_EQ(file.bytes, static_cast<int64_t>(text.size()));
        EXPECT_EQ(file.hash, hash128(text));
      }
      // And back: the shards are gone.
      write_model(folder.path(), dtype, 1 << 20, piece);
      EXPECT_EQ(sorted_names(folder.path()), (Names{"model.safetensors"}));
      expect_model(folder.path(), dtype);
    }
  }
}

TEST(HfExport, MetadataSaysPt) {
  const TempFolder folder;
  write_model(folder.path(), DType::f32, 1 << 20, 100);
  EXPECT_NE(read_text_file(folder / "model.safetensors", 1 << 20)
                .find(R"("__metadata__":{"format":"pt"})"),
            std::string::npos);
}

TEST(HfExport, UnfinishedLeavesTheOldModel) {
  const TempFolder folder;
  write_model(folder.path(), DType::f32, 1 << 20, 100);
  {
    HfWriter writer(folder.path(), specs(DType::bf16), {.max_shard_bytes = 600});
    const std::vector<float> zeros(310);
    writer.append(zeros.data(), 310);
    EXPECT_THROW(writer.finish(), BugError);
  }
  EXPECT_EQ(sorted_names(folder.path()), (Names{"model.safetensors"}));
  expect_model(folder.path(), DType::f32);
}

TEST(HfExport, FullDiskIsToldAtTheEnd) {
  const TempFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string message =
      message_of<DeviceError>([&] { write_model(folder.path(), DType::f32, 1 << 20, 100); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

TEST(HfExport, CopiesModelFilesAndPatchesTheDTypeOnly) {
  const TempFolder folder;
  make_folders(folder / "from");
  const std::string config =
      "{\n  \"z\": [1e-05],\n  \"torch_dtype\": \"bfloat16\",\n  \"a\": NaN\n}";
  write_new_file(folder / "from" / "config.json", config);
  write_new_file(folder / "from" / "tokenizer.json", "{}");
  write_new_file(folder / "from" / "secret.txt", "x");
  const auto files = copy_model_files(folder / "from", folder / "same", DType::bf16);
  EXPECT_EQ(sorted_names(folder / "same"), (Names{"config.json", "tokenizer.json"}));
  EXPECT_EQ(files.size(), 2u);
  EXPECT_EQ(read_text_file(folder / "same" / "config.json", 1000), config) << "byte for byte";
  copy_model_files(folder / "from", folder / "other", DType::f32);
  EXPECT_EQ(read_text_file(folder / "other" / "config.json", 1000),
            "{\n  \"z\": [\n    1e-05\n  ],\n  \"torch_dtype\": \"float32\",\n  \"a\": NaN\n}\n");
  copy_model_files(folder / "other", folder / "other", DType::f16);
  EXPECT_NE(read_text_file(folder / "other" / "config.json", 1000).find("float16"),
            std::string::npos);
  replace_file(folder / "from" / "config.json", "{\"dtype\": \"float32\"}");
  copy_model_files(folder / "from", folder / "other", DType::bf16);
  EXPECT_EQ(read_text_file(folder / "other" / "config.json", 1000),
            "{\n  \"dtype\": \"bfloat16\"\n}\n");
  replace_file(folder / "from" / "config.json", "{}");
  copy_model_files(folder / "from", folder / "other", DType::bf16);
  EXPECT_EQ(read_text_file(folder / "other" / "config.json", 1000),
            "{\n  \"torch_dtype\": \"bfloat16\"\n}\n");
}

TEST(HfExport, CheckpointBecomesAModelFolder) {
  const TempFolder folder;
  make_folders(folder / "model");
  write_new_file(folder / "model" / "config.json", "{\"torch_dtype\": \"float32\"}");
  ASSERT_EQ(save_on_threads({.output_dir = folder.path(), .step = 2}, 3),
            std::vector<std::string>(3));
  ExportedModel model{folder / "model", {}};
  for (const SampleTensor& tensor : sample_tensors()) {
    model.tensors.push_back({tensor.name, tensor.shape});
  }
  export_checkpoint(folder / "checkpoint-2", model, folder / "out", DType::f32,
                    {.max_shard_bytes = 4000});
  model::HfWeights weights(folder / "out");
  for (size_t t = 0; t < sample_tensors().size(); ++t) {
    const mesh::Box box = mesh::whole(sample_tensors()[t].shape);
    std::vector<float> values(static_cast<size_t>(box.size()));
    weights.read_box(sample_tensors()[t].name, box, values.data());
    EXPECT_EQ(values, sample_box(2, t, 0, box));
  }

  model.tensors.back().shape = {2};
  const auto export_again = [&] {
    export_checkpoint(folder / "checkpoint-2", model, folder / "other", DType::f32);
  };
  EXPECT_EQ(message_of<ConfigError>(export_again),
            "MODEL_DIR = " + (folder / "model").string() + ": " +
                (folder / "checkpoint-2").string() +
                " is of another model: its 'scale' has shape (), in this model (2); give the "
                "model_name_or_path of the run that saved it");
  model.tensors.back().shape = {};
  const auto file = folder / "checkpoint-2" / "rank-00001-of-00003.safetensors";
  std::string bytes = read_text_file(file, 1 << 20);
  bytes[bytes.size() / 2] ^= 1;
  replace_file(file, bytes);
  EXPECT_NE(message_of<ConfigError>(export_again)
                .find("checkpoint = " + (folder / "checkpoint-2").string() +
                      ": it cannot be used: rank-00001-of-00003.safetensors is damaged"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "other")) << "nothing half-made";
}

TEST(HfExport, ACheckpointOfTheModelAloneIsSaidToBeOne) {
  const TempFolder folder;
  SingleRank alone;
  CheckpointWriter({.output_dir = folder.path(), .step = 2}, {}, alone).commit(Json::object());
  const ExportedModel model{folder.path(), {{"scale", {}}}};
  EXPECT_EQ(message_of<ConfigError>([&] {
              export_checkpoint(folder / "checkpoint-2", model, folder / "other", DType::f32);
            }),
            "checkpoint = " + (folder / "checkpoint-2").string() +
                ": it holds only the model (save_only_model), and is its Hugging Face folder "
                "already; use it as it is");
  EXPECT_FALSE(std::filesystem::exists(folder / "other"));
}

}  // namespace
}  // namespace trireme::checkpoint
