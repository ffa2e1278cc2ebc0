// Whole configurations of the programs that people come from (data/config/cases), and what each
// comes to.
#include <filesystem>

#include "unit/config_support.h"

namespace trireme::config {
namespace {

TEST(Cases, WholeConfigurationsGiveWhatTheySay) {
  std::filesystem::current_path(std::string(TRIREME_SOURCE_DIR) + "/tests/data/config");
  const Json cases = parse_json(test_data("cases.json"), "cases.json");
  EXPECT_GE(cases.size(), 40u);
  for (const Json& each : cases) run_case(each);
}

}  // namespace
}  // namespace trireme::config
