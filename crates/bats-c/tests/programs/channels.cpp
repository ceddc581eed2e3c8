// Tests of channels in C++, and in C through them: each call of the C interface is used.

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using E = BatsConnEvent;
using openbats::Channel;
using openbats::ChannelEvent;
using openbats::ChannelPtr;

static BatsConfiguration WithChannels(uint32_t channels, int mode = 1) {
  auto config = Config(mode);
  CHECK(config.SetChannels(channels));
  return config;
}

// Two connected ends.
struct Pair {
  Pair(const BatsConfiguration& server_config, const BatsConfiguration& client_config)
      : server(context, server_config, far),
        client(std::make_unique<BatsProtocol>(context, client_config)) {
    client->StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
    CHECK(near.Await(E::BATS_CONNECTION_WRITABLE) && far.Await(E::BATS_CONNECTION_WRITABLE));
  }

  Recorder near, far;
  IOContext context;
  Server server;
  std::unique_ptr<BatsProtocol> client;
};

// Collects the events of a channel.
class Log {
 public:
  openbats::ChannelCallback Callback() {
    return [this](const ChannelPtr&, ChannelEvent event, const octet* data, size_t length,
                  uint64_t code) {
      const std::lock_guard<std::mutex> guard(mutex_);
      CHECK((event == ChannelEvent::kData) == (length > 0));
      bytes_.insert(bytes_.end(), data, data + length);
      if (event != ChannelEvent::kData) events_.emplace_back(event, code);
    };
  }
  octetVec Bytes() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return bytes_;
  }
  bool Await(ChannelEvent event, uint64_t code = 0) const {
    return Eventually([&] { return Has(event, code); });
  }
  bool Has(ChannelEvent event, uint64_t code = 0) const {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [name, with] : events_) {
      if (name == event && with == code) return true;
    }
    return false;
  }

 private:
  mutable std::mutex mutex_;
  octetVec bytes_;
  std::vector<std::pair<ChannelEvent, uint64_t>> events_;
};

// Accepts channels and logs their events.
class Accepted {
 public:
  void From(const IBatsConnPtr& connection) {
    CHECK(Channel::Accept(connection, [this](const ChannelPtr& channel) {
      const std::lock_guard<std::mutex> guard(mutex_);
      CHECK(channel->SetCallback(logs_[channels_.size()].Callback()));
      channels_.push_back(channel);
    }));
  }
  bool Await(size_t count) const {
    return Eventually([&] {
      const std::lock_guard<std::mutex> guard(mutex_);
      return channels_.size() >= count;
    });
  }
  ChannelPtr At(size_t index) const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return channels_.at(index);
  }
  Log& LogAt(size_t index) {
    const std::lock_guard<std::mutex> guard(mutex_);
    return logs_[index];
  }
  void Drop() {
    std::vector<ChannelPtr> dropped;
    const std::lock_guard<std::mutex> guard(mutex_);
    dropped.swap(channels_);
  }

 private:
  mutable std::mutex mutex_;
  std::map<size_t, Log> logs_;
  std::vector<ChannelPtr> channels_;
};

// Writes all bytes, as the peer takes them.
static void WriteAll(const ChannelPtr& channel, const octetVec& data) {
  size_t done = 0;
  CHECK(Eventually([&] {
    const auto queued = channel->Write(data.data() + done, data.size() - done);
    CHECK(queued >= 0);
    done += static_cast<size_t>(queued);
    return done == data.size();
  }));
}

