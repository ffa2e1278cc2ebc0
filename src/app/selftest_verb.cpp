// `trireme selftest --layouts`: random layouts against the single process, on this machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "accel/cuda_loader.h"
#include "app/verbs.h"
#include "base/error.h"
#include "config/arguments.h"
#include "config/problems.h"
#include "cpu/backend.h"
#include "cpu/inproc.h"
#include "store/memory_store.h"
#include "train/layout_check.h"

namespace trireme::app {

namespace {

constexpr std::string_view kUsage =
    "usage: trireme selftest --layouts [--count N] [--seed S] [--ranks R] [--device cpu|cuda]\n\n"
    "Draws N legal layouts and tiny models (12), the first from seed S (1), the next from S + 1, "
    "...,\n"
    "of at most R ranks (16; on GPUs as many as there are), trains each on ranks that are threads\n"
    "of this process, and compares the gradient of every parameter, the norm, the loss and the\n"
    "weights with those of a single process. Exits with 0 only if all agree; --count 1 --seed S\n"
    "repeats one.\n";

constexpr auto kTimeout = std::chrono::seconds(60);

struct Flags {
  bool layouts = false;
  int64_t count = 12;
  int64_t seed = 1;
  int64_t ranks = 16;
  std::string device = "cpu";
};

/// False for --help.
bool read_flags(Arguments args, Flags& flags) {
  using config::extra_option;
  config::Option device = extra_option("device", flags.device, "");
  device.rule.kind = config::Kind::choice;
  device.rule.choices = {{"cpu", "", ""}, {"cuda", "", ""}};
  const config::OptionTable table({extra_option("layouts", flags.layouts, ""),
                                   extra_option("count", flags.count, "").at_least(1),
                                   extra_option("seed", flags.seed, "").at_least(0),
                                   extra_option("ranks", flags.ranks, "").at_least(1), device});
  const config::Arguments read = config::read_arguments(args, table);
  if (read.help) return false;
  config::throw_if_any(read.flags.problems);
  if (!read.config_file.empty() || !read.overrides.empty()) {
    throw ConfigError("selftest takes flags alone; --help lists them");
  }
  config::RunConfig unused;
  for (const config::Setting& setting : read.flags.settings) {
    table.at(setting.option).set(unused, setting.value);
  }
  if (!flags.layouts) throw ConfigError("selftest has one test so far: give --layouts");
  return true;
}

/// Ranks as threads, over the CPU or the GPUs of this machine.
class Ranks {
 public:
  explicit Ranks(const std::string& device)
      : cuda_(device == "cuda" ? accel::load_cuda() : nullptr) {}

  int64_t most() const { return cuda_ ? cuda_->num_devices() : INT64_MAX; }

  void run(int ranks, const std::function<void(int, device::Backend&)>& body) {
    cpu::InProcessWorld world(ranks, kTimeout);
    store::MemoryStore store;
    train::on_ranks(ranks, [&](int rank) {
      const auto backend = open(rank, ranks, world, store);
      body(rank, *backend);
    });
  }

 private:
  std::unique_ptr<device::Backend> open(int rank, int ranks, cpu::InProcessWorld& world,
                                        store::MemoryStore& store) {
    if (!cuda_) return std::make_unique<cpu::Backend>(world.join(rank), 1);
    device::RankSite site;
    site.rank = rank;
    site.world_size = ranks;
    site.local_rank = rank;
    site.store = &store;
    site.timeout = kTimeout;
    return cuda_->open(site);
  }

  std::unique_ptr<device::BackendMaker> cuda_;
};

/// One line of the table; whether the layout agrees.
bool check_layout(const train::DrawnLayout& drawn, Ranks& ranks) {
  const std::string what = fmt::format("{:>6}  {}; {}", drawn.seed, train::layout_words(drawn),
                                       train::model_words(drawn));
  std::string verdict;
  bool agrees = false;
  try {
    const train::Differences d = train::compare_with_single_process(
        drawn, [&](int count, const auto& body) { ranks.run(count, body); });
    agrees = d.agree();
    verdict = fmt::format("{}  gradients {:.0e}  norm {:.0e}  loss {:.0e}  weights {:.0e}",
                          agrees ? "agrees " : "DIFFERS", d.gradients, d.norm, d.loss, d.weights);
  } catch (const std::exception& error) {
    verdict = fmt::format("FAILED  {}", error.what());
  }
  std::fputs(fmt::format("{}\n        {}\n", what, verdict).c_str(), stdout);
  std::fflush(stdout);
  return agrees;
}

}  // namespace

int selftest_verb(Arguments args) {
  Flags flags;
  if (!read_flags(args, flags)) {
    std::fputs(kUsage.data(), stdout);
    return 0;
  }
  Ranks ranks(flags.device);
  const int most = static_cast<int>(std::min({flags.ranks, ranks.most(), int64_t{1024}}));
  std::vector<uint64_t> failed;
  std::fputs("  seed  layout; model\n", stdout);
  for (int64_t i = 0; i < flags.count; ++i) {
    const auto seed = static_cast<uint64_t>(flags.seed + i);
    if (!check_layout(train::draw_layout(seed, most), ranks)) failed.push_back(seed);
  }
  if (failed.empty()) {
    std::fputs(fmt::format("All {} layouts agree with the single process.\n", flags.count).c_str(),
               stdout);
    return 0;
  }
  std::fputs(fmt::format("{} of {} layouts do not agree, of the seeds {}; repeat one with\n"
                         "trireme selftest --layouts --count 1 --ranks {} --device {} --seed {}\n",
                         failed.size(), flags.count, fmt::join(failed, ", "), flags.ranks,
                         flags.device, failed.front())
                 .c_str(),
             stdout);
  return 1;
}

}  // namespace trireme::app
