// One row of a JSONL file.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/jsonl_file.h"

namespace trireme::data {

inline constexpr int32_t kNotTrained = -100;

/// {"text": ...}, {"prompt": ..., "completion": ...} or {"input_ids": [...], "labels": [...]};
/// other keys are ignored.
enum class RowShape { text, prompt, ids };

/// The shape of all rows, which the first one decides ("input_ids" before "text" before "prompt").
/// DataError for a file without rows or with a first row of another shape.
RowShape detect_row_shape(const JsonlFile& file);

/// Reads rows; scratch of one thread. Every error is a LineError with what() such as
/// `"labels" has 3 entries for 4 "input_ids"`.
class RowParser {
 public:
  explicit RowParser(RowShape shape) : shape_(shape) {}

  /// The text of a row; valid until the next call. The bytes behind `line` must be readable for
  /// simdjson's padding, as JsonlFile's are.
  std::string_view parse_text(std::string_view line, int64_t number);

  struct Prompted {
    std::string_view prompt, completion;
  };
  /// The same of a row with a prompt.
  Prompted parse_prompted(std::string_view line, int64_t number);

  /// Appends to *tokens the ids (all in [0, vocab_size), at least one), then, where the row has
  /// labels and one differs from its id, the labels (ids or kNotTrained). Returns the number of
  /// ids.
  int64_t parse_ids(std::string_view line, int64_t number, int64_t vocab_size,
                    std::vector<int32_t>* tokens);

  /// The shape of this row alone.
  static RowShape shape_of(std::string_view line, int64_t number);

 private:
  RowShape shape_;
  simdjson::dom::parser parser_;
};

}  // namespace trireme::data
