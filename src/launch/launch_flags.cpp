#include "launch/launch_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "launch/hostfile.h"
#include "store/socket.h"

namespace trireme::launch {
namespace {

constexpr int kMostRanks = 4096;
constexpr int kMostRestarts = 1000000;
constexpr std::string_view kOneNode = "there is one node";
constexpr std::string_view kLater = "not supported yet";
constexpr std::string_view kSeveral =
    "several nodes with a rendezvous of our own are not supported yet; real torchrun starts them "
    "already: torchrun --nnodes N --no_python ... trireme train ...";

/// honoured: read_flag knows it. ignored: accepted, `why` is reported. refused: only `neutral`.
enum class Acts { honoured, ignored, refused };

struct Flag {
  std::string_view name;
  bool takes_value = true;
  Acts acts = Acts::honoured;
  std::string_view why = {};
  std::string_view neutral = {};
};

constexpr bool kSwitch = false;
constexpr bool kValue = true;

constexpr Flag kFlags[] = {
    {"nproc_per_node"},
    {"num_gpus"},
    {"num_accelerators"},
    {"nnodes"},
    {"num_nodes"},
    {"node_rank"},
    {"master_addr"},
    {"master_port"},
    {"rdzv_endpoint"},
    {"rdzv_backend"},
    {"standalone", kSwitch},
    {"hostfile"},
    {"include"},
    {"exclude"},
    {"max_restarts"},
    {"tee"},
    {"redirects"},
    {"log_dir"},
    {"local_ranks_filter"},
    {"enable_each_rank_log"},
    {"prefix_output", kSwitch},
    {"help", kSwitch},
    // torchrun
    {"rdzv_id", kValue, Acts::ignored, kOneNode},
    {"rdzv_conf", kValue, Acts::ignored, kOneNode},
    {"local_addr", kValue, Acts::ignored, kOneNode},
    {"role", kValue, Acts::ignored, "all ranks are alike"},
    {"monitor_interval", kValue, Acts::ignored, "the end of a rank is seen at once"},
    {"start_method", kValue, Acts::ignored, "ranks are processes of their own"},
    {"signals_to_handle", kValue, Acts::ignored,
     "SIGTERM, SIGINT, SIGHUP, SIGQUIT and SIGUSR1 are "
     "passed on"},
    {"no_python", kSwitch, Acts::ignored, "there is no Python"},
    {"run_path", kSwitch, Acts::ignored, "there is no Python"},
    {"numa_binding", kValue, Acts::refused, kLater, "none"},
    {"module", kSwitch, Acts::refused, "there is no Python"},
    // deepspeed
    {"no_local_rank", kSwitch, Acts::ignored, "a rank's place is in its environment"},
    {"launcher", kValue, Acts::ignored, kOneNode},
    {"launcher_args", kValue, Acts::ignored, kOneNode},
    {"ssh_port", kValue, Acts::ignored, kOneNode},
    {"no_ssh", kSwitch, Acts::ignored, kOneNode},
    {"no_ssh_check", kSwitch, Acts::ignored, kOneNode},
    {"save_pid", kSwitch, Acts::ignored, "a rank that fails is named with its process"},
    {"force_multi", kSwitch, Acts::refused, kSeveral},
    {"elastic_training", kSwitch, Acts::refused, kLater},
    {"min_elastic_nodes", kValue, Acts::refused, kLater, "-1"},
    {"max_elastic_nodes", kValue, Acts::refused, kLater, "-1"},
    {"autotuning", kValue, Acts::refused, "not supported; `trireme plan` says what a layout takes"},
    {"bind_cores_to_rank", kSwitch, Acts::refused, kLater},
    {"bind_core_list", kValue, Acts::refused, kLater},
};

/// Short flags of torchrun (t, r) and deepspeed (H, i, e).
constexpr std::pair<std::string_view, std::string_view> kShort[] = {
    {"t", "tee"},     {"r", "redirects"}, {"H", "hostfile"}, {"i", "include"},
    {"e", "exclude"}, {"m", "module"},    {"h", "help"}};

int to_int(std::string_view name, std::string_view text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw ConfigError(name, printable(text),
                      fmt::format("give a whole number from {} to {}", low, high));
  }
  return value;
}

/// torchrun's words: "3" for all ranks, or "0:3,1:2" by rank.
Streams to_streams(std::string_view name, std::string_view text) {
  constexpr int kBoth = kStandardOutput | kStandardError;
  Streams streams;
  if (text.find(':') == std::string_view::npos) {
    streams.of_all = to_int(name, text, 0, kBoth);
    return streams;
  }
  for (const std::string_view part : split(text, ',')) {
    const size_t colon = std::min(part.find(':'), part.size());
    const int rank = to_int(name, part.substr(0, colon), 0, kMostRanks - 1);
    streams.of_rank[rank] = to_int(name, part.substr(std::min(colon + 1, part.size())), 0, kBoth);
  }
  return streams;
}

const Flag& find_flag(std::string_view name) {
  const auto found = std::ranges::find(kFlags, name, &Flag::name);
  if (found != std::end(kFlags)) return *found;
  std::vector<std::string_view> names;
  for (const Flag& flag : kFlags) names.push_back(flag.name);
  throw ConfigError(
      fmt::format("--{} is not an option of launch{}; the ranks' own options follow their verb: "
                  "launch --nproc_per_node N -- train ...",
                  printable(name), did_you_mean(name, names)));
}

class Parser {
 public:
  Parser(std::span<const std::string> args, const LocalMachine& machine)
      : args_(args), machine_(machine) {}

