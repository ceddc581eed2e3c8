// Tests of closing connections and destroying objects.
#ifndef CONTRACT_ENDINGS_H
#define CONTRACT_ENDINGS_H

#include "pair.h"

static void StoppingClosesLocallyAndShutsDownThePeer() {
  for (int mode : kModes) {
    Pair pair(mode);
    // Data sent before is still delivered.
    CHECK(pair.near.Connection()->SendData(Content(200000, 5)));
    pair.client->StopConnection(nullptr);
    pair.client->StopConnection(pair.near.Connection());
    CHECK(!pair.near.Connection()->SendData(Content(1, 1)));
    CHECK(pair.near.Await(E::BATS_CONNECTION_CLOSED));
    CHECK(pair.far.Await(E::BATS_CONNECTION_SHUTDOWN_BY_PEER));
    CHECK(pair.far.MessageCount() == 1);
    CHECK(!pair.far.Connection()->SendData(Content(1, 1)));
    CHECK(!pair.far.Connection()->IsWritable());
    SleepMs(50);
    // No event follows.
    CHECK(pair.near.Events().back().event == E::BATS_CONNECTION_CLOSED);
    CHECK(pair.far.Events().back().event == E::BATS_CONNECTION_SHUTDOWN_BY_PEER);
  }
}

static void IdleTimeoutClosesTheConnection() {
  for (int mode : kModes) {
    Pair pair(mode, 400);
    CHECK(Eventually([&] {
      return pair.near.Count(E::BATS_CONNECTION_CLOSED) +
                 pair.near.Count(E::BATS_CONNECTION_SHUTDOWN_BY_PEER) ==
             1;
    }));
    CHECK(Eventually([&] {
      return pair.far.Count(E::BATS_CONNECTION_CLOSED) +
                 pair.far.Count(E::BATS_CONNECTION_SHUTDOWN_BY_PEER) ==
             1;
    }));
    CHECK(pair.near.Count(E::BATS_CONNECTION_CLOSED) + pair.far.Count(E::BATS_CONNECTION_CLOSED) >= 1);
  }
}

static void NoCallbackAfterTheOwnerIsDestroyed() {
  for (int mode : kModes) {
    for (int round = 0; round < 5; ++round) {
      std::atomic<bool> destroyed{false};
      Recorder far;
      IOContext server_context, context;
      Server server(server_context, mode, far);
      auto client = std::make_unique<BatsProtocol>(context, Config(mode));
      std::atomic<int> events{0};
      for (int i = 0; i < 4; ++i) {
        client->StartConnect(
            "127.0.0.1", server.Port(),
            [&](const IBatsConnPtr& connection, const E&, const byte*, int, void*) {
              CHECK(!destroyed);
              ++events;
              connection->SendData(Content(2000, 1));
              return true;
            },
            nullptr);
      }
      far.OnEvent([](const IBatsConnPtr& connection, E event, const octetVec& message) {
        if (event == E::BATS_CONNECTION_DATA_RECEIVED) connection->SendData(message);
      });
      CHECK(Eventually([&] { return events > 50 * round; }));
      client.reset();
      destroyed = true;
      SleepMs(30);
    }
  }
}

static void AnObjectCanBeDestroyedInItsOwnCallback() {
  Recorder far;
  far.OnEvent([](const IBatsConnPtr& connection, E event, const octetVec& message) {
    if (event == E::BATS_CONNECTION_DATA_RECEIVED) connection->SendData(message);
  });
  IOContext server_context, context;
  Server server(server_context, 1, far);
  auto client = std::make_unique<BatsProtocol>(context, Config(1));
  std::atomic<bool> gone{false};
  client->StartConnect(
      "127.0.0.1", server.Port(),
      [&](const IBatsConnPtr& connection, const E& event, const byte*, int, void*) {
        CHECK(!gone);
        if (event == E::BATS_CONNECTION_WRITABLE) CHECK(connection->SendData(Content(10, 1)));
        if (event == E::BATS_CONNECTION_DATA_RECEIVED) {
          client.reset();
          gone = true;
        }
        return true;
      },
      nullptr);
  CHECK(Eventually([&] { return gone.load(); }));
  CHECK(far.Await(E::BATS_CONNECTION_SHUTDOWN_BY_PEER));
}

static void CallbacksAreDroppedWithTheirConnection() {
  for (int mode : kModes) {
    Pair pair(mode);
    auto owned = std::make_shared<int>(1);
    auto inner = pair.near.Callback();
    const auto connection = pair.near.Connection();
    connection->SetConnectionCallback(
        [owned, inner](const IBatsConnPtr& c, const E& e, const byte* d, int n, void* x) {
          return inner(c, e, d, n, x);
        },
        nullptr);
    CHECK(owned.use_count() == 2);
    pair.client->StopConnection(connection);
    CHECK(Eventually([&] { return owned.use_count() == 1; }));
    // The pointer is still valid for queries.
    CHECK(connection->GetRemotePort() == pair.server.Port());
    CHECK(connection->GetRemoteAddress() == "127.0.0.1");
    CHECK(openbats::GetStats(connection).size == sizeof(openbats::Stats));
    CHECK(!connection->SendData(Content(1, 1)));
    connection->SetConnectionCallback([owned](const IBatsConnPtr&, const E&, const byte*, int,
                                              void*) { return true; }, nullptr);
    CHECK(owned.use_count() == 1);
  }
}

static void DestroyingTheContextFirstIsSafe() {
  Recorder near, far;
  auto context = std::make_unique<IOContext>();
  Server server(*context, 1, far);
  auto client = std::make_unique<BatsProtocol>(*context, Config(1));
  client->StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
  CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
  const auto connection = near.Connection();
  context.reset();
  const size_t events = near.Events().size();
  CHECK(!connection->SendData(Content(1, 1)));
  client->StartConnect("127.0.0.1", 9, near.Callback(), nullptr);
  client->StopListen();
  client->StopConnection(connection);
  CHECK(near.Events().size() == events);
  client.reset();
  server.Destroy();
}

static void AnyThreadMayReleaseTheLastReference() {
  Pair pair(1);
  pair.near.ReleaseConnection();
  auto connection = pair.near.Connection();
  CHECK(connection == nullptr);
  // The connection continues without a reference in the program.
  CHECK(pair.far.Connection()->SendData(Content(10, 1)));
  CHECK(Eventually([&] { return pair.near.MessageCount() == 1; }));
  connection = pair.near.Connection();
  pair.near.ReleaseConnection();
  pair.client->StopConnection(connection);
  std::thread([taken = std::move(connection)]() mutable { taken.reset(); }).join();
  CHECK(pair.near.Await(E::BATS_CONNECTION_CLOSED));
}

#endif
