// GB/s of saving, verifying and resuming from a checkpoint, beside what the disk itself writes and
// reads in the same run. Usage: bench_checkpoint [FOLDER [GIB_PER_RANK [RANKS]]]
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "support/thread_coordinator.h"

namespace {

namespace fs = std::filesystem;
using trireme::checkpoint::Coordinator;

constexpr int kRepeats = 3;
constexpr int64_t kPiece = int64_t{4} << 20;  // bytes

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Drops a file from the page cache, so that reading it asks the disk.
void forget(const fs::path& path) {
  const trireme::File file = trireme::File::open(path);
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
}

/// Plain aligned writes past the page cache and an fsync.
void write_raw(const fs::path& path, const std::byte* data, int64_t bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0600);
  if (fd < 0) trireme::throw_errno("open", path.string());
  for (int64_t at = 0; at < bytes; at += kPiece) {
    if (::pwrite(fd, data + at, kPiece, at) != kPiece)
      trireme::throw_errno("pwrite", path.string());
  }
  ::fsync(fd);
  ::close(fd);
}

void read_raw(const fs::path& path, std::byte* data, int64_t bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT);
  if (fd < 0) trireme::throw_errno("open", path.string());
  for (int64_t at = 0; at < bytes; at += kPiece) {
    if (::pread(fd, data + at, kPiece, at) != kPiece) trireme::throw_errno("pread", path.string());
  }
  ::close(fd);
}

struct Bench {
  fs::path folder;
  int num_ranks;
  int64_t bytes;     // of one rank, whole pieces
  std::byte* state;  // one rank's; the ranks save the same values

  int64_t rows() const { return bytes / kPiece; }
  std::vector<int64_t> shape() const { return {rows() * num_ranks, kPiece / 4}; }
  trireme::mesh::Box box(int rank) const { return {{rank * rows(), 0}, {rows(), kPiece / 4}}; }
  fs::path checkpoint() const { return folder / "checkpoint-1"; }
  double total_gb() const { return static_cast<double>(bytes) * num_ranks / 1e9; }

  void on_ranks(const std::function<void(Coordinator&)>& body) const {
    for (const std::string& error : trireme::test::run_ranks(num_ranks, body)) {
      if (!error.empty()) throw trireme::DeviceError(error);
    }
  }

  void save() const {
    on_ranks([&](Coordinator& ranks) {
      const trireme::mesh::Box mine = box(ranks.rank());
      trireme::checkpoint::CheckpointWriter writer({.output_dir = folder, .step = 1},
                                                   {{"state", "master", shape(), mine}}, ranks);
      writer.add("state", "master", mine, reinterpret_cast<const float*>(state));
      writer.commit({});
    });
  }

  void verify() const {
    on_ranks([&](Coordinator& ranks) {
      if (!trireme::checkpoint::find_newest(folder, ranks)) throw trireme::DeviceError("none");
    });
  }

  /// As a resume does: every rank reads its box, all of it is verified.
  void resume(std::vector<std::vector<float>>* out) const {
    on_ranks([&](Coordinator& ranks) {
      const auto read = [&](trireme::checkpoint::CheckpointReader& reader) {
        reader.read("state", "master", shape(), box(ranks.rank()),
                    (*out)[static_cast<size_t>(ranks.rank())].data());
      };
      if (!trireme::checkpoint::find_newest(folder, ranks, read)) {
        throw trireme::DeviceError("none");
      }
    });
  }

  /// What the disk does for two plain threads a rank, each with a file of its own.
  void raw(bool write) const {
    std::vector<std::thread> threads;
    const int64_t half = std::max(kPiece, bytes / kPiece / 2 * kPiece);
    for (int t = 0; t < 2 * num_ranks; ++t) {
      threads.emplace_back([=, this] {
        const fs::path path = folder / fmt::format("raw-{}", t);
        std::byte* data = state + (t % 2) * (bytes - half);
        return write ? write_raw(path, data, half) : read_raw(path, data, half);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void remove_raw() const {
    for (int t = 0; t < 2 * num_ranks; ++t) trireme::remove_tree(folder / fmt::format("raw-{}", t));
  }

  void forget_checkpoint() const {
    for (const std::string& name : trireme::list_folder(checkpoint())) forget(checkpoint() / name);
  }
};

double best_of(const std::function<double()>& measure) {
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) best = std::min(best, measure());
  return best;
}

void print(std::string_view what, double gb, double seconds, double disk_rate) {
  fmt::print("{:<34} {:6.2f} GB/s  {:5.0f} % of the disk\n", what, gb / seconds,
             100 * gb / seconds / disk_rate);
}

void run(const Bench& bench) {
  const double gb = bench.total_gb();
  const double raw_write = gb / best_of([&] {
                             bench.remove_raw();
                             return seconds_of([&] { bench.raw(true); });
                           });
  const double raw_read = gb / best_of([&] { return seconds_of([&] { bench.raw(false); }); });
  bench.remove_raw();
  fmt::print("{} ranks, {:.2f} GB in all, best of {}\n", bench.num_ranks, gb, kRepeats);
  print("disk, plain writes", 1.0, 1.0 / raw_write, raw_write);
  const double save = best_of([&] {
    trireme::remove_tree(bench.checkpoint());
    return seconds_of([&] { bench.save(); });
  });
  print("save (hashed, fsynced, published)", bench.total_gb(), save, raw_write);
  print("disk, plain reads", 1.0, 1.0 / raw_read, raw_read);
  const double verify = best_of([&] {
    bench.forget_checkpoint();
    return seconds_of([&] { bench.verify(); });
  });
  print("verify, cold", bench.total_gb(), verify, raw_read);
  std::vector<std::vector<float>> out(static_cast<size_t>(bench.num_ranks));
  for (auto& rank : out) rank.resize(static_cast<size_t>(bench.bytes / 4));
  const double resume = best_of([&] {
    bench.forget_checkpoint();
    return seconds_of([&] { bench.resume(&out); });
  });
  print("resume (read and verified), cold", bench.total_gb(), resume, raw_read);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench{};
  bench.folder = fs::path(argc > 1 ? argv[1] : ".") / "checkpoint_bench.tmp";
  const double gib = argc > 2 ? std::atof(argv[2]) : 1.0;
  bench.num_ranks = argc > 3 ? std::atoi(argv[3]) : 2;
  bench.bytes = std::max<int64_t>(1, static_cast<int64_t>(gib * 256)) * kPiece;
  trireme::remove_tree(bench.folder);
  trireme::make_folders(bench.folder);
  bench.state = static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<size_t>(bench.bytes)));
  trireme::RandomStream(1, "state")
      .fill_normal(0, bench.bytes / 4, 0.0f, 1.0f, reinterpret_cast<float*>(bench.state));
  run(bench);
  std::free(bench.state);
  trireme::remove_tree(bench.folder);
  return 0;
}
