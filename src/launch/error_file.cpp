#include "launch/error_file.h"

#include <ctime>
#include <fstream>

#include "base/json.h"

namespace trireme::launch {

void write_error_file(const Environment& environment, std::string_view text) {
  const auto path = environment("TORCHELASTIC_ERROR_FILE");
  if (!path) return;
  const Json message = {
      {"message", text},
      {"extraInfo", {{"py_callstack", text}, {"timestamp", std::to_string(std::time(nullptr))}}}};
  std::ofstream(*path) << Json{{"message", message}}.dump();
}

}  // namespace trireme::launch
