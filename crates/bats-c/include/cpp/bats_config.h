// Configuration of connections, with the names and values of the original SDK.
// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef OPENBATS_BATS_CONFIG_H
#define OPENBATS_BATS_CONFIG_H

// Programs of the original SDK rely on <cassert>, <iostream>, <string> and <vector> from here.
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "../c/openbats.h"

using octet = unsigned char;
using octetVec = std::vector<octet>;
using octVecIter = octetVec::iterator;
using octVecConstIter = octetVec::const_iterator;

// Modes. Cast 10 (TCP), 11 (UDP) and 12 (QUIC) to this type. StartConnect and StartListen refuse an
// unsupported mode with FAILED.
enum class TransMode : uint8_t {
  BTP = 0,          // coded, partially reliable: each message until its deadline
  BRTP = 1,         // coded, reliable: sliding window
  BRCTP = 2,        // coded, reliable: rateless blocks of RFC 9426
  TRANSPARENT = 3,  // uncoded, unreliable, without congestion control
};

// BBR, BBRv2, BBRv3 and unknown numbers all select `ltcc`, which is BBRv3 with loss classification. Mode 12
// has BBR, and CUBIC for None and GCC; modes 3, 10 and 11 ignore the choice. Such changes are logged as warnings.
enum class CongestionControl : uint8_t {
  None = 0,
  BBR = 1,
  BBRv2 = 3,
  BBRv3 = 4,
  GCC = 5,
};

// Accepted for compatibility; the wire format depends only on the mode.
enum FrameType : uint8_t {
  TRANSPARENT = 0,
  BATS_HEADER_V0 = 1,
  BATS_HEADER_V1 = 2,
  BATS_HEADER_MIN = 3,
};

// Events of a listener.
enum class BatsListenEvent : uint8_t {
  BATS_LISTEN_NONE = 0,
  BATS_LISTEN_NEW_CONNECTION = 1,  // set the connection's callback in this call
  BATS_LISTEN_FAILED = 2,
  BATS_LISTEN_SUCCESS = 3,
  BATS_LISTEN_ACCEPTED_ERROR = 4,
  BATS_LISTEN_ALREADY_IN_LISTEN = 5,
  BATS_LISTEN_STOPPED = 6,
};

// Events of a connection. No event follows FAILED, SHUTDOWN_BY_PEER and CLOSED.
enum class BatsConnEvent : uint8_t {
  BATS_CONNECTION_NONE = 0,
  BATS_CONNECTION_FAILED = 1,
  BATS_CONNECTION_ESTABLISHED = 2,
  BATS_CONNECTION_TIMEOUT = 3,  // FAILED follows
  BATS_CONNECTION_SHUTDOWN_BY_PEER = 4,
  BATS_CONNECTION_WRITABLE = 5,       // after ESTABLISHED, and after BUFFER_FULL
  BATS_CONNECTION_DATA_RECEIVED = 6,  // one message
  BATS_CONNECTION_SEND_COMPLETE = 7,
  BATS_CONNECTION_SEND_DATA_ERROR = 8,
  BATS_CONNECTION_BUFFER_FULL = 9,
  BATS_CONNECTION_CLOSED = 10,
  BATS_CONNECTION_ERROR = 11,
  BATS_CONNECTION_ALREADY_CONNECTED = 12,
  BATS_CONNECTION_IDEAL_BUFFER_LENGTH = 13,  // length: the new ideal length
  BATS_CONNECTION_ALL_DATA_ACKED = 14,
};

namespace openbats {

// Description of the last error on this thread; in the callback of a failure, its reason.
inline std::string LastError() { return openbats_last_error(); }

namespace detail {

// Returns the text of a function that fills a buffer.
template <typename Handle>
std::string Text(size_t (*fill)(Handle, char*, size_t), Handle handle) {
  char buffer[256];
  const size_t length = fill(handle, buffer, sizeof buffer);
  if (length < sizeof buffer) {
    return std::string(buffer, length);
  }
  std::string text(length + 1, '\0');
  const size_t now = fill(handle, &text[0], text.size());
  text.resize(now < length ? now : length);
  return text;
}

}  // namespace detail
}  // namespace openbats

class BatsConfigImpl {
 public:
  explicit BatsConfigImpl(bats_config_handle_t config) : handle(config) {}
  BatsConfigImpl(const BatsConfigImpl&) = delete;
  BatsConfigImpl& operator=(const BatsConfigImpl&) = delete;
  ~BatsConfigImpl() { bats_config_destroy(handle); }

