// The commands of our users, unchanged but for the program's name: `trireme launch` for deepspeed
// and torchrun, `train` for train.py. The model is a tiny one, in the cache under the id that they
// name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/program.h"
#include "support/source_folder.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

/// Without the keys of offloading, which are refused by name until it exists.
constexpr std::string_view kZero3 =
    R"({"train_batch_size":128,"train_micro_batch_size_per_gpu":2,"gradient_accumulation_steps":8,)"
    R"("zero_optimization":{"stage":3,"overlap_comm":true,"contiguous_gradients":true,)"
    R"("sub_group_size":1e9,"reduce_bucket_size":"auto","stage3_prefetch_bucket_size":"auto",)"
    R"("stage3_param_persistence_threshold":"auto","stage3_max_live_parameters":1e9,)"
    R"("stage3_max_reuse_distance":1e9,"stage3_gather_16bit_weights_on_model_save":true},)"
    R"("bf16":{"enabled":true},"gradient_clipping":1.0,"prescale_gradients":false,)"
    R"("wall_clock_breakdown":false})";

constexpr std::string_view kTrain =
    "train --model_name_or_path Qwen/Qwen2.5-7B --data_path ./data/train.jsonl --bf16 "
    "--deepspeed ds_config_z3.json --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 8 --learning_rate 2e-5 --num_train_epochs 3 "
    "--warmup_ratio 0.03 --lr_scheduler_type cosine --weight_decay 0.01 --output_dir ./output "
    "--gradient_checkpointing true --logging_steps 10 --report_to tensorboard ";

class Users : public ::testing::Test {
 protected:
  Users() {
    const fs::path model = work_ / "cache/models--Qwen--Qwen2.5-7B";
    const fs::path made = work_ / "made";
    EXPECT_EQ(
        work_.run(command("train", with(work_.flags(), {{"max_steps", "1"}, {"output_dir", made}})))
            .code,
        0);
    fs::create_directories(model / "refs");
    fs::create_directories(model / "blobs");
    fs::create_directories(model / "snapshots/abc");
    write_text(model / "refs/main", "abc");
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::rename(made / name, model / "blobs" / name);
      fs::create_symlink(fs::path("../../blobs") / name, model / "snapshots/abc" / name);
    }
    fs::create_directories(work_ / "data");
    write_rows(work_ / "data/train.jsonl", 130, 1);
    write_text(work_ / "ds_config_z3.json", std::string(kZero3));
  }

  /// Runs `line` of bash as a user types it, in the workplace.
  Outcome type(const std::string& line) const {
    return work_.run_shell(
        fmt::format("cd {}; export HF_HUB_CACHE=$PWD/cache MASTER_ADDR=127.0.0.1 MASTER_PORT={}; "
                    "trireme() {{ \"$0\" \"$@\"; }}; BASH_ARGV0=$1; {}",
                    work_.path().string(), quiet_port(), line),
        {});
  }
  std::vector<fs::path> event_files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(work_ / "output/runs")) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    }
    return found;
  }
  void expect_trained(const Outcome& outcome) const {
    ASSERT_EQ(outcome.code, 0) << outcome.text();
    EXPECT_TRUE(has(outcome.out, "Total optimization steps = 6")) << outcome.out;
    EXPECT_TRUE(has(outcome.out, "Qwen/Qwen2.5-7B is " + (work_ / "cache").string()));
    EXPECT_EQ(read_metrics(work_ / "output/metrics.jsonl").size(), 6U);
    ASSERT_EQ(event_files().size(), 1U);
    EXPECT_TRUE(has(read_bytes(event_files()[0]), "train/train_loss"));
    EXPECT_TRUE(fs::exists(work_ / "output/model.safetensors"));
    EXPECT_FALSE(fs::is_symlink(work_ / "output/config.json"));
  }

  Workplace work_;
};

TEST_F(Users, TypeDeepspeed) {
  const std::string line =
      "trireme launch --num_gpus=8 --num_nodes={} "
      "--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT " +
      std::string(kTrain) + "--save_strategy epoch";
  expect_trained(type(fmt::format(fmt::runtime(line), 1)));
  EXPECT_TRUE(fs::exists(work_ / "output/checkpoint-2"));
  const Outcome two = type(fmt::format(fmt::runtime(line), 2));
  EXPECT_EQ(two.code, 2);
  EXPECT_TRUE(has(two.err,
                  "num_nodes = 2: several nodes with a rendezvous of our own are not "
                  "supported yet; real torchrun starts them already"))
      << two.err;
}

TEST_F(Users, TypeTorchrunUnderSrun) {
  const std::string job =
      "srun --nodes=1 --ntasks=1 \"$0\" launch --nnodes=$SLURM_JOB_NUM_NODES --nproc_per_node=8 "
      "--rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT " +
      std::string(kTrain) + "--save_strategy steps --save_steps 500 --save_total_limit 5";
  write_text(work_ / "job.sh", "#!/bin/bash\n" + job + "\n");
  const fs::path cluster = testing::source_folder() / "tests/dist/slurm_cluster.sh";
  // salloc stands for the batch job around it.
  expect_trained(type(fmt::format(
      "{} $PWD/slurm salloc --nodes=1 bash -c \"$(tail -n 1 job.sh)\" $0", cluster.string())));
  EXPECT_TRUE(fs::exists(work_ / "output/checkpoint-6"));
}

TEST_F(Users, AskForAModelThatIsNotThere) {
  const Outcome outcome =
      type("trireme " + std::string(kTrain) + "--model_name_or_path Qwen/Qwen3-4B");
  EXPECT_EQ(outcome.code, 2) << outcome.text();
  EXPECT_TRUE(has(outcome.err, "fetch it with `hf download Qwen/Qwen3-4B`")) << outcome.err;
}

}  // namespace
}  // namespace trireme::test
