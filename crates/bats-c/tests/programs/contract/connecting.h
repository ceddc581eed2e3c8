// Tests of connecting, successful or not.
#ifndef CONTRACT_CONNECTING_H
#define CONTRACT_CONNECTING_H

#include <dlfcn.h>
#include <netdb.h>

#include "pair.h"

static void RefusedConnectionsFailAtOnce() {
  for (int mode : kModes) {
    uint16_t port;
    {
      BlackHole hole;
      port = hole.Port();
    }
    Recorder near;
    IOContext context;
    BatsProtocol client(context, Config(mode, 1000000));  // far above the limit of this test
    client.StartConnect("127.0.0.1", port, near.Callback(), nullptr);
    CHECK(near.Await(E::BATS_CONNECTION_FAILED));
    CHECK(near.Count(E::BATS_CONNECTION_TIMEOUT) == 0);
    CHECK(near.Connection() != nullptr);
    CHECK(!openbats::GetError(near.Connection()).empty());
    CHECK(!near.Connection()->SendData(Content(1, 1)));
  }
}

static void TimeoutIsFollowedByFailed() {
  BlackHole hole;
  Recorder near;
  IOContext context;
  BatsProtocol client(context, Config(1, 300));
  client.StartConnect("127.0.0.1", hole.Port(), near.Callback(), nullptr);
  CHECK(near.Await(E::BATS_CONNECTION_FAILED));
  const auto events = near.Events();
  CHECK(events.size() == 2);
  CHECK(events[0].event == E::BATS_CONNECTION_TIMEOUT);
  CHECK(events[1].event == E::BATS_CONNECTION_FAILED);
}

static void AFailedConnectCanBeRepeated() {
  uint16_t port;
  {
    BlackHole hole;
    port = hole.Port();
  }
  Recorder first, second, far;
  IOContext context;
  BatsProtocol client(context, Config(1));
  client.StartConnect("127.0.0.1", port, first.Callback(), nullptr);
  CHECK(first.Await(E::BATS_CONNECTION_FAILED));
  Server server(context, 1, far, 30000, port);
  client.StartConnect("127.0.0.1", port, second.Callback(), nullptr);
  CHECK(second.Await(E::BATS_CONNECTION_ESTABLISHED));
}

static void MissingModesAreRefusedOnTheCallersThread() {
  IOContext context;
  for (int mode : kMissing) {
    Recorder near;
    BatsProtocol protocol(context, Config(mode));
    protocol.StartConnect("127.0.0.1", 9, near.Callback(), nullptr);
    // The event came during the call, on this thread.
    const auto events = near.Events();
    CHECK(events.size() == 1);
    CHECK(events[0].event == E::BATS_CONNECTION_FAILED);
    CHECK(events[0].thread == std::this_thread::get_id());
    CHECK(openbats::LastError().find("not available") != std::string::npos);
    int failed = 0;
    protocol.StartListen(
        "127.0.0.1", 0,
        [&](const IBatsConnPtr& connection, const L& event, void*) {
          CHECK(connection == nullptr && event == L::BATS_LISTEN_FAILED);
          ++failed;
        },
        nullptr);
    CHECK(failed == 1);
  }
}

