// Sends a file; the receiver writes a copy, which is compared with the original.

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "example.h"

static std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int main(int argc, char** argv) {
  const std::string source = "/tmp/openbats-example-" + std::to_string(getpid());
  const std::string target = source + ".received";
  constexpr size_t kSize = 8 << 20;
  {
    std::string content(kSize, '\0');
    unsigned x = 1;
    for (auto& value : content) {
      x = x * 1664525u + 1013904223u;
      value = static_cast<char>(x >> 24);
    }
    std::ofstream(source, std::ios::binary) << content;
  }

  Signal signal;
  bool listening = false, complete = false, acknowledged = false;
  size_t received = 0;
  std::ofstream out(target, std::ios::binary);

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
              [&](const IBatsConnPtr&, const BatsConnEvent& what, const octet* data, int length,
                  void*) {
                if (what == BatsConnEvent::BATS_CONNECTION_DATA_RECEIVED) {
                  out.write(reinterpret_cast<const char*>(data), length);
                  signal.Update([&] { received += static_cast<size_t>(length); });
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
      [&](const IBatsConnPtr& connection, const BatsConnEvent& event, const octet*, int, void*) {
        switch (event) {
          case BatsConnEvent::BATS_CONNECTION_WRITABLE:
            Require(connection->SendFile(source), "the file is accepted");
            break;
          case BatsConnEvent::BATS_CONNECTION_SEND_COMPLETE:
            signal.Update([&] { complete = true; });
            break;
          case BatsConnEvent::BATS_CONNECTION_ALL_DATA_ACKED:
            signal.Update([&] { acknowledged = true; });
            break;
          default:
            break;
        }
        return true;
      },
      nullptr);
  signal.Await([&] { return acknowledged && received == kSize; }, "the file arrives");
  Require(complete, "SEND_COMPLETE came before ALL_DATA_ACKED");
  out.close();
  Require(ReadAll(source) == ReadAll(target), "the copy matches");
  std::remove(source.c_str());
  std::remove(target.c_str());
  std::printf("file: %zu bytes arrived\n", received);
}
