// Tests that connections opened and closed in every mode leak no threads, files or memory:
// churn [count] [warmup]. `warmup` connections of each mode precede the first measurement.

#include <malloc.h>

#include "check.h"

using E = BatsConnEvent;

// Resident memory of the process in kB, without freed memory that the allocator keeps: that depends on
// thread scheduling.
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
  // Over plain UDP a server detects the end of a connection by the idle timeout.
  if (mode == 11) config.SetTimeout(500);
  // No message may expire on a loaded machine.
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
            [&](const IBatsConnPtr& c, const E& e, const octet* data, int length, void*) {
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
        [&](const IBatsConnPtr& c, const E& e, const octet*, int length, void*) {
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
    // At most 20 connections at the same time.
    CHECK(Eventually([&] { return i - closed < 20; }));
  }
  // Over plain UDP a client port that is reused within the timeout is the same peer.
  CHECK(Eventually([&] {
    return closed == count && ended == accepted && (accepted == count || mode == 11);
  }));
}

static void AllModes(int count) {
  for (int mode : kModes) Rounds(mode, count);
}

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int threads = Threads();  // includes one of a sanitizer
  const int warmup = argc > 2 ? std::atoi(argv[2]) : 30;
  AllModes(warmup);
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
  // The allocator keeps some memory; leaked connection state would be several kB each. (Sanitizers
  // keep freed memory, and detect leaks themselves.)
  CHECK(after - before < 8192 + count / 4);
#endif
  return 0;
}
