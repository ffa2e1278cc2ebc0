#include "launch/worker_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace trireme::launch {
namespace {

constexpr size_t kLongestLine = 64u << 10;
constexpr size_t kLongestLast = 1000;

void write_all(int to, std::string_view bytes) {
  for (std::string_view left = bytes; to >= 0 && !left.empty();) {
    const ssize_t written = write(to, left.data(), left.size());
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;  // nobody reads any more
    if (written > 0) left.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

WorkerOutput::WorkerOutput(store::Fd from, int to, std::string prefix, store::Fd log)
    : from_(std::move(from)), to_(to), prefix_(std::move(prefix)), log_(std::move(log)) {
  if (fcntl(from_.get(), F_SETFL, O_NONBLOCK) != 0) throw_errno("fcntl", "worker output");
}

void WorkerOutput::pass_on(std::string_view line) {
  const std::string_view text = line.substr(0, line.find_last_not_of("\r\n") + 1);
  if (!text.empty()) last_line_ = text.substr(0, kLongestLast);
  std::string bytes = prefix_ + std::string(line);
  if (!prefix_.empty() && bytes.back() != '\n') bytes += '\n';
  write_all(to_, bytes);
}

bool WorkerOutput::read_once() {
  char bytes[kLongestLine];
  const ssize_t got = read(from_.get(), bytes, sizeof bytes);
  if (got < 0) return errno == EINTR;
  if (got == 0) {
    from_.reset();
    return false;
  }
  write_all(log_.get(), {bytes, static_cast<size_t>(got)});
  pending_.append(bytes, static_cast<size_t>(got));
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    pass_on(std::string_view(pending_).substr(begin, end + 1 - begin));
  }
  pending_.erase(0, begin);
  if (pending_.size() > kLongestLine) pass_on(std::exchange(pending_, {}));
  return true;
}

void WorkerOutput::read_some() {
  if (!from_.valid()) return;
  read_once();
  if (!from_.valid()) drain();
}

void WorkerOutput::drain() {
  while (from_.valid() && read_once()) {
  }
  if (!pending_.empty()) pass_on(std::exchange(pending_, {}));
}

}  // namespace trireme::launch
