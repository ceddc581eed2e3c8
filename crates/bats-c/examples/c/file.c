/* Sends a file; the receiver compares it with the original. */

#include "example.h"

#include <unistd.h>

#define SIZE (8 << 20)

static char path[64];
static unsigned char* content;
static atomic_llong received, complete, acknowledged;

static bool on_server(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)connection, (void)user;
  if (event == bats_connection_data_received) {
    const long long offset = atomic_load(&received);
    require(offset + length <= SIZE && memcmp(content + offset, data, (size_t)length) == 0,
            "the content matches");
    atomic_fetch_add(&received, length);
  }
  return true;
}
LISTENER(on_listen, on_server)

static bool on_client(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)data, (void)length, (void)user;
  switch (event) {
    case bats_connection_writable:
      require(bats_connection_send_file(connection, path) == bats_error_none, "the file is accepted");
      break;
    case bats_connection_send_complete:
      atomic_store(&complete, 1);
      break;
    case bats_connection_all_data_acked:
      require(atomic_load(&complete) == 1, "send_complete comes first");
      atomic_store(&acknowledged, 1);
      break;
    default:
      break;
  }
  return true;
}

int main(void) {
  content = malloc(SIZE);
  require(content != NULL, "memory");
  unsigned x = 1;
  for (int i = 0; i < SIZE; ++i) {
    x = x * 1664525u + 1013904223u;
    content[i] = (unsigned char)(x >> 24);
  }
  snprintf(path, sizeof path, "/tmp/openbats-example-c-%ld", (long)getpid());
  FILE* file = fopen(path, "wb");
  require(file != NULL && fwrite(content, 1, SIZE, file) == SIZE && fclose(file) == 0,
          "the file is written");

  bats_context_handle_t context = bats_context_create();
  bats_config_handle_t config = example_config();
  uint16_t port;
  bats_protocol_handle_t server = serve(context, config, on_listen, &port);
  bats_protocol_handle_t client = bats_protocol_create(context, config);
  bats_config_destroy(config);
  bats_protocol_start_connect(client, "127.0.0.1", port, on_client, NULL);
  await(&acknowledged, 1, "everything is acknowledged");
  await(&received, SIZE, "the file arrives");
  bats_protocol_destroy(client);
  bats_protocol_destroy(server);
  bats_context_destroy(context);
  remove(path);
  free(content);
  printf("file: %d bytes arrived\n", SIZE);
  return 0;
}
