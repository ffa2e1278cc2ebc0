// `trireme selftest --layouts`: random layouts, or every one of so many ranks, against the single
// process, on this machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
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
    "usage: trireme selftest --layouts [--count N] [--seed S] [--ranks R] [--device cpu|cuda]\n"
    "       trireme selftest --layouts --every [--ranks R] [--device cpu|cuda]\n\n"
    "Trains tiny models on ranks that are threads of this process, and compares the gradient of\n"
    "every parameter, the norm, the loss and the weights with those of a single process. Exits "
    "with\n"
    "0 only if all layouts agree.\n\n"
    "Draws N legal layouts and models (12), the first from seed S (1), the next from S + 1, ..., "
    "of\n"
    "at most R ranks (16; on GPUs as many as there are); --count 1 --seed S repeats one.\n"
    "--every: all ways to cut exactly R ranks (8; on GPUs as many as there are) into data, tensor\n"
    "and pipeline ranks, under every ZeRO stage, hybrid sharding and schedule, in fp32 and bf16.\n";

constexpr auto kTimeout = std::chrono::seconds(60);

struct Flags {
  bool layouts = false;
  bool every = false;
  int64_t count = 12;
  int64_t seed = 1;
  int64_t ranks = 0;  // 0: not given
  std::string device = "cpu";
};

/// False for --help.
bool read_flags(Arguments args, Flags& flags) {
  using config::extra_option;
  config::Option device = extra_option("device", flags.device, "");
  device.rule.kind = config::Kind::choice;
  device.rule.choices = {{"cpu", "", ""}, {"cuda", "", ""}};
  const config::OptionTable table({extra_option("layouts", flags.layouts, ""),
                                   extra_option("every", flags.every, ""),
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
  for (const config::Setting& setting : read.flags.settings) {
    if (flags.every && (setting.option == "count" || setting.option == "seed")) {
      throw ConfigError(setting.option, setting.value.dump(),
                        "goes with random layouts; leave it or --every out");
    }
  }
  return true;
}

/// Ranks as threads, over the CPU or the GPUs of this machine.
class Ranks {
 public:
  explicit Ranks(const std::string& device)
      : cuda_(device == "cuda" ? accel::load_cuda() : nullptr) {}

  int64_t most() const { return cuda_ ? cuda_->num_devices() : 1024; }

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

/// What is compared, with the number that its line begins with.
struct Numbered {
  uint64_t number = 0;
  train::LayoutCase test;
};

int ranks_of(const Flags& flags, int64_t most) {
  const bool on_gpus = flags.device == "cuda";
  if (!flags.every) return static_cast<int>(std::min(flags.ranks > 0 ? flags.ranks : 16, most));
  const int64_t ranks = flags.ranks > 0 ? flags.ranks : on_gpus ? most : 8;
  if (ranks > most) {
    throw ConfigError(
        "ranks", std::to_string(ranks),
        fmt::format("give at most {}{}", most, on_gpus ? ", as many as there are GPUs" : ""));
  }
  return static_cast<int>(ranks);
}

std::vector<Numbered> layouts_of(const Flags& flags, int ranks) {
  std::vector<Numbered> layouts;
  if (flags.every) {
    for (train::LayoutCase& test : train::every_layout(ranks)) {
      layouts.push_back({layouts.size() + 1, std::move(test)});
    }
    return layouts;
  }
  for (int64_t i = 0; i < flags.count; ++i) {
    const auto seed = static_cast<uint64_t>(flags.seed + i);
    layouts.push_back({seed, train::draw_layout(seed, ranks)});
  }
  return layouts;
}

class Comparison {
 public:
  explicit Comparison(Ranks& ranks)
      : run_ranks_([&ranks](int count, const auto& body) { ranks.run(count, body); }) {}

  /// One entry of the table; whether the layout agrees.
  bool check(const Numbered& numbered) {
    const train::LayoutCase& test = numbered.test;
    const std::string what = fmt::format("{:>6}  {}; {}", numbered.number,
                                         train::layout_words(test), train::model_words(test));
    std::string verdict;
    bool agrees = false;
    try {
      const train::SingleProcess& alone = alone_of(test);
      const train::Differences d = train::compare(test, alone, run_ranks_);
      agrees = d.agree(alone.rounding);
      verdict = fmt::format("{}  gradients {:.0e}  norm {:.0e}  loss {:.0e}  weights {:.0e}",
                            agrees ? "agrees " : "DIFFERS", d.gradients, d.norm, d.loss, d.weights);
    } catch (const std::exception& error) {
      verdict = fmt::format("FAILED  {}", error.what());
    }
    std::fputs(fmt::format("{}\n        {}\n", what, verdict).c_str(), stdout);
    std::fflush(stdout);
    return agrees;
  }

 private:
  /// The last one's where that trains alike.
  const train::SingleProcess& alone_of(const train::LayoutCase& test) {
    if (!last_ || !train::train_alike(last_->test, test)) {
      last_.reset();
      last_ = {test, train::train_alone(test, run_ranks_)};
    }
    return last_->alone;
  }

  struct Last {
    train::LayoutCase test;
    train::SingleProcess alone;
  };
  train::RunRanks run_ranks_;
  std::optional<Last> last_;
};

}  // namespace

int selftest_verb(Arguments args) {
  Flags flags;
  if (!read_flags(args, flags)) {
    std::fputs(kUsage.data(), stdout);
    return 0;
  }
  Ranks ranks(flags.device);
  const int num_ranks = ranks_of(flags, ranks.most());
  const std::vector<Numbered> layouts = layouts_of(flags, num_ranks);
  Comparison comparison(ranks);
  std::vector<uint64_t> failed;
  std::fputs(flags.every ? "number  layout; model\n" : "  seed  layout; model\n", stdout);
  for (const Numbered& layout : layouts) {
    if (!comparison.check(layout)) failed.push_back(layout.number);
  }
  if (failed.empty()) {
    std::fputs(
        fmt::format("All {} layouts agree with the single process.\n", layouts.size()).c_str(),
        stdout);
    return 0;
  }
  std::string text =
      fmt::format("{} of {} layouts do not agree, of the {} {}", failed.size(), layouts.size(),
                  flags.every ? "numbers" : "seeds", fmt::join(failed, ", "));
  if (!flags.every) {
    text += fmt::format(
        "; repeat one with\ntrireme selftest --layouts --count 1 --ranks {} --device {} --seed {}",
        num_ranks, flags.device, failed.front());
  }
  std::fputs((text + "\n").c_str(), stdout);
  return 1;
}

}  // namespace trireme::app
