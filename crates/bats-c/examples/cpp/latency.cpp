// Sends small messages back and forth, one at a time, and prints percentiles of the round-trip time.

#include <algorithm>
#include <vector>

#include "example.h"

using Clock = std::chrono::steady_clock;

int main(int argc, char** argv) {
  constexpr size_t kRounds = 1000;
  Signal signal;
  bool listening = false;
  std::vector<double> rounds;
  Clock::time_point sent;

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
              [](const IBatsConnPtr& peer, const BatsConnEvent& what, const octet* data,
                 int length, void*) {
                if (what == BatsConnEvent::BATS_CONNECTION_DATA_RECEIVED) {
                  Require(peer->SendData(data, length), "the server answers");
                }
                return true;
              },
              nullptr);
        }
      },
      nullptr);
  signal.Await([&] { return listening; }, "the server listens");

  const octetVec ping(64, octet{1});
  BatsProtocol client(client_context, config);
  client.StartConnect(
      "127.0.0.1", server.GetListenPort(),
      [&](const IBatsConnPtr& connection, const BatsConnEvent& event, const octet*, int length,
          void*) {
        if (event == BatsConnEvent::BATS_CONNECTION_DATA_RECEIVED) {
          Require(length == 64, "an answer has 64 bytes");
          const std::chrono::duration<double, std::micro> took = Clock::now() - sent;
          size_t done = 0;
          signal.Update([&] {
            rounds.push_back(took.count());
            done = rounds.size();
          });
          if (done == kRounds) return true;
        } else if (event != BatsConnEvent::BATS_CONNECTION_WRITABLE) {
          return true;
        }
        sent = Clock::now();
        Require(connection->SendData(ping), "the client sends");
        return true;
      },
      nullptr);
  signal.Await([&] { return rounds.size() == kRounds; }, "all answers");

  std::sort(rounds.begin(), rounds.end());
  Require(rounds.front() > 0, "the clock advances");
  std::printf("latency: %zu rounds; 50 %%: %.0f us, 99 %%: %.0f us, max: %.0f us\n",
              rounds.size(), rounds[kRounds / 2], rounds[kRounds * 99 / 100], rounds.back());
}
