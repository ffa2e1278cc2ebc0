// What each option of `trireme train` changes, seen from outside.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "support/program.h"

namespace trireme::test {

/// Runs of the program, each combination of flags once.
class Laboratory {
 public:
  struct Training {
    Outcome outcome;
    // Of a run that ended well:
    std::vector<Json> metrics;  // without what the clock wrote
    std::vector<double> step_seconds;
    std::set<std::string> files;  // in output_dir
  };

  Laboratory();
  const Workplace& work() const { return work_; }
  /// `flags` over those of the workplace; HERE in a value is its folder; "ranks" is the number of
  /// processes (1).
  const Training& train(const Flags& flags);
  /// The table of memory and the program of `trireme plan`, without the program's hash.
  const std::string& plan(const Flags& flags);

 private:
  Flags complete(const Flags& flags) const;

  Workplace work_;
  std::map<Flags, Training> trainings_;
  std::map<Flags, std::string> plans_;
};

/// An option with a value under which something other happens than without it.
struct Effect {
  std::string option, value;
  /// Runs both and expects the difference.
  std::function<void(Laboratory&, const Effect&)> look;
};

/// One row for each honoured option, in the order of the option table. Options that are refused or
/// without effect need none: their sentence is what one sees (unit/config_options_test.cpp).
std::vector<Effect> option_effects();

}  // namespace trireme::test
