// Model folders of the families, read and written by the program.
#include <gtest/gtest.h>

#include "model/hf_weights.h"
#include "support/program.h"
#include "support/source_folder.h"

namespace trireme::test {
namespace {

class FamilyFolders : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path golden() const {
    return testing::source_folder() / "tests/golden/data" / GetParam();
  }
  /// Trains `from` on the family's rows and writes the folder `to`.
  void train(int ranks, const std::filesystem::path& from, const std::string& to,
             const Flags& flags) {
    const Flags paths = {{"model_name_or_path", from},
                         {"data_path", golden() / "train.jsonl"},
                         {"output_dir", work_ / to}};
    const Words words = command("train", with(work_.flags(), with(paths, flags)));
    const Outcome outcome = work_.run(launched(ranks, words));
    ASSERT_EQ(outcome.code, 0) << outcome.text();
  }
  /// The same without learning anything.
  void copy(const std::filesystem::path& from, const std::string& to) {
    train(1, from, to, {{"init_from_config", "false"}, {"learning_rate", "0"}, {"max_steps", "1"}});
  }
  Workplace work_;
};

/// The tensors that transformers wrote, under the same names.
TEST_P(FamilyFolders, ComeBackAsTransformersWroteThem) {
  copy(golden(), "same");
  model::HfWeights before(golden());
  model::HfWeights after(work_ / "same");
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const model::TensorInfo* tensor : before.tensors()) {
    ASSERT_NE(after.find(tensor->name), nullptr) << tensor->name;
    EXPECT_EQ(after.find(tensor->name)->shape, tensor->shape) << tensor->name;
    const mesh::Box box = mesh::whole(tensor->shape);
    std::vector<float> written(static_cast<size_t>(box.size()));
    std::vector<float> read(written.size());
    before.read_box(tensor->name, box, written.data());
    after.read_box(tensor->name, box, read.data());
    EXPECT_EQ(read, written) << tensor->name;
  }
}

/// Weights made from config.json alone, trained and written by two ranks that share them.
TEST_P(FamilyFolders, OfRandomWeightsAreReadAgain) {
  std::filesystem::create_directory(work_ / "bare");
  std::filesystem::copy(golden() / "config.json", work_ / "bare/config.json");
  train(2, work_ / "bare", "first", {{"zero_stage", "3"}});
  copy(work_ / "first", "again");
  EXPECT_TRUE(read_bytes(work_ / "first/model.safetensors") ==
              read_bytes(work_ / "again/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyFolders, ::testing::Values("llama3", "qwen3", "mistral"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace trireme::test
