#include "data/tokenize_file.h"

#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "data/row_parser.h"
#include "tokenizer/tokenizer.h"

namespace trireme::data {
namespace {

// Takes the results of chunks as they come and writes them in order. Any thread.
class OrderedOutput {
 public:
  explicit OrderedOutput(std::ostream* out) : out_(out) {}

  void put(int64_t chunk, std::string text) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace(chunk, std::move(text));
    for (auto at = waiting_.begin(); at != waiting_.end() && at->first == next_;
         at = waiting_.erase(at), ++next_) {
      out_->write(at->second.data(), std::ssize(at->second));
    }
    if (!*out_) throw DeviceError("the token ids cannot be written: the output failed");
  }

 private:
  std::ostream* out_;
  std::mutex mutex_;
  std::map<int64_t, std::string> waiting_;
  int64_t next_ = 0;
};

// Rows of text to lines of ids; scratch of one thread.
class Worker {
 public:
  Worker(const tokenizer::Tokenizer& tokenizer, bool add_special_tokens)
      : encoder_(tokenizer), add_special_tokens_(add_special_tokens) {}

  std::string convert(std::string_view lines) {
    std::string result;
    for_each_line(lines, [&](std::string_view line, int64_t number) {
      ids_.clear();
      try {
        encoder_.encode(parser_.parse_text(line, number), add_special_tokens_, &ids_);
      } catch (const DataError& error) {
        throw LineError(number, error.what());
      }
      fmt::format_to(std::back_inserter(result), "{{\"input_ids\": [{}]}}\n",
                     fmt::join(ids_, ", "));
    });
    return result;
  }

 private:
  RowParser parser_{RowShape::text};
  tokenizer::Encoder encoder_;
  bool add_special_tokens_;
  std::vector<int32_t> ids_;
};

}  // namespace

int tokenize_file(const TokenizeOptions& options, std::ostream& out) {
  const JsonlFile file(options.path);
  if (detect_row_shape(file) != RowShape::text) {
    throw DataError(fmt::format("{}: its rows have no \"text\"; rows of \"text\" can be tokenized",
                                file.path()));
  }
  const auto tokenizer = tokenizer::Tokenizer::load(options.tokenizer_folder);
  OrderedOutput output(&out);
  for_each_chunk(file, options.num_threads, [&]() -> ChunkWork {
    const auto worker = std::make_shared<Worker>(tokenizer, options.add_special_tokens);
    return [&output, worker](int64_t chunk, std::string_view lines) {
      output.put(chunk, worker->convert(lines));
    };
  });
  out.flush();
  if (!out) throw DeviceError("the token ids cannot be written: the output failed");
  return 0;
}

}  // namespace trireme::data
