// Whole tokenizers: exact ids, special tokens, and files that cannot be used.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"
#include "support/temp_folder.h"
#include "support/tiny_tokenizer.h"

namespace trireme::tokenizer {
namespace {

using test::message_of;
using test::TempFolder;
using test::tiny_tokenizer;
using test::tiny_tokenizer_config;
using test::write_tokenizer;
using Ids = std::vector<int32_t>;

Tokenizer load(const Json& json, const Json& config = tiny_tokenizer_config()) {
  const TempFolder folder;
  write_tokenizer(folder.path(), json, config);
  return Tokenizer::load(folder.path());
}

template <typename Error>
std::string why_not(const Json& json, const Json& config = tiny_tokenizer_config()) {
  return message_of<Error>([&] { load(json, config); });
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Real vocabularies are not in the repository. They are looked for in $TRIREME_SHARED or ../shared.
class GoldenIdsTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenIdsTest, EqualHuggingFace) {
  const char* given = std::getenv("TRIREME_SHARED");
  const std::filesystem::path shared =
      given != nullptr ? given : std::filesystem::path(TRIREME_SOURCE_DIR).parent_path() / "shared";
  const auto folder = shared / "tokenizers" / GetParam();
  if (!std::filesystem::exists(folder / "tokenizer.json")) {
    GTEST_SKIP() << "SKIPPED: the ids of " << GetParam() << " are NOT checked: there is no "
                 << folder << "; set TRIREME_SHARED to the folder that holds tokenizers/";
  }
  const Json golden = read_json(shared / "tokenizers" / "golden_ids.json");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  const auto expected = golden.at("ids_no_special").at(GetParam()).get<std::vector<Ids>>();
  ASSERT_GT(texts.size(), 200u);
  ASSERT_EQ(texts.size(), expected.size());
  const Tokenizer tokenizer = Tokenizer::load(folder);
  Encoder encoder(tokenizer);
  const bool has_bos = GetParam() == std::string("deepseek_v3");  // add_bos_token of its config
  for (int round = 0; round < 2; ++round) {                       // the second from the cache
    for (size_t i = 0; i < texts.size(); ++i) {
      Ids ids;
      encoder.encode(texts[i], false, &ids);
      EXPECT_EQ(ids, expected[i]) << texts[i];
      ids.clear();
      encoder.encode(texts[i], true, &ids);
      if (has_bos) {
        ASSERT_FALSE(ids.empty());
        EXPECT_EQ(ids.front(), tokenizer.bos_id());
        ids.erase(ids.begin());
      }
      EXPECT_EQ(ids, expected[i]) << texts[i];
    }
  }
  EXPECT_TRUE(tokenizer.eos_id().has_value());
  EXPECT_EQ(tokenizer.decode(expected[5]), texts[5]);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenIdsTest, testing::Values("qwen3", "deepseek_v3"));

TEST(TokenizerTest, MergesInRankOrder) {
  // " the": t+h, th+e, space+the; then "he" loses against "th".
  const Tokenizer tokenizer =
      load(tiny_tokenizer({{"t", "h"}, {"h", "e"}, {"th", "e"}, {" ", "the"}, {"a", "a"}}));
  EXPECT_EQ(tokenizer.vocab_size(), 263);
  EXPECT_EQ(tokenizer.encode("the", false), (Ids{258}));
  EXPECT_EQ(tokenizer.encode(" the he", false), (Ids{259, ' ', 257}));
  EXPECT_EQ(tokenizer.encode("aaaaa", false), (Ids{260, 260, 'a'}));
  EXPECT_EQ(tokenizer.encode("hthe", false), (Ids{'h', 258}));
  EXPECT_EQ(tokenizer.encode("", false), Ids{});
  EXPECT_EQ(tokenizer.encode("é", false), (Ids{0xc3, 0xa9}));
  EXPECT_EQ(tokenizer.encode("e\u0301", false), (Ids{0xc3, 0xa9}));  // NFC
}

TEST(TokenizerTest, LongWordsMergeInTimeThatIsNearlyLinear) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::string word = "a"; word.size() < 512; word += word) merges.emplace_back(word, word);
  const Tokenizer tokenizer = load(tiny_tokenizer(merges));
  const std::string text(300001, 'a');
  const Ids ids = tokenizer.encode(text, false);
  EXPECT_EQ(ids.size(), 590u);  // 300001 = 585 * 512 + 256 + 128 + 64 + 32 + 1
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(TokenizerTest, DecodesWhatItEncoded) {
  const Tokenizer tokenizer = load(tiny_tokenizer({{"\xc3", "\xa9"}, {"x", "y"}}));
  const std::string text = "Grüße, 世界! <eos>\n\txyé 😀";
  const Ids ids = tokenizer.encode(text, true);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(tokenizer.decode(ids, true), "Grüße, 世界! \n\txyé 😀");
  EXPECT_EQ(tokenizer.decode(Ids{'a', 0xc3, 'b', 0xf0, 0x9f, 0x98, 'c', 0xff}),
            "a\ufffdb\ufffdc\ufffd");
  EXPECT_EQ(message_of<DataError>([&] { tokenizer.decode(Ids{-1}); }), "id -1 is no token");
  EXPECT_EQ(message_of<DataError>([&] { tokenizer.decode(Ids{260}); }), "id 260 is no token");
}

TEST(TokenizerTest, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = load(tiny_tokenizer());
  for (const std::string_view text : {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"}) {
    EXPECT_EQ(message_of<DataError>([&] { tokenizer.encode(text, false); }),
              "the text is not valid UTF-8");
  }
}

TEST(TokenizerTest, AddedTokensAreCutOutFirst) {
  Json json = tiny_tokenizer({{"a", "b"}});
  const auto add = [&](int id, const char* content, Json flags) {
    flags["id"] = id;
    flags["content"] = content;
    json["added_tokens"].push_back(flags);
  };
  add(300, "<x>", {{"normalized", false}});
  add(301, "<x><y>", {{"normalized", false}});
  add(302, "<l>", {{"normalized", false}, {"lstrip", true}});
  add(303, "<r>", {{"normalized", false}, {"rstrip", true}});
  add(304, "e\u0301", {{"normalized", true}});
  add(305, "cd", {{"normalized", true}});
  const Tokenizer tokenizer = load(json);
  EXPECT_EQ(tokenizer.encode("<x><x><y><y>", false), (Ids{300, 301, '<', 'y', '>'}));
  EXPECT_EQ(tokenizer.encode("c \u3000<l> c", false), (Ids{'c', 302, ' ', 'c'}));
  EXPECT_EQ(tokenizer.encode("c <r> \n<x>", false), (Ids{'c', ' ', 303, 300}));
  EXPECT_EQ(tokenizer.encode("<r>  <l>", false), (Ids{303, 302}));
  EXPECT_EQ(tokenizer.encode("\u00e9", false), (Ids{304}));  // found in normalized text
  EXPECT_EQ(tokenizer.encode("abcd", false), (Ids{256, 305}));
  EXPECT_EQ(tokenizer.encode("<eo<eos>", false), (Ids{'<', 'e', 'o', 258}));
}

TEST(TokenizerTest, IgnoreMergesTakesWholePieces) {
  Json json = tiny_tokenizer({{"a", "b"}});
  json["model"]["vocab"]["abc"] = 400;
  EXPECT_EQ(load(json).encode("abc", false), (Ids{256, 'c'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(json).encode("abc", false), (Ids{400}));
  EXPECT_EQ(load(json).encode("abcd", false), (Ids{256, 'c', 'd'}));
}

TEST(TokenizerTest, TemplatesAndLlamaConfigsAddSpecialTokens) {
  Json json = tiny_tokenizer();
  EXPECT_EQ(load(json).encode("a", true), (Ids{'a'}));
  EXPECT_EQ(load(json).bos_id(), 256);
  EXPECT_EQ(load(json).eos_id(), 257);
  EXPECT_EQ(load(json, nullptr).eos_id(), std::nullopt);

  json["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [
    {"type": "ByteLevel"},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A"}},
                {"SpecialToken": {"id": "<eos>", "type_id": 0}}],
     "special_tokens": {"<bos>": {"ids": [256]}, "<eos>": {"ids": [257]}}}]})");
  EXPECT_EQ(load(json).encode("a", true), (Ids{256, 'a', 257}));
  EXPECT_EQ(load(json).encode("a", false), (Ids{'a'}));
  EXPECT_EQ(load(json).encode("", true), (Ids{256, 257}));

