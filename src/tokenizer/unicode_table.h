// What the tokenizer knows of Unicode 16: the general categories that `\p{..}` names, and the
// characters that NFC must leave alone. The table file is generated (tools/gen_unicode).
#pragma once

#include <cstdint>
#include <span>

namespace trireme::tokenizer {

/// Code points first..last, both inside.
struct CodeRange {
  uint32_t first = 0;
  uint32_t last = 0;
  bool operator==(const CodeRange&) const = default;
};

inline constexpr uint32_t kNumCodePoints = 0x110000;

/// The number that a category has in category_runs().
inline constexpr const char* kCategoryNames[] = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

/// The code space from 0 upwards as runs of one category: length << 5 | category.
std::span<const uint32_t> category_runs();

/// Characters that got a combining class or a canonical composition after Unicode 9. The NFC of
/// Hugging Face `tokenizers` has Unicode 9's data, where each is a starter that never composes.
/// Sorted.
std::span<const CodeRange> late_normalization();

}  // namespace trireme::tokenizer
