#include "metrics/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>

#include "metrics/text.h"

namespace trireme::metrics {

namespace {

constexpr double kRedrawSeconds = 0.1;  // as tqdm
constexpr double kQuietSeconds = 30;    // a run without a terminal says something at least so often
constexpr int64_t kMostBarColumns = 40;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

int64_t columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// `columns` wide; the last filled cell in eighths.
std::string blocks(double share, int64_t columns, bool unicode) {
  constexpr std::array<std::string_view, 8> kEighths = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int64_t>(share * static_cast<double>(8 * columns));
  std::string text;
  for (int64_t cell = 0; cell < columns; ++cell) {
    const int64_t filled = std::clamp<int64_t>(eighths - 8 * cell, 0, 8);
    if (!unicode) {
      text += filled == 8 ? '#' : ' ';
    } else {
      text += filled == 8 ? std::string_view("█") : kEighths[static_cast<size_t>(filled)];
    }
  }
  return text;
}

/// Terminal columns of UTF-8 text without wide characters.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  }));
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Console::Console(ConsoleOptions options)
    : options_(std::move(options)), terminal_(::isatty(options_.bar_fd) == 1) {}

Console::~Console() {
  if (shown_columns_ > 0) write_all(options_.bar_fd, "\n");
}

void Console::begin(const RunFacts& facts) {
  facts_ = facts;
  last_ = {};
  last_.step = facts.resumed_step;
  print(training_banner(facts));
  started_ = last_drawn_ = last_printed_ = options_.clock();
  draw_bar();
}

void Console::step(const StepRecord& record) {
  last_ = record;
  if (record.skipped) {
    print(fmt::format(
        "step {}: update skipped, {}; weights unchanged ({} skipped so far)\n", record.step,
        record.trained_tokens == 0 ? std::string("no trained tokens")
                                   : "gradient norm is " + significant(record.grad_norm, 6),
        record.skipped_steps));
  }

  const double now = options_.clock();
  if (terminal_) {
    const bool last = record.step >= facts_.total_steps;
    if (last || shown_columns_ == 0 || now - last_drawn_ >= kRedrawSeconds) draw_bar();
  } else if (now - last_printed_ >= kQuietSeconds) {
    print(fmt::format("step {}/{} {}\n", last_.step, facts_.total_steps, state_text(true)));
  }
}

void Console::log(const LogRecord& record) {
  print(
      fmt::format("{{'loss': {}, 'grad_norm': {}, 'learning_rate': {}, 'epoch': {}, 'step': {}, "
                  "'tokens_per_second': {}, 'time_left': '{}'}}\n",
                  rounded(record.loss, 4), significant(record.grad_norm, 6),
                  significant(record.learning_rate, 6), rounded(record.epoch, 4), record.step,
                  rounded(record.tokens_per_second, 1), duration(seconds_left(record.step))));
}

void Console::evaluation(const EvalRecord& record) {
  const auto rate = [&](int64_t count) {
    return rounded(record.seconds > 0 ? static_cast<double>(count) / record.seconds : 0, 3);
  };
  print(
      fmt::format("{{'eval_loss': {}, 'eval_runtime': {}, 'eval_samples_per_second': {}, "
                  "'eval_steps_per_second': {}, 'epoch': {}}}\n",
                  rounded(record.loss, 4), rounded(record.seconds, 4), rate(record.samples),
                  rate(record.batches), rounded(record.epoch, 4)));
  if (terminal_) draw_bar();
}

void Console::finish(const Summary& summary) {
  if (terminal_) {
    draw_bar();
    write_all(options_.bar_fd, "\n");
    shown_columns_ = 0;
  }
  print(fmt::format(
      "{{'train_runtime': {}, 'train_samples_per_second': {}, "
      "'train_steps_per_second': {}, 'train_tokens_per_second': {}, "
      "'train_loss': {}, {}'epoch': {}}}\n",
      rounded(summary.seconds, 4), rounded(summary.samples_per_second, 3),
      rounded(summary.steps_per_second, 3), rounded(summary.tokens_per_second, 3),
      rounded(summary.loss, 4),
      summary.skipped_steps > 0 ? fmt::format("'skipped_steps': {}, ", summary.skipped_steps) : "",
      rounded(summary.epoch, 4)));
}

void Console::print(std::string_view text) {
  erase_bar();
  write_all(options_.line_fd, text);
  last_printed_ = options_.clock();
}

double Console::seconds_left(int64_t step) const {
  const int64_t done = step - facts_.resumed_step;
  if (done <= 0) return std::numeric_limits<double>::quiet_NaN();
  return (options_.clock() - started_) / static_cast<double>(done) *
         static_cast<double>(facts_.total_steps - step);
}

std::string Console::state_text(bool with_rate) const {
  const double elapsed = options_.clock() - started_;
  const int64_t done = last_.step - facts_.resumed_step;
  std::string text = fmt::format("[{}<{}", duration(elapsed), duration(seconds_left(last_.step)));
  if (done > 0) {
    if (with_rate && elapsed > 0) {
      const double rate = static_cast<double>(done) / elapsed;
      text += rate >= 1 ? fmt::format(", {:.2f}it/s", rate) : fmt::format(", {:.2f}s/it", 1 / rate);
    }
    text +=
        fmt::format(", loss {:.4g}, norm {:.3g}, lr {:.3g}, {} tok/s", last_.loss, last_.grad_norm,
                    last_.learning_rate, short_count(last_.tokens_per_second()));
  }
  return text + "]";
}

/// The bar shrinks first, then the seconds per step go; a line never wraps.
std::string Console::bar_text(int64_t columns) const {
  const double share = facts_.total_steps > 0 ? static_cast<double>(last_.step) /
                                                    static_cast<double>(facts_.total_steps)
                                              : 0;
  const std::string left = fmt::format("{:3.0f}%|", 100 * share);
  const std::string count = fmt::format("| {}/{} ", last_.step, facts_.total_steps);
  constexpr int64_t kLeastBarColumns = 4;
  const auto room_for = [&](const std::string& state) {
    return columns - 1 - static_cast<int64_t>(left.size() + count.size() + state.size());
  };
  std::string state = state_text(true);
  if (room_for(state) < kLeastBarColumns) state = state_text(false);
  const int64_t room = std::clamp<int64_t>(room_for(state), 0, kMostBarColumns);
  if (room > 0) return left + blocks(share, room, options_.unicode) + count + state;
  const std::string text = left + count.substr(1) + state;
  return text.substr(0, static_cast<size_t>(std::max<int64_t>(columns - 1, 0)));
}

void Console::draw_bar() {
  if (!terminal_) return;
  const std::string text = bar_text(columns_of(options_.bar_fd));
  const size_t columns = width_of(text);
  // Spaces instead of an erase code: right on any terminal.
  const size_t rest = shown_columns_ > columns ? shown_columns_ - columns : 0;
  write_all(options_.bar_fd, fmt::format("\r{}{:{}}", text, "", rest));
  shown_columns_ = columns;
  last_drawn_ = options_.clock();
}

void Console::erase_bar() {
  if (shown_columns_ == 0) return;
  write_all(options_.bar_fd, fmt::format("\r{:{}}\r", "", shown_columns_));
  shown_columns_ = 0;
}

}  // namespace trireme::metrics
