#include "store/proof.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "store/socket.h"

namespace trireme::store {
namespace {

constexpr size_t kMinToken = 32;
constexpr size_t kMaxToken = 1024;

unsigned char* bytes_of(Digest& digest) { return reinterpret_cast<unsigned char*>(digest.data()); }

}  // namespace

Digest random_digest() {
  Digest digest;
  if (getrandom(digest.data(), digest.size(), 0) != static_cast<ssize_t>(digest.size())) {
    throw_errno("getrandom", "32 bytes");
  }
  return digest;
}

Digest sha256(std::string_view text) {
  Digest digest;
  const int ok =
      EVP_Digest(text.data(), text.size(), bytes_of(digest), nullptr, EVP_sha256(), nullptr);
  check(ok == 1, "EVP_Digest failed");
  return digest;
}

Digest proof(std::string_view secret, std::string_view purpose,
             std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> message;
  for (const char c : purpose) message.push_back(static_cast<std::byte>(c));
  message.push_back(std::byte{0});
  for (const auto part : parts) message.insert(message.end(), part.begin(), part.end());
  Digest digest;
  unsigned int size = 0;
  const auto* result = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                            reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                            bytes_of(digest), &size);
  check(result != nullptr && size == digest.size(), "HMAC failed");
  return digest;
}

bool equal(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(const Digest& digest) {
  std::string text;
  for (const std::byte b : digest) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

std::string make_token() { return to_hex(random_digest()); }

std::string read_token(const std::string& path) {
  const auto refuse = [&](std::string_view why) { throw ConfigError("token file", path, why); };
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) refuse(std::strerror(errno));
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse("it must be a regular file");
  if (status.st_uid != geteuid()) refuse("it must belong to the user who trains");
  if ((status.st_mode & 077) != 0) refuse("others can read it; run chmod 600 on it");
  std::string token(kMaxToken, '\0');
  const ssize_t size = pread(fd.get(), token.data(), token.size(), 0);
  if (size < 0) refuse(std::strerror(errno));
  token.resize(static_cast<size_t>(size));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < kMinToken) refuse("it must hold at least 32 characters");
  return token;
}

bool write_token(const std::string& path, std::string_view token) {
  // Written whole under another name first: a reader never sees half a token.
  const std::string draft = fmt::format("{}.{}", path, to_hex(random_digest()).substr(0, 16));
  const Fd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) throw_errno("open", draft);
  const bool written =
      write(fd.get(), token.data(), token.size()) == static_cast<ssize_t>(token.size());
  const bool linked = written && link(draft.c_str(), path.c_str()) == 0;
  const int code = errno;
  unlink(draft.c_str());
  errno = code;
  if (!written) throw_errno("write", draft);
  if (!linked && code != EEXIST) throw_errno("link", path);
  return linked;
}

}  // namespace trireme::store
