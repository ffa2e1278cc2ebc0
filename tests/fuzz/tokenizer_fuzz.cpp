// A tokenizer.json that is read encodes and decodes; any other is refused by name.
#include "base/error.h"
#include "fuzz/input_folder.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::InputFolder folder;
  folder.put("tokenizer.json", fuzz::as_text(data, size));
  try {
    const auto tokenizer = tokenizer::Tokenizer::load(folder.path());
    for (const std::string_view text : {"", "Hello  world! 123", "\xc3\xa4\xe2\x82\xac\n"}) {
      const auto ids = tokenizer.encode(text, true);
      for (const int32_t id : ids) check(id >= 0 && id < tokenizer.vocab_size(), "id {}", id);
      tokenizer.decode(ids);
    }
  } catch (const DataError&) {
  } catch (const ConfigError&) {
  }
  return 0;
}
