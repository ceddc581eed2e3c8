// What a program asks for beyond the original, and compression: agreed on by both ends, in every mode
// that has it.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>

#include "check.h"

using E = BatsConnEvent;

// A pair of which either end may have its own options.
struct Pair {
  Pair(const BatsConfiguration& of_server, const BatsConfiguration& of_client)
      : server(context, of_server, far),
        client(std::make_unique<BatsProtocol>(context, of_client)) {
    client->StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
  }
  bool Stands() {
    return near.Await(E::BATS_CONNECTION_WRITABLE) && far.Await(E::BATS_CONNECTION_WRITABLE);
  }

  Recorder near, far;
  IOContext context;
  Server server;
  std::unique_ptr<BatsProtocol> client;
};

static BatsConfiguration Compressing(int mode, bool enable) {
  auto config = Config(mode);
  config.EnableCompression(enable);
  CHECK(config.SetDeadline(60000));
  return config;
}

static void CompressionIsAgreedOnByBothEnds() {
  for (int mode : {0, 1, 2, 3, 10, 12}) {
    for (bool there : {true, false}) {
      for (bool here : {true, false}) {
        Pair pair(Compressing(mode, there), Compressing(mode, here));
        CHECK(pair.Stands());
        const bool both = there && here;
        CHECK(openbats::IsCompressed(pair.near.Connection()) == both);
        CHECK(openbats::IsCompressed(pair.far.Connection()) == both);
        const octetVec even(20000, 7), noise = Content(20000, 1);
        size_t arrived = 0;
        for (const auto& message : {even, noise, octetVec(), even}) {
          CHECK(Send(pair.near.Connection(), message));
          CHECK(Eventually([&] { return pair.far.MessageCount() == arrived + 1; }));
          CHECK(pair.far.Messages()[arrived++] == message);
        }
        CHECK(Send(pair.far.Connection(), even));
        CHECK(Eventually([&] { return pair.near.MessageCount() == 1; }));
        CHECK(pair.near.Messages()[0] == even);
        const auto sent = openbats::GetStats(pair.near.Connection()).message_bytes_sent;
        CHECK(both ? sent < 22000 : sent == 60000);
      }
    }
  }
}

static void DatagramsWithoutAHandshakeGoAsTheyAre() {
  Recorder near, far;
  IOContext context;
  Server server(context, Compressing(11, true), far);
  BatsProtocol client(context, Compressing(11, true));
  client.StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
  CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(!openbats::IsCompressed(near.Connection()));
  const octetVec even(1400, 7);
  CHECK(openbats::SendWithin(near.Connection(), even.data(), 1400, 100));
  CHECK(Eventually([&] { return far.MessageCount() == 1; }));
  CHECK(far.Messages()[0] == even);
}

static void MessagesHaveDeadlinesOfTheirOwn() {
  const auto message = Content(1000, 4);
  for (int mode : {0, 1, 2, 3, 10, 12}) {
    Pair pair(Config(mode), Config(mode));
    CHECK(pair.Stands());
    const auto connection = pair.near.Connection();
    for (int wrong : {0, -1, 3600001}) {
      CHECK(!openbats::SendWithin(connection, message.data(), 1000, wrong));
      CHECK(openbats::LastError().find("deadline") != std::string::npos);
    }
    CHECK(!openbats::SendWithin(connection, nullptr, 3, 100));
    CHECK(openbats::SendWithin(connection, message.data(), 1000, 60000));
    CHECK(Eventually([&] { return pair.far.MessageCount() == 1; }));
    CHECK(pair.far.Messages()[0] == message);
    CHECK(openbats::GetStats(connection).messages_expired == 0);
  }
  CHECK(!openbats::SendWithin(nullptr, message.data(), 1000, 100));
  auto config = Config(0);
  CHECK(!config.SetDeadline(0) && !config.SetDeadline(3600001) && config.SetDeadline(1));
}

// More at once than the link carries in a millisecond: the rest is worth nothing any more. Where the
// deadline is the configuration's, the same.
static void WhatIsTooOldIsNotSent() {
  for (bool by_configuration : {false, true}) {
    auto config = Config(0);
    if (by_configuration) CHECK(config.SetDeadline(1));
    Pair pair(config, config);
    CHECK(pair.Stands());
    const auto connection = pair.near.Connection();
    const auto message = Content(50000, 4);
    uint64_t taken = 0;
    for (int i = 0; i < 2000; ++i) {
      taken += by_configuration ? connection->SendData(message)
                                : openbats::SendWithin(connection, message.data(), 50000, 1);
    }
    CHECK(Eventually([&] { return openbats::GetStats(connection).messages_expired > 0; }));
    const auto stats = openbats::GetStats(connection);
    CHECK(stats.messages_sent == taken && stats.messages_expired <= taken);
  }
}

static BatsConfiguration WithDatagrams(bool enable) {
  auto config = Config(12);
  config.EnableQuicDatagrams(enable);
  return config;
}

