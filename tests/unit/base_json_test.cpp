#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace trireme {
namespace {

/// The DataError of parsing `text`, or "".
std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "f", limits);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(Json, ReadsEveryKindAndKeepsOrder) {
  const Json value = parse_json(
      R"( {"b": [1, -2, 1.5, 2e3, 18446744073709551615, true, false, null],
           "a": "\u00e4\ud83d\ude00\n\"\/", "": {}, "c": []} )",
      "f");
  EXPECT_EQ(value["b"][0], 1);
  EXPECT_TRUE(value["b"][0].is_number_unsigned());
  EXPECT_EQ(value["b"][1], -2);
  EXPECT_EQ(value["b"][2], 1.5);
  EXPECT_EQ(value["b"][3], 2000.0);
  EXPECT_EQ(value["b"][4], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(value["b"][5], true);
  EXPECT_TRUE(value["b"][7].is_null());
  EXPECT_EQ(value["a"], "ä😀\n\"/");
  EXPECT_EQ(value.begin().key(), "b");
  EXPECT_TRUE(value[""].is_object());
  EXPECT_TRUE(value["c"].is_array());
}

TEST(Json, NotANumberTravelsBareAsInPython) {
  const Json value = parse_json(R"({"loss": NaN, "a": [Infinity, -Infinity]})", "f");
  EXPECT_TRUE(std::isnan(value["loss"].get<double>()));
  EXPECT_EQ(value["a"][0].get<double>(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(dump_json(value), R"({"loss": NaN, "a": [Infinity, -Infinity]})");
}

TEST(Json, DumpsWithIndentLikePython) {
  const Json value = parse_json(R"({"a":[1,{"b":"ü"}],"c":{},"d":[],"e":0.1})", "f");
  EXPECT_EQ(dump_json(value, 2),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"ü\"\n    }\n  ],\n  \"c\": {},\n"
            "  \"d\": [],\n  \"e\": 0.1\n}");
  EXPECT_EQ(dump_json(value), R"({"a": [1, {"b": "ü"}], "c": {}, "d": [], "e": 0.1})");
}

TEST(Json, RefusesWithLine) {
  EXPECT_EQ(refusal("{\n\"a\": 1,\n\"a\": 2}"), "f:3: key 'a' appears twice");
  EXPECT_EQ(refusal("{\"a\": 1, \"\\u0061\": 2}"), "f:1: key 'a' appears twice");
  EXPECT_EQ(refusal("[1,\n2"), "f:2: the text ends where ']' belongs");
  EXPECT_EQ(refusal("[1 2]"), "f:1: expected ']' after an element, found '2'");
  EXPECT_EQ(refusal("{\n// why\n\"a\": 1}"), "f:2: JSON has no comments; remove them");
  EXPECT_EQ(refusal("{\"a\": 1,\n}"), "f:2: a comma stands before '}'");
  EXPECT_EQ(refusal(""), "f:1: the text ends where a value belongs");
  EXPECT_EQ(refusal("[1] x"), "f:1: text after the end of the JSON value");
  for (const char* text : {"{a: 1}",
                           "[1,]",
                           "{\"a\":1,}",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "-",
                           "1e",
                           "nan",
                           "Inf",
                           "tru",
                           "'a'",
                           "\"a",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\u0041\"",
                           "\"\x01\"",
                           "\"\xff\"",
                           "\"\\",
                           "[\"a\":1]",
                           "{\"a\" 1}",
                           "{\"a\"}",
                           "1e999",
                           "-Inf",
                           "--1",
                           "\xef\xbb\xbf{}",
                           "[1] []",
                           "{\"a\":}",
                           "nul",
                           "-x"}) {
    EXPECT_NE(refusal(text), "") << text;
  }
}

TEST(Json, SameKeyInDifferentObjectsIsFine) {
  EXPECT_EQ(refusal(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})"), "");
}

TEST(Json, DepthAndSizeAreBounded) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(refusal(nested(64)), "");
  EXPECT_EQ(refusal(nested(65)), "f:1: nested deeper than 64 levels");
  EXPECT_EQ(refusal(std::string(1 << 20, '[')), "f:1: nested deeper than 64 levels");
  EXPECT_EQ(refusal("[1,2,3]", {.max_bytes = 4}), "f: 7 B of JSON, more than the 4 B allowed");
}

/// A random document, also with keys and strings that need escapes.
Json any_json(std::mt19937& random, int depth) {
  const auto below = [&](uint32_t n) { return random() % n; };
  const auto text = [&] {
    constexpr std::string_view kLetters("ab\"\\/\n\t\x01\x7f {}[]:,0\0", 19);
    std::string result(below(6), ' ');
    for (char& c : result) c = kLetters[below(kLetters.size())];
    return result;
  };
  if (depth == 0) {
    switch (below(5)) {
      case 0:
        return static_cast<int64_t>(random()) << below(33);
      case 1:
        return std::ldexp(static_cast<double>(random()) - 2e9, static_cast<int>(below(1900)) - 990);
      case 2:
        return below(2) == 1;
      case 3:
        return text();
      default:
        return nullptr;
    }
  }
  const bool object = below(2) == 0;
  Json value = object ? Json::object() : Json::array();
  for (uint32_t i = below(6); i > 0; --i) {
    Json child = any_json(random, static_cast<int>(below(static_cast<uint32_t>(depth))));
    if (object) {
      value[text()] = std::move(child);
    } else {
      value.push_back(std::move(child));
    }
  }
  return value;
}

TEST(Json, DumpThenParseIsTheSame) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const Json value = any_json(random, 4);
    const int indent = trial % 5 - 1;
    ASSERT_EQ(parse_json(dump_json(value, indent), "f"), value);
    ASSERT_EQ(parse_json(value.dump(), "f"), value);
  }
}

TEST(Json, RefusesExactlyWhatAnotherParserRefuses) {
  std::mt19937 random(2);
  int refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text = any_json(random, 3).dump();
    constexpr std::string_view kLetters = "\"\\[]{},:0123456789.eE+- tfn";
    text[random() % text.size()] = kLetters[random() % kLetters.size()];
    const std::string ours = refusal(text);
    refused += ours.empty() ? 0 : 1;
    if (ours.find("appears twice") != std::string::npos) continue;  // they keep the last one
    ASSERT_EQ(nlohmann::json::accept(text), ours.empty()) << text << "\n" << ours;
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace trireme
