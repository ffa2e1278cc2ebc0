#include "data/dataset.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/math.h"
#include "tokenizer/tokenizer.h"

namespace trireme::data {

// The samples of one chunk of a file: their tokens one after another, labels behind ids.
struct Dataset::Chunk {
  struct Sample {
    int32_t length = 0;
    bool has_labels = false;
  };
  std::vector<int32_t> tokens;
  std::vector<Sample> samples;
  DatasetCounts counts;

  // The last `size` ids, and labels if any, that were appended to `tokens` become a sample.
  void add(size_t begin, int64_t size, const DatasetOptions& options, int64_t line);
};

namespace {

int64_t num_trained(std::span<const int32_t> labels) {
  if (labels.empty()) return 0;
  return std::ssize(labels) - 1 - std::count(labels.begin() + 1, labels.end(), kNotTrained);
}

// Appends the tokens of rows of text, and labels where a prompt is not trained; scratch of one
// thread.
class TextRows {
 public:
  TextRows(RowShape shape, const tokenizer::Tokenizer& tokenizer, const DatasetOptions& options)
      : parser_(shape),
        masks_prompt_(shape == RowShape::prompt && options.completion_only.value_or(true)),
        encoder_(tokenizer),
        eos_(*tokenizer.eos_id()),
        vocab_size_(options.vocab_size) {}

  int64_t parse_text(std::string_view line, int64_t number, std::vector<int32_t>* tokens) {
    return encode(parser_.parse_text(line, number), number, tokens);
  }

  int64_t parse_prompted(std::string_view line, int64_t number, std::vector<int32_t>* tokens) {
    const auto [prompt, completion] = parser_.parse_prompted(line, number);
    text_.assign(prompt).append(completion);
    const size_t begin = tokens->size();
    const int64_t size = encode(text_, number, tokens);
    if (!masks_prompt_) return size;
    prompt_.clear();
    encoder_.encode(prompt, true, &prompt_);
    tokens->resize(begin + 2 * static_cast<size_t>(size));
    const auto ids = tokens->begin() + static_cast<int64_t>(begin);
    const auto labels = std::copy_n(ids, size, ids + size) - size;
    const auto border = std::mismatch(ids, ids + size, prompt_.begin(), prompt_.end()).first;
    std::fill(labels, labels + (border - ids), kNotTrained);
    return size;
  }

 private:
  int64_t encode(std::string_view text, int64_t number, std::vector<int32_t>* tokens) {
    const size_t begin = tokens->size();
    try {
      encoder_.encode(text, true, tokens);
    } catch (const DataError& error) {
      throw LineError(number, error.what());
    }
    if (tokens->size() == begin || tokens->back() != eos_) tokens->push_back(eos_);
    const int32_t largest =
        *std::max_element(tokens->begin() + static_cast<int64_t>(begin), tokens->end());
    if (largest >= vocab_size_) {
      throw LineError(number, fmt::format("its text has token {}, not in 0..{} (the vocabulary of "
                                          "the model): the tokenizer is another model's",
                                          largest, vocab_size_ - 1));
    }
    return static_cast<int64_t>(tokens->size() - begin);
  }

  RowParser parser_;
  const bool masks_prompt_;
  tokenizer::Encoder encoder_;
  const int32_t eos_;
  const int64_t vocab_size_;
  std::string text_;
  std::vector<int32_t> prompt_;
};

std::optional<tokenizer::Tokenizer> load_tokenizer(RowShape shape, const DatasetOptions& options) {
  if (shape == RowShape::ids) return std::nullopt;
  auto result = tokenizer::Tokenizer::load(options.tokenizer_folder);
  if (!result.eos_id()) {
    throw ConfigError(fmt::format("{}: names no 'eos_token', which must end every text; add it",
                                  (options.tokenizer_folder / "tokenizer_config.json").string()));
  }
  return result;
}

DatasetOptions without_limit(DatasetOptions options) {
  options.max_seq_length = INT32_MAX;
  return options;
}

}  // namespace

void Dataset::Chunk::add(size_t begin, int64_t size, const DatasetOptions& options, int64_t line) {
  ++counts.rows;
  const bool has_labels = static_cast<int64_t>(tokens.size() - begin) > size;
  const int64_t limit = options.max_seq_length;
  if (size > limit) {
    switch (options.on_long) {
      case config::OnLong::error:
        throw LineError(line, fmt::format("has {} tokens, more than the max_seq_length {}; cut "
                                          "long rows with --on_long truncate or leave them out "
                                          "with --on_long skip",
                                          size, limit));
      case config::OnLong::skip:
        ++counts.skipped;
        tokens.resize(begin);
        return;
      case config::OnLong::truncate:
        ++counts.truncated;
        const auto from = tokens.begin() + static_cast<int64_t>(begin);
        if (has_labels) std::copy_n(from + size, limit, from + limit);
        tokens.resize(begin + static_cast<size_t>(limit * (has_labels ? 2 : 1)));
        size = limit;
    }
  }
  samples.push_back({narrow<int32_t>(size), has_labels});
  counts.tokens += size;
  counts.trained +=
      num_trained(std::span(tokens).subspan(tokens.size() - static_cast<size_t>(size)));
}

// Makes blocks of rows, a chunk at a time, so that no more than one chunk is held twice.
class Dataset::Wrapper {
 public:
  explicit Wrapper(int64_t block_length) : length_(static_cast<size_t>(block_length)) {}