static void CarryBytesInBothDirections(int mode) {
  Pair pair(WithChannels(10, mode), WithChannels(10, mode));
  for (bool from_client : {true, false}) {
    const auto& here = from_client ? pair.near : pair.far;
    const auto& there = from_client ? pair.far : pair.near;
    Accepted others;
    others.From(there.Connection());
    Log first_log, second_log;
    const auto first = Channel::Open(here.Connection(), first_log.Callback());
    const auto second = Channel::Open(here.Connection(), second_log.Callback());
    CHECK(first && second && first->Id() != 0 && first->Id() != second->Id());
    CHECK(first_log.Await(ChannelEvent::kOpened));
    CHECK(first->SetWeight(200) && !first->SetWeight(0) && !first->SetWeight(256));
    WriteAll(first, Content(300000, 1));
    WriteAll(second, Content(300000, 2));
    CHECK(first->Finish() && second->Finish() && !first->Finish());
    CHECK(others.Await(2));
    for (size_t index : {0, 1}) {
      CHECK(others.LogAt(index).Await(ChannelEvent::kEnd));
      const auto channel = others.At(index);
      const int seed = channel->Id() == first->Id() ? 1 : 2;
      CHECK(others.LogAt(index).Bytes() == Content(300000, seed));
      WriteAll(channel, Content(1000, seed));
      CHECK(channel->Finish());
    }
    CHECK(first_log.Await(ChannelEvent::kEnd) && second_log.Await(ChannelEvent::kEnd));
    CHECK(first_log.Bytes() == Content(1000, 1) && second_log.Bytes() == Content(1000, 2));
    // Messages are as before.
    CHECK(Send(here.Connection(), Content(10, 3)));
    CHECK(Eventually([&] { return there.MessageCount() == 1; }));
    // The callback of the next turn replaces this one.
    others.Drop();
  }
}

static void ChannelsCarryBytesInBothDirections() {
  for (int mode : {1, 2}) CarryBytesInBothDirections(mode);
}

static void APausedChannelDelaysNothingElse() {
  Accepted accepted;
  Pair pair(WithChannels(10), WithChannels(10));
  accepted.From(pair.far.Connection());
  Log stalled_log, other_log;
  const auto stalled = Channel::Open(pair.near.Connection(), stalled_log.Callback());
  WriteAll(stalled, Content(1, 1));
  CHECK(accepted.Await(1));
  CHECK(accepted.At(0)->Pause(true));
  const auto data = Content(1 << 20, 1);
  // More than the buffers of both ends: some is refused.
  size_t sent = 1;
  ptrdiff_t queued = 0;
  CHECK(Eventually([&] {
    queued = stalled->Write(data.data(), data.size());
    CHECK(queued >= 0);
    sent += static_cast<size_t>(queued);
    return queued == 0;
  }));
  const auto other = Channel::Open(pair.near.Connection(), other_log.Callback());
  WriteAll(other, Content(5000, 2));
  CHECK(other->Finish());
  CHECK(accepted.Await(2) && accepted.LogAt(1).Await(ChannelEvent::kEnd));
  CHECK(accepted.LogAt(1).Bytes() == Content(5000, 2));
  CHECK(accepted.At(0)->Pause(false));
  CHECK(stalled_log.Await(ChannelEvent::kWritable));
  CHECK(stalled->Finish() && accepted.LogAt(0).Await(ChannelEvent::kEnd));
  CHECK(accepted.LogAt(0).Bytes().size() == sent);
}

static void ResetStopAndLimits() {
  Accepted accepted;
  // The server may have two channels of the client open.
  Pair pair(WithChannels(2), WithChannels(0));
  accepted.From(pair.far.Connection());
  Log logs[3];
  auto first = Channel::Open(pair.near.Connection(), logs[0].Callback());
  auto second = Channel::Open(pair.near.Connection(), logs[1].Callback());
  auto third = Channel::Open(pair.near.Connection(), logs[2].Callback());
  CHECK(third && third->Id() == 0 && third->Write(nullptr, 0) == -1);
  CHECK(openbats::LastError().find("not open yet") != std::string::npos);
  CHECK(!first->Reset(uint64_t{1} << 62) && !first->Stop(UINT64_MAX));
  CHECK(first->Write(nullptr, 1) == -1);
  WriteAll(first, Content(10, 1));
  WriteAll(second, Content(10, 2));
  CHECK(accepted.Await(2));
  CHECK(first->Reset(7));
  CHECK(accepted.LogAt(0).Await(ChannelEvent::kReset, 7));
  CHECK(accepted.At(1)->Stop(8));
  const auto data = Content(1 << 20, 3);
  // The write fails when the code has arrived, or reports it as an event if it was blocked.
  CHECK(Eventually([&] {
    return logs[1].Has(ChannelEvent::kStopped, 8) || second->Write(data.data(), data.size()) < 0;
  }));
  CHECK(!logs[2].Has(ChannelEvent::kOpened));
  // Both ends close the first channel, which makes room for the third.
  first.reset();
  second.reset();
  accepted.Drop();
  CHECK(logs[2].Await(ChannelEvent::kOpened));
  CHECK(third->Id() != 0);
}

