// Tests of signals, log, options, statistics and polling.
#ifndef CONTRACT_SURROUNDINGS_H
#define CONTRACT_SURROUNDINGS_H

#include "pair.h"

static void SignalCallbackRunsOnAnOrdinaryThread() {
  std::mutex mutex;
  int received = 0;
  std::thread::id thread;
  {
    IOContext context;
    context.SetSignalCallback([&](int sig) {
      std::lock_guard<std::mutex> lock(mutex);  // not possible in a handler
      received = sig;
      thread = std::this_thread::get_id();
      // Joining a thread is also allowed.
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
#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer delays signals in a child of fork
  // Without a context the signal has its default action, which a child process shows.
  const auto terminates_a_child = [] {
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
  CHECK(terminates_a_child());
  // So it has after the callback is removed.
  IOContext context;
  std::atomic<int> signals{0};
  context.SetSignalCallback([&](int) { ++signals; });
  CHECK(kill(getpid(), SIGTERM) == 0);
  CHECK(Eventually([&] { return signals == 1; }));
  context.SetSignalCallback(nullptr);
  CHECK(terminates_a_child());
  context.SetSignalCallback(SigCallback());
  CHECK(terminates_a_child() && signals == 1);
#endif
}

static void LogIsWrittenToTheConfiguredPath() {
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

// The log lines of level WARN that a call writes.
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

static void IgnoredOptionsAreLogged() {
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
  const std::string requested = " is not available", encrypted = "encrypted";
  struct Case {
    int mode;
    CongestionControl congestion;
    const char* warning;  // nullptr: none
  };
  const Case cases[] = {
      {0, CongestionControl::GCC, nullptr},
      {1, CongestionControl::None, nullptr},
      {1, CongestionControl::BBRv2, "one BBR for congestion control"},
      {2, CongestionControl::BBRv3, "one BBR for congestion control"},
      {3, CongestionControl::BBR, "has no congestion control: Bbr is not available"},
      {10, CongestionControl::GCC, "the kernel's TCP: Gcc is not available"},
      {11, CongestionControl::BBR, "has no congestion control: Bbr is not available"},
      {12, CongestionControl::None, "CUBIC is used: None is not available"},
      {12, CongestionControl::BBR, nullptr},
  };
  for (const auto& test : cases) {
    auto config = Config(test.mode);
    CHECK(none(connecting(config), requested));
    config.SetCC(test.congestion);
    const auto lines = connecting(config);
    CHECK(test.warning == nullptr ? none(lines, requested) : one(lines, test.warning));
    CHECK(none(lines, encrypted));
    config.EnableEncryption(false);
    const auto off = connecting(config);
    CHECK(test.mode == 11 ? none(off, encrypted) : one(off, "is always encrypted"));
    config.EnableEncryption(true);
    const auto on = connecting(config);
    CHECK(test.mode == 11 ? one(on, "is never encrypted") : none(on, encrypted));
  }
  // Unknown numbers; those of the two interfaces differ.
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
  // Once in the process; another test may have been the first.
  const auto frame_types = Warnings(context, [&] {
    config.SetFrameType(FrameType::BATS_HEADER_V1);
    config.SetFrameType(FrameType::BATS_HEADER_MIN);
  });
  CHECK(count(frame_types, "frame types have no effect") <= 1 && frame_types.size() <= 1);
  CHECK(Warnings(context, [&] {
          config.SetCC(CongestionControl::GCC);
          config.SetFrameType(FrameType::BATS_HEADER_MIN);
        }).empty());
  // Once for a configuration, not for each connection.
  auto repeated = Config(1);
  repeated.EnableEncryption(false);
  CHECK(one(Warnings(context, [&] {
              Recorder first, second;
              BatsProtocol client(context, repeated);
              client.StartConnect("127.0.0.1", hole.Port(), first.Callback(), nullptr);
              client.StartConnect("127.0.0.1", hole.Port(), second.Callback(), nullptr);
            }), "is always encrypted"));
  context.SetBATSLogFilePath("/dev/stderr");
}

// Each connection whose server is not authenticated is logged, with what would pin its certificate.
static void UncheckedCertificatesAreLogged() {
  for (int mode : {0, 1, 2, 3, 10, 11, 12}) {
    IOContext context;
    Recorder far;
    Server server(context, mode, far);
    const auto connecting = [&](const BatsConfiguration& config, int connections) {
      auto lines = Warnings(context, [&] {
        // They outlive the client, whose connections may still call them.
        std::vector<Recorder> recorders(connections);
        BatsProtocol client(context, config);
        for (auto& near : recorders) {
          client.StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
          CHECK(near.Await(E::BATS_CONNECTION_ESTABLISHED));
        }
      });
      lines.erase(std::remove_if(lines.begin(), lines.end(),
                                 [](const std::string& line) {
                                   return line.find("unchecked") == std::string::npos;
                                 }),
                  lines.end());
      return lines;
    };
    auto config = Config(mode);
    const auto lines = connecting(config, 3);
    CHECK(lines.size() == (mode == 11 ? 0 : 3));
    for (const auto& line : lines) {
      CHECK(line.find("127.0.0.1:" + std::to_string(server.Port())) != std::string::npos);
      CHECK(line.find("fingerprint=" + config.GetFingerprint()) != std::string::npos);
    }
    CHECK(config.SetTrustedFingerprint(config.GetFingerprint()));
    CHECK(connecting(config, 1).empty());
    context.SetBATSLogFilePath("/dev/stderr");
  }
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

#endif
