#include "plan/print.h"

#include <iterator>

#include "base/text.h"

namespace trireme::plan {

namespace {

using Out = std::back_insert_iterator<std::string>;

std::string waits_of(const Entry& entry) {
  std::string text;
  for (int32_t wait : entry.waits) text += fmt::format(" {:03}", wait);
  return text;
}

/// What an entry begins, ends and changes, by buffer name.
std::string effects_of(const Program& program, const Entry& entry) {
  std::string acquired;
  std::string released;
  for (const BufferAccess& access : entry.accesses) {
    const Buffer& buffer = program.buffers[static_cast<size_t>(access.buffer)];
    if (buffer.owner == Owner::frames || buffer.owner == Owner::staging) continue;
    if (access.acquire) acquired += " " + buffer.name;
    if (access.release) released += " " + buffer.name;
  }
  std::string text;
  if (!acquired.empty()) text += " ->" + acquired;
  if (!released.empty()) text += "  release" + released;
  return text;
}

void print_entry(const Program& program, const model::ModelGraph& model, int index, Out out) {
  const Entry& entry = program.schedule[static_cast<size_t>(index)];
  const std::string unit =
      entry.unit >= 0 ? model.units[static_cast<size_t>(entry.unit)].name : "-";
  const std::string batch = entry.micro_batch >= 0 ? std::to_string(entry.micro_batch) : "-";
  std::string what{entry.what};
  if (entry.kind == EntryKind::transfer) {
    const Transfer& transfer = program.transfers[static_cast<size_t>(entry.item)];
    int64_t count = 0;
    for (const TransferPiece& piece : transfer.pieces) count += piece.count;
    // Which part of the shared heads a data rank sums depends on its slice.
    const std::string size =
        transfer.axis == GroupAxis::kv_replicas ? "" : fmt::format("x{}", count);
    what += fmt::format(" {} {}{}{}{}", name_of(transfer.axis), name_of(transfer.dtype), size,
                        transfer.per_row ? " a row" : "",
                        transfer.wire ? fmt::format(" as {}", name_of(*transfer.wire)) : "");
    if (transfer.kind == comm::CommKind::reduce_scatter) what += entry.set ? " set" : " add";
  }
  fmt::format_to(out, "{:03}  {:<12} {:<34} {:<10} {:>3}  {:<16}{}\n", index,
                 device::name_of(entry.stream), what, unit, batch, waits_of(entry),
                 effects_of(program, entry));
}

std::string operand_text(const Operand& operand) {
  if (operand.bound == Bound::none) return "-";
  std::string text{name_of(operand.bound)};
  if (!operand.name.empty()) text = operand.name;
  if (operand.bound == Bound::frame || operand.bound == Bound::saved) {
    text += fmt::format("@{}+{}", name_of(operand.bound), operand.offset);
  }
  if (operand.sliced) text += "[chunk]";
  return text;
}

std::string_view law_text(model::LawRule law) {
  switch (law) {
    case model::LawRule::set:
      return "";
    case model::LawRule::add:
      return " add";
    case model::LawRule::gradient:
      return " set|add";
    case model::LawRule::first_micro_batch:
      return " set|add";
  }
  return "";
}

void print_phase(const Phase& phase, const model::ModelGraph& model, Out out) {
  fmt::format_to(out, "phase {} of {}  frame {}\n", phase.name,
                 model.kinds[static_cast<size_t>(phase.kind)].name, human_bytes(phase.frame_bytes));
  for (int i = 0; i < static_cast<int>(phase.instructions.size()); ++i) {
    const Instruction& instruction = phase.instructions[static_cast<size_t>(i)];
    const bool looped = i >= phase.loop_begin && i < phase.loop_end;
    std::string args;
    for (const Operand& operand : instruction.args) args += " " + operand_text(operand);
    fmt::format_to(out, "  {:02}{} {:<22}{}{}{}\n", i, looped ? " per chunk" : "          ",
                   instruction.transfer ? comm::name_of(*instruction.transfer)
                                        : ops::name_of(instruction.op),
                   args, law_text(instruction.law),
                   instruction.recomputed ? "  recomputed" : "");
  }
}

}  // namespace

std::string print_program(const Program& program, const model::ModelGraph& model,
                          const PrintOptions& options) {
  std::string text;
  Out out = std::back_inserter(text);
  fmt::format_to(out, "program {}  {} entries\n", program.name, program.schedule.size());
  fmt::format_to(out, "{:<4} {:<12} {:<34} {:<10} {:>3}  {:<16}\n", "#", "stream", "what", "unit",
                 "mb", "waits");
  for (int i = 0; i < static_cast<int>(program.schedule.size()); ++i) {
    print_entry(program, model, i, out);
  }
  if (options.expand) {
    for (const Phase& phase : program.phases) print_phase(phase, model, out);
  }
  if (options.addresses) {
    fmt::format_to(out, "{:>14} {:>14}  {:<8} {:<16} {}\n", "offset", "bytes", "space", "owner",
                   "buffer");
    for (const Buffer& buffer : program.buffers) {
      fmt::format_to(out, "{:>14} {:>14}  {:<8} {:<16} {}{}\n", buffer.offset, buffer.bytes,
                     device::name_of(buffer.space), name_of(buffer.owner), buffer.name,
                     buffer.persistent ? "" : "  (transient)");
    }
  }
  return text;
}

}  // namespace trireme::plan