  const bats_config_handle_t handle;
};

// Options of connections and listeners. Copies are independent of each other.
class BatsConfiguration {
 public:
  // Trusts any server, as in the original; see SetKnownHosts.
  BatsConfiguration() : impl_(new BatsConfigImpl(bats_config_create())) {
    openbats_config_dangerous_trust_any(impl_->handle);
  }
  BatsConfiguration(const BatsConfiguration& other)
      : impl_(new BatsConfigImpl(openbats_config_clone(other.impl_->handle))) {}
  BatsConfiguration& operator=(const BatsConfiguration& other) {
    BatsConfiguration copy(other);
    std::swap(impl_, copy.impl_);
    return *this;
  }
  ~BatsConfiguration() { delete impl_; }

  // Any integer can be cast to a mode.
  void SetMode(TransMode mode) {
    bats_config_set_mode(impl_->handle, static_cast<bats_transport_mode_t>(mode));
  }

  void SetCC(CongestionControl congestion) {
    bats_config_set_cc(impl_->handle, Translate(congestion));
  }

  // Connect timeout and idle timeout in milliseconds; values below 100 are seconds.
  void SetTimeout(int timeout) { bats_config_set_timeout(impl_->handle, timeout); }

  void SetLocalPort(int port) { bats_config_set_local_port(impl_->handle, port); }

  void SetLocalAddress(const std::string& address) {
    bats_config_set_local_addr(impl_->handle, address.c_str());
  }

  void SetRemoteAddr(const std::string& address) {
    bats_config_set_remote_addr(impl_->handle, address.c_str());
  }

  void SetRemotePort(int port) { bats_config_set_remote_port(impl_->handle, port); }

  // PEM files. A server without valid ones uses a certificate generated for the process. A client
  // presents them to a server that asks for a certificate.
  void SetCertFile(const std::string& path) { bats_config_cert_file(impl_->handle, path.c_str()); }

  void SetKeyFile(const std::string& path) { bats_config_key_file(impl_->handle, path.c_str()); }

  // Zstandard compression of each message, off by default. Both ends must enable it; otherwise
  // messages are not compressed and the log has a warning. openbats::IsCompressed returns the result.
  // Not in mode 11.
  void EnableCompression(bool enable) { bats_config_enable_compression(impl_->handle, enable); }

  // No effect: encryption is always on, except in mode 11 (plain UDP), which has none.
  void EnableEncryption(bool enable) { bats_config_enable_encryption(impl_->handle, enable); }

  void SetFrameType(FrameType type) {
    bats_config_set_frame_type(impl_->handle, static_cast<bats_frame_type_t>(type));
  }

  // Not in the original. Mode 12: sends messages as unreliable QUIC datagrams (RFC 9221) of at most
  // the ideal length. Both ends must enable it, else the connection fails with that reason.
  void EnableQuicDatagrams(bool enable) {
    openbats_config_enable_quic_datagrams(impl_->handle, enable);
  }

  // Not in the original. Default deadline of messages, 1 to 3600000 ms after sending, 200 ms if not
  // set. For modes 0 and 3, and datagrams of mode 12.
  bool SetDeadline(int milliseconds) {
    return openbats_config_set_deadline(impl_->handle, milliseconds) == bats_error_none;
  }

  // Not in the original. Memory in bytes for each connection: for data that the peer has not
  // acknowledged, and for received data that the program has not processed. At least 65536.
  // 256 KiB of the latter are charged at the start, and more with use.
  bool SetSendBudget(uint64_t bytes) {
    return openbats_config_set_send_budget(impl_->handle, bytes) == bats_error_none;
  }

  bool SetReceiveBudget(uint64_t bytes) {
    return openbats_config_set_receive_budget(impl_->handle, bytes) == bats_error_none;
  }

  // Not in the original. Channels, 0 to 1048576, that the peer of a connection in mode 1 or 2 may have open
  // at once. Neither end can open channels unless both set this.
  bool SetChannels(uint32_t channels) {
    return openbats_config_set_channels(impl_->handle, channels) == bats_error_none;
  }

  // Not in the original. Limit of the received data of the connections that share a socket. Data for
  // which there is no memory count as lost; without 2.75 MiB of it a new connection fails.
  bool SetMemoryBudget(uint64_t bytes) {
    return openbats_config_set_memory_budget(impl_->handle, bytes) == bats_error_none;
  }