  // The blocks that end within `rows`.
  Chunk wrap(Chunk rows) {
    Chunk blocks;
    blocks.tokens.reserve(rows.tokens.size());
    const int32_t* at = rows.tokens.data();
    for (const Chunk::Sample& row : rows.samples) {
      const auto size = static_cast<size_t>(row.length);
      const int32_t* labels = row.has_labels ? at + size : at;
      append({at, size}, {labels, size}, &blocks);
      at = labels + size;
    }
    blocks.tokens.shrink_to_fit();
    blocks.counts.rows = rows.counts.rows;
    return blocks;
  }

  // The last block, where it is not whole.
  Chunk rest() {
    Chunk blocks;
    if (!ids_.empty()) close(&blocks);
    blocks.counts.rows = 0;
    return blocks;
  }

 private:
  void append(std::span<const int32_t> ids, std::span<const int32_t> labels, Chunk* blocks) {
    while (!ids.empty()) {
      const size_t count = std::min(ids.size(), length_ - ids_.size());
      ids_.insert(ids_.end(), ids.begin(), ids.begin() + static_cast<int64_t>(count));
      labels_.insert(labels_.end(), labels.begin(), labels.begin() + static_cast<int64_t>(count));
      if (ids_.size() == length_) close(blocks);
      ids = ids.subspan(count);
      labels = labels.subspan(count);
    }
  }

  void close(Chunk* blocks) {
    const size_t begin = blocks->tokens.size();
    blocks->tokens.insert(blocks->tokens.end(), ids_.begin(), ids_.end());
    if (labels_ != ids_) {
      blocks->tokens.insert(blocks->tokens.end(), labels_.begin(), labels_.end());
    }
    blocks->add(begin, std::ssize(ids_), without_limit({}), 0);
    ids_.clear();
    labels_.clear();
  }

  const size_t length_;
  std::vector<int32_t> ids_, labels_;  // of the block that is not full yet
};

void Dataset::adopt(Chunk chunk) {
  const int32_t* at = chunk.tokens.data();  // stays when the vector moves
  for (const Chunk::Sample& sample : chunk.samples) {
    const int32_t* labels = sample.has_labels ? at + sample.length : at;
    places_.push_back({at, labels});
    lengths_.push_back(sample.length);
    at = labels + sample.length;
  }
  storage_.push_back(std::move(chunk.tokens));
  counts_.rows += chunk.counts.rows;
  counts_.truncated += chunk.counts.truncated;
  counts_.skipped += chunk.counts.skipped;
  counts_.tokens += chunk.counts.tokens;
  counts_.trained += chunk.counts.trained;
}

Dataset Dataset::load(const std::filesystem::path& path, const DatasetOptions& options) {
  check(options.vocab_size > 0 && options.max_seq_length > 0, "a data set without limits");
  const JsonlFile file(path);
  const RowShape shape = detect_row_shape(file);
  if (options.completion_only == true && shape != RowShape::prompt) {
    throw ConfigError("completion_only_loss", "true",
                      fmt::format("the rows of {} have no prompts; give rows of \"prompt\" and "
                                  "\"completion\", or leave it out",
                                  path.string()));
  }
  const auto tokenizer = load_tokenizer(shape, options);
  std::vector<Chunk> chunks(static_cast<size_t>(file.num_chunks()));
  const DatasetOptions of_rows = options.wrapped ? without_limit(options) : options;

  for_each_chunk(file, options.num_threads, [&]() -> ChunkWork {
    const auto each_row = [&chunks, &of_rows](auto parse) {
      return [&chunks, &of_rows, parse](int64_t index, std::string_view lines) {
        Chunk& chunk = chunks[static_cast<size_t>(index)];
        for_each_line(lines, [&](std::string_view line, int64_t number) {
          const size_t begin = chunk.tokens.size();
          chunk.add(begin, parse(line, number, &chunk.tokens), of_rows, number);
        });
        chunk.tokens.shrink_to_fit();
      };
    };
    using Tokens = std::vector<int32_t>*;
    if (shape != RowShape::ids) {
      const auto rows = std::make_shared<TextRows>(shape, *tokenizer, options);
      return each_row([rows, shape](std::string_view line, int64_t number, Tokens tokens) {
        return shape == RowShape::text ? rows->parse_text(line, number, tokens)
                                       : rows->parse_prompted(line, number, tokens);
      });
    }
    const auto parser = std::make_shared<RowParser>(shape);
    return each_row([parser, &options](std::string_view line, int64_t number, Tokens tokens) {
      return parser->parse_ids(line, number, options.vocab_size, tokens);
    });
  });

  Dataset result;
  if (options.wrapped) {
    Wrapper wrapper(options.max_seq_length);
    for (Chunk& chunk : chunks) result.adopt(wrapper.wrap(std::move(chunk)));
    result.adopt(wrapper.rest());
  } else {
    for (Chunk& chunk : chunks) result.adopt(std::move(chunk));
  }
  if (result.size() == 0) {
    throw DataError(fmt::format("{}: all {} rows are longer than the max_seq_length {}",
                                path.string(), result.counts().rows, options.max_seq_length));
  }
  return result;
}

Dataset::Dataset(const std::vector<std::vector<int32_t>>& ids,
                 const std::vector<std::vector<int32_t>>& labels) {
  check(labels.empty() || labels.size() == ids.size(), "{} rows of labels for {} samples",
        labels.size(), ids.size());
  const DatasetOptions no_limit = without_limit({});
  Chunk chunk;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t begin = chunk.tokens.size();
    chunk.tokens.insert(chunk.tokens.end(), ids[i].begin(), ids[i].end());
    if (!labels.empty()) {
      check(labels[i].size() == ids[i].size(), "labels of sample {} do not fit", i);
      chunk.tokens.insert(chunk.tokens.end(), labels[i].begin(), labels[i].end());
    }
    chunk.add(begin, std::ssize(ids[i]), no_limit, 0);
  }
  adopt(std::move(chunk));
}

}  // namespace trireme::data