static void BothEndsMustAllowChannels() {
  CHECK(!Config(1).SetChannels((1 << 20) + 1));
  const std::vector<std::pair<BatsConfiguration, BatsConfiguration>> pairs = {
      {WithChannels(1), Config(1)},
      {Config(1), WithChannels(1)},
      {WithChannels(1, 0), WithChannels(1, 0)},
      {WithChannels(1, 10), WithChannels(1, 10)}};
  for (const auto& [server, client] : pairs) {
    Pair pair(server, client);
    CHECK(!Channel::Open(pair.near.Connection(), nullptr));
    CHECK(openbats::LastError().find("no channels") != std::string::npos);
    CHECK(!Channel::Accept(pair.far.Connection(), [](const ChannelPtr&) {}));
  }
  CHECK(!Channel::Open(nullptr, nullptr));
  CHECK(openbats_channel_open(nullptr, nullptr, nullptr, nullptr) == nullptr);
  CHECK(openbats_channel_close(nullptr) == bats_error_connection_closed);
  CHECK(openbats_channel_id(nullptr) == 0);
}

// Channels whose acceptor keeps nothing are closed.
static void UnwantedChannelsAreClosed() {
  std::atomic<int> offered{0};
  Pair pair(WithChannels(1), WithChannels(1));
  CHECK(Channel::Accept(pair.far.Connection(), [&](const ChannelPtr&) { ++offered; }));
  // More than may be open at once, one after the other.
  for (int turn = 0; turn < 5; ++turn) {
    Log log;
    const auto channel = Channel::Open(pair.near.Connection(), log.Callback());
    CHECK(log.Await(ChannelEvent::kOpened));
    WriteAll(channel, Content(10, turn));
    CHECK(log.Await(ChannelEvent::kEnd));
  }
  CHECK(offered == 5);
}

static std::atomic<int> released{0};

static void PointersAreReleasedOnceWhenTheChannelOrConnectionEnds() {
  const auto release = [](void* user) noexcept {
    CHECK(user == &released);
    ++released;
  };
  const auto ignore = [](openbats_channel_handle_t, openbats_channel_event_t, const unsigned char*,
                         size_t, uint64_t, void*) noexcept {};
  Pair pair(WithChannels(10), WithChannels(10));
  const auto connection = pair.near.Connection()->OpenbatsHandle();
  const auto closed = openbats_channel_open(connection, ignore, &released, release);
  CHECK(closed && released == 0);
  CHECK(openbats_channel_close(closed) == bats_error_none && released == 1);
  CHECK(openbats_channel_close(closed) == bats_error_connection_closed);
  const auto replaced = openbats_channel_open(connection, ignore, &released, release);
  CHECK(openbats_channel_set_callback(replaced, ignore, &released, release) == bats_error_none);
  CHECK(Eventually([] { return released == 2; }));
  CHECK(openbats_channel_open(connection, nullptr, &released, release) == nullptr && released == 3);
  CHECK(openbats_connection_accept_channels(
            connection,
            [](bats_connection_handle_t, openbats_channel_handle_t, void*) noexcept {}, &released,
            release) == bats_error_none);
  pair.client.reset();
  CHECK(Eventually([] { return released == 5; }));
  CHECK(openbats_channel_finish(replaced) == bats_error_connection_closed);
  CHECK(openbats_channel_write(replaced, nullptr, 0) == -1);
}

