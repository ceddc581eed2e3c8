// The I/O context, with the names of the original SDK.
// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef OPENBATS_BATS_IOCONTEXT_H
#define OPENBATS_BATS_IOCONTEXT_H

#include <cassert>
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

// An exception that leaves it ends the program.
using SigCallback = std::function<void(int sig)>;

namespace openbats {

// Marks a context whose callbacks run in Poll, not on a thread of their own.
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

// A thread on which callbacks run, one at a time. Create it first and destroy it last: no callback
// runs afterwards.
class IOContext {
 public:
  IOContext() : impl_(new IOContextImpl(bats_context_create())) {}
  explicit IOContext(openbats::Polled)
      : impl_(new IOContextImpl(openbats_context_create_polled())) {}
  IOContext(const IOContext&) = delete;
  IOContext& operator=(const IOContext&) = delete;
  virtual ~IOContext() { delete impl_; }

  IOContextImpl& GetImpl() const { return *impl_; }

  // For the process.
  void SetBATSLogLevel(BATSLogLevel level) {
    bats_context_set_log_level(impl_->handle, static_cast<bats_log_level_t>(level));
  }

  // For the process: a file, or openbats.log in a directory.
  void SetBATSLogFilePath(const std::string& path) {
    openbats_context_set_log_path(impl_->handle, path.c_str());
  }

  // SIGINT and SIGTERM, told on an ordinary thread. An empty callback, or nullptr, ends that.
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

  // Beyond the original, for contexts made with Polled: runs the callbacks that wait, and waits
  // for the first at most timeout_ms (negative: as long as it takes). How many ran, or -1.
  int Poll(int timeout_ms) { return openbats_context_poll(impl_->handle, timeout_ms); }

  // Readable while callbacks wait, for epoll and its like.
  int PollFd() const { return openbats_context_fd(impl_->handle); }

 protected:
  IOContextImpl* impl_;
};

#endif