  LaunchRequest parse() {
    while (at_ < args_.size() && args_[at_].starts_with('-')) {
      if (args_[at_] == "--") {
        ++at_;
        break;
      }
      read_next();
      if (request_.help) return std::move(request_);
    }
    request_.command.assign(args_.begin() + static_cast<int64_t>(at_), args_.end());
    if (request_.command.empty()) {
      throw ConfigError("launch needs a command: launch -- train ...");
    }
    if (request_.command[0].ends_with(".py")) {
      throw ConfigError("command", printable(request_.command[0]),
                        "there is no Python; give the verb `train` in its place");
    }
    settle_processes();
    settle_logs();
    return std::move(request_);
  }

 private:
  void read_next() {
    const std::string& word = args_[at_++];
    const size_t equals = std::min(word.find('='), word.size());
    std::string name = word.substr(0, equals);
    name.erase(0, name.starts_with("--") ? 2 : 1);
    std::ranges::replace(name, '-', '_');
    for (const auto& [letter, meant] : kShort) {
      if (!word.starts_with("--") && name == letter) name = meant;
    }
    const Flag& flag = find_flag(name);
    std::string value;
    if (flag.takes_value) {
      if (equals == word.size() && at_ == args_.size()) {
        throw ConfigError(name, "nothing", "give it a value");
      }
      value = equals < word.size() ? word.substr(equals + 1) : args_[at_++];
    } else if (equals < word.size()) {
      throw ConfigError(name, printable(word.substr(equals + 1)), "it takes no value");
    }
    switch (flag.acts) {
      case Acts::honoured:
        return read_flag(name, value);
      case Acts::ignored:
        request_.notices.push_back(fmt::format("{} has no effect: {}", name, flag.why));
        return;
      case Acts::refused:
        if (flag.takes_value && value == flag.neutral) return;
        throw ConfigError(name, flag.takes_value ? printable(value) : "given", flag.why);
    }
  }

  void read_flag(const std::string& name, const std::string& value) {
    LaunchOptions& options = request_.options;
    if (name == "help") {
      request_.help = true;
    } else if (name == "nproc_per_node" || name == "num_gpus" || name == "num_accelerators") {
      read_processes(name, value);
    } else if (name == "nnodes" || name == "num_nodes") {
      if (value != "1" && value != "1:1") throw ConfigError(name, printable(value), kSeveral);
    } else if (name == "node_rank") {
      if (value != "0") throw ConfigError(name, printable(value), kSeveral);
    } else if (name == "master_addr") {
      options.master_addr = value;
    } else if (name == "master_port") {
      options.master_port = to_int(name, value, 0, 65535);
    } else if (name == "rdzv_endpoint") {
      read_endpoint(name, value);
    } else if (name == "rdzv_backend") {
      if (value != "static" && value != "c10d") {
        throw ConfigError(name, printable(value), "not supported; static and c10d are");
      }
    } else if (name == "standalone") {
      options.master_addr = "127.0.0.1";
      options.master_port = 0;
    } else if (name == "hostfile") {
      read_hosts(value);
    } else if (name == "include") {
      included_ = parse_one_host(name, value);
    } else if (name == "exclude") {
      excluded_ = parse_one_host(name, value);
    } else if (name == "max_restarts") {
      options.max_restarts = to_int(name, value, 0, kMostRestarts);
    } else if (name == "prefix_output") {
      options.prefix_output = true;
    } else {
      read_output_flag(name, value);
    }
  }

  void read_output_flag(const std::string& name, const std::string& value) {
    LaunchOptions& options = request_.options;
    if (name == "tee") {
      options.teed = to_streams(name, value);
      options.prefix_output = options.prefix_output || options.teed.any();
    } else if (name == "redirects") {
      options.redirected = to_streams(name, value);
    } else if (name == "log_dir") {
      options.log_dir = value;
    } else if (name == "local_ranks_filter") {
      for (const std::string_view rank : split(value, ',')) {
        options.shown_ranks.insert(to_int(name, rank, 0, kMostRanks - 1));
      }
    } else if (value != "None") {  // deepspeed's enable_each_rank_log
      options.log_dir = value;
      options.redirected.of_all = kStandardOutput | kStandardError;
    }
  }

  /// Nowhere to write to: torchrun takes a temporary folder, which nobody finds.
  void settle_logs() {
    LaunchOptions& options = request_.options;
    if (!options.log_dir.empty()) {
      if (!options.redirected.any() && !options.teed.any()) {
        request_.notices.push_back(
            "log_dir has no effect: --tee 3 or --redirects 3 writes the ranks' logs there");
      }
      return;
    }
    if (options.redirected.any()) {
      throw ConfigError("redirects", "given", "give --log_dir, the folder of the logs, as well");
    }
    options.teed = {};  // it still names the ranks
  }