// A channel may be closed by any thread, also in its own callback.
static void ClosingStopsEvents() {
  std::atomic<int> echoed{0};
  std::mutex mutex;
  std::vector<ChannelPtr> kept;
  Pair pair(WithChannels(64), WithChannels(64));
  CHECK(Channel::Accept(pair.far.Connection(), [&](const ChannelPtr& channel) {
    CHECK(channel->SetCallback([&](const ChannelPtr& own, ChannelEvent event, const octet*, size_t,
                                   uint64_t) {
      if (event != ChannelEvent::kData) return;
      ++echoed;
      own->Close();
      CHECK(!own->Finish());
    }));
    const std::lock_guard<std::mutex> guard(mutex);
    kept.push_back(channel);
  }));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 50; ++turn) {
        auto gone = std::make_unique<std::atomic<bool>>(false);
        auto channel = Channel::Open(
            pair.near.Connection(), [flag = gone.get()](const ChannelPtr&, ChannelEvent, const octet*,
                                                        size_t, uint64_t) { CHECK(!*flag); });
        CHECK(channel);
        if (channel->Id() != 0) channel->Write(reinterpret_cast<const octet*>("x"), 1);
        if (turn % 3 == 0) ::usleep(1000);
        channel->Close();
        *gone = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(Eventually([&] { return echoed > 0; }));
}

static void NoEventFollowsTheLastOfTheConnection() {
  for (bool by_peer : {true, false}) {
    std::atomic<bool> is_over{false};
    std::atomic<size_t> received{0};
    std::mutex mutex;
    std::vector<ChannelPtr> kept;
    Pair pair(WithChannels(4), WithChannels(4));
    pair.far.OnEvent([&](const IBatsConnPtr&, E event, const octetVec&) {
      if (event == E::BATS_CONNECTION_SHUTDOWN_BY_PEER || event == E::BATS_CONNECTION_CLOSED) {
        is_over = true;
      }
    });
    CHECK(Channel::Accept(pair.far.Connection(), [&](const ChannelPtr& channel) {
      CHECK(channel->SetCallback(
          [&](const ChannelPtr&, ChannelEvent, const octet*, size_t length, uint64_t) {
            CHECK(!is_over);
            received += length;
          }));
      const std::lock_guard<std::mutex> guard(mutex);
      kept.push_back(channel);
    }));
    Log log;
    const auto channel = Channel::Open(pair.near.Connection(), log.Callback());
    CHECK(channel);
    const auto data = Content(1 << 20, 1);
    CHECK(Eventually([&] {
      CHECK(channel->Write(data.data(), data.size()) >= 0);
      return received > (4u << 20);
    }));
    const auto far = pair.far.Connection();
    if (by_peer) {
      pair.client.reset();
    } else {
      pair.server.Protocol().StopConnection(far);
    }
    CHECK(Eventually([&] { return is_over.load(); }));
    CHECK(!Channel::Open(far, nullptr));
  }
}

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) {#name, name}
static const Test kTests[] = {
    TEST(ChannelsCarryBytesInBothDirections),
    TEST(APausedChannelDelaysNothingElse),
    TEST(ResetStopAndLimits),
    TEST(BothEndsMustAllowChannels),
    TEST(UnwantedChannelsAreClosed),
    TEST(PointersAreReleasedOnceWhenTheChannelOrConnectionEnds),
    TEST(ClosingStopsEvents),
    TEST(NoEventFollowsTheLastOfTheConnection),
};

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& test : kTests) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    std::printf("%s ...\n", test.name);
    std::fflush(stdout);
    test.run();
    ++ran;
  }
  std::printf("%d tests of channels passed\n", ran);
  return ran > 0 ? 0 : 1;
}
