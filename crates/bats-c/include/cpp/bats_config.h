// Configuration of connections, with the names and values of the original SDK.
// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef OPENBATS_BATS_CONFIG_H
#define OPENBATS_BATS_CONFIG_H

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "../c/openbats.h"

using byte = unsigned char;
using octetVec = std::vector<byte>;
using octVecIter = octetVec::iterator;
using octVecConstIter = octetVec::const_iterator;

// Modes. 10 (TCP), 11 (UDP) and 12 (QUIC) are given as casts. A mode that the library does not
// have is refused by StartConnect and StartListen, with FAILED.
enum class TransMode : uint8_t {
  BTP = 0,          // coded, each message in time or not at all
  BRTP = 1,         // coded, reliable
  BRCTP = 2,        // reliable, rateless: blocks coded as RFC 9426 has it
  TRANSPARENT = 3,  // neither coded nor repaired nor controlled
};

// There is one BBR: BBRv2 and BBRv3 are that, and so are unknown numbers. Mode 12 has CUBIC in place
// of None and GCC; modes 3, 10 and 11 leave nothing to choose. The log warns of all this.
enum class CongestionControl : uint8_t {
  None = 0,
  BBR = 1,
  BBRv2 = 3,
  BBRv3 = 4,
  GCC = 5,
};

// Accepted for programs of the original; the mode alone decides what stands on the wire.
enum FrameType : uint8_t {
  TRANSPARENT = 0,
  BATS_HEADER_V0 = 1,
  BATS_HEADER_V1 = 2,
  BATS_HEADER_MIN = 3,
};

// What happens to a listener.
enum class BatsListenEvent : uint8_t {
  BATS_LISTEN_NONE = 0,
  BATS_LISTEN_NEW_CONNECTION = 1,  // set the connection's callback in this call
  BATS_LISTEN_FAILED = 2,
  BATS_LISTEN_SUCCESS = 3,
  BATS_LISTEN_ACCEPTED_ERROR = 4,
  BATS_LISTEN_ALREADY_IN_LISTEN = 5,
  BATS_LISTEN_STOPPED = 6,
};

// What happens to a connection. After FAILED, SHUTDOWN_BY_PEER and CLOSED nothing follows.
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

// Why the last failed call of this thread failed; in a callback that tells of a failure, why.
inline std::string LastError() { return openbats_last_error(); }

namespace detail {

// A text of one of the functions that fill a buffer.
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

// What a program asks for. Copies are independent of each other.
class BatsConfiguration {
 public:
  BatsConfiguration() : impl_(new BatsConfigImpl(bats_config_create())) {}
  BatsConfiguration(const BatsConfiguration& other)
      : impl_(new BatsConfigImpl(openbats_config_clone(other.impl_->handle))) {}
  BatsConfiguration& operator=(const BatsConfiguration& other) {
    BatsConfiguration copy(other);
    std::swap(impl_, copy.impl_);
    return *this;
  }
  virtual ~BatsConfiguration() { delete impl_; }

  // Any integer may be cast to a mode.
  void SetMode(TransMode mode) {
    bats_config_set_mode(impl_->handle, static_cast<bats_transport_mode_t>(mode));
  }

  void SetCC(CongestionControl congestion) {
    bats_config_set_cc(impl_->handle, Translate(congestion));
  }

  // Milliseconds, for connecting and for silence; values below 100 are seconds.
  void SetTimeout(int timeout) { bats_config_set_timeout(impl_->handle, timeout); }

  void SetLocalPort(int port) { bats_config_set_local_port(impl_->handle, port); }

  void SetLocalAddress(const std::string& address) {
    bats_config_set_local_addr(impl_->handle, address.c_str());
  }

  void SetRemoteAddr(const std::string& address) {
    bats_config_set_remote_addr(impl_->handle, address.c_str());
  }

  void SetRemotePort(int port) { bats_config_set_remote_port(impl_->handle, port); }

  // PEM files. A server without usable ones shows a certificate made for the process.
  void SetCertFile(const std::string& path) { bats_config_cert_file(impl_->handle, path.c_str()); }

  void SetKeyFile(const std::string& path) { bats_config_key_file(impl_->handle, path.c_str()); }

  // Zstandard for each message, off by default. Both ends must want it: otherwise messages go as
  // they are, with a warning in the log, and openbats::IsCompressed tells. Not in mode 11.
  void EnableCompression(bool enable) { bats_config_enable_compression(impl_->handle, enable); }

  // Always on, but for mode 11, plain UDP, which has none.
  void EnableEncryption(bool enable) { bats_config_enable_encryption(impl_->handle, enable); }

  void SetFrameType(FrameType type) {
    bats_config_set_frame_type(impl_->handle, static_cast<bats_frame_type_t>(type));
  }

  // Beyond the original, mode 12: messages as datagrams of QUIC (RFC 9221), each once or not at all,
  // no longer than the ideal length. If only one end wants it, the connection fails and says so.
  void EnableQuicDatagrams(bool enable) {
    openbats_config_enable_quic_datagrams(impl_->handle, enable);
  }

  // Beyond the original, modes 0, 3 and datagrams of mode 12: for how long, 1 to 3600000 ms, a
  // message is worth something that was sent without a deadline of its own; 200 ms otherwise.
  bool SetDeadline(int milliseconds) {
    return openbats_config_set_deadline(impl_->handle, milliseconds) == bats_error_none;
  }

  // Beyond the original: whom a client believes. Anyone, unless one of these was called.
  bool SetTrustedFingerprint(const std::string& sha256) {
    return openbats_config_set_trusted_fingerprint(impl_->handle, sha256.c_str()) ==
           bats_error_none;
  }

  bool SetTrustedAuthorities(const std::string& pem_file) {
    return openbats_config_set_trusted_authorities(impl_->handle, pem_file.c_str()) ==
           bats_error_none;
  }

  // Beyond the original, modes 0 to 3: both ends need this key of 64 hexadecimal digits, or the one in
  // a file; whoever has it not hears nothing, and times out. Other modes refuse it.
  bool SetClosedKey(const std::string& key) {
    return openbats_config_set_closed_key(impl_->handle, key.c_str()) == bats_error_none;
  }

  bool SetClosedKeyFile(const std::string& path) {
    return openbats_config_set_closed_key_file(impl_->handle, path.c_str()) == bats_error_none;
  }

  // Beyond the original: the fingerprint that a server with this configuration shows.
  std::string GetFingerprint() const {
    return openbats::detail::Text(openbats_config_fingerprint, impl_->handle);
  }

  BatsConfigImpl& GetImpl() const { return *impl_; }

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
    // Unknown ones must not become known ones there: 0x100 and above stand for ours.
    return static_cast<bats_congestion_control_t>(0x100 + static_cast<int>(congestion));
  }

  BatsConfigImpl* impl_;
};

#endif
