#include "host/stream_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/math.h"

namespace trireme::host {

namespace {

// The unit of writes that bypass the page cache; every disk and file system in use accepts it.
constexpr int64_t kBlock = 4096;
// Copied, then hashed while it is still in the cache.
constexpr int64_t kPiece = int64_t{256} << 10;

bool bypass_page_cache(const File& file) {
  const int flags = ::fcntl(file.fd(), F_GETFL);
  return flags >= 0 && ::fcntl(file.fd(), F_SETFL, flags | O_DIRECT) == 0;
}

}  // namespace

void stop_bypassing_page_cache(const File& file) {
  const int flags = ::fcntl(file.fd(), F_GETFL);
  if (flags < 0 || ::fcntl(file.fd(), F_SETFL, flags & ~O_DIRECT) != 0) {
    throw_errno("fcntl", file.path().string());
  }
}

void StreamWriter::Release::operator()(std::byte* memory) const { std::free(memory); }

StreamWriter::StreamWriter(const std::filesystem::path& path, const WriteOptions& options)
    : file_(File::create(path)),
      buffer_bytes_(options.buffer_bytes),
      num_buffers_(options.num_buffers),
      hasher_(options.hash_block_bytes > 0 ? options.hash_block_bytes : INT64_MAX) {
  check(buffer_bytes_ > 0 && buffer_bytes_ % kBlock == 0 && num_buffers_ >= 2,
        "{} buffers of {} bytes", num_buffers_, buffer_bytes_);
  const auto bytes = static_cast<size_t>(checked_mul(buffer_bytes_, num_buffers_));
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, bytes)));
  if (memory_ == nullptr) throw std::bad_alloc();
  for (int i = 1; i < num_buffers_; ++i) free_.push_back(i);
  open_queue(options);
}

StreamWriter::~StreamWriter() = default;

void StreamWriter::open_queue(const WriteOptions& options) {
  if (options.page_cache != PageCache::use) direct_ = bypass_page_cache(file_);
  if (!direct_ && options.page_cache == PageCache::bypass)
    throw_errno("O_DIRECT", file_.path().string());
  if (options.engine != WriteEngine::threads) queue_ = make_uring_queue(file_, num_buffers_);
  engine_ = "io_uring";
  if (queue_ == nullptr) {
    if (options.engine == WriteEngine::uring) {
      throw DeviceError("io_uring is not available to this process");
    }
    queue_ = make_thread_queue(file_, num_buffers_);
    engine_ = "threads";
  }
}

std::string StreamWriter::description() const {
  return fmt::format("{}{}", engine_, direct_ ? ", direct" : "");
}

void StreamWriter::send_current(int64_t bytes) {
  queue_->submit({memory_.get() + current_ * buffer_bytes_, bytes, sent_, current_});
  sent_ += bytes;
  filled_ = 0;
}

void StreamWriter::fill_next() {
  if (free_.empty()) free_.push_back(queue_->wait());
  current_ = free_.back();
  free_.pop_back();
}

void StreamWriter::write(const void* data, int64_t bytes) {
  if (!error_.empty()) throw DeviceError(error_);
  const auto* from = static_cast<const std::byte*>(data);
  try {
    while (bytes > 0) {
      const int64_t part = std::min({bytes, buffer_bytes_ - filled_, kPiece});
      std::byte* to = memory_.get() + current_ * buffer_bytes_ + filled_;
      std::memcpy(to, from, static_cast<size_t>(part));
      hasher_.update(to, part);
      filled_ += part;
      bytes_ += part;
      from += part;
      bytes -= part;
      if (filled_ == buffer_bytes_) {
        send_current(filled_);
        fill_next();
      }
    }
  } catch (const DeviceError& error) {
    error_ = error.what();
    throw;
  }
}

void StreamWriter::write_tail() {
  // Whole blocks go the way of all others; the rest of a block cannot bypass the page cache.
  const int64_t tail = direct_ ? filled_ % kBlock : 0;
  const std::byte* rest = memory_.get() + current_ * buffer_bytes_ + (filled_ - tail);
  int in_flight = num_buffers_ - 1 - static_cast<int>(free_.size());
  if (filled_ > tail) {
    send_current(filled_ - tail);
    ++in_flight;
  }
  for (; in_flight > 0; --in_flight) queue_->wait();
  if (tail > 0) {
    stop_bypassing_page_cache(file_);
    file_.write_at(rest, tail, sent_);
  }
}

void StreamWriter::finish() {
  if (!error_.empty()) throw DeviceError(error_);
  try {
    write_tail();
    queue_.reset();
    file_.sync();
    file_.close();
  } catch (const DeviceError& error) {
    error_ = error.what();
    throw;
  }
}

}  // namespace trireme::host
