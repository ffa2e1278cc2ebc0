// A DeepSpeed JSON is read and resolved, or refused with a ConfigError.
#include <array>

#include "base/error.h"
#include "config/parse.h"
#include "config/print.h"
#include "fuzz/input_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  std::string json(fuzz::as_text(data, size));
  if (!json.starts_with('{')) json.insert(0, "{");  // else it would be a path
  const std::array<std::string, 6> args = {"--model_name_or_path", "m", "--data_path", "d.jsonl",
                                           "--deepspeed",          json};
  try {
    config::ParseResult result = config::parse(args);
    config::resolve(result, {.hidden_size = 64, .max_position_embeddings = 128}, 8);
    config::describe(result.config);
  } catch (const ConfigError&) {
  }
  return 0;
}