  Json config = tiny_tokenizer_config();
  config["add_bos_token"] = false;
  EXPECT_EQ(load(json, config).encode("a", true), (Ids{256, 'a', 257}));  // other classes
  config["tokenizer_class"] = "LlamaTokenizerFast";
  EXPECT_EQ(load(json, config).encode("a", true), (Ids{'a'}));
  config["add_bos_token"] = true;
  config["add_eos_token"] = true;
  EXPECT_EQ(load(json, config).encode("a", true), (Ids{256, 'a', 257}));
  config.erase("bos_token");
  EXPECT_HAS(why_not<DataError>(json, config), "asks for 'add_bos_token' but names no 'bos_token'");
}

TEST(TokenizerTest, PreTokenizersOfOtherFamilies) {
  Json json = tiny_tokenizer({{"1", "2"}, {"a", "1"}, {" ", "a"}});
  const auto ids = [&](const Json& pre_tokenizer, std::string_view text) {
    json["pre_tokenizer"] = pre_tokenizer;
    return load(json).encode(text, false);
  };
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  EXPECT_EQ(ids(byte_level, "a12"), (Ids{'a', 256}));  // GPT-2's pattern
  Json with_space = byte_level;
  with_space["add_prefix_space"] = true;
  EXPECT_EQ(ids(with_space, "a"), (Ids{258}));
  EXPECT_EQ(ids(with_space, " a"), (Ids{258}));
  Json whole = byte_level;
  whole["use_regex"] = false;
  EXPECT_EQ(ids(whole, "a12"), (Ids{'a', 256}));
  const auto sequence = [&](const Json& first) {
    return Json{{"type", "Sequence"}, {"pretokenizers", {first, byte_level}}};
  };
  EXPECT_EQ(ids(sequence({{"type", "Digits"}, {"individual_digits", true}}), "a12"),
            (Ids{'a', '1', '2'}));
  EXPECT_EQ(ids(sequence({{"type", "Digits"}}), "a12"), (Ids{'a', 256}));
  Json split = {{"type", "Split"}, {"pattern", {{"String", "1"}}}, {"behavior", "Removed"}};
  EXPECT_EQ(ids(sequence(split), "a12"), (Ids{'a', '2'}));
  split["invert"] = true;
  EXPECT_EQ(ids(sequence(split), "a12"), (Ids{'1'}));
}

