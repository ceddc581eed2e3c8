// Tests of listeners and their ports.
#ifndef CONTRACT_LISTENING_H
#define CONTRACT_LISTENING_H

#include "pair.h"

static void ListenFailedWhenThePortIsTaken() {
  BlackHole hole;
  std::atomic<int> failed{0}, others{0};
  IOContext context;
  BatsProtocol server(context, Config(1));
  const auto callback = [&](const IBatsConnPtr& connection, const L& event, void*) {
    CHECK(connection == nullptr);
    (event == L::BATS_LISTEN_FAILED ? failed : others)++;
  };
  server.StartListen("127.0.0.1", hole.Port(), callback, nullptr);
  CHECK(Eventually([&] { return failed == 1; }));
  CHECK(others == 0);
  // A second attempt is possible.
  server.StartListen("127.0.0.1", hole.Port(), callback, nullptr);
  CHECK(Eventually([&] { return failed == 2; }));
}

static void ASecondListenGivesAlreadyInListen() {
  Recorder far;
  IOContext context;
  Server server(context, 1, far);
  int already = 0;
  server.Protocol().StartListen(
      "127.0.0.1", 0,
      [&](const IBatsConnPtr&, const L& event, void*) {
        CHECK(event == L::BATS_LISTEN_ALREADY_IN_LISTEN);
        ++already;
      },
      nullptr);
  CHECK(already == 1);
}

static void StopListenFreesThePortAndConnectionsLiveOn() {
  for (int mode : kModes) {
    const int type = mode == 10 ? SOCK_STREAM : SOCK_DGRAM;
    std::atomic<int> ready{0}, stopped{0};
    Recorder far, near;
    IOContext context;
    BatsProtocol server(context, Config(mode));
    const auto callback = [&](const IBatsConnPtr& connection, const L& event, void*) {
      if (event == L::BATS_LISTEN_SUCCESS) ++ready;
      if (event == L::BATS_LISTEN_STOPPED) ++stopped;
      if (connection) connection->SetConnectionCallback(far.Callback(), nullptr);
    };
    server.StartListen("127.0.0.1", 0, callback, nullptr);
    CHECK(Eventually([&] { return ready == 1; }));
    uint16_t port = server.GetListenPort();
    server.StopListen();
    CHECK(CanBind(type, port));
    CHECK(Eventually([&] { return stopped == 1; }));
    server.StartListen("127.0.0.1", port, callback, nullptr);
    CHECK(Eventually([&] { return ready == 2; }));
    BatsProtocol client(context, Config(mode));
    client.StartConnect("127.0.0.1", port, near.Callback(), nullptr);
    CHECK(far.Await(E::BATS_CONNECTION_WRITABLE));
    CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
    server.StopListen();
    CHECK(near.Connection()->SendData(Content(10, 1)));
    CHECK(Eventually([&] { return far.MessageCount() == 1; }));
  }
}

static void DestroyingAListenerFreesItsPortBeforeItReturns() {
  for (int mode : kModes) {
    const int type = mode == 10 ? SOCK_STREAM : SOCK_DGRAM;
    IOContext context;
    uint16_t port = 0;
    for (int round = 0; round < 10; ++round) {
      Recorder far, near;
      Server server(context, mode, far, 30000, port);
      port = server.Port();
      BatsProtocol client(context, Config(mode));
      client.StartConnect("127.0.0.1", port, near.Callback(), nullptr);
      CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
      CHECK(far.Await(E::BATS_CONNECTION_WRITABLE));
      CHECK(near.Connection()->SendData(Content(1000, 1)));
      CHECK(!CanBind(type, port));
      server.Destroy();
      CHECK(CanBind(type, port));
      CHECK(near.Await(E::BATS_CONNECTION_SHUTDOWN_BY_PEER));
    }
  }
}

#endif
