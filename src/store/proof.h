// The job token and what is proven with it: HMAC-SHA256 over nonces. Nothing here is sent in clear.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace trireme::store {

using Digest = std::array<std::byte, 32>;

/// 32 bytes from the system's generator.
Digest random_digest();
Digest sha256(std::string_view text);
/// HMAC-SHA256 under `secret` over `purpose`, a zero byte and the concatenated parts.
Digest proof(std::string_view secret, std::string_view purpose,
             std::initializer_list<std::span<const std::byte>> parts);
/// Comparison in constant time.
bool equal(const Digest& a, const Digest& b);
std::string to_hex(const Digest& digest);

/// A new token, 64 hexadecimal digits.
std::string make_token();
/// The token in a file that only its owner can read. Throws ConfigError naming the file and what is
/// wrong with it (absent, not a regular file, readable by others, shorter than 32 characters).
std::string read_token(const std::string& path);
/// Writes a token file with mode 0600, which must not exist yet; false when it does.
bool write_token(const std::string& path, std::string_view token);

}  // namespace trireme::store
