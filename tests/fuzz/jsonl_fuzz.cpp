// Rows of ids are read whole, or the first bad line is named.
#include "base/error.h"
#include "data/dataset.h"
#include "fuzz/input_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::InputFolder folder;
  const auto path = folder.put("rows.jsonl", fuzz::as_text(data, size));
  data::DatasetOptions options;
  options.tokenizer_folder = folder.path();  // which has none: rows of text are refused
  options.vocab_size = 300;
  options.max_seq_length = 16;
  try {
    const auto rows = data::Dataset::load(path, options);
    for (int64_t row = 0; row < rows.size(); ++row) {
      for (const int32_t id : rows.ids(row)) check(id >= 0 && id < 300, "id {}", id);
      check(std::ssize(rows.labels(row)) == std::ssize(rows.ids(row)), "labels of row {}", row);
    }
  } catch (const DataError&) {
  } catch (const ConfigError&) {
  }
  return 0;
}