  // Not in the original. Server certificates that a client trusts; the last of the next three calls
  // counts. Without one it trusts any, and logs a warning at each connection.
  //
  // Trust on first use, as ssh has it: the certificate of a new server is recorded in the file under the
  // host and port of the call, with a warning in the log. A server whose certificate has changed is
  // refused, with an error that says what to do. Without a name it is the file of bats_iperf,
  // $XDG_STATE_HOME/openbats/known_hosts, by default ~/.local/state/openbats/known_hosts. False, and no
  // change, if there is no home directory for it.
  bool SetKnownHosts() {
    return openbats_config_set_known_hosts(impl_->handle, nullptr) == bats_error_none;
  }

  bool SetKnownHosts(const std::string& file) {
    return openbats_config_set_known_hosts(impl_->handle, file.c_str()) == bats_error_none;
  }

  // By SHA-256 fingerprint, or by certificate authorities.
  bool SetTrustedFingerprint(const std::string& sha256) {
    return openbats_config_set_trusted_fingerprint(impl_->handle, sha256.c_str()) ==
           bats_error_none;
  }

  bool SetTrustedAuthorities(const std::string& pem_file) {
    return openbats_config_set_trusted_authorities(impl_->handle, pem_file.c_str()) ==
           bats_error_none;
  }

  // Not in the original. The certificate of a server, kept in this PEM file, so that clients recognize
  // the server after a restart; the file is generated if it does not exist. Without a name it is the file
  // of bats_iperf, $XDG_STATE_HOME/openbats/identity.pem, by default
  // ~/.local/state/openbats/identity.pem. Replaces SetCertFile and SetKeyFile, except for what a client
  // presents.
  bool SetIdentityFile() {
    return openbats_config_set_identity_file(impl_->handle, nullptr) == bats_error_none;
  }

  bool SetIdentityFile(const std::string& pem_file) {
    return openbats_config_set_identity_file(impl_->handle, pem_file.c_str()) == bats_error_none;
  }

  // Not in the original. Clients that a server accepts: those whose certificate has one of the added
  // fingerprints, or was issued by the authorities; the later kind of call counts. Without these calls
  // it accepts any client. Not in mode 11.
  bool AddClientFingerprint(const std::string& sha256) {
    return openbats_config_add_client_fingerprint(impl_->handle, sha256.c_str()) ==
           bats_error_none;
  }

  bool SetClientAuthorities(const std::string& pem_file) {
    return openbats_config_set_client_authorities(impl_->handle, pem_file.c_str()) ==
           bats_error_none;
  }

  // Not in the original. Pre-shared-key (PSK) mode, for modes 0 to 3: both ends need this key of 64
  // hexadecimal digits, given as text or in a file. A server does not answer clients without the key,
  // so that they time out. Other modes refuse a key.
  bool SetPresharedKey(const std::string& key) {
    return openbats_config_set_preshared_key(impl_->handle, key.c_str()) == bats_error_none;
  }

  bool SetPresharedKeyFile(const std::string& path) {
    return openbats_config_set_preshared_key_file(impl_->handle, path.c_str()) == bats_error_none;
  }

  // Not in the original. SHA-256 fingerprint of the certificate of a server with this configuration.
  std::string GetFingerprint() const {
    return openbats::detail::Text(openbats_config_fingerprint, impl_->handle);
  }

  const BatsConfigImpl& GetImpl() const { return *impl_; }

  friend std::ostream& operator<<(std::ostream& out, const BatsConfiguration& config) {
    return out << openbats::detail::Text(openbats_config_describe, config.impl_->handle);
  }

 private:
  // The numbers of the two interfaces differ.
  static bats_congestion_control_t Translate(CongestionControl congestion) {
    switch (congestion) {
      case CongestionControl::None:
        return bats_cc_none;
      case CongestionControl::BBR:
        return bats_cc_bbr;
      case CongestionControl::BBRv2:
        return bats_cc_bbrv2;
      case CongestionControl::BBRv3:
        return bats_cc_bbrv3;
      case CongestionControl::GCC:
        return bats_cc_gcc;
    }
    // Unknown numbers must not become valid ones of the C interface: they start at 0x100 there.
    return static_cast<bats_congestion_control_t>(0x100 + static_cast<int>(congestion));
  }

  BatsConfigImpl* impl_;
};

#endif
