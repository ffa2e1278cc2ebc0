// The wire of the store.
//
//   server -> client   Greeting  magic, nonce
//   client -> server   Proof     nonce, job, epoch, HMAC(token; both nonces, job, epoch)
//   server -> client   Welcome   verdict, HMAC(token; both nonces, verdict)
//
// Until its proof is right a client is nobody: exactly these bytes are read from it, and nothing in
// them is interpreted before the HMAC is checked. Afterwards requests and answers alternate, each a
// Frame: u32 length, then a kind byte and fields of u32 length and bytes. Integers are
// little-endian.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/proof.h"

namespace trireme::store {

inline constexpr uint64_t kStoreMagic = 0x31524f5453524d54u;  // "TMRSTOR1"
inline constexpr uint32_t kMaxKey = 1024;
inline constexpr uint32_t kMaxValue = 1u << 20;
inline constexpr uint32_t kMaxFrame = kMaxValue + kMaxKey + 64;

struct Greeting {
  uint64_t magic = kStoreMagic;
  Digest nonce{};
};
struct Proof {
  Digest nonce{};
  Digest job{};
  uint64_t epoch = 0;
  Digest mac{};
};
enum class Verdict : uint64_t { accepted = 0, other_job = 1, other_epoch = 2, full = 3 };
struct Welcome {
  Verdict verdict{};
  Digest mac{};
};
static_assert(sizeof(Greeting) == 40 && sizeof(Proof) == 104 && sizeof(Welcome) == 40);

Digest client_mac(std::string_view token, const Digest& server_nonce, const Proof& proof);
Digest server_mac(std::string_view token, const Digest& server_nonce, const Digest& client_nonce,
                  Verdict verdict);

/// `set` key value; `get` key, milliseconds to wait; `add` key, amount; answers `value` text,
/// `absent`, `done`, `failed` reason. Numbers travel as decimal text.
enum class FrameKind : uint8_t { set = 1, get, add, value, absent, done, failed };

struct Frame {
  FrameKind kind{};
  std::string first;
  std::string second;
};

/// Length prefix included.
std::string encode(const Frame& frame);
/// The frame in `bytes` (length prefix excluded); nullopt when it is malformed.
std::optional<Frame> decode(std::string_view bytes);
uint32_t read_u32(const char* bytes);

}  // namespace trireme::store
