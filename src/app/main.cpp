// `trireme VERB ...`: the one binary.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "app/verbs.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/coordinator.h"
#include "launch/error_file.h"
#include "launch/process.h"
#include "launch/ranks.h"
#include "train/run.h"

namespace {

using namespace trireme;

struct Verb {
  std::string_view name;
  int (*run)(app::Arguments);
  std::string_view help;
};
constexpr std::array<Verb, 7> kVerbs = {{
    {"train", app::train_verb, "train a model: one rank, or all of them under a launcher"},
    {"launch", app::launch_verb,
     "start the local ranks of a run: launch --nproc_per_node N -- train ..."},
    {"plan", app::plan_verb, "what a run would take, without starting it: memory, program"},
    {"tokenize", app::tokenize_verb, "print the token ids of a JSONL file"},
    {"checkpoint", app::checkpoint_verb, "list, verify or export checkpoints"},
    {"selftest", app::selftest_verb, "compare layouts with the single process"},
    {"doctor", app::doctor_verb, "what this machine has for training, and what is missing"},
}};

void print_usage(std::FILE* out) {
  std::fputs("usage: trireme VERB [options]\n\n", out);
  for (const Verb& verb : kVerbs) {
    std::fputs(fmt::format("  {:<12}{}\n", verb.name, verb.help).c_str(), out);
  }
  std::fputs(
      "\n`trireme VERB --help` lists the options of a verb, `trireme --version` the version.\n",
      out);
}

int say(const std::exception& error, int code) {
  launch::write_error_file(launch::process_environment(), error.what());
  std::fputs(fmt::format("trireme: {}\n", error.what()).c_str(), stderr);
  return code;
}

/// Whether a launcher started this process as another rank than 0.
bool is_other_rank() {
  try {
    return launch::discover_ranks(launch::process_environment()).rank != 0;
  } catch (const ConfigError&) {
    return false;  // nobody knows: all say it
  }
}

/// Waits until the rank that has to say it has, and its launcher has ended this one.
int say_after_others(const std::exception& error, int code) {
  std::this_thread::sleep_for(std::chrono::seconds(2));
  return say(error, code);
}

/// For an error that every rank meets.
int say_once(const std::exception& error, int code) {
  return is_other_rank() ? say_after_others(error, code) : say(error, code);
}

bool is_local_rank(std::string_view word) {
  return word.starts_with("--local_rank=") || word.starts_with("--local-rank=");
}

int run(std::string_view name, app::Arguments args) {
  for (const Verb& verb : kVerbs) {
    if (verb.name == name) return verb.run(args);
  }
  std::vector<std::string_view> names;
  for (const Verb& verb : kVerbs) names.push_back(verb.name);
  throw ConfigError(fmt::format("'{}' is not a verb of trireme{}; they are {}", printable(name),
                                did_you_mean(name, names), fmt::join(names, ", ")));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  // deepspeed's launcher puts --local_rank=N first; `train` knows it.
  if (args.size() > 1 && is_local_rank(args[0])) std::swap(args[0], args[1]);
  if (args.empty()) {
    print_usage(stderr);
    return 2;
  }
  const std::string verb = args.front();
  args.erase(args.begin());
  if (verb == "--version" || verb == "-V" || verb == "version") {
    std::puts("trireme " TRIREME_VERSION);
    return 0;
  }
  if (verb == "--help" || verb == "-h" || verb == "help") {
    print_usage(stdout);
    return 0;
  }
  std::signal(SIGXFSZ,
              SIG_IGN);  // a file that grows too large is an error with a name, as disks are
  try {
    launch::restart_with_passive_waits(argv);
    return run(verb, args);
  } catch (const ConfigError& error) {
    return say_once(error, 2);
  } catch (const DataError& error) {
    return say_once(error, 2);
  } catch (const train::Diverged& error) {
    return say_once(error, 1);
  } catch (const checkpoint::AgreedError& error) {
    return say_once(error, 1);
  } catch (const CommError& error) {  // a peer's end, as a rule
    return say_after_others(error, 1);
  } catch (const std::exception& error) {
    return say(error, 1);
  }
}
