// Connections, with the names of the original SDK.
// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef OPENBATS_BATS_CONNECTION_H
#define OPENBATS_BATS_CONNECTION_H

#include <atomic>
#include <cassert>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bats_config.h"

class IBatsConnection;

// Shared by the library, until the connection's end, and by all copies.
using IBatsConnPtr = std::shared_ptr<IBatsConnection>;

// data is valid only during the call; return true when it is processed or copied. An exception that
// leaves a callback terminates the program.
using ConnectionCallback = std::function<bool(const IBatsConnPtr&, const BatsConnEvent&,
                                              const octet* data, int length, void* context)>;
using ListenCallback =
    std::function<void(const IBatsConnPtr&, const BatsListenEvent&, void* context)>;

class IBatsConnection {
 public:
  virtual ~IBatsConnection() = default;

  // Can be called from any thread, also from a callback of the same connection.
  virtual void SetConnectionCallback(const ConnectionCallback& callback, void* context) = 0;
  virtual void SetConnectionCallback(ConnectionCallback&& callback, void* context) = 0;

  // Sends one message, which is copied before this returns. Returns false if the connection is closed
  // or not yet established, or the send buffer is full; in the last case BUFFER_FULL and later
  // WRITABLE follow. In mode 11 at most 65507 bytes; messages longer than the ideal length are sent
  // as IP fragments.
  virtual bool SendData(const octetVec& data) = 0;
  virtual bool SendData(const octet* data, int length) = 0;

  // Reliable modes: sends the content of a file as messages; SEND_COMPLETE and ALL_DATA_ACKED follow.
  virtual bool SendFile(const std::string& path) = 0;

  virtual bool IsWritable() = 0;

  virtual const std::string GetRemoteAddress() const = 0;
  virtual const std::string GetLocalAddress() const = 0;
  virtual uint16_t GetRemotePort() const = 0;
  virtual uint16_t GetLocalPort() const = 0;

  // The optimal size of a message in bytes: more than 361, at most 150000.
  virtual uint32_t GetIdealBufferLength() const = 0;

  // Not in the original. The handle of a connection of this library. A program's own class does not
  // override it: functions that take an IBatsConnPtr refuse its objects.
  virtual bats_connection_handle_t OpenbatsHandle() const {
    return reinterpret_cast<bats_connection_handle_t>(UINTPTR_MAX);
  }
};

// ThreadSanitizer does not see the locks of the library; these calls declare the resulting order.
#if defined(__SANITIZE_THREAD__)
#define OPENBATS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OPENBATS_TSAN 1
#endif
#endif