TEST(TokenizerTest, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = load(tiny_tokenizer({{"a", "b"}, {"ab", "c"}}));
  std::vector<Ids> results(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& result : results) {
      threads.emplace_back([&] {
        Encoder encoder(tokenizer);
        for (int i = 0; i < 200; ++i) encoder.encode("abc ab é\u0301 <eos> 12", true, &result);
      });
    }
  }
  for (const Ids& result : results) EXPECT_EQ(result, results[0]);
}

TEST(TokenizerTest, UnsupportedComponentsAreNamed) {
  const auto with = [](const char* pointer, const char* value) {
    Json json = tiny_tokenizer();
    json[Json::json_pointer(pointer)] = Json::parse(value);
    return why_not<ConfigError>(json);
  };
  EXPECT_HAS(with("/normalizer", R"({"type": "Lowercase"})"), "the normalizer Lowercase");
  EXPECT_HAS(with("/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFKC"}]})"),
             "'normalizers' of 'normalizer'[0]: the normalizer NFKC");
  EXPECT_HAS(with("/pre_tokenizer", R"({"type": "Metaspace"})"), "the pre-tokenizer Metaspace");
  EXPECT_HAS(with("/pre_tokenizer", "null"), "a pre-tokenizer without ByteLevel");
  EXPECT_HAS(with("/pre_tokenizer/pretokenizers/0/behavior", R"("MergedWithNext")"),
             "the behavior MergedWithNext");
  EXPECT_HAS(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("\\w+")"), "uses \\w");
  EXPECT_HAS(with("/model/type", R"("Unigram")"), "the model Unigram");
  EXPECT_HAS(with("/model/byte_fallback", "true"), "byte_fallback");
  EXPECT_HAS(with("/model/dropout", "0.1"), "dropout");
  EXPECT_HAS(with("/model/end_of_word_suffix", R"("</w>")"), "end_of_word_suffix");
  EXPECT_HAS(with("/post_processor/type", R"("BertProcessing")"),
             "the post-processor BertProcessing");
  EXPECT_HAS(with("/added_tokens/0/single_word", "true"), "single_word");
  EXPECT_EQ(with("/model/continuing_subword_prefix", R"("")"), "");
}

