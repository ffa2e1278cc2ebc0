// The verb `trireme tokenize`.
#pragma once

#include <filesystem>
#include <ostream>

namespace trireme::data {

struct TokenizeOptions {
  std::filesystem::path tokenizer_folder;
  bool add_special_tokens = true;
  std::filesystem::path path;  // JSONL rows of {"text"}
  int num_threads = 0;         // 0: one a core
};

/// Writes {"input_ids": [...]} for each row, in order; returns 0. Nothing is appended or cut: these
/// are the ids that Hugging Face's tokenizer gives. Throws ConfigError or DataError "path:line:
/// what" (rows of earlier parts of the file may be written by then), DeviceError when `out` fails.
int tokenize_file(const TokenizeOptions& options, std::ostream& out);

}  // namespace trireme::data
