// Files of rows: what they become, and what is said about bad ones.
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "data/dataset.h"
#include "data/jsonl_file.h"
#include "data/tokenize_file.h"
#include "support/temp_folder.h"
#include "support/tiny_tokenizer.h"

namespace trireme::data {
namespace {

using test::message_of;
using test::TempFolder;
using Ids = std::vector<int32_t>;

class RowsTest : public testing::Test {
 protected:
  RowsTest() { test::write_tokenizer(folder_ / "model", test::tiny_tokenizer({{"a", "b"}})); }

  std::filesystem::path write(std::string_view text) const {
    std::ofstream(folder_ / "rows.jsonl", std::ios::binary) << text;
    return folder_ / "rows.jsonl";
  }
  DatasetOptions options() const {
    DatasetOptions result;
    result.tokenizer_folder = folder_ / "model";
    result.vocab_size = 300;
    result.max_seq_length = 8;
    return result;
  }
  Dataset load(std::string_view text) const { return Dataset::load(write(text), options()); }
  /// The message without the folder: "rows.jsonl:1: ...".
  std::string why_not(std::string_view text) const { return why_not(text, options()); }
  std::string why_not(std::string_view text, const DatasetOptions& options) const {
    const auto path = write(text);
    const std::string message = message_of<DataError>([&] { Dataset::load(path, options); });
    const std::string folder = folder_.path().string() + "/";
    return message.starts_with(folder) ? message.substr(folder.size()) : message;
  }

