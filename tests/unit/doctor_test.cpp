// The checks of `trireme doctor`, on machines that are copies of a few files.
#include <gtest/gtest.h>

#include <fstream>

#include "doctor/checks.h"
#include "support/temp_folder.h"

namespace trireme::doctor {
namespace {

namespace fs = std::filesystem;

class Doctor : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  fs::path root() const { return root_.path(); }
  test::TempFolder root_;
};

const Finding* find(const Findings& findings, const std::string& subject) {
  for (const Finding& finding : findings) {
    if (finding.subject == subject) return &finding;
  }
  return nullptr;
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(DoctorReport, IsALineEachAndBadWhenOneIs) {
  const Findings findings = {{Verdict::good, "CPU", "fast", ""},
                             {Verdict::note, "memory", "little", "buy more"}};
  EXPECT_EQ(report(findings),
            "ok    CPU                fast\n"
            "note  memory             little\n"
            "                         -> buy more\n");
  EXPECT_TRUE(is_healthy(findings));
  EXPECT_FALSE(is_healthy({findings[0], {Verdict::bad, "port 1", "in use", ""}}));
}

TEST_F(Doctor, TellsWhichInstructionsThereAre) {
  const auto instructions = [&](const std::string& flags) {
    write("proc/cpuinfo", "processor : 0\nflags\t\t: fpu " + flags + " xtopology\n");
    return *find(check_cpu(root()), "instructions");
  };
  const Finding all = instructions("avx2 avx512f avx512_bf16 amx_bf16");
  EXPECT_EQ(all.verdict, Verdict::good);
  EXPECT_EQ(all.text, "avx2, avx512f, avx512_bf16, amx_bf16");
  EXPECT_EQ(instructions("avx2").verdict, Verdict::note);
  EXPECT_EQ(instructions("avx2").text, "avx2; bf16 is converted to f32 (no avx512_bf16)");
  EXPECT_EQ(instructions("sse4_2").text, "neither AVX2 nor AVX-512");
}

TEST_F(Doctor, TellsTheMemoryThatMayBeTaken) {
  write("proc/meminfo", "MemTotal:  16777216 kB\nMemFree: 1 kB\nMemAvailable:  8388608 kB\n");
  EXPECT_EQ(check_memory(root())[0].text, "8.0 GiB available of 16.0 GiB");
  EXPECT_EQ(check_memory(root())[0].verdict, Verdict::good);
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(check_memory(root())[0].text, "8.0 GiB available of 16.0 GiB");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  const Finding limited = check_memory(root())[0];
  EXPECT_TRUE(has(limited.text, "the control group allows 1.0 GiB")) << limited.text;
  EXPECT_EQ(limited.verdict, Verdict::note);
}

TEST_F(Doctor, TellsTheDriver) {
  const accel::CudaSight none{0, 0, "no NVIDIA driver (libcuda.so.1) is installed"};
  EXPECT_EQ(check_gpu(root(), none, false)[0].verdict, Verdict::note);
  EXPECT_EQ(check_gpu(root(), none, true)[0].verdict, Verdict::bad);
  EXPECT_EQ(check_gpu(root(), none, true)[0].text, none.why_not);
  write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n");
  EXPECT_EQ(check_gpu(root(), {2, 13010, ""}, true)[0].text,
            "NVIDIA driver 580.95.05 is loaded; 2 devices, CUDA 13.1");
}

TEST_F(Doctor, TellsTheCudaLibrariesAndTheCommandThatBringsThem) {
  write("lib/libcublasLt.so.13", "no library");
  fs::create_symlink("/lib/x86_64-linux-gnu/libm.so.6", root() / "lib/libcudnn.so.9");
  const Findings wanted = check_cuda_libraries({root() / "lib"}, true);
  ASSERT_EQ(wanted.size(), 4U);
  EXPECT_EQ(find(wanted, "cuDNN 9")->verdict, Verdict::good);
  EXPECT_TRUE(has(find(wanted, "cuDNN 9")->text, "libcudnn.so.9"));
  EXPECT_EQ(find(wanted, "cuBLASLt")->verdict, Verdict::bad);
  EXPECT_TRUE(has(find(wanted, "cuBLASLt")->text, "file too short"));
  EXPECT_EQ(find(wanted, "NCCL")->verdict, Verdict::bad);
  EXPECT_EQ(find(wanted, "NCCL")->remedy, "pip install nvidia-nccl-cu13");
  EXPECT_EQ(check_cuda_libraries({root() / "lib"}, false).size(), 1U);
}

TEST_F(Doctor, TriesTheOutputFolderAndLeavesNothing) {
  const Findings there = check_folder(root() / "new/out");
  EXPECT_NE(there[0].verdict, Verdict::bad);
  EXPECT_TRUE(has(there[0].text, root().string() + " can be written to (")) << there[0].text;
  EXPECT_NE(find(there, "free space"), nullptr);
  EXPECT_TRUE(fs::is_empty(root()));
  write("file", "");
  EXPECT_EQ(check_folder(root() / "file/out")[0].verdict, Verdict::bad);
  EXPECT_EQ(check_folder("/proc/self/out")[0].verdict, Verdict::bad);
}

TEST(DoctorNetwork, TriesThePort) {
  const store::Fd taken = store::listen_on({"127.0.0.1", 0}, 1);
  const int port = store::bound_port(taken);
  const Findings findings = check_network({"127.0.0.1", port});
  EXPECT_EQ(find(findings, "loopback")->verdict, Verdict::good);
  const Finding* bad = find(findings, "port " + std::to_string(port));
  ASSERT_NE(bad, nullptr);
  EXPECT_EQ(bad->verdict, Verdict::bad);
  EXPECT_TRUE(has(bad->text, "Address already in use")) << bad->text;
  EXPECT_TRUE(is_healthy(check_network({"127.0.0.1", 0})));
}

TEST(DoctorLimits, TellsTheOpenFiles) { EXPECT_EQ(check_limits()[0].subject, "open files"); }

}  // namespace
}  // namespace trireme::doctor
