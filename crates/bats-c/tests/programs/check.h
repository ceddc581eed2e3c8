// Helpers of the test programs: checks that abort the program, waiting with a limit, an event
// recorder.
#ifndef CHECK_H
#define CHECK_H

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "include/cpp/bats_protocol.h"

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s (last error: %s)\n", __FILE__, __LINE__, \
                   #condition, openbats_last_error());                                       \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

// Longest wait for any condition, in ms: sanitizers and loaded machines are slow.
constexpr int kLimitMs = 60000;

inline void SleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

template <typename Condition>
bool Eventually(Condition condition, int limit_ms = kLimitMs) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    SleepMs(2);
  }
  return true;
}

struct RecordedEvent {
  BatsConnEvent event;
  int length;
  bool has_data;
  std::thread::id thread;
  void* context;
};

// Records the events and messages of a connection.
class Recorder {
 public:
  Recorder() = default;
  Recorder(const Recorder&) = delete;
  // The last callback may still be running.
  ~Recorder() {
    CHECK(Eventually([this] {
      std::lock_guard<std::mutex> lock(mutex_);
      return !in_callback_;
    }));
  }

  ConnectionCallback Callback() {
    return [this](const IBatsConnPtr& connection, const BatsConnEvent& event, const octet* data,
                  int length, void* context) {
      std::function<void(const IBatsConnPtr&, BatsConnEvent, const octetVec&)> hook;
      octetVec message;
      if (event == BatsConnEvent::BATS_CONNECTION_DATA_RECEIVED && length > 0) {
        message.assign(data, data + length);
      }
      {
        std::lock_guard<std::mutex> lock(mutex_);
        CHECK(!in_callback_);  // callbacks of one connection are serialised
        in_callback_ = true;
        connection_ = connection;
        events_.push_back({event, length, data != nullptr, std::this_thread::get_id(), context});
        if (event == BatsConnEvent::BATS_CONNECTION_DATA_RECEIVED) {
          messages_.push_back(message);
        }
        hook = hook_;
      }
      if (hook) {
        hook(connection, event, message);
      }
      std::lock_guard<std::mutex> lock(mutex_);
      in_callback_ = false;
      return true;
    };
  }

  void OnEvent(std::function<void(const IBatsConnPtr&, BatsConnEvent, const octetVec&)> hook) {
    std::lock_guard<std::mutex> lock(mutex_);
    hook_ = std::move(hook);
  }

  std::vector<RecordedEvent> Events() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }

  int Count(BatsConnEvent event) const {
    int count = 0;
    for (const auto& seen : Events()) {
      count += seen.event == event;
    }
    return count;
  }

  // Index of the first such event, -1 if there is none.
  int IndexOf(BatsConnEvent event) const {
    const auto events = Events();
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].event == event) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  bool Await(BatsConnEvent event, int count = 1) const {
    const bool occurred = Eventually([&] { return Count(event) >= count; });
    if (!occurred) {
      std::fprintf(stderr, "event %d did not occur %d times; events:", static_cast<int>(event), count);
      for (const auto& seen : Events()) {
        std::fprintf(stderr, " %d", static_cast<int>(seen.event));
      }
      std::fprintf(stderr, "\n");
    }
    return occurred;
  }

  std::vector<octetVec> Messages() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return messages_;
  }

  size_t MessageCount() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return messages_.size();
  }

  IBatsConnPtr Connection() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return connection_;
  }

  void ReleaseConnection() {
    std::lock_guard<std::mutex> lock(mutex_);
    connection_.reset();
  }

 private:
  mutable std::mutex mutex_;
  bool in_callback_ = false;
  std::vector<RecordedEvent> events_;
  std::vector<octetVec> messages_;
  IBatsConnPtr connection_;
  std::function<void(const IBatsConnPtr&, BatsConnEvent, const octetVec&)> hook_;
};

inline BatsConfiguration Config(int mode, int timeout_ms = 30000) {
  BatsConfiguration config;
  config.SetMode(static_cast<TransMode>(mode));
  config.SetTimeout(timeout_ms);
  return config;
}

// Listens on loopback; every accepted connection gets the recorder's callback.
class Server {
 public:
  Server(IOContext& context, int mode, Recorder& recorder, int timeout_ms = 30000,
         uint16_t port = 0)
      : Server(context, Config(mode, timeout_ms), recorder, port) {}

  Server(IOContext& context, const BatsConfiguration& config, Recorder& recorder,
         uint16_t port = 0)
      : protocol_(std::make_unique<BatsProtocol>(context, config)) {
    protocol_->StartListen(
        "127.0.0.1", port,
        [this, &recorder](const IBatsConnPtr& connection, const BatsListenEvent& event, void*) {
          switch (event) {
            case BatsListenEvent::BATS_LISTEN_SUCCESS:
              CHECK(connection == nullptr);
              ready_ = true;
              break;
            case BatsListenEvent::BATS_LISTEN_NEW_CONNECTION:
              CHECK(connection != nullptr);
              connection->SetConnectionCallback(recorder.Callback(), nullptr);
              ++accepted_;
              break;
            default:
              break;
          }
        },
        nullptr);
    CHECK(Eventually([this] { return ready_.load(); }));
  }

  uint16_t Port() const { return protocol_->GetListenPort(); }
  int Accepted() const { return accepted_; }
  BatsProtocol& Protocol() { return *protocol_; }
  void Destroy() { protocol_.reset(); }

 private:
  std::atomic<bool> ready_{false};
  std::atomic<int> accepted_{0};
  std::unique_ptr<BatsProtocol> protocol_;
};

inline octetVec Content(size_t length, unsigned seed) {
  octetVec data(length);
  unsigned x = seed * 2654435761u + 1;
  for (auto& value : data) {
    x = x * 1664525u + 1013904223u;
    value = static_cast<octet>(x >> 24);
  }
  return data;
}

// Sends a message, waiting for send-buffer space.
inline bool Send(const IBatsConnPtr& connection, const octetVec& message) {
  return Eventually([&] { return connection->SendData(message); });
}

// Binds a port like another program. Returns false if the port is in use.
inline bool CanBind(int type, uint16_t port) {
  const int fd = socket(AF_INET, type, 0);
  CHECK(fd >= 0);
  if (type == SOCK_STREAM) {
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  const bool listens = type != SOCK_STREAM || !bound || listen(fd, 1) == 0;
  close(fd);
  return bound && listens;
}

// A UDP socket that receives datagrams and never answers.
class BlackHole {
 public:
  BlackHole() : fd_(socket(AF_INET, SOCK_DGRAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    CHECK(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  BlackHole(const BlackHole&) = delete;
  ~BlackHole() { close(fd_); }
  uint16_t Port() const { return port_; }

 private:
  int fd_;
  uint16_t port_;
};

// Number of entries in a directory of /proc/self: threads or open files.
inline int CountEntries(const char* path) {
  DIR* directory = opendir(path);
  CHECK(directory != nullptr);
  int count = 0;
  while (const dirent* entry = readdir(directory)) {
    count += entry->d_name[0] != '.';
  }
  closedir(directory);
  return count;
}
inline int Threads() { return CountEntries("/proc/self/task"); }
inline int Files() { return CountEntries("/proc/self/fd"); }

#endif
