// `trireme VERB ...`: the one binary.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "app/verbs.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/coordinator.h"
#include "launch/process.h"
#include "train/run.h"

namespace {

using namespace trireme;

struct Verb {
  std::string_view name;
  int (*run)(app::Arguments);
  std::string_view help;
};
constexpr std::array<Verb, 5> kVerbs = {{
    {"train", app::train_verb, "train a model: one rank, or all of them under a launcher"},
    {"launch", app::launch_verb,
     "start the local ranks of a run: launch --nproc_per_node N -- train ..."},
    {"plan", app::plan_verb, "what a run would take, without starting it: memory, program"},
    {"tokenize", app::tokenize_verb, "print the token ids of a JSONL file"},
    {"checkpoint", app::checkpoint_verb, "list, verify or export checkpoints"},
}};

void print_usage(std::FILE* out) {
  std::fputs("usage: trireme VERB [options]\n\n", out);
  for (const Verb& verb : kVerbs) {
    std::fputs(fmt::format("  {:<12}{}\n", verb.name, verb.help).c_str(), out);
  }
  std::fputs("\n`trireme VERB --help` lists the options of a verb.\n", out);
}

int say(const std::exception& error, int code) {
  std::fputs(fmt::format("trireme: {}\n", error.what()).c_str(), stderr);
  return code;
}

/// Waits until the rank that has to say it has, and its launcher has ended this one.
int say_after_others(const std::exception& error, int code) {
  std::this_thread::sleep_for(std::chrono::seconds(2));
  return say(error, code);
}

/// For an error that every rank meets.
int say_once(const std::exception& error, int code) {
  const char* const rank = std::getenv("RANK");
  const bool first = rank == nullptr || std::string_view(rank) == "0";
  return first ? say(error, code) : say_after_others(error, code);
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
  if (argc < 2) {
    print_usage(stderr);
    return 2;
  }
  const std::string_view verb = argv[1];
  if (verb == "--help" || verb == "-h" || verb == "help") {
    print_usage(stdout);
    return 0;
  }
  std::signal(SIGXFSZ,
              SIG_IGN);  // a file that grows too large is an error with a name, as disks are
  try {
    launch::restart_with_passive_waits(argv);
    const std::vector<std::string> args(argv + 2, argv + argc);
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
