#include "store/protocol.h"

#include <cstring>

namespace trireme::store {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

void append_u32(std::string* to, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) {
    to->push_back(static_cast<char>((value >> shift) & 0xff));
  }
}

void append_field(std::string* to, std::string_view field) {
  append_u32(to, static_cast<uint32_t>(field.size()));
  to->append(field);
}

bool take_field(std::string_view* bytes, uint32_t limit, std::string* field) {
  if (bytes->size() < 4) return false;
  const uint32_t size = read_u32(bytes->data());
  bytes->remove_prefix(4);
  if (size > limit || size > bytes->size()) return false;
  field->assign(bytes->substr(0, size));
  bytes->remove_prefix(size);
  return true;
}

}  // namespace

Digest client_mac(std::string_view token, const Digest& server_nonce, const Proof& hello) {
  return proof(token, "store client",
               {server_nonce, hello.nonce, hello.job, bytes_of(hello.epoch)});
}

Digest server_mac(std::string_view token, const Digest& server_nonce, const Digest& client_nonce,
                  Verdict verdict) {
  return proof(token, "store server", {server_nonce, client_nonce, bytes_of(verdict)});
}

uint32_t read_u32(const char* bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::string encode(const Frame& frame) {
  std::string body(1, static_cast<char>(frame.kind));
  append_field(&body, frame.first);
  append_field(&body, frame.second);
  std::string bytes;
  append_u32(&bytes, static_cast<uint32_t>(body.size()));
  return bytes + body;
}

std::optional<Frame> decode(std::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  Frame frame;
  frame.kind = static_cast<FrameKind>(bytes.front());
  if (frame.kind < FrameKind::set || frame.kind > FrameKind::failed) return std::nullopt;
  bytes.remove_prefix(1);
  // Requests have a key first; answers a value.
  const bool request = frame.kind <= FrameKind::add;
  if (!take_field(&bytes, request ? kMaxKey : kMaxValue, &frame.first) ||
      !take_field(&bytes, kMaxValue, &frame.second) || !bytes.empty()) {
    return std::nullopt;
  }
  return frame;
}

}  // namespace trireme::store
