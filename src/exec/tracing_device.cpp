#include "exec/tracing_device.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/signature.h"

namespace trireme::exec {

namespace {

/// Pairs of a query and a key that attention looks at, where the host knows them.
double pairs_of(const ops::OpCall& call) {
  const bool backward = call.kind == ops::OpKind::attention_input_grad;
  const ops::Attributes& a = call.attributes;
  if ((!backward && call.kind != ops::OpKind::attention) || !a.even || a.window != 0) return 0;
  const auto sequences = static_cast<double>(call.args[backward ? 5 : 3].cols - 1);
  return sequences * a.longest * (a.longest + 1.0) / 2;
}

}  // namespace

TracingDevice::TracingDevice(device::Device& device, const model::ModelGraph& model)
    : device_(device), model_(model) {}

void TracingDevice::start() {
  check(!on_, "a trace is already being taken");
  on_ = true;
}

std::vector<TraceSpan> TracingDevice::finish() {
  check(on_, "no trace is being taken");
  device_.drain();
  on_ = false;
  std::vector<TraceSpan> spans;
  spans.reserve(pending_.size());
  for (Pending& pending : pending_) {
    // A device without a clock has nothing to show.
    if (pending.start < 0 || pending.end < 0) continue;
    pending.span.start = device_.stamped(pending.start);
    pending.span.end = device_.stamped(pending.end);
    spans.push_back(std::move(pending.span));
  }
  pending_.clear();
  device_.forget_stamps();
  return spans;
}

void TracingDevice::begin(const plan::Program& program, const plan::Entry& entry, int64_t run) {
  if (!on_) return;
  inside_ = true;
  entry_ = pending_.size();
  Pending& pending = pending_.emplace_back();
  pending.span.stream = entry.stream;
  pending.span.name = entry.what;
  if (entry.unit >= 0) {
    pending.span.name += " " + model_.units[static_cast<size_t>(entry.unit)].name;
  }
  pending.span.program = program.name;
  pending.span.run = run;
  pending.span.micro_batch = entry.micro_batch;
  last_.fill(-1);
  pending.start = last(entry.stream) = device_.stamp(entry.stream);
}

void TracingDevice::end(const plan::Entry& entry) {
  if (!inside_) return;
  inside_ = false;
  const bool empty = last(entry.stream) == pending_[entry_].start;
  pending_[entry_].end = empty ? device_.stamp(entry.stream) : last(entry.stream);
}

/// What is launched next on the stream begins where the one before ended, or the wait before it; on
/// a stream that is not the entry's, here.
void TracingDevice::begin_call(device::StreamKind stream) {
  if (inside_ && last(stream) < 0) last(stream) = device_.stamp(stream);
}

/// What was launched last on the stream ends here. Null where nothing is traced; else valid until
/// the next call.
TraceSpan* TracingDevice::note(device::StreamKind stream, std::string_view name, int64_t amount) {
  if (!inside_) return nullptr;
  Pending pending = pending_[entry_];
  pending.span.stream = stream;
  pending.span.name = name;
  pending.span.amount = amount;
  pending.span.inner = true;
  pending.start = last(stream);
  pending.end = last(stream) = device_.stamp(stream);
  return &pending_.emplace_back(std::move(pending)).span;
}

std::byte* TracingDevice::allocate(device::Space space, int64_t bytes) {
  return device_.allocate(space, bytes);
}

int64_t TracingDevice::allocated(device::Space space) const { return device_.allocated(space); }

void TracingDevice::launch(device::StreamKind stream, const ops::OpCall& call) {
  begin_call(stream);
  device_.launch(stream, call);
  TraceSpan* span = note(stream, ops::name_of(call.kind), call.args[0].rows);
  if (span == nullptr) return;
  span->cols = call.args[0].cols;
  span->flops = ops::flops(call, pairs_of(call));
  span->bytes = ops::bytes_moved(call);
}

void TracingDevice::launch(device::StreamKind stream, const comm::CommCall& call) {
  begin_call(stream);
  device_.launch(stream, call);
  int64_t bytes = 0;
  for (const comm::CommPiece& piece : call.pieces) bytes += piece.count * size_of(call.dtype);
  (void)note(stream, comm::name_of(call.kind), bytes);
}

void TracingDevice::copy(device::StreamKind stream, void* to, const void* from, int64_t bytes) {
  device_.copy(stream, to, from, bytes);
}

void TracingDevice::fill(device::StreamKind stream, void* to, uint8_t byte, int64_t bytes) {
  device_.fill(stream, to, byte, bytes);
}

void TracingDevice::call(device::StreamKind stream, const device::HostCall& call) {
  device_.call(stream, call);
}

void TracingDevice::create_events(int count) { device_.create_events(count); }
void TracingDevice::record(device::StreamKind stream, int event) { device_.record(stream, event); }
/// Waiting belongs to no operation.
void TracingDevice::wait(device::StreamKind stream, int event) {
  device_.wait(stream, event);
  if (inside_) last(stream) = device_.stamp(stream);
}
void TracingDevice::synchronize(int event) { device_.synchronize(event); }
void TracingDevice::drain() { device_.drain(); }
int TracingDevice::stamp(device::StreamKind stream) { return device_.stamp(stream); }
double TracingDevice::stamped(int number) const { return device_.stamped(number); }
void TracingDevice::forget_stamps() { device_.forget_stamps(); }

std::string chrome_trace(std::span<const TraceSpan> spans, int rank) {
  double origin = std::numeric_limits<double>::infinity();
  std::array<bool, device::kNumStreams> used{};
  for (const TraceSpan& span : spans) {
    origin = std::min(origin, span.start);
    used[static_cast<size_t>(span.stream)] = true;
  }
  std::string text = fmt::format(
      "{{\"traceEvents\":[\n{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\","
      "\"args\":{{\"name\":\"rank {0}\"}}}}",
      rank);
  for (size_t k = 0; k < used.size(); ++k) {
    if (!used[k]) continue;
    fmt::format_to(std::back_inserter(text),
                   ",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\","
                   "\"args\":{{\"name\":\"{}\"}}}}",
                   rank, k, device::name_of(static_cast<device::StreamKind>(k)));
  }
  for (const TraceSpan& span : spans) {
    fmt::format_to(std::back_inserter(text),
                   ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},"
                   "\"name\":\"{}\",\"args\":{{\"program\":\"{}\",\"run\":{}",
                   rank, static_cast<int>(span.stream), (span.start - origin) * 1e6,
                   (span.end - span.start) * 1e6, span.name, span.program, span.run);
    if (span.micro_batch >= 0) {
      fmt::format_to(std::back_inserter(text), ",\"micro_batch\":{}", span.micro_batch);
    }
    if (span.inner) {
      fmt::format_to(std::back_inserter(text),
                     ",\"amount\":{},\"cols\":{},\"flops\":{:.6g},\"bytes\":{:.6g}", span.amount,
                     span.cols, span.flops, span.bytes);
    }
    text += "}}";
  }
  text += "\n],\"displayTimeUnit\":\"ms\"}\n";
  return text;
}

}  // namespace trireme::exec
