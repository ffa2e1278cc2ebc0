// A JSONL file read in chunks by several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/file.h"

namespace trireme::data {

/// What is wrong with one line of a chunk.
class LineError : public std::runtime_error {
 public:
  LineError(int64_t line_in_chunk, const std::string& what)
      : std::runtime_error(what), line(line_in_chunk) {}
  int64_t line;  // from 0
};

/// An open file, read with pread: any thread may read any chunk. Chunk k holds the lines that
/// start in bytes [k * chunk_bytes, (k + 1) * chunk_bytes), whole.
class JsonlFile {
 public:
  static constexpr int64_t kChunkBytes = 4 << 20;
  static constexpr int64_t kMaxLineBytes = 256 << 20;

  /// ConfigError where there is no such file, DataError where it is no plain file.
  explicit JsonlFile(const std::filesystem::path& path, int64_t chunk_bytes = kChunkBytes);

  std::string path() const { return file_.path().string(); }
  int64_t num_chunks() const;
  /// The lines of a chunk, without a byte order mark at the start of the file. They lie in
  /// *buffer, which has room for simdjson's padding behind every line. DeviceError on a failed
  /// read, LineError for a line longer than kMaxLineBytes.
  std::string_view read_chunk(int64_t chunk, std::string* buffer) const;

 private:
  File file_;
  int64_t chunk_bytes_;
  int64_t size_;
};

/// Calls line(text, number) for every line that is not blank, without its end; numbers count all
/// lines of the chunk from 0.
void for_each_line(std::string_view chunk,
                   const std::function<void(std::string_view, int64_t)>& line);

using ChunkWork = std::function<void(int64_t chunk, std::string_view lines)>;

/// Works through all chunks on `num_threads` threads (0: one a core, no more than there are
/// chunks), each with its own `make_work()`. When work throws LineError, the earliest such line of
/// the file is thrown as DataError "path:line: what"; other exceptions are passed on.
void for_each_chunk(const JsonlFile& file, int num_threads,
                    const std::function<ChunkWork()>& make_work);

}  // namespace trireme::data
