// Clients accept any certificate of a server, as in the original SDK, and log a warning at each such
// connection, unless the configuration sets SetKnownHosts (trust on first use), SetTrustedFingerprint or
// SetTrustedAuthorities.
//
// Objects that create connections, with the names of the original SDK.
// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef OPENBATS_BATS_PROTOCOL_H
#define OPENBATS_BATS_PROTOCOL_H

#include <cassert>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bats_config.h"
#include "bats_connection.h"
#include "bats_iocontext.h"

class ProtoImpl {
 public:
  explicit ProtoImpl(bats_protocol_handle_t protocol) : handle(protocol) {}
  ProtoImpl(const ProtoImpl&) = delete;
  ProtoImpl& operator=(const ProtoImpl&) = delete;
  ~ProtoImpl() { bats_protocol_destroy(handle); }

  const bats_protocol_handle_t handle;
};

using ProtoImplPtr = std::shared_ptr<ProtoImpl>;

// Creates connections and owns them. The destructor closes them, frees the ports, and waits for a
// callback that runs on another thread; none runs afterwards. Deadlock: if callbacks of two objects on
// two contexts destroy each other's object at the same time, both wait forever.
class BatsProtocol {
 public:
  explicit BatsProtocol(IOContext& context)
      : impl_(std::make_shared<ProtoImpl>(
            bats_protocol_create(context.GetImpl().handle, BatsConfiguration().GetImpl().handle))),
        io_context_(context) {}

  BatsProtocol(IOContext& context, const BatsConfiguration& config)
      : impl_(std::make_shared<ProtoImpl>(
            bats_protocol_create(context.GetImpl().handle, config.GetImpl().handle))),
        io_context_(context) {}

  // Copies share one object, which the destructor of the last one destroys.
  BatsProtocol(const BatsProtocol&) = default;
  BatsProtocol& operator=(const BatsProtocol&) = delete;

  virtual ~BatsProtocol() {
    openbats::detail::Release();
    impl_.reset();
    openbats::detail::Acquire();
  }

  // Applies to later connections and listeners; existing ones keep their configuration.
  bool LoadConfig(const BatsConfiguration& config) {
    return openbats_protocol_load_config(impl_->handle, config.GetImpl().handle) ==
           bats_error_none;
  }

  // Accepts any certificate of the server, with a warning in the log, unless the configuration says whom
  // to trust. Each call creates a connection. The result is an event; an immediate error calls FAILED on the
  // caller's thread.
  void StartConnect(const std::string& address, uint16_t port, const ConnectionCallback& callback,
                    void* context) {
    Connect(address.c_str(), port, callback, context);
  }

  void StartConnect(const ConnectionCallback& callback, void* context) {
    Connect(nullptr, 0, callback, context);
  }

  // CLOSED follows. A null pointer is ignored. A connection of another object, or of a class that is
  // not the library's, is not closed: the log and LastError give the reason.
  void StopConnection(const IBatsConnPtr& connection) {
    openbats::detail::Release();
    bats_protocol_stop_connection(impl_->handle, openbats::detail::HandleOf(connection));
  }

  void StartListen(const std::string& address, uint16_t port, const ListenCallback& callback,
                   void* context) {
    Listen(address.c_str(), port, callback, context);
  }

  void StartListen(const ListenCallback& callback, void* context) {
    Listen(nullptr, 0, callback, context);
  }

  // STOPPED follows. Accepted connections continue.
  void StopListen() { bats_protocol_stop_listen(impl_->handle); }

  // Not in the original. The listening port, or 0 if there is none.
  uint16_t GetListenPort() const { return openbats_protocol_listen_port(impl_->handle); }

 protected:
  ProtoImplPtr impl_;
  IOContext& io_context_;

 private:
  void Connect(const char* address, uint16_t port, const ConnectionCallback& callback,
               void* context) {
    using namespace openbats::detail;
    auto* holder = new ConnectionHolder{callback, context};
    // A callback may destroy this object during the call.
    const auto handle = impl_->handle;
    Release();
    openbats_protocol_start_connect(handle, address, port, OnConnection, holder,
                                    DropConnectionHolder);
  }

  void Listen(const char* address, uint16_t port, const ListenCallback& callback, void* context) {
    using namespace openbats::detail;
    auto* holder = new ListenHolder{callback, context};
    const auto handle = impl_->handle;
    Release();
    openbats_protocol_start_listen(handle, address, port, OnListen, holder,
                                   DropListenHolder);
  }
};

#endif
