// The run-time contract of the C++ interface, one function for each line of it. Without an
// argument all run; with one, those whose names contain it.

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>

#include "check.h"

using E = BatsConnEvent;
using L = BatsListenEvent;

// The modes that are there, and those that are not.
static const int kModes[] = {1, 2, 10, 12};
static const int kMissing[] = {4, 13, 200};

// A connected pair; the two ends have threads of their own.
struct Pair {
  explicit Pair(int mode, int timeout_ms = 30000)
      : server(server_context, mode, far, timeout_ms),
        client(std::make_unique<BatsProtocol>(client_context, Config(mode, timeout_ms))) {
    client->StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
    CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
    CHECK(far.Await(E::BATS_CONNECTION_WRITABLE));
  }

  Recorder near, far;
  IOContext server_context, client_context;
  Server server;
  std::unique_ptr<BatsProtocol> client;
};

static void EstablishedThenWritableUnasked() {
  for (int mode : kModes) {
    Recorder near, far;
    IOContext context;
    Server server(context, mode, far);
    BatsProtocol client(context, Config(mode));
    uint32_t ideal_at_established = 0;
    near.OnEvent([&](const IBatsConnPtr& connection, E event, const octetVec&) {
      if (event == E::BATS_CONNECTION_ESTABLISHED) {
        ideal_at_established = connection->GetIdealBufferLength();
        CHECK(connection->IsWritable());
      }
    });
    client.StartConnect("127.0.0.1", server.Port(), near.Callback(),
                        reinterpret_cast<void*>(uintptr_t{42}));
    CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
    const auto events = near.Events();
    CHECK(events.size() >= 2);
    CHECK(events[0].event == E::BATS_CONNECTION_ESTABLISHED);
    CHECK(events[1].event == E::BATS_CONNECTION_WRITABLE);
    for (const auto& seen : events) {
      CHECK(seen.context == reinterpret_cast<void*>(uintptr_t{42}));
      CHECK(seen.thread != std::this_thread::get_id());
      CHECK(!seen.has_data);
    }
    CHECK(ideal_at_established > 361 && ideal_at_established <= 150000);
  }
}

static void MessagesKeepTheirBoundaries() {
  const size_t sizes[] = {1, 0, 2, 361, 1200, 1472, 30000, 142000, 150000, 1000000};
  for (int mode : kModes) {
    Pair pair(mode);
    const auto connection = pair.near.Connection();
    octetVec reused;
    for (unsigned i = 0; i < 10; ++i) {
      reused = Content(sizes[i], i);
      CHECK(Send(connection, reused));
      std::fill(reused.begin(), reused.end(), octet{0});  // the data was copied
    }
    CHECK(Eventually([&] { return pair.far.MessageCount() == 10; }));
    const auto messages = pair.far.Messages();
    for (unsigned i = 0; i < 10; ++i) {
      CHECK(messages[i] == Content(sizes[i], i));
    }
    CHECK(pair.far.Count(E::BATS_CONNECTION_DATA_RECEIVED) == 10);
    // And back, through the other overload.
    const auto answer = Content(5000, 7);
    CHECK(pair.far.Connection()->SendData(answer.data(), 5000));
    CHECK(Eventually([&] { return pair.near.MessageCount() == 1; }));
    CHECK(pair.near.Messages()[0] == answer);
    CHECK(!connection->SendData(answer.data(), -1));
    CHECK(!connection->SendData(nullptr, 3));
  }
}

