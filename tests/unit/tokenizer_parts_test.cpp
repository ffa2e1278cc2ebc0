// The parts of a tokenizer: sets of characters, patterns, normal form, the cache.
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "support/temp_folder.h"
#include "support/tiny_tokenizer.h"
#include "tokenizer/code_point_set.h"
#include "tokenizer/nfc.h"
#include "tokenizer/pattern_parser.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_cache.h"

namespace trireme::tokenizer {
namespace {

using test::message_of;
using Pieces = std::vector<std::string>;

int64_t size_of_set(const CodePointSet& set) {
  int64_t size = 0;
  for (const CodeRange& range : set.ranges()) size += range.last - range.first + 1;
  return size;
}

TEST(CodePointSetTest, JoinsRangesInAnyOrder) {
  CodePointSet set;
  set.add(10, 20);
  set.add(30, 40);
  set.add(0, 0);
  set.add(21, 22);
  EXPECT_EQ(set.ranges(), (std::vector<CodeRange>{{0, 0}, {10, 22}, {30, 40}}));
  set.add(1, 29);
  EXPECT_EQ(set.ranges(), (std::vector<CodeRange>{{0, 40}}));
  EXPECT_TRUE(set.contains(40));
  EXPECT_FALSE(set.contains(41));
  EXPECT_EQ(set.complement().ranges(), (std::vector<CodeRange>{{41, 0x10ffff}}));
  EXPECT_EQ(set.complement().complement(), set);
  EXPECT_EQ(CodePointSet().complement().ranges(), (std::vector<CodeRange>{{0, 0x10ffff}}));
}

TEST(CodePointSetTest, KnowsUnicode16) {
  // The totals that the standard publishes for version 16.0.
  EXPECT_EQ(size_of_set(*property_set("Lu")), 1858);
  EXPECT_EQ(size_of_set(*property_set("Nd")), 760);
  EXPECT_EQ(size_of_set(*property_set("Zs")), 17);
  EXPECT_EQ(size_of_set(*property_set("Cs")), 2048);
  EXPECT_EQ(size_of_set(*property_set("L")), 141028);
  EXPECT_EQ(size_of_set(white_space()), 25);
  EXPECT_TRUE(property_set("Lo")->contains(0x105c0));  // Todhri came with 16.0
  EXPECT_FALSE(white_space().contains(0x180e));
  EXPECT_EQ(property_set("Han"), std::nullopt);
  EXPECT_EQ(property_set(""), std::nullopt);
  int64_t all = 0;
  for (const char* name : kCategoryNames) all += size_of_set(*property_set(name));
  EXPECT_EQ(all, kNumCodePoints);
}

// Matches and the gaps between them.
Pieces split(std::string_view pattern, std::string_view text) {
  const SplitPattern compiled(parse_pattern(pattern));
  Matcher matcher(compiled);
  matcher.start(text);
  Pieces pieces;
  std::string_view gap;
  std::string_view match;
  bool more = true;
  while (more) {
    more = matcher.next(&gap, &match);
    if (!gap.empty()) pieces.push_back("gap:" + std::string(gap));
    if (!match.empty()) pieces.emplace_back(match);
  }
  return pieces;
}

TEST(SplitPatternTest, QwenPattern) {
  const auto qwen = [](std::string_view text) { return split(test::kQwenPattern, text); };
  EXPECT_EQ(qwen("Hello world's 12"), (Pieces{"Hello", " world", "'s", " ", "1", "2"}));
  EXPECT_EQ(qwen("I'M it'\u017f"), (Pieces{"I", "'M", " it", "'\u017f"}));
  EXPECT_EQ(qwen("a   b\n\n  c"), (Pieces{"a", "  ", " b", "\n\n", " ", " c"}));
  EXPECT_EQ(qwen("x!!\r\ny"), (Pieces{"x", "!!\r\n", "y"}));
  EXPECT_EQ(qwen("世界，hi"), (Pieces{"世界", "，hi"}));
  EXPECT_EQ(qwen("n\u0303o"), (Pieces{"n", "\u0303o"}));  // a mark is no letter
  EXPECT_EQ(qwen(""), Pieces{});
}

TEST(SplitPatternTest, Constructs) {
  EXPECT_EQ(split("a|b+", "xabbx"), (Pieces{"gap:x", "a", "bb", "gap:x"}));
  EXPECT_EQ(split(R"([^\r\n])", "\na\r"), (Pieces{"gap:\n", "a", "gap:\r"}));
  EXPECT_EQ(split(R"([\]\-\\^a-c]+)", "]-\\^abcd"), (Pieces{"]-\\^abc", "gap:d"}));
  EXPECT_EQ(split(R"(\p{Lu}\P{Lu}+)", "AbcDe"), (Pieces{"Abc", "De"}));
  EXPECT_EQ(split(R"(\p{^L}+)", "a1-b"), (Pieces{"gap:a", "1-", "gap:b"}));
  EXPECT_EQ(split(R"(\x41\x{42}\u0043)", "xABC"), (Pieces{"gap:x", "ABC"}));
  EXPECT_EQ(split("(ab){2,3}", "abababab"), (Pieces{"ababab", "gap:ab"}));
  EXPECT_EQ(split("(?<=a)b(?=c)", "bbabc"), (Pieces{"gap:bba", "b", "gap:c"}));
  EXPECT_EQ(split("a.b", "a\nbaéb"), (Pieces{"gap:a\nb", "aéb"}));
  EXPECT_EQ(split("(?i:[k-m]x)", "KX\u212ax mX"), (Pieces{"KX", "\u212ax", "gap: ", "mX"}));
  EXPECT_EQ(split(R"([一-龥]+)", "a中文"), (Pieces{"gap:a", "中文"}));
  EXPECT_EQ(split("[^\\s\\S]|a", "ba"), (Pieces{"gap:b", "a"}));
  EXPECT_EQ(split(R"(\d+\D)", "1²x"), (Pieces{"1²", "gap:x"}));
}

TEST(SplitPatternTest, RefusesWhatItCannotMatchExactly) {
  const auto why_not = [](std::string_view pattern) {
    return message_of<ConfigError>([&] { SplitPattern{parse_pattern(pattern)}; });
  };
  for (const auto& [pattern, what] : std::vector<std::pair<const char*, const char*>>{
           {R"(\w+)", R"(uses \w)"},
           {R"(\bx)", R"(uses \b)"},
           {R"((a)\1)", R"(uses \1)"},
           {"^a", "uses an anchor"},
           {"a$", "uses an anchor"},
           {"[a[b]]", "a class inside a class"},
           {"[a&&b]", "an intersection of classes"},
           {"[[:alpha:]]", "a class inside a class"},
           {R"(\p{Han})", R"(the property \p{Han})"},
           {"(?i)a", "uses (?i)"},
           {"(?<name>a)", "uses (?<n"},
           {"a{2}+", "'+' or '?' after an interval"},
           {"a{,2}", "a '{' that is not"},
           {"(?i:é)", "more than ASCII under (?i:"},
           {"(?i:ss)", "'ss' under (?i:"},
           {"(?i:\\p{L})", "more than ASCII under (?i:"},
           {"[b-a]", "a range that is not a range"},
           {"[a", "an unclosed class"},
           {"(a", "an unclosed group"},
           {"a)", "an unopened group"},
           {"a\\", "a trailing backslash"},
           {R"(\x{110000})", "no code point"},
           {"*a", "does not compile"},
           {"a*", "can match the empty text"}}) {
    EXPECT_NE(why_not(pattern).find(what), std::string::npos)
        << pattern << ": " << why_not(pattern);
  }
  std::string many;
  for (uint32_t c = 0; c < 300; ++c) {
    many += "\\x{" + fmt::format("{:x}", 0x4e00 + 2 * c) + "}";
  }
  EXPECT_NE(why_not(many).find("more than 256 kinds"), std::string::npos);
}

TEST(NfcTest, ComposesAndOrders) {
  NfcNormalizer nfc;
  EXPECT_EQ(nfc.normalize("plain ASCII"), "plain ASCII");
  EXPECT_EQ(nfc.normalize("e\u0301"), "é");
  EXPECT_EQ(nfc.normalize("\u1e9b\u0323"), "\u1e9b\u0323");
  EXPECT_EQ(nfc.normalize("a\u0315\u0300\u05ae\u0300b"), "\u00e0\u05ae\u0300\u0315b");
  EXPECT_EQ(nfc.normalize("\u212b"), "\u00c5");
  EXPECT_EQ(nfc.normalize("\u1112\u1161\u11ab"), "한");
  EXPECT_EQ(nfc.normalize("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(nfc.normalize(""), "");
  // Marks of later Unicode versions stay where they are and part what is around them ...
  EXPECT_EQ(nfc.normalize("a\u1dfa\u0301"), "a\u1dfa\u0301");
  EXPECT_EQ(nfc.normalize("e\u0301\u1ac0\u0334"), "é\u1ac0\u0334");
  // ... and later letters do not compose.
  EXPECT_EQ(nfc.normalize("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(NfcTest, PlainCharactersAreInert) {
  NfcNormalizer nfc;
  std::vector<bool> second(kNumCodePoints);  // joins with a character before it
  for (uint32_t c = 0; c < kNumCodePoints; ++c) {
    if (c >= 0xac00 && c < 0xd7a4) continue;  // their parts are no plain characters
    int32_t parts[8];
    int last = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<int32_t>(c), parts, 8, UTF8PROC_STABLE, &last);
    for (int i = 1; i < count; ++i) second[static_cast<size_t>(parts[i])] = true;
  }
  int64_t num_plain = 0;
  for (uint32_t c = 0; c < kNumCodePoints; ++c) {
    if (!plain_in_nfc(c)) continue;
    ++num_plain;
    EXPECT_EQ(utf8proc_get_property(static_cast<int32_t>(c))->combining_class, 0) << c;
    EXPECT_FALSE(second[c]) << c;
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_code_point(c, &text);
    // A mark in front makes the normalizer look at every character.
    EXPECT_EQ(nfc.normalize("\u0301" + text), "\u0301" + text) << c;
  }
  EXPECT_GT(num_plain, 90000);
}

TEST(WordCacheTest, RemembersUntilFull) {
  WordCache cache;
  EXPECT_TRUE(cache.find("a").empty());
  cache.insert("a", std::vector<int32_t>{1, 2});
  EXPECT_EQ(cache.find("a").size(), 2u);
  int known = 0;
  for (int i = 0; i < 100000; ++i) {
    const std::string word = "w" + std::to_string(i);
    ASSERT_TRUE(cache.find(word).empty());
    cache.insert(word, std::vector<int32_t>{i});
    ASSERT_EQ(cache.find(word)[0], i);
  }
  for (int i = 0; i < 100000; ++i) {
    const auto ids = cache.find("w" + std::to_string(i));
    if (ids.empty()) continue;
    ++known;
    ASSERT_EQ(ids[0], i);
  }
  EXPECT_GT(known, 0);
}

}  // namespace
}  // namespace trireme::tokenizer
