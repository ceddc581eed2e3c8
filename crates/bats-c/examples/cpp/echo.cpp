// An echo server, and a client that checks the echoes.

#include <string>
#include <vector>

#include "example.h"

int main(int argc, char** argv) {
  Signal signal;
  bool listening = false;
  std::vector<std::string> echoes;

  IOContext context;
  const auto config = ExampleConfig(argc, argv);

  BatsProtocol server(context, config);
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
                  Require(peer->SendData(data, length), "the server sends the echo");
                }
                return true;
              },
              nullptr);
        }
      },
      nullptr);
  signal.Await([&] { return listening; }, "the server listens");

  BatsProtocol client(context, config);
  client.StartConnect(
      "127.0.0.1", server.GetListenPort(),
      [&](const IBatsConnPtr& connection, const BatsConnEvent& event, const octet* data,
          int length, void*) {
        if (event == BatsConnEvent::BATS_CONNECTION_WRITABLE) {
          for (const std::string text : {"one", "two", "three"}) {
            Require(connection->SendData(octetVec(text.begin(), text.end())), "the client sends");
          }
        } else if (event == BatsConnEvent::BATS_CONNECTION_DATA_RECEIVED) {
          signal.Update([&] { echoes.emplace_back(data, data + length); });
        }
        return true;
      },
      nullptr);
  signal.Await([&] { return echoes.size() == 3; }, "three echoes");

  const std::vector<std::string> expected{"one", "two", "three"};
  Require(echoes == expected, "echoes are complete and in order");
  std::printf("echo: 3 messages came back\n");
}
