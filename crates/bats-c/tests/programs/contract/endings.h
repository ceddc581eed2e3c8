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

static void OnlyTheOwnerCanStopAConnection() {
  Pair pair(1);
  BatsProtocol other(pair.client_context, Config(1));
  const auto near = pair.near.Connection(), far = pair.far.Connection();
  for (const auto& connection : {near, far}) {
    other.StopConnection(connection);
    CHECK(openbats::LastError() == "the connection is one of another protocol object");
  }
  const auto handle = near->OpenbatsHandle();
  bats_context_handle_t context = bats_context_create();
  bats_protocol_handle_t third = bats_protocol_create(context, nullptr);
  CHECK(bats_protocol_stop_connection(third, handle) == bats_error_invalid_param);
  bats_protocol_destroy(third);
  bats_context_destroy(context);
  // The owner of an accepted connection is the listening object.
  pair.client->StopConnection(far);
  CHECK(near->SendData(Content(10, 1)) && far->SendData(Content(10, 2)));
  CHECK(Eventually([&] { return pair.near.MessageCount() == 1 && pair.far.MessageCount() == 1; }));
  pair.server.Protocol().StopConnection(far);
  CHECK(pair.far.Await(E::BATS_CONNECTION_CLOSED));
  CHECK(pair.near.Await(E::BATS_CONNECTION_SHUTDOWN_BY_PEER));
}

// A class of a program, smaller than the library's.
class ForeignConnection : public IBatsConnection {
 public:
  void SetConnectionCallback(const ConnectionCallback&, void*) override {}
  void SetConnectionCallback(ConnectionCallback&&, void*) override {}
  bool SendData(const octetVec&) override { return true; }
  bool SendData(const octet*, int) override { return true; }
  bool SendFile(const std::string&) override { return true; }
  bool IsWritable() override { return true; }
  const std::string GetRemoteAddress() const override { return {}; }
  const std::string GetLocalAddress() const override { return {}; }
  uint16_t GetRemotePort() const override { return 0; }
  uint16_t GetLocalPort() const override { return 0; }
  uint32_t GetIdealBufferLength() const override { return 1; }
};

static void ConnectionsOfOtherClassesAreRefused() {
  Pair pair(1);
  const IBatsConnPtr foreign = std::make_shared<ForeignConnection>();
  const octet data[1] = {1};
  const std::string expected = "the connection object is not one of this library";
  pair.client->StopConnection(foreign);
  CHECK(openbats::LastError() == expected);
  CHECK(!openbats::SendWithin(foreign, data, 1, 100));
  CHECK(openbats::LastError() == expected);
  CHECK(openbats::GetStats(foreign).size == 0);
  CHECK(!openbats::IsCompressed(foreign) && openbats::GetError(foreign).empty());
  CHECK(!openbats::SendWithin(nullptr, data, 1, 100) && openbats::GetStats(nullptr).size == 0);
  CHECK(pair.near.Connection()->SendData(Content(10, 1)));
  CHECK(Eventually([&] { return pair.far.MessageCount() == 1; }));
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
            [&](const IBatsConnPtr& connection, const E&, const octet*, int, void*) {
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
      [&](const IBatsConnPtr& connection, const E& event, const octet*, int, void*) {
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
        [owned, inner](const IBatsConnPtr& c, const E& e, const octet* d, int n, void* x) {
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
    connection->SetConnectionCallback([owned](const IBatsConnPtr&, const E&, const octet*, int,
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
