/* Sends 100 MB as fast as possible and prints the received throughput. */

#include "example.h"

#define TOTAL 100000000LL

static atomic_llong received;
static long long next_number, number, sent;
static double first, last;
static unsigned char message[150000];

static bool on_server(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)connection, (void)user;
  if (event == bats_connection_data_received) {
    long long which;
    memcpy(&which, data, sizeof which);
    require(which == next_number++, "messages are complete and in order");
    last = now();
    if (which == 0) first = last;
    atomic_fetch_add(&received, length);
  }
  return true;
}
LISTENER(on_listen, on_server)

static bool on_client(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)data, (void)length, (void)user;
  if (event == bats_connection_writable) {
    const int size = bats_connection_get_ideal_buffer_length(connection);
    require(size > 361 && size <= (int)sizeof message, "the ideal length fits");
    while (sent < TOTAL) {
      memcpy(message, &number, sizeof number);
      if (bats_connection_send_data(connection, message, size) != bats_error_none) break;
      sent += size;
      ++number;
    }
  }
  return true;
}

int main(void) {
  bats_context_handle_t server_context = bats_context_create(), context = bats_context_create();
  bats_config_handle_t config = example_config();
  uint16_t port;
  bats_protocol_handle_t server = serve(server_context, config, on_listen, &port);
  bats_protocol_handle_t client = bats_protocol_create(context, config);
  bats_config_destroy(config);
  bats_protocol_start_connect(client, "127.0.0.1", port, on_client, NULL);
  await(&received, TOTAL, "all messages arrive");
  bats_protocol_destroy(client);
  bats_protocol_destroy(server);
  bats_context_destroy(context);
  bats_context_destroy(server_context);
  printf("throughput: %.0f MB in %lld messages, %.2f Gbit/s\n", (double)received / 1e6,
         next_number, (double)received * 8 / (last - first) / 1e9);
  return 0;
}
