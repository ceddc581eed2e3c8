// Many connections at once from one address: from one object, or each from an object of its own.
// At most 1000 are being established at a time. Arguments: mode, number of connections, number of client objects.

#include <sys/resource.h>

#include "check.h"

using E = BatsConnEvent;

int main(int argc, char** argv) {
  CHECK(argc == 4);
  const int mode = std::atoi(argv[1]), count = std::atoi(argv[2]), objects = std::atoi(argv[3]);
  rlimit files{};
  CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);

  IOContext server_context, context;
  std::atomic<int> received{0}, established{0}, failed{0};
  BatsProtocol server(server_context, Config(mode, 900000));
  std::atomic<bool> listening{false};
  server.StartListen(
      "127.0.0.1", 0,
      [&](const IBatsConnPtr& connection, const BatsListenEvent& event, void*) {
        if (event == BatsListenEvent::BATS_LISTEN_SUCCESS) listening = true;
        if (event != BatsListenEvent::BATS_LISTEN_NEW_CONNECTION) return;
        connection->SetConnectionCallback(
            [&](const IBatsConnPtr&, const E& what, const octet*, int, void*) {
              received += what == E::BATS_CONNECTION_DATA_RECEIVED;
              return true;
            },
            nullptr);
      },
      nullptr);
  CHECK(Eventually([&] { return listening.load(); }));

  std::vector<std::unique_ptr<BatsProtocol>> clients;
  for (int i = 0; i < objects; ++i) {
    clients.push_back(std::make_unique<BatsProtocol>(context, Config(mode, 900000)));
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    // The burst; more connections follow as others are established.
    CHECK(Eventually([&] { return i - established < 1000 || failed > 0; }, 600000));
    clients[static_cast<size_t>(i % objects)]->StartConnect(
        "127.0.0.1", server.GetListenPort(),
        [&](const IBatsConnPtr& connection, const E& event, const octet*, int, void*) {
          if (event == E::BATS_CONNECTION_ESTABLISHED) {
            ++established;
            CHECK(connection->SendData(Content(100, 1)));
          }
          failed += event == E::BATS_CONNECTION_FAILED || event == E::BATS_CONNECTION_CLOSED ||
                    event == E::BATS_CONNECTION_SHUTDOWN_BY_PEER;
          if (event == E::BATS_CONNECTION_FAILED && failed <= 5) {
            std::fprintf(stderr, "failed: %s\n", openbats::GetError(connection).c_str());
          }
          return true;
        },
        nullptr);
  }
  const bool all = Eventually([&] { return received == count || failed > 0; }, 600000);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  std::printf("mode %d: %d of %d established, %d failed, in %lld ms, %d threads, %d files\n", mode,
              established.load(), count, failed.load(), static_cast<long long>(took.count()),
              Threads(), Files());
  CHECK(all && received == count && established == count && failed == 0);
  // The main thread, and for each context one for callbacks and at most four for I/O.
  CHECK(Threads() <= 1 + 2 * (1 + 4));
  return 0;
}
