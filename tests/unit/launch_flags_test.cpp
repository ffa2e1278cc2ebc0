// The command line of `trireme launch`, as people type it for torchrun and deepspeed.
#include "launch/launch_flags.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "launch/hostfile.h"
#include "support/temp_folder.h"

namespace trireme::launch {
namespace {

using Words = std::vector<std::string>;

LaunchRequest parse(Words words, int gpus = 4) {
  words.insert(words.end(), {"train", "--bf16"});
  return parse_launch(words, {[gpus] { return gpus; }, [] { return 6; }});
}

std::string refusal(const Words& words, int gpus = 4) {
  return test::message_of<ConfigError>([&] { parse(words, gpus); });
}

bool starts(const std::string& text, std::string_view begin) { return text.starts_with(begin); }

TEST(LaunchFlags, OfTorchrunAreHonoured) {
  const LaunchRequest request =
      parse({"--nnodes=1:1", "--nproc-per-node", "8", "--rdzv_backend=c10d",
             "--rdzv_endpoint=node7:29400", "--node_rank", "0", "--max-restarts", "3", "-t", "3"});
  EXPECT_EQ(request.options.num_processes, 8);
  EXPECT_EQ(request.options.master_addr, "node7");
  EXPECT_EQ(request.options.master_port, 29400);
  EXPECT_EQ(request.options.max_restarts, 3);
  EXPECT_TRUE(request.options.prefix_output);
  EXPECT_EQ(request.command, (Words{"train", "--bf16"}));
  EXPECT_EQ(request.notices, Words{});
  EXPECT_EQ(parse({"--nproc_per_node", "gpu"}).options.num_processes, 4);
  EXPECT_EQ(parse({"--nproc_per_node", "cpu"}).options.num_processes, 6);
  EXPECT_EQ(parse({"--nproc_per_node", "auto"}).options.num_processes, 4);
  EXPECT_EQ(parse({"--nproc_per_node", "auto"}, 0).options.num_processes, 6);
  EXPECT_EQ(parse({"--standalone"}).options.master_port, 0);
  EXPECT_EQ(parse({"--rdzv_endpoint", "localhost:0"}).options.master_port, 0);
  EXPECT_EQ(parse({"--rdzv_endpoint", "localhost"}).options.master_addr, "localhost");
}

TEST(LaunchFlags, OfDeepspeedAreHonoured) {
  const test::TempFolder folder;
  const std::string hosts = folder / "hosts";
  std::ofstream(hosts) << "# ours\n\nlocalhost slots=3  # all\n";
  const LaunchRequest request =
      parse({"--num_gpus=8", "--num_nodes=1", "--master_addr=10.0.0.1", "--master_port=29500"});
  EXPECT_EQ(request.options.num_processes, 8);
  EXPECT_EQ(request.options.master_addr, "10.0.0.1");
  EXPECT_EQ(request.options.master_port, 29500);
  EXPECT_EQ(parse({"--hostfile", hosts}).options.num_processes, 3);
  EXPECT_EQ(parse({"-H", hosts, "--num_gpus", "2"}).options.num_processes, 2);
  const LaunchRequest included = parse({"--include", "localhost:0,2"});
  EXPECT_EQ(included.options.num_processes, 2);
  EXPECT_EQ(included.visible_devices, "0,2");
  EXPECT_EQ(parse({"-e", "localhost:1"}).visible_devices, "0,2,3");
  EXPECT_EQ(parse({"-H", hosts, "--exclude", "localhost:1"}).visible_devices, "0,2");
}

TEST(LaunchFlags, OfLogsAreHonoured) {
  const auto options = [](const Words& words) { return parse(words).options; };
  const LaunchOptions teed = options({"--log_dir", "logs", "--tee", "3"});
  EXPECT_EQ(teed.log_dir, "logs");
  EXPECT_EQ(teed.teed.of(7), 3);
  EXPECT_TRUE(teed.prefix_output);
  const LaunchOptions some = options({"-r", "0:1,2:3", "--log-dir=logs"});
  EXPECT_EQ(some.redirected.of(0), kStandardOutput);
  EXPECT_EQ(some.redirected.of(1), 0);
  EXPECT_EQ(some.redirected.of(2), 3);
  EXPECT_EQ(options({"--local_ranks_filter", "0,3"}).shown_ranks, (std::set{0, 3}));
  const LaunchOptions each = options({"--enable_each_rank_log", "logs"});
  EXPECT_EQ(each.log_dir, "logs");
  EXPECT_EQ(each.redirected.of(1), 3);
  EXPECT_FALSE(options({"--enable_each_rank_log", "None"}).redirected.any());
  EXPECT_FALSE(options({"--tee", "3"}).teed.any());  // no folder: the prefix alone
  EXPECT_TRUE(starts(refusal({"--redirects", "3"}), "redirects = given: give --log_dir"));
  EXPECT_TRUE(starts(refusal({"--tee", "4"}), "tee = 4: give a whole number from 0 to 3"));
  EXPECT_TRUE(starts(refusal({"--tee", "0:1,1"}), "tee = : give a whole number"));
  EXPECT_TRUE(starts(refusal({"--local_ranks_filter", "a"}), "local_ranks_filter = a: give a"));
}

TEST(LaunchFlags, WithoutEffectAreReported) {
  EXPECT_EQ(
      parse({"--rdzv_id=7", "--no_python", "--log_dir", "logs"}).notices,
      (Words{"rdzv_id has no effect: there is one node",
             "no_python has no effect: there is no Python",
             "log_dir has no effect: --tee 3 or --redirects 3 writes the ranks' logs there"}));
}

TEST(LaunchFlags, ThatCannotBeDoneAreRefusedByName) {
  for (const Words& words : {Words{"--nnodes", "2"},
                             {"--nnodes=1:4"},
                             {"--num_nodes", "2"},
                             {"--node_rank", "1"},
                             {"--include", "a:0@b:0"}}) {
    const std::string sentence = refusal(words);
    EXPECT_NE(sentence.find("real torchrun starts them already"), std::string::npos) << sentence;
  }
  EXPECT_TRUE(starts(refusal({"--max_restarts", "-1"}), "max_restarts = -1: give a whole number"));
  EXPECT_TRUE(starts(refusal({"--autotuning", "run"}), "autotuning = run: not supported; "));
  EXPECT_TRUE(starts(refusal({"-m"}), "module = given: there is no Python"));
  EXPECT_TRUE(starts(refusal({"--rdzv_backend", "etcd"}), "rdzv_backend = etcd: not supported"));
  EXPECT_TRUE(starts(refusal({"--nproc_per_node", "gpu"}, 0), "nproc_per_node = gpu: there is no"));
  EXPECT_TRUE(starts(refusal({"--nproc_per_node", "many"}), "nproc_per_node = many: give a whole"));
  EXPECT_TRUE(starts(refusal({"--standalone=1"}), "standalone = 1: it takes no value"));
  EXPECT_TRUE(starts(refusal({"--exclude", "localhost"}), "exclude = given: it leaves no device"));
  EXPECT_TRUE(starts(refusal({"--num_gpu", "2"}),
                     "--num_gpu is not an option of launch (did you mean 'num_gpus'?)"));
  EXPECT_TRUE(
      starts(refusal({"--num_gpus", "2", "train.py"}), "command = train.py: there is no P"));
}

TEST(LaunchFlags, EndWhereTheCommandBegins) {
  EXPECT_EQ(parse({"--num_gpus", "2", "--"}).command, (Words{"train", "--bf16"}));
  EXPECT_EQ(test::message_of<ConfigError>([] { parse_launch({}, {}); }),
            "launch needs a command: launch -- train ...");
  EXPECT_TRUE(parse({"--help"}).help);
}

TEST(Hostfile, NamesTheLineThatIsWrong) {
  const test::TempFolder folder;
  const std::string path = folder / "hosts";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return test::message_of<DataError>([&] { read_hostfile(path); });
  };
  EXPECT_EQ(read("a slots=8\nb\n"), path + ":2: give 'HOST slots=N', not 'b'");
  EXPECT_EQ(read("a slots=0\n"), path + ":1: give 'HOST slots=N', not 'a slots=0'");
  EXPECT_EQ(read("a slots=8 more\n"), path + ":1: give 'HOST slots=N', not 'a slots=8 more'");
  EXPECT_EQ(read("# nothing\n"), path + ": it names no host");
  EXPECT_EQ(read("a slots=8\nb slots=4"), "");
  EXPECT_EQ(read_hostfile(path), (std::vector<HostSlots>{{"a", 8}, {"b", 4}}));
}

TEST(Hostfile, FiltersAreRead) {
  EXPECT_EQ(parse_host_filter("include", "a@b:0,2"),
            (std::vector<HostFilter>{{"a", {}}, {"b", {0, 2}}}));
  for (const char* bad : {"", "a@", ":0", "a:", "a:0,", "a:x", "a:-1"}) {
    EXPECT_THROW(parse_host_filter("include", bad), ConfigError) << bad;
  }
}

}  // namespace
}  // namespace trireme::launch
