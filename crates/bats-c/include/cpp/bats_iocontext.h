// The I/O context, with the names of the original SDK.
// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef OPENBATS_BATS_IOCONTEXT_H
#define OPENBATS_BATS_IOCONTEXT_H

// Programs of the original SDK rely on <cassert> and <cstring> from here.
#include <cassert>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "../c/openbats.h"

enum class BATSLogLevel : int {
  LOG_TRACE = 0,
  LOG_DEBUG = 1,
  LOG_INFO = 2,
  LOG_WARN = 3,
  LOG_ERROR = 4,
};

// An exception that leaves the callback terminates the program.
using SigCallback = std::function<void(int sig)>;

namespace openbats {

// Tag for a context whose callbacks run in Poll instead of on a thread.
struct Polled {};

}  // namespace openbats

class IOContextImpl {
 public:
  explicit IOContextImpl(bats_context_handle_t context) : handle(context) {}
  IOContextImpl(const IOContextImpl&) = delete;
  IOContextImpl& operator=(const IOContextImpl&) = delete;
  ~IOContextImpl() { bats_context_destroy(handle); }

  const bats_context_handle_t handle;
};

// One thread on which callbacks run, one at a time, and the I/O threads of all its protocol objects (at most four).
// Create it first and destroy it last; no callback runs afterwards.
class IOContext {
 public:
  IOContext() : impl_(new IOContextImpl(bats_context_create())) {}
  explicit IOContext(openbats::Polled)
      : impl_(new IOContextImpl(openbats_context_create_polled())) {}
  IOContext(const IOContext&) = delete;
  IOContext& operator=(const IOContext&) = delete;
  virtual ~IOContext() { delete impl_; }

  IOContextImpl& GetImpl() const { return *impl_; }

  // Applies to the whole process.
  void SetBATSLogLevel(BATSLogLevel level) {
    bats_context_set_log_level(impl_->handle, static_cast<bats_log_level_t>(level));
  }

  // Applies to the whole process. For a directory the file is openbats.log there.
  void SetBATSLogFilePath(const std::string& path) {
    openbats_context_set_log_path(impl_->handle, path.c_str());
  }

  // Called for SIGINT and SIGTERM on an ordinary thread. An empty callback or nullptr restores default
  // handling.
  void SetSignalCallback(SigCallback&& callback) {
    if (!callback) {
      bats_context_set_signal_callback(impl_->handle, nullptr);
      return;
    }
    openbats_context_set_signal_callback(
        impl_->handle,
        [](int sig, void* user) noexcept { (*static_cast<SigCallback*>(user))(sig); },
        new SigCallback(std::move(callback)),
        [](void* user) noexcept { delete static_cast<SigCallback*>(user); });
  }

  // Not in the original. For contexts created with Polled: waits at most timeout_ms for callbacks
  // (negative: without limit) and runs the pending ones. Returns their number, or -1 on an error.
  int Poll(int timeout_ms) { return openbats_context_poll(impl_->handle, timeout_ms); }

  // A file descriptor that is readable while callbacks are pending, for epoll etc.
  int PollFd() const { return openbats_context_fd(impl_->handle); }

 protected:
  IOContextImpl* impl_;
};

#endif
