#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "base/error.h"
#include "doctor/checks.h"

namespace trireme::doctor {
namespace {

Finding check_loopback() {
  const auto deadline = store::Clock::now() + std::chrono::seconds(2);
  try {
    const store::Fd listener = store::listen_on({"127.0.0.1", 0}, 1);
    const store::Fd client =
        store::connect_to({"127.0.0.1", store::bound_port(listener)}, deadline);
    return {Verdict::good, "loopback", "ranks of this host can meet on 127.0.0.1", ""};
  } catch (const CommError& error) {
    return {Verdict::bad, "loopback", error.what(), "bring it up: ip link set lo up"};
  }
}

Finding check_host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) throw_errno("gethostname", "this host");
  addrinfo* found = nullptr;
  const int code = getaddrinfo(name.data(), nullptr, nullptr, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  if (code == 0) return {Verdict::good, "host name", std::string(name.data()) + " resolves", ""};
  return {Verdict::note, "host name",
          fmt::format("{} does not resolve: {}", name.data(), gai_strerror(code)),
          "put it into /etc/hosts, or give MASTER_ADDR as a number, to train on several hosts"};
}

}  // namespace

Findings check_network(const store::Endpoint& master) {
  Findings findings = {check_loopback(), check_host_name()};
  if (master.port == 0) return findings;
  const std::string subject = fmt::format("port {}", master.port);
  try {
    store::listen_on(master, 1);
    findings.push_back({Verdict::good, subject, "free on " + master.host, ""});
  } catch (const CommError& error) {
    findings.push_back({Verdict::bad, subject, error.what(),
                        "give another --master_port, or none for a free one"});
  }
  return findings;
}

}  // namespace trireme::doctor
