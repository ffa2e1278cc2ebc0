// Collectives between processes and between threads, with Gloo's own beside them in the same run.
//
//   bench_comm [--ranks 2,4] [--bytes 4096,1048576,67108864] [--seconds 1]
//
// One line a case: seconds a call (median over calls of rank 0) and payload GB/s sent per rank.
// `bytes` is the whole message: what all_gather gives, reduce_scatter takes, all_reduce sums.
#include <fmt/format.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cpu/communicator.h"
#include "cpu/communicator_calls.h"
#include "cpu/inproc.h"
#include "store/memory_store.h"

namespace {

using namespace trireme;  // NOLINT: a program, not a library
using comm::CommKind;
using Clock = std::chrono::steady_clock;

struct Buffers {
  explicit Buffers(int64_t bytes, int ranks)
      : whole(static_cast<size_t>(bytes / 4), 1.0f),
        out(whole.size(), 0.0f),
        workspace(static_cast<size_t>(ranks * cpu::kStagedElements)) {}
  std::vector<float> whole, out, workspace;
};

/// Calls `call` until `seconds` have passed on the clock of whoever decides; returns the median.
/// `again(i, elapsed)` is the same decision on every rank.
double measure(double seconds, const std::function<bool(bool)>& agree,
               const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  std::vector<double> times;
  const auto start = Clock::now();
  do {
    for (int i = 0; i < 5; ++i) {
      const auto begin = Clock::now();
      call();
      times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
  } while (agree(std::chrono::duration<double>(Clock::now() - start).count() < seconds));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

double bench_ours(comm::Communicator& communicator, CommKind kind, int64_t bytes, double seconds) {
  const int n = communicator.world_size();
  Buffers buffers(bytes, n);
  const auto elements = static_cast<int64_t>(buffers.whole.size());
  const bool whole_count = kind == CommKind::all_reduce;
  const comm::CommPiece piece{buffers.whole.data(), buffers.out.data(),
                              whole_count ? elements : elements / n};
  const auto run = [&](CommKind k, const comm::CommPiece& p) {
    communicator.run({.kind = k,
                      .pieces = std::span(&p, 1),
                      .workspace = buffers.workspace.data(),
                      .workspace_bytes = static_cast<int64_t>(buffers.workspace.size() * 4)});
  };
  const auto agree = [&](bool mine) {
    float flag = mine ? 1 : 0;
    run(CommKind::broadcast, {nullptr, &flag, 1});
    return flag != 0;
  };
  return measure(seconds, agree, [&] { run(kind, piece); });
}

double bench_gloo(const std::shared_ptr<gloo::Context>& context, CommKind kind, int64_t bytes,
                  double seconds) {
  const int n = context->size;
  Buffers buffers(bytes, n);
  const size_t elements = buffers.whole.size();
  uint32_t tag = 0;
  const auto agree = [&](bool mine) {
    float flag = mine && context->rank == 0 ? 1 : 0;
    gloo::AllreduceOptions options(context);
    options.setOutput(&flag, 1);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setTag(++tag);
    gloo::allreduce(options);
    return flag != 0;
  };
  gloo::ReduceScatterHalvingDoubling<float> scatter(
      context, {buffers.whole.data()}, static_cast<int>(elements),
      std::vector<int>(static_cast<size_t>(n), static_cast<int>(elements) / n));
  return measure(seconds, agree, [&] {
    if (kind == CommKind::all_gather) {
      gloo::AllgatherOptions options(context);
      options.setInput(buffers.whole.data(), elements / static_cast<size_t>(n));
      options.setOutput(buffers.out.data(), elements);
      options.setTag(++tag);
      gloo::allgather(options);
    } else if (kind == CommKind::all_reduce) {
      gloo::AllreduceOptions options(context);
      options.setOutput(buffers.whole.data(), elements);
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      options.setTag(++tag);
      gloo::allreduce(options);
    } else {
      scatter.run();
    }
  });
}

/// Runs `body` in `n` forked processes; what rank 0 returns.
double in_processes(int n, const std::function<double(int)>& body) {
  auto* const shared = static_cast<double*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  check(shared != MAP_FAILED, "mmap failed");
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid != 0) {
      children.push_back(pid);
      continue;
    }
    const double result = body(rank);
    if (rank == 0) *shared = result;
    _exit(0);
  }
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a rank failed");
  }
  const double result = *shared;
  munmap(shared, 4096);
  return result;
}

