// The store: memory and TCP alike, and a server that strangers cannot disturb.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "base/error.h"
#include "store/client.h"
#include "store/memory_store.h"
#include "store/server.h"

namespace trireme::store {
namespace {

using namespace std::chrono_literals;

JobIdentity identity(std::string job = "job", uint64_t epoch = 0) {
  return {std::string(64, 't'), std::move(job), epoch};
}

ServerOptions options(JobIdentity who = identity()) {
  ServerOptions result;
  result.identity = std::move(who);
  return result;
}

std::unique_ptr<Client> client_of(const Server& server, JobIdentity who = identity()) {
  return std::make_unique<Client>(ClientOptions{
      .endpoint = server.endpoint(), .identity = std::move(who), .connect_timeout = 5s});
}

/// A raw connection, as a stranger makes it.
Fd stranger(const Server& server) {
  std::string reason;
  Fd fd = try_connect(server.endpoint(), Clock::now() + 5s, &reason);
  EXPECT_TRUE(fd.valid()) << reason;
  return fd;
}

bool closed_by_peer(const Fd& fd) {
  std::byte byte{};
  for (;;) {
    const std::string problem = receive_all(fd.get(), {&byte, 1}, Clock::now() + 10s);
    if (!problem.empty()) return problem == "closed";
  }
}

void expect_contract(comm::Store& a, comm::Store& b) {
  EXPECT_EQ(a.try_get("absent"), std::nullopt);
  a.set("k", std::string("v\0w", 3));
  EXPECT_EQ(b.get("k", 1s), std::string("v\0w", 3));
  b.set("k", "");
  EXPECT_EQ(a.try_get("k"), "");
  EXPECT_EQ(a.add("n", 5), 5);
  EXPECT_EQ(b.add("n", -7), -2);
  EXPECT_EQ(a.try_get("n"), "-2");
  EXPECT_THROW(a.add("k", 1), CommError);  // no number
  EXPECT_THROW(a.get("absent", 50ms), CommError);
  std::thread setter([&] { b.set("late", "x"); });
  EXPECT_EQ(a.get("late", 10s), "x");
  setter.join();
  const std::string big(kMaxValue, 'b');
  a.set("big", big);
  EXPECT_EQ(b.get("big", 1s), big);
}

TEST(Store, MemoryKeepsTheContract) {
  MemoryStore store;
  expect_contract(store, store);
}

TEST(Store, TcpKeepsTheContract) {
  const Server server(options());
  const auto a = client_of(server), b = client_of(server);
  expect_contract(*a, *b);
}

TEST(Store, CountsExactlyUnderContention) {
  const Server server(options());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto client = client_of(server);
      for (int i = 0; i < 200; ++i) client->add("n", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(client_of(server)->try_get("n"), "800");
}

TEST(Store, AWaitingGetLetsOtherThreadsThrough) {
  const Server server(options());
  const auto client = client_of(server);
  std::thread waiting([&] { EXPECT_EQ(client->get("key", 10s), "value"); });
  client->set("other", "1");
  client->set("key", "value");
  waiting.join();
}

TEST(Store, RefusesOthersByToken) {
  const Server server(options());
  JobIdentity wrong = identity();
  wrong.token = std::string(64, 'u');
  EXPECT_THROW(client_of(server, wrong), Refused);
}

TEST(Store, RefusesAnotherJobAndAnOldEpoch) {
  const Server server(options(identity("job", 3)));
  try {
    client_of(server, identity("other", 3));
    FAIL();
  } catch (const Refused& error) {
    EXPECT_NE(std::string(error.what()).find("another job"), std::string::npos) << error.what();
  }
  try {
    client_of(server, identity("job", 2));
    FAIL();
  } catch (const Refused& error) {
    EXPECT_NE(std::string(error.what()).find("another epoch"), std::string::npos) << error.what();
  }
  client_of(server, identity("job", 3))->set("k", "v");
}

TEST(Store, ClientRefusesAServerWithoutTheToken) {
  // A false server that has no token cannot answer the client's nonce.
  Fd listener = listen_on({"127.0.0.1", 0}, 8);
  const Endpoint endpoint{"127.0.0.1", bound_port(listener)};
  std::thread impostor([&] {
    ASSERT_TRUE(wait_ready(listener.get(), 1, Clock::now() + 10s));
    const Fd fd(accept(listener.get(), nullptr, nullptr));
    const Greeting greeting;
    const Welcome welcome{Verdict::accepted, {}};
    Proof proof;
    send_all(fd.get(), std::as_bytes(std::span(&greeting, 1)), Clock::now() + 10s);
    receive_all(fd.get(), std::as_writable_bytes(std::span(&proof, 1)), Clock::now() + 10s);
    send_all(fd.get(), std::as_bytes(std::span(&welcome, 1)), Clock::now() + 10s);
  });
  EXPECT_THROW(Client({.endpoint = endpoint, .identity = identity(), .connect_timeout = 5s}),
               Refused);
  impostor.join();
}

TEST(Store, GarbageIsDroppedAndHarmsNobody) {
  const Server server(options());
  const auto good = client_of(server);
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    const Fd fd = stranger(server);
    std::string bytes(1 + random() % 4096, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // The server may close while this is still being written.
    (void)send_all(fd.get(), std::as_bytes(std::span(bytes.data(), bytes.size())),
                   Clock::now() + 10s);
    if (bytes.size() >= sizeof(Proof)) {
      EXPECT_TRUE(closed_by_peer(fd));
    }
    EXPECT_EQ(good->add("n", 1), i + 1);
  }
}

/// A member that speaks the handshake and then sends `bytes`.
Fd member_sending(const Server& server, const std::string& bytes) {
  Fd fd = stranger(server);
  Greeting greeting;
  receive_all(fd.get(), std::as_writable_bytes(std::span(&greeting, 1)), Clock::now() + 5s);
  Proof hello;
  hello.job = sha256("job");
  hello.mac = client_mac(identity().token, greeting.nonce, hello);
  send_all(fd.get(), std::as_bytes(std::span(&hello, 1)), Clock::now() + 5s);
  Welcome welcome;
  EXPECT_EQ(
      receive_all(fd.get(), std::as_writable_bytes(std::span(&welcome, 1)), Clock::now() + 5s), "");
  send_all(fd.get(), std::as_bytes(std::span(bytes.data(), bytes.size())), Clock::now() + 5s);
  return fd;
}

TEST(Store, OversizedAndMalformedFramesEndTheConnection) {
  const Server server(options());
  const auto good = client_of(server);
  const std::string oversized("\xff\xff\xff\xff", 4);
  const std::string unknown_kind = std::string("\x01\x00\x00\x00", 4) + "\x63";
  std::string long_key = encode({FrameKind::set, std::string(kMaxKey + 1, 'k'), "v"});
  std::string short_field = encode({FrameKind::set, "key", "value"});
  short_field[5] = '\x7f';  // the key's length
  for (const std::string& bytes : {oversized, unknown_kind, long_key, short_field}) {
    EXPECT_TRUE(closed_by_peer(member_sending(server, bytes)));
    good->set("k", "v");
  }
}

TEST(Store, HalfOpenConnectionsAreBoundedAndExpire) {
  ServerOptions few = options();
  few.max_strangers = 16;
  few.handshake_time = 300ms;
  const Server server(few);
  const auto good = client_of(server);
  std::vector<Fd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(stranger(server));
  good->set("k", "v");
  EXPECT_EQ(client_of(server)->try_get("k"), "v");  // a newcomer gets in
  for (const Fd& fd : silent) EXPECT_TRUE(closed_by_peer(fd));
}

TEST(Store, AFullStoreSaysSo) {
  ServerOptions small = options();
  small.max_keys = 2;
  small.max_bytes = 100;
  const Server server(small);
  const auto client = client_of(server);
  client->set("a", "1");
  client->set("b", "2");
  EXPECT_THROW(client->set("c", "3"), CommError);
  EXPECT_THROW(client->set("a", std::string(200, 'x')), CommError);
  client->set("a", "4");
  EXPECT_EQ(client->try_get("a"), "4");
}

TEST(Store, ALostServerIsAnErrorAtOnce) {
  auto server = std::make_unique<Server>(options());
  const auto client = client_of(*server);
  std::thread waiting([&] { EXPECT_THROW(client->get("never", 60s), CommError); });
  server.reset();
  waiting.join();
  EXPECT_THROW(client->set("k", "v"), CommError);
}

TEST(Store, APortInUseIsNamed) {
  const Server first(options());
  try {
    ServerOptions same = options(identity("other"));
    same.endpoint = first.endpoint();
    const Server second(same);
    FAIL();
  } catch (const CommError& error) {
    const std::string words = error.what();
    EXPECT_NE(words.find(std::to_string(first.endpoint().port)), std::string::npos) << words;
    EXPECT_NE(words.find("in use"), std::string::npos) << words;
  }
}

TEST(Store, ParsesEndpoints) {
  EXPECT_EQ(parse_endpoint("f", "host:80").port, 80);
  EXPECT_EQ(parse_endpoint("f", "[::1]:80").host, "::1");
  for (const char* text : {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x"}) {
    EXPECT_THROW(parse_endpoint("f", text), ConfigError) << text;
  }
}

class TokenFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "trireme_token_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/token"; }
  std::string folder_;
};

TEST_F(TokenFile, IsPrivateAndWrittenOnce) {
  const std::string token = make_token();
  EXPECT_TRUE(write_token(path(), token));
  EXPECT_FALSE(write_token(path(), make_token()));
  EXPECT_EQ(read_token(path()), token);
  struct stat status {};
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(TokenFile, RefusesWhatOthersCanReadAndWhatIsTooShort) {
  EXPECT_THROW(read_token(path()), ConfigError);
  ASSERT_TRUE(write_token(path(), make_token()));
  ASSERT_EQ(chmod(path().c_str(), 0644), 0);
  EXPECT_THROW(read_token(path()), ConfigError);
  ASSERT_EQ(chmod(path().c_str(), 0600), 0);
  std::ofstream(path()) << "short\n";
  EXPECT_THROW(read_token(path()), ConfigError);
  EXPECT_THROW(read_token(folder_), ConfigError);
}

}  // namespace
}  // namespace trireme::store
