// Random calls of the interface from several threads: stress [threads] [seconds] [seed].

#include <random>

#include "check.h"

using E = BatsConnEvent;

static std::atomic<long> calls{0}, events{0}, messages{0};

// Objects of one thread; its callbacks call back in.
struct World {
  IOContext context;
  std::mutex mutex;
  std::vector<IBatsConnPtr> connections;
  std::vector<std::unique_ptr<BatsProtocol>> protocols;

  void Keep(const IBatsConnPtr& connection) {
    std::lock_guard<std::mutex> lock(mutex);
    if (connections.size() < 16) connections.push_back(connection);
  }

  IBatsConnPtr Some(std::mt19937& random) {
    std::lock_guard<std::mutex> lock(mutex);
    return connections.empty() ? nullptr : connections[random() % connections.size()];
  }
};

static ConnectionCallback Callback(World& world) {
  return [&world](const IBatsConnPtr& connection, const E& event, const octet* data, int length,
                  void* context) {
    ++events;
    CHECK(connection != nullptr);
    CHECK(context == &world);
    switch (event) {
      case E::BATS_CONNECTION_WRITABLE:
        world.Keep(connection);
        connection->SendData(octetVec(500, 7));
        break;
      case E::BATS_CONNECTION_DATA_RECEIVED:
        // A port of plain UDP also hears clients that speak another mode.
        if (length != 500 || data[0] != 7) return true;
        ++messages;
        CHECK(data[499] == 7);
        if (messages % 7 == 0) connection->SendData(data, length);
        if (messages % 13 == 0) connection->SetConnectionCallback(Callback(world), &world);
        connection->GetRemoteAddress();
        connection->IsWritable();
        break;
      default:
        CHECK(length == 0 || event == E::BATS_CONNECTION_IDEAL_BUFFER_LENGTH);
        break;
    }
    return true;
  };
}

static void Listen(World& world, BatsProtocol& protocol) {
  protocol.StartListen(
      "127.0.0.1", 0,
      [&world](const IBatsConnPtr& connection, const BatsListenEvent& event, void*) {
        ++events;
        if (event == BatsListenEvent::BATS_LISTEN_NEW_CONNECTION) {
          connection->SetConnectionCallback(Callback(world), &world);
        }
      },
      nullptr);
}

// Ports that someone listens at, now or before.
static std::atomic<uint16_t> ports[16];

static void Run(unsigned seed, std::chrono::steady_clock::time_point end) {
  std::mt19937 random(seed);
  while (std::chrono::steady_clock::now() < end) {
    World world;
    for (int step = 0; step < 300 && std::chrono::steady_clock::now() < end; ++step) {
      ++calls;
      const int modes[] = {1, 1, 1, 10, 11};
      const int mode = modes[random() % 5];
      auto* protocol = world.protocols.empty()
                           ? nullptr
                           : world.protocols[random() % world.protocols.size()].get();
      switch (random() % 12) {
        case 0:
          if (world.protocols.size() < 4) {
            world.protocols.push_back(
                std::make_unique<BatsProtocol>(world.context, Config(mode, 2000)));
          }
          break;
        case 1:
          if (protocol) Listen(world, *protocol);
          break;
        case 2:
          if (protocol) {
            ports[random() % 16] = protocol->GetListenPort();
            if (random() % 4 == 0) protocol->StopListen();
          }
          break;
        case 3:
        case 4: {
          const uint16_t port = ports[random() % 16];
          if (protocol && port != 0) {
            protocol->StartConnect("127.0.0.1", port, Callback(world), &world);
          }
          break;
        }
        case 5:
          if (protocol) protocol->StopConnection(world.Some(random));
          break;
        case 6:
          if (!world.protocols.empty() && random() % 4 == 0) {
            world.protocols.erase(world.protocols.begin() +
                                  static_cast<long>(random() % world.protocols.size()));
          }
          break;
        case 7:
          if (protocol) protocol->LoadConfig(Config(mode, 2000));
          break;
        case 8: {
          std::lock_guard<std::mutex> lock(world.mutex);
          if (!world.connections.empty()) world.connections.pop_back();
          break;
        }
        case 9:
          SleepMs(static_cast<int>(random() % 5));
          break;
        default:
          if (const auto connection = world.Some(random)) {
            connection->SendData(octetVec(500, 7));
            openbats::GetStats(connection);
            openbats::GetError(connection);
          }
          break;
      }
    }
    // Half of the time in the usual order, otherwise the objects fall with the world.
    if (random() % 2 == 0) world.protocols.clear();
  }
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 8;
  const int seconds = argc > 2 ? std::atoi(argv[2]) : 3;
  const unsigned seed = argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 1;
  {
    IOContext context;
    context.SetBATSLogLevel(BATSLogLevel::LOG_ERROR);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back(Run, seed * 1000 + static_cast<unsigned>(i), end);
  }
  for (auto& thread : running) thread.join();
  std::printf("%ld calls, %ld events, %ld messages\n", calls.load(), events.load(),
              messages.load());
  // Under valgrind everything takes fifty times as long.
  const bool slow = argc > 4 && std::strcmp(argv[4], "slow") == 0;
  CHECK(calls > (slow ? 10 : 100) && events > (slow ? 1 : 10) && (slow || messages > 10));
  return 0;
}
