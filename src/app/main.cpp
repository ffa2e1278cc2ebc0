// `trireme VERB ...`: the one binary.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "app/verbs.h"
#include "base/error.h"
#include "base/text.h"

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

/// OpenMP reads its policy before main. Ranks share cores, and spinning threads would take them
/// from each other: the program starts itself once more with threads that sleep.
void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // where that fails, spinning costs speed only
}

int say(const std::exception& error, int code) {
  std::fputs(fmt::format("trireme: {}\n", error.what()).c_str(), stderr);
  return code;
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
  wait_passively(argv);
  try {
    const std::vector<std::string> args(argv + 2, argv + argc);
    return run(verb, args);
  } catch (const ConfigError& error) {
    return say(error, 2);
  } catch (const DataError& error) {
    return say(error, 2);
  } catch (const std::exception& error) {
    return say(error, 1);
  }
}
