#include <gtest/gtest.h>

#include <array>

#include "base/text.h"

namespace trireme {
namespace {

TEST(HumanBytes, ChoosesUnitAndRoundsUpIntoTheNextOne) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(-2048), "-2.0 KiB");
  EXPECT_EQ(human_bytes(INT64_MAX), "8.0 EiB");
  EXPECT_EQ(human_bytes(INT64_MIN), "-8.0 EiB");
}

TEST(NameDistance, CountsEdits) {
  EXPECT_EQ(name_distance("abc", "abc", 3), 0);
  EXPECT_EQ(name_distance("abc", "abd", 3), 1);
  EXPECT_EQ(name_distance("abc", "ab", 3), 1);
  EXPECT_EQ(name_distance("abc", "acb", 3), 1);
  EXPECT_EQ(name_distance("Max-Steps", "max_steps", 3), 0);
  EXPECT_EQ(name_distance("", "abc", 3), 3);
  EXPECT_EQ(name_distance("kitten", "sitting", 9), 3);
  EXPECT_EQ(name_distance("kitten", "sitting", 1), 2) << "at most limit + 1";
}

TEST(NearestName, FindsWhatWasMeantAndNothingElse) {
  constexpr std::array<std::string_view, 4> kNames = {"max_steps", "save_steps", "learning_rate",
                                                      "seed"};
  EXPECT_EQ(nearest_name("max_step", kNames), "max_steps");
  EXPECT_EQ(nearest_name("leraning_rate", kNames), "learning_rate");
  EXPECT_EQ(nearest_name("sede", kNames), "seed");
  EXPECT_EQ(nearest_name("tokenizer", kNames), "");
  EXPECT_EQ(nearest_name("x", kNames), "");
  constexpr std::array<std::string_view, 2> kLong = {"train_batch",
                                                     "train_micro_batch_size_per_gpu"};
  EXPECT_EQ(nearest_name("train_micro_batch", kLong), kLong[1]) << "the name begins with it";
  EXPECT_EQ(did_you_mean("save-stepz", kNames), " (did you mean 'save_steps'?)");
  EXPECT_EQ(did_you_mean("tokenizer", kNames), "");
}

TEST(Utf8, RefusesBrokenForms) {
  EXPECT_TRUE(is_utf8("abc \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"));
  EXPECT_FALSE(is_utf8("\xc0\xaf"));          // overlong
  EXPECT_FALSE(is_utf8("\xe0\x80\xaf"));      // overlong
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));      // surrogate
  EXPECT_FALSE(is_utf8("\xf4\x90\x80\x80"));  // beyond U+10FFFF
  EXPECT_FALSE(is_utf8("\xe2\x82"));          // cut
  EXPECT_FALSE(is_utf8("\x80"));
}

TEST(Printable, CutsAndHidesControlCharacters) {
  EXPECT_EQ(printable("a\nb\x7f\xff"), "a?b??");
  EXPECT_EQ(printable("\xe2\x82\xac!", 3), "\xe2\x82\xac...");
  EXPECT_EQ(printable("abcdef", 4), "abcd...");
}

TEST(JoinSome, CountsTheRest) {
  const std::array<std::string, 3> items = {"a", "b", "c"};
  EXPECT_EQ(join_some(items, 3), "a, b, c");
  EXPECT_EQ(join_some(items, 2), "a, b and 1 more");
  EXPECT_EQ(join_some({}, 2), "");
}

}  // namespace
}  // namespace trireme
