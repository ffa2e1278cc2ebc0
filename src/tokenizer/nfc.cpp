#include "tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace trireme::tokenizer {
namespace {

constexpr std::array kPlain = {CodeRange{0x0, 0x2ff},         // Latin; its accents start at 0x300
                               CodeRange{0x388, 0x482},       // Greek, Cyrillic
                               CodeRange{0x48a, 0x590},       // Cyrillic, Armenian
                               CodeRange{0x5d0, 0x60f},       // Hebrew letters
                               CodeRange{0x61b, 0x64a},       // Arabic letters
                               CodeRange{0x660, 0x66f},       // Arabic digits
                               CodeRange{0xe01, 0xe37},       // Thai
                               CodeRange{0x2002, 0x20cf},     // punctuation, superscripts, currency
                               CodeRange{0x2190, 0x2328},     // arrows, mathematics
                               CodeRange{0x232b, 0x2adb},     // technical, boxes, dingbats
                               CodeRange{0x3000, 0x3029},     // CJK punctuation
                               CodeRange{0x3030, 0x3098},     // Hiragana
                               CodeRange{0x309b, 0x9fff},     // Katakana, Bopomofo, Han
                               CodeRange{0xac00, 0xd7a3},     // Hangul syllables
                               CodeRange{0xfe10, 0xfe1f},     // vertical forms
                               CodeRange{0xfe30, 0xffff},     // compatibility and full-width forms
                               CodeRange{0x1f000, 0x1faff},   // emoji
                               CodeRange{0x20000, 0x2f7ff}};  // rare Han

utf8proc_propval_t combining_class(int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Canonical order: marks between two starters by class, equal classes as they stand.
void order_marks(std::vector<int32_t>* text) {
  const auto is_starter = [](int32_t c) { return combining_class(c) == 0; };
  for (auto at = text->begin(); at != text->end();) {
    const auto begin = std::find_if_not(at, text->end(), is_starter);
    at = std::find_if(begin, text->end(), is_starter);
    std::stable_sort(begin, at,
                     [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
  }
}

}  // namespace

bool plain_in_nfc(uint32_t code_point) {
  for (const CodeRange& range : kPlain) {
    if (code_point <= range.last) return code_point >= range.first;
  }
  return false;
}

NfcNormalizer::NfcNormalizer() {
  for (const CodeRange& range : late_normalization()) late_.add(range.first, range.last);
}

std::string_view NfcNormalizer::normalize(std::string_view text) {
  const char* const end = text.data() + text.size();
  const char* copied = text.data();  // text before it is in result_
  const char* plain = text.data();   // the last plain character
  bool changed = false;
  for (const char* p = text.data(); p != end;) {
    const char* const at = p;
    if (static_cast<unsigned char>(*p) < 0x80) {
      plain = p++;
      continue;
    }
    if (plain_in_nfc(next_code_point(&p))) {
      plain = at;
      continue;
    }
    // A plain character may join with what follows it, never with what goes before.
    while (p != end) {
      const char* next = p;
      if (plain_in_nfc(next_code_point(&next))) break;
      p = next;
    }
    if (!std::exchange(changed, true)) result_.clear();
    result_.append(copied, plain);
    append_normalized(plain, p);
    copied = plain = p;
  }
  if (!changed) return text;
  return result_.append(copied, end);
}

void NfcNormalizer::append_normalized(const char* p, const char* end) {
  while (p != end) {
    const uint32_t c = next_code_point(&p);
    if (late_.contains(c)) {
      flush();
      append_code_point(c, &result_);
      continue;
    }
    int32_t parts[8];
    int last_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<int32_t>(c), parts, std::size(parts),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE), &last_class);
    check(count >= 0 && count <= std::ssize(parts), "U+{:04X} decomposes into {} parts", c, count);
    pending_.insert(pending_.end(), parts, parts + count);
  }
  flush();
}

void NfcNormalizer::flush() {
  order_marks(&pending_);
  const utf8proc_ssize_t size =
      utf8proc_normalize_utf32(pending_.data(), std::ssize(pending_),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  check(size >= 0, "utf8proc_normalize_utf32: {}", utf8proc_errmsg(size));
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    append_code_point(static_cast<uint32_t>(pending_[static_cast<size_t>(i)]), &result_);
  }
  pending_.clear();
}

}  // namespace trireme::tokenizer
