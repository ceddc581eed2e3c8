/* An echo server, and a client that checks the echoes. */

#include "example.h"

static const char* const texts[] = {"one", "two", "three"};
static atomic_llong echoes;

static bool on_server(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)user;
  if (event == bats_connection_data_received) {
    require(bats_connection_send_data(connection, data, length) == bats_error_none,
            "the server sends the echo");
  }
  return true;
}
LISTENER(on_listen, on_server)

static bool on_client(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)user;
  if (event == bats_connection_writable) {
    for (int i = 0; i < 3; ++i) {
      require(bats_connection_send_data(connection, (const unsigned char*)texts[i],
                                        (int)strlen(texts[i])) == bats_error_none,
              "the client sends");
    }
  } else if (event == bats_connection_data_received) {
    const char* text = texts[atomic_load(&echoes)];
    require((size_t)length == strlen(text) && memcmp(data, text, strlen(text)) == 0,
            "echoes are complete and in order");
    atomic_fetch_add(&echoes, 1);
  }
  return true;
}

int main(void) {
  bats_context_handle_t context = bats_context_create();
  bats_config_handle_t config = example_config();
  uint16_t port;
  bats_protocol_handle_t server = serve(context, config, on_listen, &port);
  bats_protocol_handle_t client = bats_protocol_create(context, config);
  bats_config_destroy(config);
  bats_protocol_start_connect(client, "127.0.0.1", port, on_client, NULL);
  await(&echoes, 3, "three echoes");
  bats_protocol_destroy(client);
  bats_protocol_destroy(server);
  bats_context_destroy(context);
  printf("echo: 3 messages came back\n");
  return 0;
}