static void DatagramsOfQuic() {
  Pair pair(WithDatagrams(true), WithDatagrams(true));
  CHECK(pair.Stands());
  const auto connection = pair.near.Connection();
  const auto ideal = connection->GetIdealBufferLength();
  CHECK(ideal > 361 && ideal < 1500);
  std::vector<octetVec> expected;
  for (unsigned i = 0; i < 50; ++i) {
    expected.push_back(Content(i == 0 ? ideal : 20 * i, i));
    CHECK(Send(connection, expected.back()));
  }
  CHECK(Eventually([&] { return pair.far.MessageCount() == 50; }));
  auto messages = pair.far.Messages();
  CHECK(std::is_permutation(messages.begin(), messages.end(), expected.begin(), expected.end()));
  CHECK(!connection->SendData(Content(3000, 1)));
  CHECK(openbats::LastError().find("3000") != std::string::npos);
  CHECK(!connection->SendFile("/dev/null"));
  CHECK(pair.near.Await(E::BATS_CONNECTION_SEND_COMPLETE));
  CHECK(pair.near.Count(E::BATS_CONNECTION_ALL_DATA_ACKED) == 0);
  pair.client->StopConnection(connection);
  CHECK(pair.far.Await(E::BATS_CONNECTION_SHUTDOWN_BY_PEER));
}

static void DatagramsOfQuicAreWantedByBothOrFail() {
  for (bool there : {true, false}) {
    Pair pair(WithDatagrams(there), WithDatagrams(!there));
    CHECK(pair.near.Await(E::BATS_CONNECTION_FAILED));
    CHECK(openbats::GetError(pair.near.Connection()).find("datagrams") != std::string::npos);
  }
  // Other modes have none; the option is without effect, and the log says so.
  auto config = Config(1);
  config.EnableQuicDatagrams(true);
  Pair pair(config, config);
  CHECK(pair.Stands());
  CHECK(Send(pair.near.Connection(), Content(100000, 1)));
  CHECK(Eventually([&] { return pair.far.MessageCount() == 1; }));
}

static BatsConfiguration Closed(int mode, char digit, int timeout_ms = 30000) {
  auto config = Config(mode, timeout_ms);
  CHECK(config.SetDeadline(60000));
  CHECK(config.SetClosedKey(std::string(64, digit)));
  return config;
}

static void ClosedEndsSpeakToEachOtherAlone() {
  for (int mode : {0, 1, 2, 3}) {
    Pair pair(Closed(mode, '1'), Closed(mode, '1'));
    CHECK(pair.Stands());
    const auto message = Content(1000, 4);
    CHECK(Send(pair.near.Connection(), message));
    CHECK(Eventually([&] { return pair.far.MessageCount() == 1; }));
    CHECK(pair.far.Messages()[0] == message);
    // Another key, and none.
    Recorder other, none;
    BatsProtocol stranger(pair.context, Closed(mode, '2', 500));
    stranger.StartConnect("127.0.0.1", pair.server.Port(), other.Callback(), nullptr);
    CHECK(other.Await(E::BATS_CONNECTION_FAILED));
    BatsProtocol open(pair.context, Config(mode, 500));
    open.StartConnect("127.0.0.1", pair.server.Port(), none.Callback(), nullptr);
    CHECK(none.Await(E::BATS_CONNECTION_FAILED));
    CHECK(other.Count(E::BATS_CONNECTION_ESTABLISHED) == 0);
    CHECK(none.Count(E::BATS_CONNECTION_ESTABLISHED) == 0);
  }
  for (int mode : {10, 11, 12}) {
    IOContext context;
    Recorder near;
    BatsProtocol client(context, Closed(mode, '1'));
    client.StartConnect("127.0.0.1", 9, near.Callback(), nullptr);
    CHECK(near.Await(E::BATS_CONNECTION_FAILED));
    CHECK(openbats::GetError(near.Connection()).find("modes 0 to 3") != std::string::npos);
  }
}

static void KeysOfClosedModeComeFromTextsAndFiles() {
  const std::string path = "/tmp/openbats-closed-key-" + std::to_string(getpid());
  auto config = Config(1);
  for (const auto& [content, is_key] : {std::pair<std::string, bool>{std::string(64, 'a') + "\n", true},
                                        {std::string(63, 'a'), false},
                                        {"", false}}) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    CHECK(file != nullptr);
    CHECK(std::fwrite(content.data(), 1, content.size(), file) == content.size());
    CHECK(std::fclose(file) == 0);
    CHECK(config.SetClosedKeyFile(path) == is_key);
  }
  CHECK(std::remove(path.c_str()) == 0);
  CHECK(!config.SetClosedKeyFile(path));
  CHECK(openbats::LastError().find(path) != std::string::npos);
  CHECK(!config.SetClosedKey("") && !config.SetClosedKey(std::string(64, 'x')));
  // The key that was set stays, and is not told.
  std::ostringstream text;
  text << config;
  CHECK(text.str().find(", closed") != std::string::npos);
  CHECK(text.str().find("aaaa") == std::string::npos);
}

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) {#name, name}
static const Test kTests[] = {
    TEST(CompressionIsAgreedOnByBothEnds),
    TEST(DatagramsWithoutAHandshakeGoAsTheyAre),
    TEST(MessagesHaveDeadlinesOfTheirOwn),
    TEST(WhatIsTooOldIsNotSent),
    TEST(DatagramsOfQuic),
    TEST(DatagramsOfQuicAreWantedByBothOrFail),
    TEST(ClosedEndsSpeakToEachOtherAlone),
    TEST(KeysOfClosedModeComeFromTextsAndFiles),
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
  std::printf("%d tests of options passed\n", ran);
  return ran > 0 ? 0 : 1;
}
