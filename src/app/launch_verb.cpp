#include <charconv>
#include <cstdio>
#include <optional>

#include "app/verbs.h"
#include "base/error.h"
#include "base/text.h"
#include "launch/agent.h"

namespace trireme::app {

namespace {

constexpr std::string_view kUsage =
    "usage: trireme launch [--nproc_per_node N] [--master_addr HOST] [--master_port PORT]\n"
    "                      [--prefix_output] -- train ...\n\n"
    "Starts N ranks on this host (default: one), passes signals on, ends all when one dies, and\n"
    "exits with the code of the first that failed (128 + signal).\n";

int to_int(std::string_view name, std::string_view text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw ConfigError(name, printable(text),
                      fmt::format("give a whole number from {} to {}", low, high));
  }
  return value;
}

/// The flags before the ranks' own command.
class Flags {
 public:
  explicit Flags(Arguments args) : args_(args) {}

  /// The next flag, with '_' for '-'; nullopt where the ranks' command begins.
  std::optional<std::string> next() {
    if (at_ == args_.size()) return std::nullopt;
    if (args_[at_] == "--") {
      ++at_;
      return std::nullopt;
    }
    if (!args_[at_].starts_with("-")) return std::nullopt;
    std::string name = args_[at_++];
    const size_t equals = name.find('=');
    inline_.reset();
    if (equals != std::string::npos) {
      inline_ = name.substr(equals + 1);
      name.resize(equals);
    }
    name = name.substr(name.starts_with("--") ? 2 : 1);
    for (char& c : name) c = c == '-' ? '_' : c;
    return name;
  }
  std::string value(const std::string& name) {
    if (inline_) return *inline_;
    if (at_ == args_.size()) throw ConfigError(name, "nothing", "give it a value");
    return args_[at_++];
  }
  std::vector<std::string> rest() const {
    return {args_.begin() + static_cast<int64_t>(at_), args_.end()};
  }

 private:
  Arguments args_;
  size_t at_ = 0;
  std::optional<std::string> inline_;
};

}  // namespace

int launch_verb(Arguments args) {
  static constexpr std::string_view kNames[] = {"nproc_per_node", "num_gpus",      "master_addr",
                                                "master_port",    "prefix_output", "nnodes"};
  launch::LaunchOptions options;
  Flags flags(args);
  while (const auto name = flags.next()) {
    if (*name == "help" || *name == "h") {
      std::fputs(kUsage.data(), stdout);
      return 0;
    }
    if (*name == "nproc_per_node" || *name == "num_gpus") {
      options.num_processes = to_int(*name, flags.value(*name), 1, 4096);
    } else if (*name == "nnodes" || *name == "num_nodes") {
      const std::string nodes = flags.value(*name);
      if (nodes != "1") {
        throw ConfigError(*name, printable(nodes),
                          "several nodes are not supported yet; start the ranks with torchrun");
      }
    } else if (*name == "master_addr") {
      options.master_addr = flags.value(*name);
    } else if (*name == "master_port") {
      options.master_port = to_int(*name, flags.value(*name), 0, 65535);
    } else if (*name == "prefix_output") {
      options.prefix_output = true;
    } else {
      throw ConfigError(
          fmt::format("--{} is not an option of launch{}; the ranks' own options "
                      "follow their verb: launch --nproc_per_node N -- train ...",
                      printable(*name), did_you_mean(*name, kNames)));
    }
  }
  const std::vector<std::string> command = flags.rest();
  if (command.empty()) throw ConfigError("launch needs a command: launch -- train ...");
  return launch::launch(options, command);
}

}  // namespace trireme::app