static void OneObjectMakesSeveralConnectionsInSeveralModes() {
  Recorder far_tcp, far_brtp, control, data[3];
  IOContext context;
  Server tcp(context, 10, far_tcp), brtp(context, 1, far_brtp);
  BatsProtocol client(context, Config(10));
  client.StartConnect("127.0.0.1", tcp.Port(), control.Callback(), nullptr);
  CHECK(control.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(client.LoadConfig(Config(1)));
  for (uintptr_t i = 0; i < 3; ++i) {
    client.StartConnect("127.0.0.1", brtp.Port(), data[i].Callback(), reinterpret_cast<void*>(i));
  }
  for (uintptr_t i = 0; i < 3; ++i) {
    CHECK(data[i].Await(E::BATS_CONNECTION_WRITABLE));
    for (const auto& seen : data[i].Events()) CHECK(seen.context == reinterpret_cast<void*>(i));
    CHECK(data[i].Connection()->SendData(Content(100, 1)));
  }
  CHECK(control.Connection()->SendData(Content(50, 2)));
  CHECK(Eventually([&] { return far_tcp.MessageCount() == 1 && far_brtp.MessageCount() == 3; }));
  client.StopConnection(data[1].Connection());
  CHECK(data[1].Await(E::BATS_CONNECTION_CLOSED));
  CHECK(data[0].Connection()->SendData(Content(100, 3)));
  CHECK(Eventually([&] { return far_brtp.MessageCount() == 4; }));
}

static void TheOverloadsWithoutAnAddressUseTheConfiguration() {
  IOContext context;
  Recorder far, near;
  uint16_t port;
  {
    BlackHole hole;
    port = hole.Port();
  }
  auto config = Config(1);
  config.SetLocalAddress("127.0.0.1");
  config.SetLocalPort(port);
  BatsProtocol server(context, config);
  std::atomic<bool> ready{false};
  server.StartListen(
      [&](const IBatsConnPtr& connection, const L& event, void*) {
        if (event == L::BATS_LISTEN_SUCCESS) ready = true;
        if (connection) connection->SetConnectionCallback(far.Callback(), nullptr);
      },
      nullptr);
  CHECK(Eventually([&] { return ready.load(); }));
  CHECK(server.GetListenPort() == port);
  auto client_config = Config(1);
  client_config.SetRemoteAddr("127.0.0.1");
  client_config.SetRemotePort(port);
  BatsProtocol client(context, client_config);
  client.StartConnect(near.Callback(), nullptr);
  CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(near.Connection()->GetRemotePort() == port);
  CHECK(near.Connection()->GetLocalAddress() == "127.0.0.1");
  CHECK(near.Connection()->GetLocalPort() != 0);
  CHECK(far.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(far.Connection()->GetLocalPort() == port);
  CHECK(far.Connection()->GetRemotePort() == near.Connection()->GetLocalPort());
}

static void HostNamesAndBothAddressFamiliesWork() {
  std::atomic<bool> ready{false};
  Recorder far;
  IOContext context;
  BatsProtocol server(context, Config(1));
  server.StartListen(
      "::", 0,
      [&](const IBatsConnPtr& connection, const L& event, void*) {
        if (event == L::BATS_LISTEN_SUCCESS) ready = true;
        if (connection) connection->SetConnectionCallback(far.Callback(), nullptr);
      },
      nullptr);
  CHECK(Eventually([&] { return ready.load(); }));
  BatsProtocol client(context, Config(1));
  for (const char* name : {"localhost", "::1", "127.0.0.1"}) {
    Recorder near;
    client.StartConnect(name, server.GetListenPort(), near.Callback(), nullptr);
    CHECK(near.Await(E::BATS_CONNECTION_ESTABLISHED));
    client.StopConnection(near.Connection());
    CHECK(near.Await(E::BATS_CONNECTION_CLOSED));
  }
  Recorder none;
  client.StartConnect("no.such.host.invalid", 1, none.Callback(), nullptr);
  CHECK(none.Await(E::BATS_CONNECTION_FAILED));
  CHECK(openbats::GetError(none.Connection()).find("no.such.host.invalid") != std::string::npos);
}

// A host name with several addresses: this program overrides getaddrinfo for it.
static const char* const kHostName = "several.addresses.test";
static std::mutex host_addresses_mutex;
static std::vector<const char*> host_addresses;

static void SetHostAddresses(std::vector<const char*> addresses) {
  std::lock_guard<std::mutex> lock(host_addresses_mutex);
  host_addresses = std::move(addresses);
}

extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) noexcept {
  using Resolver = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto system = reinterpret_cast<Resolver>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name == nullptr || std::strcmp(name, kHostName) != 0) {
    return system(name, service, hints, found);
  }
  std::lock_guard<std::mutex> lock(host_addresses_mutex);
  addrinfo** next = found;
  for (const char* address : host_addresses) {
    const int result = system(address, service, hints, next);
    if (result != 0) return result;
    while (*next != nullptr) next = &(*next)->ai_next;
  }
  return 0;
}

