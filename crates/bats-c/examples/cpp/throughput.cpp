// Sends messages as fast as possible and prints the received throughput:
// throughput [mode] [megabytes].

#include <cstring>

#include "example.h"

using Clock = std::chrono::steady_clock;

int main(int argc, char** argv) {
  const size_t total = (argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 100) * 1000000;
  Signal signal;
  bool listening = false;
  size_t received = 0;
  uint64_t next = 0;
  Clock::time_point first, last;

  IOContext server_context, client_context;
  const auto config = ExampleConfig(argc, argv);
  BatsProtocol server(server_context, config);
  server.StartListen(
      "127.0.0.1", 0,
      [&](const IBatsConnPtr& connection, const BatsListenEvent& event, void*) {
        if (event == BatsListenEvent::BATS_LISTEN_SUCCESS) {
          signal.Update([&] { listening = true; });
        } else if (event == BatsListenEvent::BATS_LISTEN_NEW_CONNECTION) {
          connection->SetConnectionCallback(
              [&](const IBatsConnPtr&, const BatsConnEvent& what, const octet* data, int length,
                  void*) {
                if (what != BatsConnEvent::BATS_CONNECTION_DATA_RECEIVED) return true;
                uint64_t number = 0;
                std::memcpy(&number, data, sizeof number);
                Require(number == next++, "messages are complete and in order");
                last = Clock::now();
                if (number == 0) first = last;
                signal.Update([&] { received += static_cast<size_t>(length); });
                return true;
              },
              nullptr);
        }
      },
      nullptr);
  signal.Await([&] { return listening; }, "the server listens");

  size_t sent = 0;
  uint64_t number = 0;
  octetVec message;
  // Called only in WRITABLE, and so by one thread at a time.
  const auto fill = [&](const IBatsConnPtr& connection) {
    message.resize(connection->GetIdealBufferLength());
    while (sent < total) {
      std::memcpy(message.data(), &number, sizeof number);
      if (!connection->SendData(message)) return;  // WRITABLE follows
      sent += message.size();
      ++number;
    }
  };
  BatsProtocol client(client_context, config);
  client.StartConnect(
      "127.0.0.1", server.GetListenPort(),
      [&](const IBatsConnPtr& connection, const BatsConnEvent& event, const octet*, int, void*) {
        if (event == BatsConnEvent::BATS_CONNECTION_WRITABLE) {
          fill(connection);
        }
        return true;
      },
      nullptr);
  signal.Await([&] { return received >= total; }, "all messages arrive");
  const std::chrono::duration<double> took = last - first;
  std::printf("throughput: %.0f MB in %llu messages, %.2f Gbit/s\n",
              static_cast<double>(received) / 1e6, static_cast<unsigned long long>(next),
              static_cast<double>(received) * 8 / took.count() / 1e9);
}
