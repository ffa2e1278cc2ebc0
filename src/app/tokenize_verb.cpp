#include <algorithm>
#include <filesystem>
#include <iostream>

#include "app/verbs.h"
#include "base/error.h"
#include "base/text.h"
#include "data/tokenize_file.h"
#include "model/hub_cache.h"

namespace trireme::app {

namespace {
constexpr std::string_view kUsage =
    "usage: trireme tokenize --tokenizer DIR [--no_special_tokens] FILE.jsonl\n\n"
    "Prints one {\"input_ids\": [...]} a line for the {\"text\"} rows of FILE, with the ids that "
    "the\n"
    "tokenizer.json in DIR, or in the cached model of that hub id, gives. A run trains on these "
    "and\n"
    "the eos_token behind them, where they do not end with it.\n";
}  // namespace

int tokenize_verb(Arguments args) {
  data::TokenizeOptions options;
  for (size_t i = 0; i < args.size(); ++i) {
    std::string name = args[i];
    std::replace(name.begin(), name.end(), '-', '_');
    if (name == "__help" || name == "_h") {
      std::cout << kUsage;
      return 0;
    }
    if (name == "__no_special_tokens") {
      options.add_special_tokens = false;
    } else if (name == "__tokenizer" && i + 1 < args.size()) {
      options.tokenizer_folder = args[++i];
    } else if (name.starts_with("__tokenizer=")) {
      options.tokenizer_folder = args[i].substr(std::string_view("--tokenizer=").size());
    } else if (!args[i].starts_with("--") && options.path.empty()) {
      options.path = args[i];
    } else {
      throw ConfigError(
          fmt::format("tokenize does not know '{}'; it takes --tokenizer DIR "
                      "[--no_special_tokens] FILE.jsonl",
                      printable(args[i])));
    }
  }
  if (options.tokenizer_folder.empty() || options.path.empty()) {
    throw ConfigError("tokenize needs --tokenizer DIR and a JSONL file");
  }
  if (!std::filesystem::is_directory(options.tokenizer_folder)) {
    options.tokenizer_folder = model::find_model_folder("tokenizer", options.tokenizer_folder);
  }
  return data::tokenize_file(options, std::cout);
}

}  // namespace trireme::app