// Modes 0 and 3, on a way that loses nothing: whole, once, and counted.
static void UnreliableModesCarryMessagesAndCount() {
  for (int mode : {0, 3}) {
    Pair pair(mode);
    const auto connection = pair.near.Connection();
    for (unsigned i = 0; i < 50; ++i) {
      CHECK(Send(connection, Content(100 + 60 * i, i)));
    }
    CHECK(Eventually([&] { return pair.far.MessageCount() == 50; }));
    std::vector<octetVec> expected;
    for (unsigned i = 0; i < 50; ++i) {
      expected.push_back(Content(100 + 60 * i, i));
    }
    // They come as they become known, so the order is not promised.
    auto messages = pair.far.Messages();
    CHECK(std::is_permutation(messages.begin(), messages.end(), expected.begin(), expected.end()));
    const auto sent = openbats::GetStats(connection);
    CHECK(sent.size == sizeof(openbats_stats_t));
    CHECK(sent.messages_sent == 50 && sent.messages_expired == 0);
    const auto received = openbats::GetStats(pair.far.Connection());
    CHECK(received.messages_received == 50 && received.messages_lost == 0);
    CHECK(received.longest_repair_delay_ns <= received.repair_delay_ns);
    CHECK(!connection->SendFile("/dev/null"));
  }
}