TEST(TokenizerTest, BrokenFilesAreDataErrors) {
  const auto with = [](const char* pointer, const char* value) {
    Json json = tiny_tokenizer({{"a", "b"}});
    json[Json::json_pointer(pointer)] = Json::parse(value);
    return why_not<DataError>(json);
  };
  EXPECT_HAS(with("/model/vocab/a", "-1"), "has id -1, not in 0..16777215");
  EXPECT_HAS(with("/model/vocab/a", "99999999999"), "has id 99999999999");
  EXPECT_HAS(with("/model/vocab/a", "98"), "has id 98 twice");
  EXPECT_HAS(with("/model/vocab/a", "1.5"), "['a'] is not an id");
  EXPECT_HAS(with("/model/vocab", "[]"), "'vocab' of 'model' is not an object");
  EXPECT_HAS(with("/model/vocab", R"({"a": 0})"), "has no token for byte 0x00");
  EXPECT_HAS(with("/model/merges", R"(["a"])"), "[0] is neither \"a b\" nor [\"a\", \"b\"]");
  EXPECT_HAS(with("/model/merges", R"(["a b c"])"), "[0] is neither");
  EXPECT_HAS(with("/model/merges", R"([["b", "a"]])"), "[0] speaks of 'ba'");
  EXPECT_HAS(with("/added_tokens/0/id", "5"), "contradicts the added token '<bos>'");
  EXPECT_HAS(with("/added_tokens/0/content", "7"), "is not a string");
  EXPECT_HAS(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("")"), "is empty or too long");
  EXPECT_HAS(with("/normalizer", "[]"), "'normalizer' is not an object");
  EXPECT_HAS(with("/model", "null"), "has no 'model'");

  Json config = tiny_tokenizer_config();
  config["eos_token"] = "<nothing>";
  EXPECT_HAS(why_not<DataError>(tiny_tokenizer(), config), "'<nothing>' is no token");

  const TempFolder folder;
  EXPECT_HAS(message_of<ConfigError>([&] { Tokenizer::load(folder.path()); }),
             "tokenizer.json: there is no such file");
  std::ofstream(folder / "tokenizer.json") << "{\"model\": ";
  EXPECT_HAS(message_of<DataError>([&] { Tokenizer::load(folder.path()); }),
             (folder / "tokenizer.json").string() + ": ");
  std::ofstream(folder / "tokenizer.json") << std::string(100000, '[');
  EXPECT_NE(message_of<DataError>([&] { Tokenizer::load(folder.path()); }), "");
}

TEST(TokenizerTest, MutatedFilesLoadOrThrow) {
  const std::string good = dump_json(tiny_tokenizer({{"a", "b"}, {"ab", "c"}}));
  std::mt19937 random(7);
  const TempFolder folder;
  int loaded = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = good;
    for (uint32_t change = 0; change <= random() % 3; ++change) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = "{}[]\",:0-9a\\"[random() % 12];
          break;
        case 1:
          text.erase(at, random() % 40);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 60));
      }
    }
    std::ofstream(folder / "tokenizer.json") << text;
    try {
      Tokenizer::load(folder.path()).encode("abc <bos> déjà 12\n", true);
      ++loaded;
    } catch (const DataError&) {
    } catch (const ConfigError&) {
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 400);
}

}  // namespace
}  // namespace trireme::tokenizer