static void EachAddressOfAHostNameIsTried() {
  // No server listens at the first two addresses. Mode 11 is not tested: without a handshake it cannot
  // detect that.
  SetHostAddresses({"127.0.0.9", "::1", "127.0.0.1"});
  for (int mode : kModes) {
    Recorder near, far;
    IOContext context;
    Server server(context, mode, far);
    BatsProtocol client(context, Config(mode));
    client.StartConnect(kHostName, server.Port(), near.Callback(), nullptr);
    CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
    CHECK(near.Connection()->GetRemoteAddress() == "127.0.0.1");
    CHECK(near.Count(E::BATS_CONNECTION_FAILED) == 0);
  }
  // An address that does not answer gets only a part of the timeout.
  Recorder near, far;
  IOContext context;
  Server server(context, 1, far);
  const int silent = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.Port());
  CHECK(inet_pton(AF_INET, "127.0.0.9", &address.sin_addr) == 1);
  CHECK(bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  SetHostAddresses({"127.0.0.9", "127.0.0.1"});
  BatsProtocol client(context, Config(1, 4000));
  client.StartConnect(kHostName, server.Port(), near.Callback(), nullptr);
  CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(near.Count(E::BATS_CONNECTION_TIMEOUT) == 0);
  close(silent);
  // If all fail, the error names the last address.
  Recorder failing;
  SetHostAddresses({"127.0.0.9", "127.0.0.8"});
  client.StartConnect(kHostName, server.Port(), failing.Callback(), nullptr);
  CHECK(failing.Await(E::BATS_CONNECTION_FAILED));
  CHECK(openbats::GetError(failing.Connection()).find("127.0.0.8") != std::string::npos);
}

static void NothingIsSentBeforeTheConnectionIsEstablished() {
  BlackHole hole;
  IOContext context;
  std::atomic<bool> checked{false};
  Recorder near;
  near.OnEvent([&](const IBatsConnPtr& connection, E, const octetVec&) {
    CHECK(!connection->SendData(Content(1, 1)));
    CHECK(!connection->IsWritable());
    checked = true;
  });
  BatsProtocol client(context, Config(1, 300));
  client.StartConnect("127.0.0.1", hole.Port(), near.Callback(), nullptr);
  CHECK(near.Await(E::BATS_CONNECTION_FAILED));
  CHECK(checked);
}

static void OnlyAServerWithThePinnedFingerprintIsTrusted() {
  for (int mode : kModes) {
    IOContext context;
    Recorder far, good, bad;
    Server server(context, mode, far);
    auto config = Config(mode);
    const std::string fingerprint = config.GetFingerprint();
    CHECK(fingerprint.size() == 64);
    CHECK(config.SetTrustedFingerprint(fingerprint));
    BatsProtocol client(context, config);
    client.StartConnect("127.0.0.1", server.Port(), good.Callback(), nullptr);
    CHECK(good.Await(E::BATS_CONNECTION_ESTABLISHED));
    CHECK(!config.SetTrustedFingerprint("12"));
    CHECK(!config.SetTrustedAuthorities("/nowhere.pem"));
    CHECK(config.SetTrustedFingerprint(std::string(64, '0')));
    client.LoadConfig(config);
    client.StartConnect("127.0.0.1", server.Port(), bad.Callback(), nullptr);
    CHECK(bad.Await(E::BATS_CONNECTION_FAILED));
    CHECK(bad.Count(E::BATS_CONNECTION_ESTABLISHED) == 0);
  }
}

#endif
