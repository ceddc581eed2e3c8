// Stress test: random calls of the interface from several threads, in every mode:
// stress [threads] [seconds] [seed] [slow].

#include <algorithm>
#include <iterator>
#include <random>

#include "check.h"

using E = BatsConnEvent;

static const int kModes[] = {0, 1, 2, 3, 10, 11, 12};
constexpr int kModeCount = 7;

static std::atomic<long> calls{0}, events{0}, messages{0};
// Messages received by mode.
static std::atomic<long> messages_by_mode[kModeCount];
// Set under valgrind, which is about fifty times slower.
static bool is_slow = false;

// A protocol object.
struct Object {
  std::unique_ptr<BatsProtocol> protocol;
  // Index of the mode of its next connections and listeners.
  int mode;
  // Index of the mode of its listener.
  int listen_mode;
};

// The objects of one thread. Its callbacks call the library, too.
struct World {
  IOContext context;
  std::mutex mutex;
  std::vector<IBatsConnPtr> connections;
  std::vector<Object> objects;

  void Keep(const IBatsConnPtr& connection) {
    std::lock_guard<std::mutex> lock(mutex);
    if (connections.size() < 16) connections.push_back(connection);
  }

  IBatsConnPtr Some(std::mt19937& random) {
    std::lock_guard<std::mutex> lock(mutex);
    return connections.empty() ? nullptr : connections[random() % connections.size()];
  }
};

static ConnectionCallback Callback(World& world, int mode) {
  return [&world, mode](const IBatsConnPtr& connection, const E& event, const octet* data, int length,
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
        // A plain UDP port also receives datagrams of clients in other modes.
        if (length != 500 || data[0] != 7) return true;
        ++messages;
        ++messages_by_mode[mode];
        CHECK(data[499] == 7);
        if (messages % 7 == 0) connection->SendData(data, length);
        if (messages % 13 == 0) connection->SetConnectionCallback(Callback(world, mode), &world);
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

static void Listen(World& world, Object& object) {
  object.listen_mode = object.mode;
  const int mode = object.mode;
  object.protocol->StartListen(
      "127.0.0.1", 0,
      [&world, mode](const IBatsConnPtr& connection, const BatsListenEvent& event, void*) {
        ++events;
        if (event == BatsListenEvent::BATS_LISTEN_NEW_CONNECTION) {
          connection->SetConnectionCallback(Callback(world, mode), &world);
        }
      },
      nullptr);
}

// Present or former listening ports, with the index of the mode in the upper 16 bits.
static std::atomic<uint32_t> listeners[8];

// Whether every mode has delivered messages. On a loaded machine the test continues until then, but at
// most a minute longer.
static bool IsDone() {
  return messages > 10 && std::all_of(std::begin(messages_by_mode), std::end(messages_by_mode),
                                      [](const std::atomic<long>& count) { return count > 0; });
}

static void Run(unsigned seed, int home, std::chrono::steady_clock::time_point end) {
  std::mt19937 random(seed);
  const auto limit = end + std::chrono::milliseconds(kLimitMs);
  const auto is_running = [&] {
    const auto now = std::chrono::steady_clock::now();
    return now < end || (now < limit && !is_slow && !IsDone());
  };
  while (is_running()) {
    World world;
    for (int step = 0; step < 600 && is_running(); ++step) {
      ++calls;
      // Half of a thread's calls use a mode of its own, so that every mode is tested.
      const int mode = static_cast<int>(random() % 2 == 0 ? static_cast<unsigned>(home)
                                                          : random() % kModeCount);
      auto* object =
          world.objects.empty() ? nullptr : &world.objects[random() % world.objects.size()];
      const auto change = [&](int to) {
        object->protocol->LoadConfig(Config(kModes[to], 2000));
        object->mode = to;
      };
      switch (random() % 12) {
        case 0:
          if (world.objects.size() < 4) {
            auto protocol = std::make_unique<BatsProtocol>(world.context, Config(kModes[mode], 2000));
            world.objects.push_back({std::move(protocol), mode, mode});
          }
          break;
        case 1:
          if (object) Listen(world, *object);
          break;
        case 2:
          if (object) {
            const uint32_t port = object->protocol->GetListenPort();
            if (port != 0) {
              listeners[random() % 8] = static_cast<uint32_t>(object->listen_mode) << 16 | port;
            }
            if (random() % 4 == 0) object->protocol->StopListen();
          }
          break;
        case 3:
        case 4: {
          uint32_t listener = listeners[random() % 8];
          // Half of the time a listener of this thread, which certainly exists.
          if (object && random() % 2 == 0) {
            const auto& own = world.objects[random() % world.objects.size()];
            const uint32_t port = own.protocol->GetListenPort();
            if (port != 0) listener = static_cast<uint32_t>(own.listen_mode) << 16 | port;
          }
          if (object && listener != 0) {
            // Sometimes in another mode than the listener's.
            if (random() % 8 != 0) change(static_cast<int>(listener >> 16));
            object->protocol->StartConnect("127.0.0.1", static_cast<uint16_t>(listener & 0xffff),
                                           Callback(world, object->mode), &world);
          }
          break;
        }
        case 5:
          if (object) object->protocol->StopConnection(world.Some(random));
          break;
        case 6:
          if (!world.objects.empty() && random() % 4 == 0) {
            world.objects.erase(world.objects.begin() +
                                static_cast<long>(random() % world.objects.size()));
          }
          break;
        case 7:
          if (object) change(mode);
          break;
        case 8: {
          std::lock_guard<std::mutex> lock(world.mutex);
          if (!world.connections.empty()) world.connections.pop_back();
          break;
        }
        case 9:
          SleepMs(static_cast<int>(random() % 10));
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
    // Half of the time destroy the objects first; otherwise they are destroyed with `world`.
    if (random() % 2 == 0) world.objects.clear();
  }
}

int main(int argc, char** argv) {
  is_slow = argc > 4 && std::strcmp(argv[4], "slow") == 0;
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
    running.emplace_back(Run, seed * 1000 + static_cast<unsigned>(i), i % kModeCount, end);
  }
  for (auto& thread : running) thread.join();
  std::printf("%ld calls, %ld events, %ld messages; by mode:", calls.load(), events.load(),
              messages.load());
  for (int i = 0; i < kModeCount; ++i) std::printf(" %d: %ld", kModes[i], messages_by_mode[i].load());
  std::printf("\n");
  CHECK(calls > 10 && events > 1);
  CHECK(is_slow || IsDone());
  return 0;
}
