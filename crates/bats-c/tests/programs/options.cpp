// Tests of options that the original does not have, and of compression, in every mode that supports
// them.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "check.h"

using E = BatsConnEvent;

// A pair of connected ends with separate options.
struct Pair {
  Pair(const BatsConfiguration& server_config, const BatsConfiguration& client_config)
      : server(context, server_config, far),
        client(std::make_unique<BatsProtocol>(context, client_config)) {
    client->StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
  }
  bool AwaitWritable() {
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
    for (bool at_server : {true, false}) {
      for (bool at_client : {true, false}) {
        Pair pair(Compressing(mode, at_server), Compressing(mode, at_client));
        CHECK(pair.AwaitWritable());
        const bool both = at_server && at_client;
        CHECK(openbats::IsCompressed(pair.near.Connection()) == both);
        CHECK(openbats::IsCompressed(pair.far.Connection()) == both);
        const octetVec compressible(20000, 7), random_data = Content(20000, 1);
        size_t arrived = 0;
        for (const auto& message : {compressible, random_data, octetVec(), compressible}) {
          CHECK(Send(pair.near.Connection(), message));
          CHECK(Eventually([&] { return pair.far.MessageCount() == arrived + 1; }));
          CHECK(pair.far.Messages()[arrived++] == message);
        }
        CHECK(Send(pair.far.Connection(), compressible));
        CHECK(Eventually([&] { return pair.near.MessageCount() == 1; }));
        CHECK(pair.near.Messages()[0] == compressible);
        const auto sent = openbats::GetStats(pair.near.Connection()).message_bytes_sent;
        CHECK(both ? sent < 22000 : sent == 60000);
      }
    }
  }
}

static void PlainUdpIsNotCompressed() {
  Recorder near, far;
  IOContext context;
  Server server(context, Compressing(11, true), far);
  BatsProtocol client(context, Compressing(11, true));
  client.StartConnect("127.0.0.1", server.Port(), near.Callback(), nullptr);
  CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
  CHECK(!openbats::IsCompressed(near.Connection()));
  const octetVec compressible(1400, 7);
  CHECK(openbats::SendWithin(near.Connection(), compressible.data(), 1400, 100));
  CHECK(Eventually([&] { return far.MessageCount() == 1; }));
  CHECK(far.Messages()[0] == compressible);
}