  void read_processes(const std::string& name, const std::string& value) {
    if (value == "cpu") {
      processes_ = machine_.num_cores();
    } else if (value == "gpu" || value == "auto") {
      processes_ = machine_.num_gpus();
      if (processes_ == 0 && value == "gpu") {
        throw ConfigError(name, value, "there is no GPU here; give a number, or cpu");
      }
      if (processes_ == 0) processes_ = machine_.num_cores();
    } else {
      processes_ = to_int(name, value, 1, kMostRanks);
    }
  }

  /// torchrun lets the port out; any free one will do on one node.
  void read_endpoint(const std::string& name, const std::string& value) {
    const bool has_port = value.find(':') != std::string::npos && !value.ends_with(":0");
    const store::Endpoint endpoint = has_port
                                         ? store::parse_endpoint(name, value)
                                         : store::Endpoint{value.substr(0, value.find(':')), 0};
    if (endpoint.host.empty()) return;  // torchrun's default
    request_.options.master_addr = endpoint.host;
    request_.options.master_port = endpoint.port;
  }

  void read_hosts(const std::string& path) {
    if (!std::filesystem::exists(path)) {
      throw ConfigError("hostfile", printable(path), "there is no such file");
    }
    const std::vector<HostSlots> hosts = read_hostfile(path);
    if (hosts.size() > 1) throw ConfigError("hostfile", printable(path), kSeveral);
    slots_ = hosts[0].slots;
  }

  static HostFilter parse_one_host(std::string_view name, const std::string& value) {
    const std::vector<HostFilter> filters = parse_host_filter(name, value);
    if (filters.size() > 1) throw ConfigError(name, printable(value), kSeveral);
    return filters[0];
  }

  /// The devices that --include and --exclude leave.
  std::vector<int> chosen_devices() const {
    std::vector<int> devices = included_ ? included_->slots : std::vector<int>{};
    if (devices.empty()) {
      devices.resize(static_cast<size_t>(slots_ > 0 ? slots_ : machine_.num_gpus()));
      std::iota(devices.begin(), devices.end(), 0);
    }
    if (excluded_) {
      const bool all = excluded_->slots.empty();
      std::erase_if(devices, [&](int device) {
        return all || std::ranges::count(excluded_->slots, device) > 0;
      });
    }
    return devices;
  }

  void settle_processes() {
    int& processes = request_.options.num_processes;
    if (slots_ > 0) processes = slots_;
    if (included_ || excluded_) {
      if (included_ && excluded_) {
        throw ConfigError("include and exclude are both given; give one");
      }
      const std::vector<int> devices = chosen_devices();
      if (devices.empty()) {
        throw ConfigError(included_ ? "include" : "exclude", "given", "it leaves no device");
      }
      processes = static_cast<int>(devices.size());
      request_.visible_devices = fmt::format("{}", fmt::join(devices, ","));
    }
    if (processes_ > 0) processes = processes_;
  }

  std::span<const std::string> args_;
  const LocalMachine& machine_;
  LaunchRequest request_;
  size_t at_ = 0;
  int processes_ = 0;  // 0: not given
  int slots_ = 0;      // of the host file
  std::optional<HostFilter> included_, excluded_;
};

}  // namespace

LaunchRequest parse_launch(std::span<const std::string> args, const LocalMachine& machine) {
  return Parser(args, machine).parse();
}

std::string launch_help() {
  return "usage: trireme launch [flags of torchrun or deepspeed] [--] train ...\n\n"
         "Starts the ranks of one host, passes signals on, ends all when one dies, and exits with\n"
         "the code of the first that failed (128 + signal).\n\n"
         "  --nproc_per_node N|gpu|cpu|auto   ranks (--num_gpus N is the same); one when absent\n"
         "  --master_addr HOST                interface of the ranks' store: 127.0.0.1 when "
         "absent\n"
         "  --master_port PORT                its port: a free one when absent\n"
         "  --rdzv_endpoint HOST[:PORT]       both\n"
         "  --hostfile FILE                   one line 'HOST slots=N': N ranks\n"
         "  --include, --exclude HOST:0,1     devices of the ranks, one rank a device\n"
         "  --max_restarts N                  start all ranks again after a failure, N times at\n"
         "                                    most; a run goes on from its last checkpoint: 0 "
         "when\n"
         "                                    absent\n"
         "  --prefix_output                   \"[rank R] \" before each line\n"
         "  --log_dir DIR --tee 3             and each rank's output in files as well; with\n"
         "                                    --redirects 3 in files alone; 1 standard output,\n"
         "                                    2 standard error, 3 both, 0:3,1:2 by rank\n"
         "  --local_ranks_filter 0,1          shows the output of these ranks alone\n\n"
         "Other flags of torchrun and deepspeed are accepted with a word on why they have no "
         "effect\n"
         "on one node, or refused by name.\n";
}

}  // namespace trireme::launch
