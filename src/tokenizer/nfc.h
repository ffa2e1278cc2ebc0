// Unicode normalization form C, as the NFC of Hugging Face `tokenizers` computes it: with
// today's data for old characters, and none for those of late_normalization().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/code_point_set.h"

namespace trireme::tokenizer {

/// True for characters that NFC never changes, moves or joins with what goes before them: text of
/// these alone is in NFC. Conservative: covers the frequent scripts only.
bool plain_in_nfc(uint32_t code_point);

/// Scratch of one thread, reused from text to text.
class NfcNormalizer {
 public:
  NfcNormalizer();
  /// `text` (valid UTF-8) itself where it is in NFC already, else its normal form, which lives
  /// until the next call.
  std::string_view normalize(std::string_view text);

 private:
  void append_normalized(const char* begin, const char* end);
  void flush();

  CodePointSet late_;
  std::vector<int32_t> pending_;  // decomposed code points since the last late character
  std::string result_;
};

}  // namespace trireme::tokenizer