static void MessagesCanHaveTheirOwnDeadlines() {
  const auto message = Content(1000, 4);
  for (int mode : {0, 1, 2, 3, 10, 12}) {
    Pair pair(Config(mode), Config(mode));
    CHECK(pair.AwaitWritable());
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

// Sends more than the path transfers within the deadline of 1 ms, set for each message or by the
// configuration: the remaining messages expire.
static void ExpiredMessagesAreNotSent() {
  for (bool by_configuration : {false, true}) {
    auto config = Config(0);
    if (by_configuration) CHECK(config.SetDeadline(1));
    Pair pair(config, config);
    CHECK(pair.AwaitWritable());
    const auto connection = pair.near.Connection();
    const auto message = Content(50000, 4);
    uint64_t accepted = 0;
    for (int i = 0; i < 2000; ++i) {
      accepted += by_configuration ? connection->SendData(message)
                                   : openbats::SendWithin(connection, message.data(), 50000, 1);
    }
    CHECK(Eventually([&] { return openbats::GetStats(connection).messages_expired > 0; }));
    const auto stats = openbats::GetStats(connection);
    CHECK(stats.messages_sent == accepted && stats.messages_expired <= accepted);
  }
}

static BatsConfiguration WithDatagrams(bool enable) {
  auto config = Config(12);
  config.EnableQuicDatagrams(enable);
  return config;
}

static void QuicDatagramsDeliverMessages() {
  Pair pair(WithDatagrams(true), WithDatagrams(true));
  CHECK(pair.AwaitWritable());
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

static void QuicDatagramsMustBeEnabledAtBothEnds() {
  for (bool at_server : {true, false}) {
    Pair pair(WithDatagrams(at_server), WithDatagrams(!at_server));
    CHECK(pair.near.Await(E::BATS_CONNECTION_FAILED));
    CHECK(openbats::GetError(pair.near.Connection()).find("datagrams") != std::string::npos);
  }
  // In other modes the option has no effect, and the log has a warning.
  auto config = Config(1);
  config.EnableQuicDatagrams(true);
  Pair pair(config, config);
  CHECK(pair.AwaitWritable());
  CHECK(Send(pair.near.Connection(), Content(100000, 1)));
  CHECK(Eventually([&] { return pair.far.MessageCount() == 1; }));
}

static BatsConfiguration WithPsk(int mode, char digit, int timeout_ms = 30000) {
  auto config = Config(mode, timeout_ms);
  CHECK(config.SetDeadline(60000));
  CHECK(config.SetPresharedKey(std::string(64, digit)));
  return config;
}

static void PskModeConnectsOnlyHoldersOfTheKey() {
  for (int mode : {0, 1, 2, 3}) {
    Pair pair(WithPsk(mode, '1'), WithPsk(mode, '1'));
    CHECK(pair.AwaitWritable());
    const auto message = Content(1000, 4);
    CHECK(Send(pair.near.Connection(), message));
    CHECK(Eventually([&] { return pair.far.MessageCount() == 1; }));
    CHECK(pair.far.Messages()[0] == message);
    // A client with another key, and one without.
    Recorder other, none;
    BatsProtocol other_key(pair.context, WithPsk(mode, '2', 500));
    other_key.StartConnect("127.0.0.1", pair.server.Port(), other.Callback(), nullptr);
    CHECK(other.Await(E::BATS_CONNECTION_FAILED));
    BatsProtocol without_key(pair.context, Config(mode, 500));
    without_key.StartConnect("127.0.0.1", pair.server.Port(), none.Callback(), nullptr);
    CHECK(none.Await(E::BATS_CONNECTION_FAILED));
    CHECK(other.Count(E::BATS_CONNECTION_ESTABLISHED) == 0);
    CHECK(none.Count(E::BATS_CONNECTION_ESTABLISHED) == 0);
  }
  for (int mode : {10, 11, 12}) {
    IOContext context;
    Recorder near;
    BatsProtocol client(context, WithPsk(mode, '1'));
    client.StartConnect("127.0.0.1", 9, near.Callback(), nullptr);
    CHECK(near.Await(E::BATS_CONNECTION_FAILED));
    CHECK(openbats::GetError(near.Connection()).find("modes 0 to 3") != std::string::npos);
  }
}

static void PresharedKeyIsReadFromTextOrFile() {
  const std::string path = "/tmp/openbats-preshared-key-" + std::to_string(getpid());
  auto config = Config(1);
  for (const auto& [content, is_key] : {std::pair<std::string, bool>{std::string(64, 'a') + "\n", true},
                                        {std::string(63, 'a'), false},
                                        {"", false}}) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    CHECK(file != nullptr);
    CHECK(std::fwrite(content.data(), 1, content.size(), file) == content.size());
    CHECK(std::fclose(file) == 0);
    CHECK(chmod(path.c_str(), 0640) == 0);
    CHECK(config.SetPresharedKeyFile(path) == is_key);
    // All users may read it.
    CHECK(chmod(path.c_str(), 0644) == 0);
    CHECK(!config.SetPresharedKeyFile(path));
  }
  CHECK(std::remove(path.c_str()) == 0);
  CHECK(!config.SetPresharedKeyFile(path));
  CHECK(openbats::LastError().find(path) != std::string::npos);
  CHECK(!config.SetPresharedKey("") && !config.SetPresharedKey(std::string(64, 'x')));
  // The key that was set stays, and is not printed.
  std::ostringstream text;
  text << config;
  CHECK(text.str().find(", PSK") != std::string::npos);
  CHECK(text.str().find("aaaa") == std::string::npos);
}

// A connection is charged 256 KiB and needs 2.75 MiB free at its start, so 3 MiB are enough for two; a
// long message is charged when it arrives.
static void BudgetsLimitConnectionsAndGrowWithUse() {
  for (int mode : {0, 1}) {
    auto config = Config(mode);
    CHECK(!config.SetSendBudget(1000) && !config.SetReceiveBudget(1000));
    CHECK(!config.SetMemoryBudget(1000));
    CHECK(openbats::LastError().find("budget of 1000 bytes is too small") != std::string::npos);
    CHECK(config.SetSendBudget(16 << 20) && config.SetReceiveBudget(16 << 20));
    CHECK(config.SetMemoryBudget(3 << 20));
    CHECK(config.SetDeadline(60000));
    std::ostringstream text;
    text << config;
    CHECK(text.str().find("receive budget 16777216 bytes") != std::string::npos);
    CHECK(text.str().find("memory budget 3145728 bytes") != std::string::npos);

    auto server_config = Config(mode);
    CHECK(server_config.SetReceiveBudget(16 << 20) && server_config.SetDeadline(60000));
    Pair pair(server_config, config);
    CHECK(pair.AwaitWritable());
    Recorder second, third;
    pair.client->StartConnect("127.0.0.1", pair.server.Port(), second.Callback(), nullptr);
    CHECK(second.Await(E::BATS_CONNECTION_WRITABLE));
    pair.client->StartConnect("127.0.0.1", pair.server.Port(), third.Callback(), nullptr);
    CHECK(third.Await(E::BATS_CONNECTION_FAILED));

    const auto message = Content(4 << 20, 3);
    CHECK(Send(pair.near.Connection(), message));
    CHECK(Eventually([&] { return pair.far.MessageCount() == 1; }));
    CHECK(pair.far.Messages()[0] == message);
  }
}

// A configuration with one of the identities that the environment names: a certificate and its key in
// one PEM file.
static BatsConfiguration WithIdentity(int mode, const char* variable) {
  const char* path = std::getenv(variable);
  CHECK(path != nullptr);
  auto config = Config(mode);
  config.SetCertFile(path);
  config.SetKeyFile(path);
  return config;
}

// A server accepts clients by the fingerprint of their certificate or by its authority, and both ends
// know the certificate of the other.
static void OnlyClientsWithAnAcceptedCertificateConnect() {
  const char *accepted = "OPENBATS_TEST_IDENTITY", *other = "OPENBATS_TEST_OTHER_IDENTITY";
  for (int mode : {0, 1, 2, 3, 10, 12}) {
    const auto client = WithIdentity(mode, accepted);
    CHECK(client.GetFingerprint() != Config(mode).GetFingerprint());
    for (bool by_authority : {false, true}) {
      auto server = Config(mode);
      CHECK(!server.AddClientFingerprint("12"));
      CHECK(!server.SetClientAuthorities("/nowhere.pem"));
      if (by_authority) {
        CHECK(server.SetClientAuthorities(std::getenv(accepted)));
      } else {
        CHECK(server.AddClientFingerprint(std::string(64, '0')));
        CHECK(server.AddClientFingerprint(client.GetFingerprint()));
      }
      Pair pair(server, client);
      CHECK(pair.AwaitWritable());
      CHECK(openbats::GetPeerFingerprint(pair.near.Connection()) == server.GetFingerprint());
      CHECK(openbats::GetPeerFingerprint(pair.far.Connection()) == client.GetFingerprint());

      Recorder untrusted, anonymous;
      const auto is_refused = [&](const BatsConfiguration& config, Recorder& near,
                                  const char* words) {
        pair.client->LoadConfig(config);
        pair.client->StartConnect("127.0.0.1", pair.server.Port(), near.Callback(), nullptr);
        CHECK(near.Await(E::BATS_CONNECTION_FAILED));
        const auto error = openbats::GetError(near.Connection());
        std::printf("%s\n", error.c_str());
        CHECK(error.find(words) != std::string::npos);
      };
      is_refused(WithIdentity(mode, other), untrusted, "does not trust the certificate");
      is_refused(Config(mode), anonymous, "requires a certificate");
    }
    // A server that asks for no certificate learns none.
    Pair pair(Config(mode), client);
    CHECK(pair.AwaitWritable());
    CHECK(openbats::GetPeerFingerprint(pair.far.Connection()).empty());
  }
}

// A client records the certificate of a server at its first connection, and refuses another one at the
// same address later.
static void AChangedCertificateIsRefused() {
  const std::string known = "/tmp/openbats-known-hosts-" + std::to_string(getpid());
  const char* const identities[] = {std::getenv("OPENBATS_TEST_IDENTITY"),
                                    std::getenv("OPENBATS_TEST_OTHER_IDENTITY")};
  CHECK(!BatsConfiguration().SetKnownHosts("") && !BatsConfiguration().SetIdentityFile(""));
  for (int mode : {0, 1, 2, 3, 10, 12}) {
    uint16_t port = 0;
    for (const char* identity : {identities[0], identities[0], identities[1]}) {
      auto server_config = Config(mode), config = Config(mode);
      CHECK(server_config.SetIdentityFile(identity) && config.SetKnownHosts(known));
      Recorder near, far;
      IOContext context;
      Server server(context, server_config, far, port);
      port = server.Port();
      BatsProtocol client(context, config);
      client.StartConnect("localhost", port, near.Callback(), nullptr);
      if (identity == identities[0]) {
        CHECK(near.Await(E::BATS_CONNECTION_WRITABLE));
        CHECK(openbats::GetPeerFingerprint(near.Connection()) == server_config.GetFingerprint());
        continue;
      }
      CHECK(near.Await(E::BATS_CONNECTION_FAILED));
      CHECK(near.Count(E::BATS_CONNECTION_ESTABLISHED) == 0);
      const auto error = openbats::GetError(near.Connection());
      const auto name = "localhost:" + std::to_string(port);
      for (const auto& words : {name + " has changed", server_config.GetFingerprint(), known,
                                std::string("remove line 1 of")}) {
        CHECK(error.find(words) != std::string::npos);
      }
    }
    CHECK(std::remove(known.c_str()) == 0);
  }
}

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) {#name, name}
static const Test kTests[] = {
    TEST(CompressionIsAgreedOnByBothEnds),
    TEST(PlainUdpIsNotCompressed),
    TEST(MessagesCanHaveTheirOwnDeadlines),
    TEST(ExpiredMessagesAreNotSent),
    TEST(QuicDatagramsDeliverMessages),
    TEST(QuicDatagramsMustBeEnabledAtBothEnds),
    TEST(PskModeConnectsOnlyHoldersOfTheKey),
    TEST(PresharedKeyIsReadFromTextOrFile),
    TEST(BudgetsLimitConnectionsAndGrowWithUse),
    TEST(OnlyClientsWithAnAcceptedCertificateConnect),
    TEST(AChangedCertificateIsRefused),
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
