// No option is accepted and ignored: with a value of its own, each changes what is planned, what
// is trained, which files are written, or what is said.
#include "dist/option_effects.h"

#include <gtest/gtest.h>

#include "config/option.h"

namespace trireme::test {
namespace {

TEST(OptionEffects, EveryOptionThatActsHasARow) {
  std::vector<std::string> tried;
  for (const Effect& effect : option_effects()) tried.push_back(effect.option);
  std::vector<std::string> acting;
  for (const config::Option& row : config::train_options()) {
    if (row.support == config::Support::honoured) acting.emplace_back(row.name);
  }
  for (const std::string& name : acting) {
    EXPECT_EQ(std::count(tried.begin(), tried.end(), name), 1)
        << "--" << name << " acts, but no test sees how. Add one row {\"" << name
        << "\", VALUE, LOOK} to tests/dist/option_effects.cpp.";
  }
  for (const std::string& name : tried) {
    EXPECT_EQ(std::count(acting.begin(), acting.end(), name), 1)
        << "--" << name << " acts no more: remove its row from tests/dist/option_effects.cpp";
  }
}

TEST(OptionEffects, AreSeen) {
  Laboratory laboratory;
  for (const Effect& effect : option_effects()) {
    SCOPED_TRACE("--" + effect.option + " " + effect.value);
    effect.look(laboratory, effect);
  }
}

}  // namespace
}  // namespace trireme::test