  TempFolder folder_;
};

Ids list(std::span<const int32_t> values) { return {values.begin(), values.end()}; }

constexpr int32_t kAb = 256;  // the merge
constexpr int32_t kEos = 258;

TEST_F(RowsTest, TextEndsWithEosOnce) {
  const Dataset data =
      load("{\"text\": \"ab\"}\n{\"text\": \"c<eos>\", \"x\": [1]}\n{\"text\": \"\"}\n");
  ASSERT_EQ(data.size(), 3);
  EXPECT_EQ(list(data.ids(0)), (Ids{kAb, kEos}));
  EXPECT_EQ(list(data.labels(0)), (Ids{kAb, kEos}));
  EXPECT_EQ(list(data.ids(1)), (Ids{'c', kEos}));
  EXPECT_EQ(list(data.ids(2)), (Ids{kEos}));
  EXPECT_EQ(data.counts().rows, 3);
  EXPECT_EQ(data.counts().tokens, 5);
  EXPECT_EQ(data.counts().trained, 2);
}

TEST_F(RowsTest, PromptsAreNotTrained) {
  const std::string rows =
      "{\"prompt\": \"x a\", \"completion\": \"bc\"}\n"  // "ab" is one token
      "{\"prompt\": \"x \", \"completion\": \"c<eos>\"}\n"
      "{\"prompt\": \"\", \"completion\": \"c\"}\n"
      "{\"prompt\": \"x\", \"completion\": \"\"}\n";
  const Dataset data = load(rows);
  ASSERT_EQ(data.size(), 4);
  EXPECT_EQ(list(data.ids(0)), (Ids{'x', ' ', kAb, 'c', kEos}));
  EXPECT_EQ(list(data.labels(0)), (Ids{-100, -100, kAb, 'c', kEos}));
  EXPECT_EQ(list(data.ids(1)), (Ids{'x', ' ', 'c', kEos}));
  EXPECT_EQ(list(data.labels(1)), (Ids{-100, -100, 'c', kEos}));
  EXPECT_EQ(list(data.labels(2)), (Ids{'c', kEos}));
  EXPECT_EQ(list(data.labels(3)), (Ids{-100, kEos}));
  EXPECT_EQ(data.counts().trained, 3 + 2 + 1 + 1);

  DatasetOptions both = options();
  both.completion_only = false;
  const Dataset whole = Dataset::load(write(rows), both);
  EXPECT_EQ(list(whole.labels(0)), (Ids{'x', ' ', kAb, 'c', kEos}));
  EXPECT_EQ(whole.counts().trained, 4 + 3 + 1 + 1);
}

TEST_F(RowsTest, PromptsThatAreNoneAreNamed) {
  DatasetOptions only = options();
  only.completion_only = true;
  EXPECT_EQ(load("{\"prompt\": \"a\", \"completion\": \"b\"}").size(), 1);
  const auto path = write("{\"text\": \"ab\"}");
  const std::string no_prompts = message_of<ConfigError>([&] { Dataset::load(path, only); });
  EXPECT_TRUE(no_prompts.starts_with("completion_only_loss = true: the rows of ")) << no_prompts;
  EXPECT_EQ(why_not("{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n"),
            "rows.jsonl:2: has no \"completion\", which the first row has");
  EXPECT_EQ(why_not("{\"prompt\": [{\"role\": \"user\"}], \"completion\": []}"),
            "rows.jsonl:1: \"prompt\" is not a string (messages are not supported yet; write them "
            "as the text that the model's chat template gives)");
}

TEST_F(RowsTest, IdsWithAndWithoutLabels) {
  const Dataset data = load(
      "{\"input_ids\": [1, 2, 3]}\n"
      "{\"input_ids\": [4, 5, 6], \"labels\": [-100, -100, 9], \"text\": \"x\"}\n"
      "{\"input_ids\": [7], \"labels\": [7]}\n"
      "{\"input_ids\": [8, 9], \"labels\": null}\n");
  ASSERT_EQ(data.size(), 4);
  EXPECT_EQ(list(data.labels(0)), (Ids{1, 2, 3}));
  EXPECT_EQ(list(data.ids(1)), (Ids{4, 5, 6}));
  EXPECT_EQ(list(data.labels(1)), (Ids{-100, -100, 9}));
  EXPECT_EQ(list(data.ids(2)), (Ids{7}));
  EXPECT_EQ(list(data.labels(3)), (Ids{8, 9}));
  EXPECT_EQ(list(data.lengths()), (Ids{3, 3, 1, 2}));
  EXPECT_EQ(data.counts().trained, 2 + 1 + 0 + 1);
}

TEST_F(RowsTest, MarksBlankLinesAndLineEnds) {
  const Dataset data = load("\xef\xbb\xbf\r\n  \n{\"input_ids\": [1]}\r\n\t\n{\"input_ids\": [2]}");
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(list(data.ids(1)), (Ids{2}));
}

TEST_F(RowsTest, LongRows) {
  const std::string text =
      "{\"input_ids\": [1,2,3,4,5,6,7,8,9,10], \"labels\": [1,2,3,4,5,6,7,-100,9,-100]}\n"
      "{\"input_ids\": [1,2,3,4,5,6,7,8]}\n{\"input_ids\": [1,2,3,4,5,6,7,8,9]}\n";
  const Dataset cut = load(text);
  ASSERT_EQ(cut.size(), 3);
  EXPECT_EQ(list(cut.ids(0)), (Ids{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(list(cut.labels(0)), (Ids{1, 2, 3, 4, 5, 6, 7, -100}));
  EXPECT_EQ(list(cut.ids(2)), (Ids{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(cut.counts().truncated, 2);
  EXPECT_EQ(cut.counts().tokens, 24);
  EXPECT_EQ(cut.counts().trained, 6 + 7 + 7);

  DatasetOptions skip = options();
  skip.on_long = config::OnLong::skip;
  const Dataset left = Dataset::load(write(text), skip);
  ASSERT_EQ(left.size(), 1);
  EXPECT_EQ(left.counts().skipped, 2);
  EXPECT_EQ(left.counts().rows, 3);
  EXPECT_EQ(why_not("{\"input_ids\": [1,2,3,4,5,6,7,8,9]}", skip),
            "rows.jsonl: all 1 rows are longer than the max_seq_length 8");

  DatasetOptions error = options();
  error.on_long = config::OnLong::error;
  EXPECT_EQ(why_not("{\"input_ids\": [1]}\n{\"input_ids\": [1,2,3,4,5,6,7,8,9]}\n", error),
            "rows.jsonl:2: has 9 tokens, more than the max_seq_length 8; cut long rows with "
            "--on_long truncate or leave them out with --on_long skip");
}

TEST_F(RowsTest, WrappedRowsAreCutIntoBlocks) {
  DatasetOptions wrapped = options();
  wrapped.max_seq_length = 4;
  wrapped.wrapped = true;
  wrapped.on_long = config::OnLong::error;  // no row is too long
  const Dataset data = Dataset::load(
      write("{\"input_ids\": [1, 2, 3]}\n"
            "{\"input_ids\": [4, 5, 6, 7, 8, 9, 10], \"labels\": [-100, 5, -100, 7, 8, 9, 10]}\n"
            "{\"input_ids\": [11, 12, 13]}\n{\"input_ids\": [14]}\n"),
      wrapped);
  ASSERT_EQ(data.size(), 4);
  EXPECT_EQ(list(data.lengths()), (Ids{4, 4, 4, 2}));
  EXPECT_EQ(list(data.ids(0)), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(list(data.labels(0)), (Ids{1, 2, 3, -100}));
  EXPECT_EQ(list(data.ids(1)), (Ids{5, 6, 7, 8}));
  EXPECT_EQ(list(data.labels(1)), (Ids{5, -100, 7, 8}));
  EXPECT_EQ(list(data.ids(2)), (Ids{9, 10, 11, 12}));
  EXPECT_EQ(list(data.labels(2)), (Ids{9, 10, 11, 12}));
  EXPECT_EQ(data.ids(2).data(), data.labels(2).data());  // kept once
  EXPECT_EQ(list(data.ids(3)), (Ids{13, 14}));
  EXPECT_EQ(list(data.labels(3)), (Ids{13, 14}));
  EXPECT_EQ(data.counts().rows, 4);
  EXPECT_EQ(data.counts().tokens, 14);
  EXPECT_EQ(data.counts().trained, 2 + 2 + 3 + 1);  // never the first of a block
  EXPECT_EQ(data.counts().truncated + data.counts().skipped, 0);

  wrapped.max_seq_length = 7;
  EXPECT_EQ(Dataset::load(folder_ / "rows.jsonl", wrapped).size(), 2);  // nothing is left
  wrapped.max_seq_length = 100;
  EXPECT_EQ(list(Dataset::load(folder_ / "rows.jsonl", wrapped).lengths()), (Ids{14}));
}

TEST_F(RowsTest, WrappedTextKeepsItsEnds) {
  DatasetOptions wrapped = options();
  wrapped.max_seq_length = 3;
  wrapped.wrapped = true;
  const Dataset data = Dataset::load(write("{\"text\": \"ab\"}\n{\"text\": \"cdef\"}\n"), wrapped);
  ASSERT_EQ(data.size(), 3);
  EXPECT_EQ(list(data.ids(0)), (Ids{kAb, kEos, 'c'}));
  EXPECT_EQ(list(data.ids(1)), (Ids{'d', 'e', 'f'}));
  EXPECT_EQ(list(data.ids(2)), (Ids{kEos}));
}

/// A file is read in parts; blocks go on over their ends.
TEST_F(RowsTest, WrappedRowsOfALargeFile) {
  std::string text;
  Ids expected;
  for (int32_t i = 0; std::ssize(text) <= 2 * JsonlFile::kChunkBytes; ++i) {
    text += "{\"input_ids\": [";
    for (int32_t k = 0; k <= i % 40; ++k) {
      expected.push_back((i + k) % 300);
      text += (k > 0 ? "," : "") + std::to_string(expected.back());
    }
    text += "]}\n";
  }
  DatasetOptions wrapped = options();
  wrapped.max_seq_length = 1000;
  wrapped.wrapped = true;
  const Dataset data = Dataset::load(write(text), wrapped);
  Ids found;
  for (int64_t i = 0; i < data.size(); ++i) {
    EXPECT_TRUE(data.ids(i).size() == 1000 || i + 1 == data.size());
    found.insert(found.end(), data.ids(i).begin(), data.ids(i).end());
  }
  EXPECT_EQ(found, expected);
}

TEST_F(RowsTest, BadRowsAreNamedByLine) {
  const std::string good = "{\"input_ids\": [1]}\n\n";
  const auto bad = [&](const std::string& row) { return why_not(good + row + "\n" + good); };
  EXPECT_EQ(bad("{\"input_ids\": [1]"),
            "rows.jsonl:3: is not valid JSON: The JSON document has an improper structure: missing "
            "or superfluous commas, braces, missing keys, etc.");
  EXPECT_EQ(bad("[1]"), "rows.jsonl:3: is not a JSON object");
  EXPECT_EQ(bad("{\"text\": \"a\"}"),
            "rows.jsonl:3: has no \"input_ids\", which the first row has");
  EXPECT_EQ(bad("{\"input_ids\": null}"),
            "rows.jsonl:3: has no \"input_ids\", which the first row has");
  EXPECT_EQ(bad("{\"input_ids\": 7}"), "rows.jsonl:3: \"input_ids\" is not a list");
  EXPECT_EQ(bad("{\"input_ids\": []}"), "rows.jsonl:3: \"input_ids\" is empty");
  EXPECT_EQ(bad("{\"input_ids\": [1, \"2\"]}"), "rows.jsonl:3: \"input_ids\"[1] is not an integer");
  EXPECT_EQ(bad("{\"input_ids\": [1, 2.0]}"), "rows.jsonl:3: \"input_ids\"[1] is not an integer");
  EXPECT_EQ(bad("{\"input_ids\": [300]}"),
            "rows.jsonl:3: \"input_ids\"[0] is 300, not in 0..299 (the vocabulary)");
  EXPECT_EQ(bad("{\"input_ids\": [-100]}"),
            "rows.jsonl:3: \"input_ids\"[0] is -100, not in 0..299 (the vocabulary)");
  EXPECT_EQ(bad("{\"input_ids\": [99999999999999999999]}"),
            "rows.jsonl:3: is not valid JSON: Problem while parsing a number");
  EXPECT_EQ(bad("{\"input_ids\": [1, 2], \"labels\": [1]}"),
            "rows.jsonl:3: \"labels\" has 1 entries for 2 \"input_ids\"");
  EXPECT_EQ(bad("{\"input_ids\": [1], \"labels\": [-1]}"),
            "rows.jsonl:3: \"labels\"[0] is -1, not -100 or in 0..299 (the vocabulary)");
  EXPECT_EQ(bad("{\"input_ids\": [1], \"labels\": \"x\"}"),
            "rows.jsonl:3: \"labels\" is not a list");
  EXPECT_EQ(bad("{\"input_ids\": [1]} {\"input_ids\": [1]}").substr(0, 34),
            "rows.jsonl:3: is not valid JSON: T");

  const std::string text = "{\"text\": \"a\"}\n";
  EXPECT_EQ(why_not(text + "{\"input_ids\": [1]}"),
            "rows.jsonl:2: has no \"text\", which the first row has");
  EXPECT_EQ(why_not(text + "{\"text\": 5}"), "rows.jsonl:2: \"text\" is not a string");
  EXPECT_EQ(why_not(text + "{\"text\": \"\xff\"}"),
            "rows.jsonl:2: is not valid JSON: The input is not valid UTF-8");
  DatasetOptions small = options();
  small.vocab_size = 258;
  EXPECT_EQ(
      why_not(text, small),
      "rows.jsonl:1: its text has token 258, not in 0..257 (the vocabulary of the model): the "
      "tokenizer is another model's");

  EXPECT_EQ(why_not("\n{\"prompt\": \"a\", \"answer\": \"b\"}\n"),
            "rows.jsonl:2: has neither \"text\" nor \"prompt\" and \"completion\" nor "
            "\"input_ids\" (its keys: \"prompt\", "
            "\"answer\")");
  EXPECT_EQ(why_not("{}"),
            "rows.jsonl:1: has neither \"text\" nor \"prompt\" and \"completion\" nor "
            "\"input_ids\" (its keys: none)");
  EXPECT_EQ(why_not("\n\nnope"),
            "rows.jsonl:3: is not valid JSON: Problem while parsing an atom starting with the "
            "letter 'n'");
  EXPECT_EQ(why_not(""), "rows.jsonl: the file has no rows");
  EXPECT_EQ(why_not(" \n\r\n"), "rows.jsonl: the file has no rows");
}

TEST_F(RowsTest, BadPlaces) {
  EXPECT_EQ(
      message_of<ConfigError>([&] { Dataset::load(folder_ / "none.jsonl", options()); }),
      (folder_ / "none.jsonl").string() + ": there is no such file; give the path of a JSONL file");
  EXPECT_EQ(message_of<DataError>([&] { Dataset::load(folder_.path(), options()); }),
            folder_.path().string() + ": not a regular file");
  test::write_tokenizer(folder_ / "model", test::tiny_tokenizer(), Json::object());
  EXPECT_EQ(message_of<ConfigError>([&] { load("{\"text\": \"a\"}"); }),
            (folder_ / "model/tokenizer_config.json").string() +
                ": names no 'eos_token', which must end every text; add it");
  DatasetOptions without = options();
  without.tokenizer_folder = folder_ / "nowhere";
  const auto path = write("{\"text\": \"a\"}");
  EXPECT_NE(message_of<ConfigError>([&] { Dataset::load(path, without); }).find("tokenizer.json"),
            std::string::npos);
  write("{\"input_ids\": [1]}");
  EXPECT_EQ(Dataset::load(path, without).size(), 1);  // ids need no tokenizer
}

TEST_F(RowsTest, ChunksHoldEachLineOnce) {
  std::string text;
  std::vector<std::string> lines;
  for (int i = 0; i < 60; ++i) {
    lines.push_back(std::to_string(i) + std::string(static_cast<size_t>(i * 7 % 23), '.'));
    text += lines.back() + "\n";
    if (i % 7 == 0) text += "\n";
  }
  text.pop_back();
  const auto path = write(text);
  for (int64_t chunk_bytes = 1; chunk_bytes < 40; ++chunk_bytes) {
    const JsonlFile file(path, chunk_bytes);
    std::vector<std::string> found;
    std::string buffer;
    for (int64_t chunk = 0; chunk < file.num_chunks(); ++chunk) {
      for_each_line(file.read_chunk(chunk, &buffer),
                    [&](std::string_view line, int64_t) { found.emplace_back(line); });
    }
    ASSERT_EQ(found, lines) << chunk_bytes;
  }
}

TEST_F(RowsTest, TheEarliestBadLineIsReported) {
  std::string text;
  for (int i = 1; i <= 500; ++i) text += i % 100 == 0 ? "bad\n" : "good\n";
  const JsonlFile file(write(text), 16);
  for (const int threads : {1, 4}) {
    std::mutex mutex;
    std::set<int64_t> chunks;
    const auto make_work = [&]() -> ChunkWork {
      return [&](int64_t chunk, std::string_view lines) {
        for_each_line(lines, [&](std::string_view line, int64_t number) {
          if (line == "bad") throw LineError(number, "is bad");
        });
        const std::lock_guard lock(mutex);
        chunks.insert(chunk);
      };
    };
    EXPECT_EQ(message_of<DataError>([&] { for_each_chunk(file, threads, make_work); }),
              file.path() + ":100: is bad");
    EXPECT_EQ(message_of<CommError>([&] {
                for_each_chunk(file, threads, [] {
                  return [](int64_t, std::string_view) { throw CommError("other"); };
                });
              }),
              "other");
  }
}

TEST_F(RowsTest, ManyChunksAndThreadsKeepTheOrder) {
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text += "{\"input_ids\": [" + std::to_string(i % 300) + ", " + std::to_string(i / 300) + "]" +
            std::string(static_cast<size_t>(i % 500), ' ') + "}\n";
  }
  ASSERT_GT(std::ssize(text), JsonlFile::kChunkBytes);
  DatasetOptions threads = options();
  threads.num_threads = 3;
  const Dataset data = Dataset::load(write(text), threads);
  ASSERT_EQ(data.size(), 20000);
  for (int i = 0; i < 20000; ++i) ASSERT_EQ(list(data.ids(i)), (Ids{i % 300, i / 300}));
}

TEST_F(RowsTest, TokenizeFileWritesOneRowALine) {
  Json config = test::tiny_tokenizer_config();
  config["tokenizer_class"] = "LlamaTokenizer";
  test::write_tokenizer(folder_ / "model", test::tiny_tokenizer({{"a", "b"}}), config);
  TokenizeOptions options;
  options.tokenizer_folder = folder_ / "model";
  options.path = write("{\"text\": \"ab c\"}\n\n{\"text\": \"\"}\n");
  std::ostringstream out;
  EXPECT_EQ(tokenize_file(options, out), 0);
  EXPECT_EQ(out.str(), "{\"input_ids\": [257, 256, 32, 99]}\n{\"input_ids\": [257]}\n");
  options.add_special_tokens = false;
  out.str("");
  EXPECT_EQ(tokenize_file(options, out), 0);
  EXPECT_EQ(out.str(), "{\"input_ids\": [256, 32, 99]}\n{\"input_ids\": []}\n");

  write("{\"text\": \"ab c\"}\n{\"text\": 1}\n");
  EXPECT_EQ(message_of<DataError>([&] { tokenize_file(options, out); }),
            options.path.string() + ":2: \"text\" is not a string");
  write("{\"input_ids\": [1]}\n");
  EXPECT_NE(message_of<DataError>([&] { tokenize_file(options, out); }).find("have no"),
            std::string::npos);
  write("{\"text\": \"a\"}\n");
  out.setstate(std::ios::badbit);
  EXPECT_NE(message_of<DeviceError>([&] { tokenize_file(options, out); }), "");
}

TEST_F(RowsTest, TokenizeFileKeepsTheOrderOfChunks) {
  std::string text;
  std::string expected;
  for (int i = 0; i < 9000; ++i) {
    text += "{\"text\": \"" + std::string(1, static_cast<char>('a' + i % 26)) + "\"" +
            std::string(1000, ' ') + "}\n";
    expected += "{\"input_ids\": [" + std::to_string('a' + i % 26) + "]}\n";
  }
  TokenizeOptions options;
  options.tokenizer_folder = folder_ / "model";
  options.path = write(text);
  options.num_threads = 3;
  std::ostringstream out;
  tokenize_file(options, out);
  EXPECT_TRUE(out.str() == expected);
}

}  // namespace
}  // namespace trireme::data
