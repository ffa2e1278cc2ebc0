#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>

#include "accel/library_search.h"
#include "app/verbs.h"
#include "base/error.h"
#include "base/text.h"
#include "doctor/checks.h"

namespace trireme::app {

namespace {

constexpr std::string_view kUsage =
    "usage: trireme doctor [--output_dir DIR] [--device cpu|cuda] [--master_addr HOST]\n"
    "                      [--master_port PORT]\n\n"
    "Says what this machine has for training and what is missing, with the command that brings "
    "it.\n"
    "Exits with 1 when a run would not start. Changes nothing.\n";

/// --name VALUE or --name=VALUE over what is meant without.
void read_flags(Arguments args, std::map<std::string, std::string>* flags) {
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = std::min(args[i].find('='), args[i].size());
    std::string name = args[i].substr(0, equals);
    std::ranges::replace(name, '-', '_');
    const auto flag = flags->find(name.starts_with("__") ? name.substr(2) : name);
    const bool has_value = equals < args[i].size() || i + 1 < args.size();
    if (flag == flags->end() || !has_value) {
      throw ConfigError(
          fmt::format("doctor does not know '{}'; it takes --output_dir DIR, --device "
                      "cpu|cuda, --master_addr HOST and --master_port PORT",
                      printable(args[i])));
    }
    flag->second = equals < args[i].size() ? args[i].substr(equals + 1) : args[++i];
  }
}

int port_of(const std::string& text) {
  int port = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (code != std::errc() || end != text.data() + text.size() || port < 0 || port > 65535) {
    throw ConfigError("master_port", printable(text), "give a whole number from 0 to 65535");
  }
  return port;
}

}  // namespace

int doctor_verb(Arguments args) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    std::fputs(kUsage.data(), stdout);
    return 0;
  }
  std::map<std::string, std::string> flags = {
      {"output_dir", "."}, {"device", ""}, {"master_addr", "127.0.0.1"}, {"master_port", "0"}};
  read_flags(args, &flags);
  const std::string& device = flags["device"];
  if (!device.empty() && device != "cpu" && device != "cuda") {
    throw ConfigError("device", printable(device), "choose cpu or cuda");
  }
  doctor::Findings all = {
      {doctor::Verdict::good, "trireme", std::string("version ") + TRIREME_VERSION, ""}};
  const auto add = [&](const doctor::Findings& found) {
    all.insert(all.end(), found.begin(), found.end());
  };
  add(doctor::check_cpu("/"));
  add(doctor::check_memory("/"));
  add(doctor::check_limits());
  if (device != "cpu") {
    const accel::CudaSight sight = accel::look_for_cuda();
    const bool wanted = device == "cuda" || sight.num_devices > 0;
    add(doctor::check_gpu("/", sight, wanted));
    add(doctor::check_cuda_libraries(accel::library_folders(accel::environment_of_process()),
                                     wanted));
    if (sight.num_devices > 0) add(doctor::check_cuda_module());
  }
  add(doctor::check_folder(flags["output_dir"]));
  add(doctor::check_network({flags["master_addr"], port_of(flags["master_port"])}));
  std::fputs(doctor::report(all).c_str(), stdout);
  return doctor::is_healthy(all) ? 0 : 1;
}

}  // namespace trireme::app
