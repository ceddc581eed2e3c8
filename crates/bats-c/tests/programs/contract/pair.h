// Helpers of the contract tests.
#ifndef CONTRACT_PAIR_H
#define CONTRACT_PAIR_H

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>

#include "../check.h"

using E = BatsConnEvent;
using L = BatsListenEvent;

// Reliable modes, and mode numbers that do not exist.
static const int kModes[] = {1, 2, 10, 12};
static const int kMissing[] = {4, 13, 200};

// A connected pair; each end has its own thread.
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

#endif
