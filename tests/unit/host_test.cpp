#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "host/cpu_topology.h"
#include "host/stream_writer.h"
#include "support/temp_folder.h"

namespace trireme::host {
namespace {

using test::message_of;
using test::TempFolder;

std::string pattern(int64_t bytes) {
  const RandomStream random(1, "pattern");
  std::string text(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < text.size(); i += 4) {
    const uint32_t word = random.bits(static_cast<int64_t>(i));
    for (size_t k = i; k < std::min(i + 4, text.size()); ++k) {
      text[k] = static_cast<char>(word >> (8 * (k - i)));
    }
  }
  return text;
}

struct Way {
  WriteEngine engine;
  PageCache page_cache;
};

class StreamWriterTest : public testing::TestWithParam<Way> {
 protected:
  /// Small buffers, so that small files cross many of them.
  WriteOptions options() const {
    return {.engine = GetParam().engine,
            .page_cache = GetParam().page_cache,
            .buffer_bytes = 8192,
            .num_buffers = 3};
  }
  TempFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Ways, StreamWriterTest,
                         testing::Values(Way{WriteEngine::automatic, PageCache::automatic},
                                         Way{WriteEngine::automatic, PageCache::use},
                                         Way{WriteEngine::threads, PageCache::automatic},
                                         Way{WriteEngine::threads, PageCache::use}));

TEST_P(StreamWriterTest, WritesWhatItWasGiven) {
  for (const int64_t bytes : {0, 1, 4095, 4096, 8191, 8192, 8193, 24576, 100000, 1000003}) {
    const std::string text = pattern(bytes);
    const auto path = folder_ / std::to_string(bytes);
    StreamWriter writer(path, options());
    int64_t at = 0;
    for (int64_t part = 1; at < bytes; part = part * 2 + 1) {
      const int64_t count = std::min(part, bytes - at);
      writer.write(text.data() + at, count);
      at += count;
    }
    writer.finish();
    EXPECT_EQ(writer.bytes(), bytes);
    EXPECT_EQ(writer.hashes(), std::vector{hash128(text)});
    EXPECT_EQ(read_text_file(path, 1 << 20), text) << bytes << " " << writer.description();
  }
}

TEST_P(StreamWriterTest, LimitOfFileSizeIsAnErrorAndStaysOne) {
  const auto path = folder_ / "limited";
  const std::string text = pattern(200000);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{50000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::string first;
  std::string second;
  {
    StreamWriter writer(path, options());
    const auto all = [&] {
      writer.write(text.data(), 200000);
      writer.finish();
    };
    first = message_of<DeviceError>(all);
    second = message_of<DeviceError>(all);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(first.find("('" + path.string() + "'): File too large"), std::string::npos) << first;
  EXPECT_EQ(second, first);
}

TEST_P(StreamWriterTest, ExistingFileIsRefused) {
  write_new_file(folder_ / "f", "x");
  EXPECT_NE(message_of<DeviceError>([&] { StreamWriter(folder_ / "f", options()); }), "");
  EXPECT_EQ(read_text_file(folder_ / "f", 9), "x");
}

TEST_P(StreamWriterTest, AbandonedWriterWaitsForItsWrites) {
  StreamWriter writer(folder_ / "f", options());
  const std::string text = pattern(20000);
  writer.write(text.data(), 20000);
}

void put(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(CpuTopology, CountsCoresNotHardwareThreads) {
  const TempFolder root;
  put(root / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU 9000\n");
  for (int cpu = 0; cpu < 8; ++cpu) {
    const auto folder = root / ("sys/devices/system/cpu/cpu" + std::to_string(cpu));
    put(folder / "topology/thread_siblings_list",
        std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4) + "\n");
    put(folder / (cpu % 4 < 2 ? "node0" : "node1") / "x", "");
  }
  const CpuTopology all = read_cpu_topology(root.path(), {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(all.model, "Fast CPU 9000");
  EXPECT_EQ(all.num_logical, 8);
  EXPECT_EQ(all.num_cores, 4);
  EXPECT_EQ(all.num_numa_nodes, 2);
  EXPECT_EQ(all.quota_cores, 0.0);
  EXPECT_EQ(all.usable_cores(), 4);
  const CpuTopology some = read_cpu_topology(root.path(), {0, 1, 4});
  EXPECT_EQ(some.num_cores, 2);
  EXPECT_EQ(some.num_numa_nodes, 1);
}

TEST(CpuTopology, SmallestQuotaOfAllParentsCounts) {
  const TempFolder root;
  put(root / "proc/self/cgroup", "0::/a/b\n");
  put(root / "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  put(root / "sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  const CpuTopology topology = read_cpu_topology(root.path(), {0, 1, 2, 3, 4});
  EXPECT_DOUBLE_EQ(topology.quota_cores, 2.5);
  EXPECT_EQ(topology.num_cores, 5) << "without a topology every hardware thread is a core";
  EXPECT_EQ(topology.usable_cores(), 3);
}

TEST(CpuTopology, QuotaOfVersion1) {
  const TempFolder root;
  put(root / "proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/job\n");
  put(root / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  put(root / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  put(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const CpuTopology topology = read_cpu_topology(root.path(), {0, 1});
  EXPECT_DOUBLE_EQ(topology.quota_cores, 0.5);
  EXPECT_EQ(topology.usable_cores(), 1);
}

TEST(CpuTopology, ThisMachine) {
  const CpuTopology topology = read_cpu_topology();
  EXPECT_GE(topology.usable_cores(), 1);
  EXPECT_GE(topology.num_logical, topology.num_cores);
  EXPECT_FALSE(topology.model.empty());
}

}  // namespace
}  // namespace trireme::host
