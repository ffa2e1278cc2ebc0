#include "data/jsonl_file.h"

#include <simdjson.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/math.h"

namespace trireme::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

File open_rows(const std::filesystem::path& path) {
  std::error_code unreadable;  // opening it says why
  if (std::filesystem::status(path, unreadable).type() == std::filesystem::file_type::not_found) {
    throw ConfigError(
        fmt::format("{}: there is no such file; give the path of a JSONL file", path.string()));
  }
  try {
    return File::open(path);
  } catch (const DeviceError& error) {
    throw ConfigError(
        fmt::format("{}: {}; give a file that you may read", path.string(), error.what()));
  }
}

void append(const File& file, int64_t begin, int64_t end, std::string* buffer) {
  const size_t old = buffer->size();
  buffer->resize(old + static_cast<size_t>(end - begin));
  file.read_at(buffer->data() + old, end - begin, begin);
}

// What the threads of one for_each_chunk share.
struct Shared {
  explicit Shared(const JsonlFile& given)
      : file(given), num_lines(static_cast<size_t>(given.num_chunks())) {}

  const JsonlFile& file;
  std::vector<int64_t> num_lines;  // of each chunk that has been read
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> first_bad{INT64_MAX};  // chunks behind it need no work
  std::mutex mutex;
  std::optional<LineError> error;  // of chunk first_bad
  std::exception_ptr other;
};

void fail(Shared* shared, int64_t chunk, const LineError& error) {
  const std::lock_guard lock(shared->mutex);
  if (chunk < shared->first_bad) {
    shared->first_bad = chunk;
    shared->error = error;
  }
}

void work_through(Shared* shared, const std::function<ChunkWork()>& make_work) {
  try {
    const ChunkWork work = make_work();
    std::string buffer;
    while (true) {
      const int64_t chunk = shared->next++;
      if (chunk >= shared->file.num_chunks() || chunk > shared->first_bad) return;
      try {
        const std::string_view lines = shared->file.read_chunk(chunk, &buffer);
        shared->num_lines[static_cast<size_t>(chunk)] =
            std::count(lines.begin(), lines.end(), '\n');
        work(chunk, lines);
      } catch (const LineError& error) {
        fail(shared, chunk, error);
      }
    }
  } catch (...) {
    const std::lock_guard lock(shared->mutex);
    if (!shared->other) shared->other = std::current_exception();
    shared->first_bad = -1;
  }
}

}  // namespace

JsonlFile::JsonlFile(const std::filesystem::path& path, int64_t chunk_bytes)
    : file_(open_rows(path)), chunk_bytes_(chunk_bytes), size_(file_.size()) {}

int64_t JsonlFile::num_chunks() const { return ceil_div(size_, chunk_bytes_); }

std::string_view JsonlFile::read_chunk(int64_t chunk, std::string* buffer) const {
  // The byte before the chunk tells whether a line starts with it.
  const int64_t begin = std::max<int64_t>(0, chunk * chunk_bytes_ - 1);
  int64_t end = std::min(size_, (chunk + 1) * chunk_bytes_);
  buffer->clear();
  append(file_, begin, end, buffer);
  size_t first = 0;
  if (chunk == 0) {
    if (buffer->starts_with(kByteOrderMark)) first = kByteOrderMark.size();
  } else {
    first = buffer->find('\n') + 1;  // npos + 1 = 0
    if (first == 0 || first == buffer->size()) return {};
  }
  // The last line may go on behind the chunk.
  size_t seen = buffer->size() - 1;
  size_t newline = buffer->find('\n', seen);
  while (newline == std::string::npos && end < size_) {
    if (static_cast<int64_t>(buffer->size()) > chunk_bytes_ + kMaxLineBytes) {
      throw LineError(std::count(buffer->begin(), buffer->end(), '\n') - (chunk == 0 ? 0 : 1),
                      fmt::format("is longer than the {} bytes a row may have", kMaxLineBytes));
    }
    seen = buffer->size();
    const int64_t more = std::min(size_, end + chunk_bytes_);
    append(file_, end, more, buffer);
    end = more;
    newline = buffer->find('\n', seen);
  }
  const size_t stop = newline == std::string::npos ? buffer->size() : newline + 1;
  buffer->resize(stop + simdjson::SIMDJSON_PADDING);
  return std::string_view(*buffer).substr(first, stop - first);
}

void for_each_line(std::string_view chunk,
                   const std::function<void(std::string_view, int64_t)>& line) {
  for (int64_t number = 0; !chunk.empty(); ++number) {
    const size_t size = std::min(chunk.find('\n'), chunk.size());
    const std::string_view text = chunk.substr(0, size);
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) line(text, number);
    chunk.remove_prefix(std::min(size + 1, chunk.size()));
  }
}

void for_each_chunk(const JsonlFile& file, int num_threads,
                    const std::function<ChunkWork()>& make_work) {
  Shared shared(file);
  if (num_threads == 0) num_threads = static_cast<int>(std::thread::hardware_concurrency());
  num_threads = static_cast<int>(std::min<int64_t>(num_threads, file.num_chunks()));
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < num_threads; ++i) {
      helpers.emplace_back([&] { work_through(&shared, make_work); });
    }
    work_through(&shared, make_work);
  }
  if (shared.other) std::rethrow_exception(shared.other);
  if (!shared.error) return;
  int64_t line = 1 + shared.error->line;
  for (int64_t chunk = 0; chunk < shared.first_bad; ++chunk) {
    line += shared.num_lines[static_cast<size_t>(chunk)];
  }
  throw DataError(fmt::format("{}:{}: {}", file.path(), line, shared.error->what()));
}

}  // namespace trireme::data