#ifdef OPENBATS_TSAN
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace openbats {
namespace detail {

#ifdef OPENBATS_TSAN
inline void* Order() {
  static char order;
  return &order;
}
inline void Acquire() { __tsan_acquire(Order()); }
inline void Release() { __tsan_release(Order()); }
#else
inline void Acquire() {}
inline void Release() {}
#endif

// Guard for a call into the library or a callback from it.
struct Ordered {
  Ordered() { Acquire(); }
  ~Ordered() { Release(); }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;
};

struct ConnectionHolder {
  ConnectionCallback callback;
  void* context;
};

inline bool OnConnection(bats_connection_handle_t handle, bats_conn_event_t event,
                         const unsigned char* data, int length, void* user) noexcept;

inline void DropConnectionHolder(void* user) noexcept {
  Acquire();
  delete static_cast<ConnectionHolder*>(user);
  Release();
}

class Connection final : public IBatsConnection {
 public:
  explicit Connection(bats_connection_handle_t handle) : handle_(handle) {
    openbats_connection_retain(handle_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override { openbats_connection_release(handle_); }

  void SetConnectionCallback(const ConnectionCallback& callback, void* context) override {
    SetConnectionCallback(ConnectionCallback(callback), context);
  }

  void SetConnectionCallback(ConnectionCallback&& callback, void* context) override {
    auto* holder = new ConnectionHolder{std::move(callback), context};
    Release();
    openbats_connection_set_callback(handle_, OnConnection, holder, DropConnectionHolder);
  }

  bool SendData(const octetVec& data) override {
    // The C interface takes an int; the library's own limit is far lower.
    return data.size() <= static_cast<size_t>(INT32_MAX) &&
           SendData(data.data(), static_cast<int>(data.size()));
  }

  bool SendData(const octet* data, int length) override {
    Release();
    return bats_connection_send_data(handle_, data, length) == bats_error_none;
  }

  bool SendFile(const std::string& path) override {
    return bats_connection_send_file(handle_, path.c_str()) == bats_error_none;
  }

  bool IsWritable() override { return bats_connection_is_writable(handle_) != 0; }

  const std::string GetRemoteAddress() const override {
    return Text(openbats_connection_remote_address, handle_);
  }
  const std::string GetLocalAddress() const override {
    return Text(openbats_connection_local_address, handle_);
  }
  uint16_t GetRemotePort() const override { return openbats_connection_remote_port(handle_); }
  uint16_t GetLocalPort() const override { return openbats_connection_local_port(handle_); }

  uint32_t GetIdealBufferLength() const override {
    return static_cast<uint32_t>(bats_connection_get_ideal_buffer_length(handle_));
  }

  bats_connection_handle_t OpenbatsHandle() const override { return handle_; }

  // Returns the unique object of a connection. Call it only in callbacks.
  static IBatsConnPtr Of(bats_connection_handle_t handle) {
    if (handle == nullptr) {
      return nullptr;
    }
    auto* attached = static_cast<IBatsConnPtr*>(openbats_connection_attachment(handle));
    if (attached != nullptr) {
      return *attached;
    }
    auto made = std::make_shared<Connection>(handle);
    openbats_connection_attach(handle, new IBatsConnPtr(made), [](void* object) noexcept {
      Acquire();
      delete static_cast<IBatsConnPtr*>(object);
      Release();
    });
    return made;
  }

 private:
  const bats_connection_handle_t handle_;
};

inline bool OnConnection(bats_connection_handle_t handle, bats_conn_event_t event,
                         const unsigned char* data, int length, void* user) noexcept {
  Ordered ordered;
  const auto* holder = static_cast<ConnectionHolder*>(user);
  if (!holder->callback) {
    return true;
  }
  const auto name = static_cast<BatsConnEvent>(event);
  return holder->callback(Connection::Of(handle), name, data, length, holder->context);
}

struct ListenHolder {
  ListenCallback callback;
  void* context;
};

inline void OnListen(bats_connection_handle_t handle, bats_listen_event_t event,
                     void* user) noexcept {
  Ordered ordered;
  const auto* holder = static_cast<ListenHolder*>(user);
  if (holder->callback) {
    const auto name = static_cast<BatsListenEvent>(event);
    holder->callback(Connection::Of(handle), name, holder->context);
  }
}

inline void DropListenHolder(void* user) noexcept {
  Acquire();
  delete static_cast<ListenHolder*>(user);
  Release();
}

inline bats_connection_handle_t HandleOf(const IBatsConnPtr& connection) {
  return connection ? connection->OpenbatsHandle() : nullptr;
}

}  // namespace detail

using Stats = openbats_stats_t;

// Statistics of a connection; after its end the last ones. All zero if there are none.
inline Stats GetStats(const IBatsConnPtr& connection) {
  Stats stats{};
  stats.size = sizeof stats;
  if (openbats_connection_stats(detail::HandleOf(connection), &stats) != bats_error_none) {
    stats = Stats{};
  }
  return stats;
}

// SendData with a deadline of 1 to 3600000 ms. Modes 0 and 3, and datagrams of mode 12, neither start
// to send nor repair an expired message. Other modes deliver all messages, even late ones.
inline bool SendWithin(const IBatsConnPtr& connection, const octet* data, int length,
                       int milliseconds) {
  detail::Release();
  return openbats_connection_send_within(detail::HandleOf(connection), data, length,
                                         milliseconds) == bats_error_none;
}

// Whether messages are compressed: both ends enabled it.
inline bool IsCompressed(const IBatsConnPtr& connection) {
  return openbats_connection_is_compressed(detail::HandleOf(connection)) != 0;
}

// The SHA-256 fingerprint of the peer's certificate; empty if the peer presented none.
inline std::string GetPeerFingerprint(const IBatsConnPtr& connection) {
  return detail::Text(openbats_connection_peer_fingerprint, detail::HandleOf(connection));
}

// The reason why a connection failed or ended.
inline std::string GetError(const IBatsConnPtr& connection) {
  return detail::Text(openbats_connection_error, detail::HandleOf(connection));
}

enum class ChannelEvent {
  kOpened = openbats_channel_event_opened,
  kData = openbats_channel_event_data,
  kEnd = openbats_channel_event_end,
  kReset = openbats_channel_event_reset,
  kStopped = openbats_channel_event_stopped,
  kWritable = openbats_channel_event_writable
};

class Channel;
// The channel is closed when its last copy is dropped: keep one while events are wanted.
using ChannelPtr = std::shared_ptr<Channel>;

// data is valid only during the call; code is 0 except for kReset and kStopped.
using ChannelCallback = std::function<void(const ChannelPtr&, ChannelEvent, const octet* data,
                                           size_t length, uint64_t code)>;

// A stream of bytes in each direction within a connection of mode 1 or 2, with an order, flow control and
// an end of its own. openbats.h describes its events and calls. Usable from several threads.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // Opens a channel; null on an error. Needs BatsConfiguration::SetChannels at both ends.
  static ChannelPtr Open(const IBatsConnPtr& connection, ChannelCallback callback) {
    ChannelPtr channel(new Channel(nullptr));
    auto* holder = new Holder{channel, std::move(callback)};
    detail::Release();
    const auto handle = openbats_channel_open(detail::HandleOf(connection), OnEvent, holder, Drop);
    channel->handle_ = handle;
    return handle == nullptr ? nullptr : channel;
  }

  // Accepts the channels that the peer opens. The callback keeps a copy of each that it wants and calls
  // SetCallback; channels without a callback are closed when it returns.
  static bool Accept(const IBatsConnPtr& connection, std::function<void(const ChannelPtr&)> callback) {
    auto* acceptor = new Acceptor(std::move(callback));
    detail::Release();
    return openbats_connection_accept_channels(
               detail::HandleOf(connection),
               [](bats_connection_handle_t, openbats_channel_handle_t handle, void* user) noexcept {
                 detail::Ordered ordered;
                 (*static_cast<Acceptor*>(user))(ChannelPtr(new Channel(handle)));
               },
               acceptor,
               [](void* user) noexcept {
                 detail::Acquire();
                 delete static_cast<Acceptor*>(user);
                 detail::Release();
               }) == bats_error_none;
  }

  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() { Close(); }

  bool SetCallback(ChannelCallback callback) {
    auto* holder = new Holder{weak_from_this(), std::move(callback)};
    detail::Release();
    return openbats_channel_set_callback(handle_, OnEvent, holder, Drop) == bats_error_none;
  }

  // The number of bytes queued, or -1 on an error. If it is less than length, kWritable follows.
  ptrdiff_t Write(const octet* data, size_t length) {
    detail::Release();
    return openbats_channel_write(handle_, data, length);
  }

  bool Finish() { return openbats_channel_finish(handle_) == bats_error_none; }
  bool Reset(uint64_t code) { return openbats_channel_reset(handle_, code) == bats_error_none; }
  bool Stop(uint64_t code) { return openbats_channel_stop(handle_, code) == bats_error_none; }
  bool Pause(bool pause) { return openbats_channel_pause(handle_, pause) == bats_error_none; }
  bool SetWeight(int weight) {
    return openbats_channel_set_weight(handle_, weight) == bats_error_none;
  }
  uint64_t Id() const { return openbats_channel_id(handle_); }

  // When this returns, no callback of the channel runs except one that the caller is in.
  void Close() {
    if (handle_ != nullptr) openbats_channel_close(handle_);
  }

 private:
  using Acceptor = std::function<void(const ChannelPtr&)>;

  struct Holder {
    std::weak_ptr<Channel> channel;
    ChannelCallback callback;
  };

  explicit Channel(openbats_channel_handle_t handle) : handle_(handle) {}

  static void OnEvent(openbats_channel_handle_t handle, openbats_channel_event_t event,
                      const unsigned char* data, size_t length, uint64_t code,
                      void* user) noexcept {
    detail::Ordered ordered;
    const auto* holder = static_cast<Holder*>(user);
    const auto channel = holder->channel.lock();
    if (channel && holder->callback) {
      channel->handle_ = handle;
      holder->callback(channel, static_cast<ChannelEvent>(event), data, length, code);
    }
  }

  static void Drop(void* user) noexcept {
    detail::Acquire();
    delete static_cast<Holder*>(user);
    detail::Release();
  }

  // Events may come before Open returns.
  std::atomic<openbats_channel_handle_t> handle_;
};

}  // namespace openbats

#endif
