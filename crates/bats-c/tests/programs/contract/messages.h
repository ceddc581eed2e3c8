// Tests of messages and their events.
#ifndef CONTRACT_MESSAGES_H
#define CONTRACT_MESSAGES_H

#include "pair.h"

static void EstablishedThenWritableWithoutACall() {
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
    // In the other direction, with the other overload.
    const auto answer = Content(5000, 7);
    CHECK(pair.far.Connection()->SendData(answer.data(), 5000));
    CHECK(Eventually([&] { return pair.near.MessageCount() == 1; }));
    CHECK(pair.near.Messages()[0] == answer);
    CHECK(!connection->SendData(answer.data(), -1));
    CHECK(!connection->SendData(nullptr, 3));
  }
}

// Modes 0 and 3 on a lossless path deliver each message once and count it.
static void UnreliableModesDeliverAndCountMessages() {
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
    // The order of delivery is not guaranteed.
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
  // Without a handshake the first message creates the connection at the peer.
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
  // Connections continue when listening stops; datagrams of unknown peers are ignored.
  server.Protocol().StopListen();
  CHECK(second.Connection()->SendData(Content(10, 2)));
  CHECK(Eventually([&] { return far.MessageCount() == 7; }));
  client.StopConnection(second.Connection());
  CHECK(second.Await(E::BATS_CONNECTION_CLOSED));
  // The idle timeout closes the remaining connection.
  CHECK(near.Await(E::BATS_CONNECTION_CLOSED));
  server.Destroy();
  CHECK(CanBind(SOCK_DGRAM, port));
  // If no socket is bound to the port, the connection ends after the first message.
  Recorder unbound;
  client.StartConnect("127.0.0.1", port, unbound.Callback(), nullptr);
  CHECK(unbound.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(unbound.Connection()->SendData(Content(10, 3)));
  CHECK(unbound.Await(E::BATS_CONNECTION_SHUTDOWN_BY_PEER));
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
    // The messages wait in the library. Under valgrind the server may accept later than they are sent.
    CHECK(Eventually([&] {
      std::lock_guard<std::mutex> lock(mutex);
      return accepted != nullptr;
    }));
    SleepMs(150);
    std::lock_guard<std::mutex> lock(mutex);
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

static void CallbackCanBeSwappedInsideItself() {
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
    // The peer does not read. At first its buffers take some messages, then the send buffer is full.
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
    // One WRITABLE follows each BUFFER_FULL, in addition to the first.
    CHECK(Eventually([&] {
      return pair.near.Count(E::BATS_CONNECTION_WRITABLE) ==
             pair.near.Count(E::BATS_CONNECTION_BUFFER_FULL) + 1;
    }));
  }
}

static void AllDataAckedFollowsAnIdleTimeAndRepeats() {
  for (int mode : kModes) {
    Pair pair(mode);
    SleepMs(100);
    CHECK(pair.near.Count(E::BATS_CONNECTION_ALL_DATA_ACKED) == 0);
    CHECK(pair.near.Connection()->SendData(Content(100000, 1)));
    CHECK(pair.near.Await(E::BATS_CONNECTION_ALL_DATA_ACKED, 2));
    CHECK(Eventually([&] { return pair.far.MessageCount() == 1; }));
    const int complete = pair.near.IndexOf(E::BATS_CONNECTION_SEND_COMPLETE);
    CHECK(complete >= 0 && complete < pair.near.IndexOf(E::BATS_CONNECTION_ALL_DATA_ACKED));
    CHECK(pair.near.Count(E::BATS_CONNECTION_SEND_COMPLETE) == 1);
    const int before = pair.near.Count(E::BATS_CONNECTION_ALL_DATA_ACKED);
    CHECK(pair.near.Connection()->SendData(Content(10, 2)));
    CHECK(pair.near.Await(E::BATS_CONNECTION_ALL_DATA_ACKED, before + 1));
  }
}

static void IdealLengthFollowsThePath() {
  // If the path MTU is known before the connection is established, no event follows: try again.
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
  CHECK(!"IDEAL_BUFFER_LENGTH never occurred");
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
    const int complete = pair.near.IndexOf(E::BATS_CONNECTION_SEND_COMPLETE);
    CHECK(complete >= 0 && complete < pair.near.IndexOf(E::BATS_CONNECTION_ALL_DATA_ACKED));
    // The peer has received all data; its callbacks may still be running.
    octetVec received;
    CHECK(Eventually([&] {
      received.clear();
      for (const auto& message : pair.far.Messages()) {
        received.insert(received.end(), message.begin(), message.end());
      }
      return received.size() >= content.size();
    }));
    CHECK(received == content);
    for (const auto& message : pair.far.Messages()) {
      CHECK(!message.empty() && message.size() <= 150000);
    }
    // An empty file gives the same events, but no message.
    std::ofstream(name, std::ios::binary | std::ios::trunc).close();
    Pair fresh(mode);
    const auto first = fresh.near.Connection();
    const auto await_acked = [&](int count) {
      return fresh.near.Await(E::BATS_CONNECTION_ALL_DATA_ACKED, count);
    };
    CHECK(first->SendFile(name));
    CHECK(await_acked(1));
    const int empty_complete = fresh.near.IndexOf(E::BATS_CONNECTION_SEND_COMPLETE);
    CHECK(empty_complete >= 0 && empty_complete < fresh.near.IndexOf(E::BATS_CONNECTION_ALL_DATA_ACKED));
    CHECK(fresh.far.MessageCount() == 0);
    if (mode == 1) {
      // After a message whose events are all delivered: ALL_DATA_ACKED comes three times, as for the
      // file before.
      CHECK(await_acked(3));
      CHECK(Send(first, Content(1000, 1)));
      CHECK(await_acked(6));
      const int completes = fresh.near.Count(E::BATS_CONNECTION_SEND_COMPLETE);
      CHECK(first->SendFile(name));
      CHECK(await_acked(7));
      CHECK(fresh.near.Count(E::BATS_CONNECTION_SEND_COMPLETE) == completes + 1);
      CHECK(Eventually([&] { return fresh.far.MessageCount() == 1; }));
    }
    std::remove(name.c_str());
  }
}

static void FilesAreQueuedUpToALimit() {
  Recorder near, far;
  IOContext context;
  Server server(context, 1, far);
  BatsProtocol client(context, Config(1));
  std::atomic<int> taken{-1};
  near.OnEvent([&](const IBatsConnPtr& connection, E event, const octetVec&) {
    if (event != E::BATS_CONNECTION_WRITABLE || taken >= 0) return;
    // No file is sent while this callback occupies the context's thread.
    int count = 0;
    while (count < 2000 && connection->SendFile("/etc/passwd")) ++count;
    CHECK(openbats::LastError().find("1024 files") != std::string::npos);
    taken = count;
  });
  client.StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
  CHECK(Eventually([&] { return taken >= 0; }));
  CHECK(taken == 1024);
  CHECK(near.Await(E::BATS_CONNECTION_SEND_COMPLETE, 1024));
  CHECK(near.Connection()->SendFile("/etc/passwd"));
  CHECK(near.Await(E::BATS_CONNECTION_SEND_COMPLETE, 1025));
}

#endif