double in_threads(int n, const std::function<double(comm::Communicator&)>& body) {
  cpu::InProcessWorld world(n);
  double result = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator = world.join(rank);
      const double mine = body(*communicator);
      if (rank == 0) result = mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

/// A store in files, enough for a benchmark.
class FileStore final : public comm::Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}
  void set(std::string_view key, std::string_view value) override {
    const std::string draft = path(key) + fmt::format(".{}", getpid());
    FILE* const file = fopen(draft.c_str(), "w");
    check(file != nullptr && fwrite(value.data(), 1, value.size(), file) == value.size(),
          "cannot write {}", draft);
    fclose(file);
    std::filesystem::rename(draft, path(key));
  }
  std::string get(std::string_view key, std::chrono::milliseconds) override {
    for (;;) {
      if (const auto value = try_get(key)) return *value;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::optional<std::string> try_get(std::string_view key) override {
    FILE* const file = fopen(path(key).c_str(), "r");
    if (file == nullptr) return std::nullopt;
    std::string value(4096, '\0');
    value.resize(fread(value.data(), 1, value.size(), file));
    fclose(file);
    return value;
  }
  int64_t add(std::string_view, int64_t) override { return 0; }

 private:
  std::string path(std::string_view key) const {
    std::string name(key);
    std::replace(name.begin(), name.end(), '/', '-');
    return folder_ + "/" + name;
  }
  std::string folder_;
};

std::string new_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "bench_comm_XXXXXX").string();
  check(mkdtemp(name.data()) != nullptr, "mkdtemp failed");
  return name;
}

double run_case(std::string_view backend, CommKind kind, int n, int64_t bytes, double seconds) {
  const std::string folder = new_folder();
  double result = 0;
  if (backend == "threads") {
    result = in_threads(n, [&](comm::Communicator& communicator) {
      return bench_ours(communicator, kind, bytes, seconds);
    });
  } else if (backend == "processes") {
    result = in_processes(n, [&](int rank) {
      FileStore store(folder);
      const auto communicator = cpu::connect_processes(store, {.rank = rank, .world_size = n});
      return bench_ours(*communicator, kind, bytes, seconds);
    });
  } else {
    result = in_processes(n, [&](int rank) {
      auto store = gloo::rendezvous::FileStore(folder);
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, n);
      auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
      context->connectFullMesh(store, device);
      return bench_gloo(context, kind, bytes, seconds);
    });
  }
  std::filesystem::remove_all(folder);
  return result;
}

std::vector<int64_t> parse_list(const std::string& text) {
  std::vector<int64_t> list;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    list.push_back(std::stoll(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> ranks{2, 4}, sizes{4096, 1 << 20, 64 << 20};
  double seconds = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--ranks") ranks = parse_list(argv[i + 1]);
    if (flag == "--bytes") sizes = parse_list(argv[i + 1]);
    if (flag == "--seconds") seconds = std::stod(argv[i + 1]);
  }
  fmt::print("{:<15} {:>5} {:>10} {:>12} {:>14} {:>10} {:>10} {:>12}\n", "collective", "ranks",
             "bytes", "threads us", "processes us", "gloo us", "gloo/ours", "ours GB/s");
  for (const CommKind kind :
       {CommKind::all_gather, CommKind::reduce_scatter, CommKind::all_reduce}) {
    for (const int64_t n : ranks) {
      for (const int64_t bytes : sizes) {
        const auto time = [&](std::string_view backend) {
          return 1e6 * run_case(backend, kind, static_cast<int>(n), bytes, seconds);
        };
        const double threads = time("threads");
        const double processes = time("processes");
        const double gloo = time("gloo");
        const double sent = static_cast<double>(bytes) * static_cast<double>(n - 1) /
                            static_cast<double>(n) * (kind == CommKind::all_reduce ? 2 : 1);
        fmt::print("{:<15} {:>5} {:>10} {:>12.1f} {:>14.1f} {:>10.1f} {:>10.2f} {:>12.2f}\n",
                   name_of(kind), n, bytes, threads, processes, gloo, gloo / processes,
                   sent / (processes * 1e3));
        std::fflush(stdout);
      }
    }
  }
  return 0;
}
