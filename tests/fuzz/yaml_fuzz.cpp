// A YAML file of a whole run, of any program, is read or its problems are told.
#include "config/config_file.h"
#include "config/print.h"
#include "config/value.h"
#include "fuzz/input_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::InputFolder folder;
  static const config::OptionTable table(config::train_options());
  const auto path = folder.put("run.yaml", fuzz::as_text(data, size));
  const config::Import import = config::read_config_file(path, {}, table);
  config::RunConfig run;
  for (const config::Setting& setting : import.reading.settings) {
    const config::Option& row = table.at(setting.option);
    if (!row.set || row.rule.kind == config::Kind::json) continue;  // the latter may name a file
    try {
      row.set(run, setting.value);
    } catch (const config::BadValue&) {
    }
  }
  config::describe(run);
  return 0;
}