static void DatagramsKeepTheirBoundariesAndTheirPort() {
  Recorder near, second, far;
  IOContext context;
  Server server(context, 11, far, 800);
  const uint16_t port = server.Port();
  BatsProtocol client(context, Config(11, 800));
  client.StartConnect("127.0.0.1", port, near.Callback(), nullptr);
  CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
  const auto connection = near.Connection();
  CHECK(connection->GetIdealBufferLength() > 361 && connection->GetIdealBufferLength() <= 65507);
  // There is no handshake: the peer learns of the connection by the first message.
  CHECK(server.Accepted() == 0);
  const size_t sizes[] = {1, 0, 361, 1472, 60000};
  for (unsigned i = 0; i < 5; ++i) CHECK(connection->SendData(Content(sizes[i], i)));
  CHECK(Eventually([&] { return far.MessageCount() == 5; }));
  for (unsigned i = 0; i < 5; ++i) CHECK(far.Messages()[i] == Content(sizes[i], i));
  CHECK(server.Accepted() == 1);
  CHECK(far.Connection()->GetRemotePort() == connection->GetLocalPort());
  CHECK(far.Connection()->SendData(Content(700, 9)));
  CHECK(Eventually([&] { return near.MessageCount() == 1; }));
  CHECK(near.Messages()[0] == Content(700, 9));
  CHECK(!connection->SendData(Content(70000, 1)));
  CHECK(openbats::LastError().find("70000 bytes") != std::string::npos);
  CHECK(!connection->SendFile("/dev/null"));
  CHECK(near.Await(E::BATS_CONNECTION_SEND_COMPLETE));
  CHECK(near.Count(E::BATS_CONNECTION_ALL_DATA_ACKED) == 0);
  // Another peer of the same socket is another connection.
  client.StartConnect("127.0.0.1", port, second.Callback(), nullptr);
  CHECK(second.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(second.Connection()->SendData(Content(10, 1)));
  CHECK(Eventually([&] { return server.Accepted() == 2; }));
  // Connections live on when listening stops, and strangers get no answer.
  server.Protocol().StopListen();
  CHECK(second.Connection()->SendData(Content(10, 2)));
  CHECK(Eventually([&] { return far.MessageCount() == 7; }));
  client.StopConnection(second.Connection());
  CHECK(second.Await(E::BATS_CONNECTION_CLOSED));
  // Silence ends what is left.
  CHECK(near.Await(E::BATS_CONNECTION_CLOSED));
  server.Destroy();
  CHECK(CanBind(SOCK_DGRAM, port));
  // A port that nobody listens at is told by the first message.
  Recorder nobody;
  client.StartConnect("127.0.0.1", port, nobody.Callback(), nullptr);
  CHECK(nobody.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(nobody.Connection()->SendData(Content(10, 3)));
  CHECK(nobody.Await(E::BATS_CONNECTION_SHUTDOWN_BY_PEER));
}

static void NothingIsLostBeforeTheCallbackIsSet() {
  for (int mode : kModes) {
    Recorder near, far;
    std::mutex mutex;
    IBatsConnPtr accepted;
    std::atomic<bool> ready{false};
    IOContext context;
    BatsProtocol server(context, Config(mode));
    server.StartListen(
        "127.0.0.1", 0,
        [&](const IBatsConnPtr& connection, const L& event, void*) {
          if (event == L::BATS_LISTEN_SUCCESS) ready = true;
          if (event == L::BATS_LISTEN_NEW_CONNECTION) {
            std::lock_guard<std::mutex> lock(mutex);
            accepted = connection;
          }
        },
        nullptr);
    CHECK(Eventually([&] { return ready.load(); }));
    BatsProtocol client(context, Config(mode));
    client.StartConnect("127.0.0.1", server.GetListenPort(), near.Callback(), nullptr);
    CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
    for (unsigned i = 0; i < 20; ++i) CHECK(near.Connection()->SendData(Content(1000, i)));
    SleepMs(150);
    std::lock_guard<std::mutex> lock(mutex);
    CHECK(accepted != nullptr);
    accepted->SetConnectionCallback(far.Callback(), nullptr);
    CHECK(Eventually([&] { return far.MessageCount() == 20; }));
    for (unsigned i = 0; i < 20; ++i) CHECK(far.Messages()[i] == Content(1000, i));
  }
}

static void NoEventFromInsideSetConnectionCallback() {
  std::atomic<bool> ready{false}, inside{false}, set{false};
  Recorder far, near;
  IOContext context;
  BatsProtocol server(context, Config(1));
  server.StartListen(
      "127.0.0.1", 0,
      [&](const IBatsConnPtr& connection, const L& event, void*) {
        if (event == L::BATS_LISTEN_SUCCESS) ready = true;
        if (event != L::BATS_LISTEN_NEW_CONNECTION) return;
        far.OnEvent([&](const IBatsConnPtr&, E, const octetVec&) { CHECK(!inside); });
        inside = true;
        connection->SetConnectionCallback(far.Callback(), nullptr);
        inside = false;
        set = true;
      },
      nullptr);
  CHECK(Eventually([&] { return ready.load(); }));
  BatsProtocol client(context, Config(1));
  client.StartConnect("127.0.0.1", server.GetListenPort(), near.Callback(), nullptr);
  CHECK(far.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(set);
}

static void TheCallbackCanBeSwappedInsideItself() {
  Recorder second;
  std::atomic<int> first_messages{0};
  Pair pair(1);
  pair.far.OnEvent([&](const IBatsConnPtr& connection, E event, const octetVec&) {
    if (event != E::BATS_CONNECTION_DATA_RECEIVED) return;
    ++first_messages;
    connection->SetConnectionCallback(second.Callback(), reinterpret_cast<void*>(uintptr_t{9}));
  });
  for (unsigned i = 0; i < 5; ++i) CHECK(pair.near.Connection()->SendData(Content(100, i)));
  CHECK(Eventually([&] { return second.MessageCount() == 4; }));
  CHECK(first_messages == 1);
  for (const auto& seen : second.Events()) CHECK(seen.context == reinterpret_cast<void*>(uintptr_t{9}));
}

static void RefusedConnectionsFailAtOnce() {
  for (int mode : kModes) {
    uint16_t port;
    {
      BlackHole hole;
      port = hole.Port();
    }
    Recorder near;
    IOContext context;
    BatsProtocol client(context, Config(mode, 1000000));  // the limit of the test is far below
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
    // Told already, and told on this thread.
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
  // It can be tried again.
  server.StartListen("127.0.0.1", hole.Port(), callback, nullptr);
  CHECK(Eventually([&] { return failed == 2; }));
}

static void ASecondListenSaysAlreadyInListen() {
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

static void BufferFullThenWritable() {
  for (int mode : kModes) {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    Pair pair(mode);
    pair.far.OnEvent([&](const IBatsConnPtr&, E event, const octetVec&) {
      if (event != E::BATS_CONNECTION_DATA_RECEIVED) return;
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return open; });
    });
    const auto connection = pair.near.Connection();
    const auto message = Content(1000000, 3);
    size_t sent = 0;
    // Nobody reads, so at some point there is no room any more; until then the peer takes some.
    int refused = 0;
    while (refused < 50) {
      if (connection->SendData(message)) {
        ++sent;
        refused = 0;
        CHECK(sent < 2000);
      } else {
        ++refused;
        SleepMs(10);
      }
    }
    CHECK(pair.near.Await(E::BATS_CONNECTION_BUFFER_FULL));
    CHECK(!connection->IsWritable());
    const int writables = pair.near.Count(E::BATS_CONNECTION_WRITABLE);
    {
      std::lock_guard<std::mutex> lock(mutex);
      open = true;
    }
    changed.notify_all();
    CHECK(pair.near.Await(E::BATS_CONNECTION_WRITABLE, writables + 1));
    CHECK(connection->IsWritable());
    CHECK(Eventually([&] { return pair.far.MessageCount() == sent; }));
    // Every BUFFER_FULL is answered by one WRITABLE, besides the first.
    CHECK(Eventually([&] {
      return pair.near.Count(E::BATS_CONNECTION_WRITABLE) ==
             pair.near.Count(E::BATS_CONNECTION_BUFFER_FULL) + 1;
    }));
  }
}

static void AllDataAckedComesAfterAQuietTimeAndAgain() {
  for (int mode : kModes) {
    Pair pair(mode);
    SleepMs(100);
    CHECK(pair.near.Count(E::BATS_CONNECTION_ALL_DATA_ACKED) == 0);
    CHECK(pair.near.Connection()->SendData(Content(100000, 1)));
    CHECK(pair.near.Await(E::BATS_CONNECTION_ALL_DATA_ACKED, 2));
    CHECK(pair.far.MessageCount() == 1);
    const int complete = pair.near.Place(E::BATS_CONNECTION_SEND_COMPLETE);
    CHECK(complete >= 0 && complete < pair.near.Place(E::BATS_CONNECTION_ALL_DATA_ACKED));
    CHECK(pair.near.Count(E::BATS_CONNECTION_SEND_COMPLETE) == 1);
    const int before = pair.near.Count(E::BATS_CONNECTION_ALL_DATA_ACKED);
    CHECK(pair.near.Connection()->SendData(Content(10, 2)));
    CHECK(pair.near.Await(E::BATS_CONNECTION_ALL_DATA_ACKED, before + 1));
  }
}

static void StoppingClosesHereAndShutsDownThere() {
  for (int mode : kModes) {
    Pair pair(mode);
    // What was sent before is not lost.
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
    // Nothing follows the last event.
    CHECK(pair.near.Events().back().event == E::BATS_CONNECTION_CLOSED);
    CHECK(pair.far.Events().back().event == E::BATS_CONNECTION_SHUTDOWN_BY_PEER);
  }
}

static void SilenceClosesTheConnection() {
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

static void IdealLengthFollowsThePath() {
  // Sometimes the path's size is known before the connection stands, and nothing changes then.
  constexpr uint32_t kMost = 140800;
  for (int attempt = 0; attempt < 50; ++attempt) {
    Pair pair(1);
    const auto connection = pair.near.Connection();
    CHECK(Eventually([&] { return connection->GetIdealBufferLength() == kMost; }));
    SleepMs(20);
    int last = 0;
    for (const auto& seen : pair.near.Events()) {
      if (seen.event != E::BATS_CONNECTION_IDEAL_BUFFER_LENGTH) continue;
      CHECK(!seen.has_data);
      CHECK(seen.length > 361 && seen.length <= 150000);
      last = seen.length;
    }
    if (last != 0) {
      CHECK(last == static_cast<int>(kMost));
      return;
    }
  }
  CHECK(!"IDEAL_BUFFER_LENGTH never came");
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
    // The pointer is still good for questions.
    CHECK(connection->GetRemotePort() == pair.server.Port());
    CHECK(connection->GetRemoteAddress() == "127.0.0.1");
    CHECK(openbats::GetStats(connection).size == sizeof(openbats::Stats));
    CHECK(!connection->SendData(Content(1, 1)));
    connection->SetConnectionCallback([owned](const IBatsConnPtr&, const E&, const octet*, int,
                                              void*) { return true; }, nullptr);
    CHECK(owned.use_count() == 1);
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

static void NamesAndBothFamiliesAreReached() {
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

static void FilesArriveAsMessages() {
  for (int mode : kModes) {
    Pair pair(mode);
    const auto connection = pair.near.Connection();
    std::string name = "/tmp/openbats-contract-" + std::to_string(getpid());
    const auto content = Content(3000000, 11);
    {
      std::ofstream file(name, std::ios::binary);
      file.write(reinterpret_cast<const char*>(content.data()),
                 static_cast<std::streamsize>(content.size()));
    }
    CHECK(!connection->SendFile("/nowhere/at/all"));
    CHECK(openbats::LastError().find("/nowhere/at/all") != std::string::npos);
    CHECK(!connection->SendFile("/tmp"));
    CHECK(connection->SendFile(name));
    CHECK(pair.near.Await(E::BATS_CONNECTION_ALL_DATA_ACKED));
    const int complete = pair.near.Place(E::BATS_CONNECTION_SEND_COMPLETE);
    CHECK(complete >= 0 && complete < pair.near.Place(E::BATS_CONNECTION_ALL_DATA_ACKED));
    octetVec received;
    for (const auto& message : pair.far.Messages()) {
      CHECK(!message.empty() && message.size() <= 150000);
      received.insert(received.end(), message.begin(), message.end());
    }
    CHECK(received == content);
    // Files without octets come to the same events, and to no message.
    std::ofstream(name, std::ios::binary | std::ios::trunc).close();
    Pair fresh(mode);
    const auto first = fresh.near.Connection();
    const auto await_acked = [&](int count) {
      return fresh.near.Await(E::BATS_CONNECTION_ALL_DATA_ACKED, count);
    };
    CHECK(first->SendFile(name));
    CHECK(await_acked(1));
    const int told = fresh.near.Place(E::BATS_CONNECTION_SEND_COMPLETE);
    CHECK(told >= 0 && told < fresh.near.Place(E::BATS_CONNECTION_ALL_DATA_ACKED));
    CHECK(fresh.far.MessageCount() == 0);
    if (mode == 1) {
      // After a message of which everything has been told: three times, as of the file before.
      CHECK(await_acked(3));
      CHECK(Send(first, Content(1000, 1)));
      CHECK(await_acked(6));
      const int completes = fresh.near.Count(E::BATS_CONNECTION_SEND_COMPLETE);
      CHECK(first->SendFile(name));
      CHECK(await_acked(7));
      CHECK(fresh.near.Count(E::BATS_CONNECTION_SEND_COMPLETE) == completes + 1);
      CHECK(fresh.far.MessageCount() == 1);
    }
    std::remove(name.c_str());
  }
}

static void NothingIsSentBeforeTheConnectionStands() {
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

static void SignalsAreToldOnAnOrdinaryThread() {
  std::mutex mutex;
  int received = 0;
  std::thread::id thread;
  {
    IOContext context;
    context.SetSignalCallback([&](int sig) {
      std::lock_guard<std::mutex> lock(mutex);  // not possible in a handler
      received = sig;
      thread = std::this_thread::get_id();
      // Joining a thread is allowed, too.
      std::thread([] {}).join();
    });
    for (int sig : {SIGINT, SIGTERM}) {
      CHECK(kill(getpid(), sig) == 0);
      CHECK(Eventually([&] {
        std::lock_guard<std::mutex> lock(mutex);
        return received == sig;
      }));
    }
    std::lock_guard<std::mutex> lock(mutex);
    CHECK(thread != std::this_thread::get_id());
  }
#if !defined(__SANITIZE_THREAD__)  // which keeps signals back in a child of fork
  // Without a context, the signal does what it always does: a child shows it.
  const auto ends_a_child = [] {
    const pid_t child = fork();
    if (child == 0) {
      raise(SIGTERM);
      _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
    }
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
  };
  CHECK(ends_a_child());
  // So it does when the context listens no more.
  IOContext context;
  std::atomic<int> told{0};
  context.SetSignalCallback([&](int) { ++told; });
  CHECK(kill(getpid(), SIGTERM) == 0);
  CHECK(Eventually([&] { return told == 1; }));
  context.SetSignalCallback(nullptr);
  CHECK(ends_a_child());
  context.SetSignalCallback(SigCallback());
  CHECK(ends_a_child() && told == 1);
#endif
}

static void TheLogGoesWhereItIsTold() {
  IOContext context;
  const std::string directory = "/tmp/openbats-log-" + std::to_string(getpid()) + "/";
  context.SetBATSLogFilePath(directory);
  context.SetBATSLogLevel(BATSLogLevel::LOG_INFO);
  {
    Recorder far;
    Server server(context, 1, far);
  }
  context.SetBATSLogLevel(BATSLogLevel::LOG_WARN);
  std::ifstream file(directory + "openbats.log");
  std::stringstream text;
  text << file.rdbuf();
  CHECK(text.str().find("listening") != std::string::npos);
  std::remove((directory + "openbats.log").c_str());
  rmdir(directory.c_str());
}

// The lines of level WARN that a call writes.
static std::vector<std::string> Warnings(IOContext& context, const std::function<void()>& call) {
  const std::string name = "/tmp/openbats-warnings-" + std::to_string(getpid());
  std::remove(name.c_str());
  context.SetBATSLogLevel(BATSLogLevel::LOG_WARN);
  context.SetBATSLogFilePath(name);
  call();
  std::ifstream file(name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.find(" WARN ") != std::string::npos) lines.push_back(line);
  }
  CHECK(file.eof());
  std::remove(name.c_str());
  return lines;
}

static void WhatIsAskedForAndNotDoneIsInTheLog() {
  IOContext context;
  BlackHole hole;
  const auto count = [](const std::vector<std::string>& lines, const std::string& part) {
    const auto has = [&](const std::string& line) { return line.find(part) != std::string::npos; };
    return std::count_if(lines.begin(), lines.end(), has);
  };
  const auto none = [&](const std::vector<std::string>& lines, const std::string& part) {
    return count(lines, part) == 0;
  };
  const auto one = [&](const std::vector<std::string>& lines, const std::string& part) {
    if (count(lines, part) != 1) {
      std::fprintf(stderr, "'%s' is not once in:\n", part.c_str());
      for (const auto& line : lines) std::fprintf(stderr, "%s\n", line.c_str());
      return false;
    }
    return true;
  };
  const auto connecting = [&](const BatsConfiguration& config) {
    return Warnings(context, [&] {
      Recorder near;
      BatsProtocol client(context, config);
      client.StartConnect("127.0.0.1", hole.Port(), near.Callback(), nullptr);
    });
  };
  const std::string asked = " was asked for", encrypted = "encrypted";
  struct Case {
    int mode;
    CongestionControl congestion;
    const char* said;  // nullptr: nothing
  };
  const Case cases[] = {
      {0, CongestionControl::GCC, nullptr},
      {1, CongestionControl::None, nullptr},
      {1, CongestionControl::BBRv2, "one BBR only for congestion control"},
      {2, CongestionControl::BBRv3, "one BBR only for congestion control"},
      {3, CongestionControl::BBR, "has no congestion control: Bbr was asked for"},
      {10, CongestionControl::GCC, "the kernel's TCP: Gcc was asked for"},
      {11, CongestionControl::BBR, "has no congestion control: Bbr was asked for"},
      {12, CongestionControl::None, "takes CUBIC: None was asked for"},
      {12, CongestionControl::BBR, nullptr},
  };
  for (const auto& known : cases) {
    auto config = Config(known.mode);
    CHECK(none(connecting(config), asked));
    config.SetCC(known.congestion);
    const auto lines = connecting(config);
    CHECK(known.said == nullptr ? none(lines, asked) : one(lines, known.said));
    CHECK(none(lines, encrypted));
    config.EnableEncryption(false);
    const auto off = connecting(config);
    CHECK(known.mode == 11 ? none(off, encrypted) : one(off, "is always encrypted"));
    config.EnableEncryption(true);
    const auto on = connecting(config);
    CHECK(known.mode == 11 ? one(on, "is never encrypted") : none(on, encrypted));
  }
  // Numbers that nobody knows; those of the two interfaces differ.
  BatsConfiguration config;
  for (int number : {2, 6, 7, 255}) {
    const auto lines =
        Warnings(context, [&] { config.SetCC(static_cast<CongestionControl>(number)); });
    CHECK(one(lines, "there is no congestion control " + std::to_string(number) + ": using BBR"));
  }
  const auto in_c = config.GetImpl().handle;
  CHECK(one(Warnings(context, [&] { bats_config_set_cc(in_c, bats_congestion_control_t(5)); }),
            "there is no congestion control 5: using BBR"));
  CHECK(one(Warnings(context, [&] { config.SetFrameType(static_cast<FrameType>(9)); }),
            "there is no frame type 9"));
  CHECK(Warnings(context, [&] {
          config.SetCC(CongestionControl::GCC);
          config.SetFrameType(FrameType::BATS_HEADER_MIN);
        }).empty());
  context.SetBATSLogFilePath("/dev/stderr");
}

static void EveryOptionIsAccepted() {
  IOContext context;
  Recorder far;
  Server server(context, 1, far);
  for (int congestion : {0, 1, 3, 4, 5}) {
    for (int type = 0; type < 4; ++type) {
      auto config = Config(1);
      config.SetCC(static_cast<CongestionControl>(congestion));
      config.SetFrameType(static_cast<FrameType>(type));
      config.SetCertFile("/nowhere/cert.pem");
      config.SetKeyFile("/nowhere/key.pem");
      config.EnableCompression(true);
      config.EnableEncryption(false);
      config.SetTimeout(20);  // seconds
      std::stringstream text;
      BatsConfiguration copy(config), other;
      other = copy;
      text << other;
      CHECK(text.str().find("BRTP") != std::string::npos);
      CHECK(text.str().find("20000 ms") != std::string::npos);
      Recorder near;
      BatsProtocol client(context, other);
      client.StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
      CHECK(near.Await(E::BATS_CONNECTION_ESTABLISHED));
    }
  }
  Recorder near;
  auto config = Config(1);
  config.SetLocalPort(70000);
  BatsProtocol client(context, config);
  client.StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
  CHECK(near.Count(E::BATS_CONNECTION_FAILED) == 1);
  CHECK(openbats::LastError().find("70000") != std::string::npos);
}

static void APinnedServerIsBelievedAndAnotherIsNot() {
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

static void StatisticsCount() {
  for (int mode : kModes) {
    Pair pair(mode);
    for (unsigned i = 0; i < 10; ++i) CHECK(Send(pair.near.Connection(), Content(10000, i)));
    CHECK(Eventually([&] { return pair.far.MessageCount() == 10; }));
    const auto near = openbats::GetStats(pair.near.Connection());
    CHECK(near.size == sizeof(openbats::Stats));
    CHECK(near.messages_sent == 10 && near.message_bytes_sent == 100000);
    if (mode == 1) CHECK(near.packets_sent > 60 && near.smoothed_rtt_ns > 0);
    const auto far = openbats::GetStats(pair.far.Connection());
    CHECK(far.messages_received == 10);
  }
  CHECK(openbats::GetStats(nullptr).size == 0);
}

static void APolledContextCallsBackInPollOnly() {
  Recorder near, far;
  IOContext context{openbats::Polled{}};
  CHECK(context.PollFd() >= 0);
  CHECK(context.Poll(0) == 0);
  IOContext threaded;
  CHECK(threaded.Poll(0) == -1);
  CHECK(threaded.PollFd() < 0);
  Server server(threaded, 1, far);
  far.OnEvent([](const IBatsConnPtr& connection, E event, const octetVec& message) {
    if (event == E::BATS_CONNECTION_DATA_RECEIVED) CHECK(Send(connection, message));
  });
  near.OnEvent([&](const IBatsConnPtr&, E, const octetVec&) { CHECK(context.Poll(0) == -1); });
  BatsProtocol client(context, Config(1));
  client.StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
  SleepMs(100);
  CHECK(near.Events().empty());
  const auto poll_until = [&](const std::function<bool()>& done) {
    CHECK(Eventually([&] {
      CHECK(context.Poll(50) >= 0);
      return done();
    }));
  };
  poll_until([&] { return near.Count(E::BATS_CONNECTION_WRITABLE) == 1; });
  for (unsigned i = 0; i < 50; ++i) CHECK(Send(near.Connection(), Content(1000, i)));
  poll_until([&] { return near.MessageCount() == 50; });
  for (unsigned i = 0; i < 50; ++i) CHECK(near.Messages()[i] == Content(1000, i));
  for (const auto& seen : near.Events()) CHECK(seen.thread == std::this_thread::get_id());
}

static void DestroyedInTheWrongOrderNothingBreaks() {
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

static void TheLastReleaseOfAConnectionMayComeFromAnywhere() {
  Pair pair(1);
  pair.near.Forget();
  auto connection = pair.near.Connection();
  CHECK(connection == nullptr);
  // The connection goes on without any pointer of ours.
  CHECK(pair.far.Connection()->SendData(Content(10, 1)));
  CHECK(Eventually([&] { return pair.near.MessageCount() == 1; }));
  connection = pair.near.Connection();
  pair.near.Forget();
  pair.client->StopConnection(connection);
  std::thread([taken = std::move(connection)]() mutable { taken.reset(); }).join();
  CHECK(pair.near.Await(E::BATS_CONNECTION_CLOSED));
}

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) {#name, name}
static const Test kTests[] = {
    TEST(EstablishedThenWritableUnasked),
    TEST(MessagesKeepTheirBoundaries),
    TEST(UnreliableModesCarryMessagesAndCount),
    TEST(DatagramsKeepTheirBoundariesAndTheirPort),
    TEST(NothingIsLostBeforeTheCallbackIsSet),
    TEST(NoEventFromInsideSetConnectionCallback),
    TEST(TheCallbackCanBeSwappedInsideItself),
    TEST(RefusedConnectionsFailAtOnce),
    TEST(TimeoutIsFollowedByFailed),
    TEST(AFailedConnectCanBeRepeated),
    TEST(MissingModesAreRefusedOnTheCallersThread),
    TEST(ListenFailedWhenThePortIsTaken),
    TEST(ASecondListenSaysAlreadyInListen),
    TEST(StopListenFreesThePortAndConnectionsLiveOn),
    TEST(DestroyingAListenerFreesItsPortBeforeItReturns),
    TEST(BufferFullThenWritable),
    TEST(AllDataAckedComesAfterAQuietTimeAndAgain),
    TEST(StoppingClosesHereAndShutsDownThere),
    TEST(SilenceClosesTheConnection),
    TEST(IdealLengthFollowsThePath),
    TEST(NoCallbackAfterTheOwnerIsDestroyed),
    TEST(AnObjectCanBeDestroyedInItsOwnCallback),
    TEST(CallbacksAreDroppedWithTheirConnection),
    TEST(OneObjectMakesSeveralConnectionsInSeveralModes),
    TEST(TheOverloadsWithoutAnAddressUseTheConfiguration),
    TEST(NamesAndBothFamiliesAreReached),
    TEST(FilesArriveAsMessages),
    TEST(NothingIsSentBeforeTheConnectionStands),
    TEST(SignalsAreToldOnAnOrdinaryThread),
    TEST(TheLogGoesWhereItIsTold),
    TEST(WhatIsAskedForAndNotDoneIsInTheLog),
    TEST(EveryOptionIsAccepted),
    TEST(APinnedServerIsBelievedAndAnotherIsNot),
    TEST(StatisticsCount),
    TEST(APolledContextCallsBackInPollOnly),
    TEST(DestroyedInTheWrongOrderNothingBreaks),
    TEST(TheLastReleaseOfAConnectionMayComeFromAnywhere),
};

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& test : kTests) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const auto start = std::chrono::steady_clock::now();
    std::printf("%s ... ", test.name);
    std::fflush(stdout);
    test.run();
    const auto took = std::chrono::steady_clock::now() - start;
    std::printf("ok (%lld ms)\n",
                static_cast<long long>(
                    std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
    ++ran;
  }
  std::printf("%d contract tests passed\n", ran);
  return ran > 0 ? 0 : 1;
}
