/* Sends small messages back and forth, one at a time, and prints the round-trip times. */

#include "example.h"

#define ROUNDS 1000

static double rounds[ROUNDS], sent;
static atomic_llong done;
static const unsigned char ping[64];

static bool on_server(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)user;
  if (event == bats_connection_data_received) {
    require(bats_connection_send_data(connection, data, length) == bats_error_none,
            "the server answers");
  }
  return true;
}
LISTENER(on_listen, on_server)

static bool on_client(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)data, (void)user;
  if (event == bats_connection_data_received) {
    require(length == sizeof ping, "an answer has 64 bytes");
    const long long round = atomic_load(&done);
    rounds[round] = now() - sent;
    atomic_store(&done, round + 1);
    if (round + 1 == ROUNDS) return true;
  } else if (event != bats_connection_writable) {
    return true;
  }
  sent = now();
  require(bats_connection_send_data(connection, ping, sizeof ping) == bats_error_none,
          "the client sends");
  return true;
}

static int compare(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

int main(void) {
  bats_context_handle_t server_context = bats_context_create(), context = bats_context_create();
  bats_config_handle_t config = example_config();
  uint16_t port;
  bats_protocol_handle_t server = serve(server_context, config, on_listen, &port);
  bats_protocol_handle_t client = bats_protocol_create(context, config);
  bats_config_destroy(config);
  bats_protocol_start_connect(client, "127.0.0.1", port, on_client, NULL);
  await(&done, ROUNDS, "all answers");
  bats_protocol_destroy(client);
  bats_protocol_destroy(server);
  bats_context_destroy(context);
  bats_context_destroy(server_context);
  qsort(rounds, ROUNDS, sizeof rounds[0], compare);
  require(rounds[0] > 0, "the clock advances");
  printf("latency: %d rounds; 50 %%: %.0f us, 99 %%: %.0f us\n", ROUNDS,
         rounds[ROUNDS / 2] * 1e6, rounds[ROUNDS * 99 / 100] * 1e6);
  return 0;
}
