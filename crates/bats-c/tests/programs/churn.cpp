// Connections opened and closed in every mode leave nothing behind: churn [count] [before], where
// as many of each mode go before the first look.

#include <malloc.h>

#include "check.h"

using E = BatsConnEvent;

// Memory of the process in kB, without what the allocator keeps of what was freed: that depends on how
// threads happened to follow each other.
static long Resident() {
  malloc_trim(0);
  FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK(file != nullptr);
  long total = 0, resident = 0;
  CHECK(std::fscanf(file, "%ld %ld", &total, &resident) == 2);
  std::fclose(file);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static const int kModes[] = {0, 1, 2, 3, 10, 11, 12};

static void Rounds(int mode, int count) {
  std::atomic<int> ended{0}, accepted{0};
  IOContext context;
  BatsConfiguration config = Config(mode);
  // Over plain UDP a server notices the end of a connection by the silence.
  if (mode == 11) config.SetTimeout(500);
  // A busy machine must not make a message too old.
  config.SetDeadline(30000);
  BatsProtocol server(context, config);
  std::atomic<bool> ready{false};
  server.StartListen(
      "127.0.0.1", 0,
      [&](const IBatsConnPtr& connection, const BatsListenEvent& event, void*) {
        if (event == BatsListenEvent::BATS_LISTEN_SUCCESS) ready = true;
        if (!connection) return;
        ++accepted;
        connection->SetConnectionCallback(
            [&](const IBatsConnPtr& c, const E& e, const byte* data, int length, void*) {
              if (e == E::BATS_CONNECTION_DATA_RECEIVED) CHECK(c->SendData(data, length));
              ended += e == E::BATS_CONNECTION_SHUTDOWN_BY_PEER || e == E::BATS_CONNECTION_CLOSED;
              return true;
            },
            nullptr);
      },
      nullptr);
  CHECK(Eventually([&] { return ready.load(); }));
  BatsProtocol client(context, config);
  std::atomic<int> closed{0};
  for (int i = 0; i < count; ++i) {
    client.StartConnect(
        "127.0.0.1", server.GetListenPort(),
        [&](const IBatsConnPtr& c, const E& e, const byte*, int length, void*) {
          if (e == E::BATS_CONNECTION_WRITABLE) CHECK(c->SendData(Content(700, 1)));
          if (e == E::BATS_CONNECTION_DATA_RECEIVED) {
            CHECK(length == 700);
            client.StopConnection(c);
          }
          closed += e == E::BATS_CONNECTION_CLOSED;
          CHECK(e != E::BATS_CONNECTION_FAILED);
          return true;
        },
        nullptr);
    // Some at the same time, not all.
    CHECK(Eventually([&] { return i - closed < 20; }));
  }
  // A client's port that comes again within the time-out is the same peer over plain UDP.
  CHECK(Eventually([&] {
    return closed == count && ended == accepted && (accepted == count || mode == 11);
  }));
}

static void AllModes(int count) {
  for (int mode : kModes) Rounds(mode, count);
}

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int threads = Threads();  // a sanitizer has one of its own
  const int before_first = argc > 2 ? std::atoi(argv[2]) : 30;
  AllModes(before_first);
  CHECK(Eventually([&] { return Threads() == threads; }));
  const int files = Files();
  const long before = Resident();
  AllModes((count + 6) / 7);
  CHECK(Eventually([&] { return Threads() == threads; }));
  CHECK(Files() == files);
  const long after = Resident();
  std::printf("%d connections; %d files, %d threads; %ld kB before, %ld kB after\n", count, files,
              threads, before, after);
  std::fflush(stdout);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // The allocator keeps some; a leak of a connection's state would be several kB each. (A
  // sanitizer keeps what was freed, and looks for leaks itself.)
  CHECK(after - before < 8192 + count / 4);
#endif
  return 0;
}
