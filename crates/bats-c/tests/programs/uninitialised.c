/* Uses uninitialised memory, so that valgrind must report it: uninitialised none|own|index|sent|number|leak.
 * `none` makes the same connection without an error. */

#define _POSIX_C_SOURCE 200809L
#include "include/c/c_bats_api.h"
#include "include/c/openbats.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE 1023

static atomic_int listening, sent, received;
static const char* test_case;

static bool is_case(const char* name) {
  return strcmp(test_case, name) == 0;
}

static bool await(atomic_int* flag) {
  const struct timespec pause = {0, 2000000};
  for (int i = 0; i < 15000 && !atomic_load(flag); ++i) nanosleep(&pause, NULL);
  return atomic_load(flag);
}

static bool on_server(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)connection, (void)data, (void)length, (void)user;
  if (event == bats_connection_data_received) atomic_store(&received, 1);
  return true;
}

static void on_listen(bats_connection_handle_t connection, bats_listen_event_t event, void* user) {
  (void)user;
  if (event == bats_listen_success) atomic_store(&listening, 1);
  if (event == bats_listen_new_connection) bats_connection_set_callback(connection, on_server, NULL);
}

static bool on_client(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  (void)data, (void)length, (void)user;
  if (event == bats_connection_writable && !atomic_load(&received)) {
    unsigned char* message = malloc(SIZE);
    int* size = malloc(sizeof *size);
    if (!is_case("sent")) memset(message, 7, SIZE);
    if (!is_case("number")) *size = SIZE;
    /* Within the buffer, whatever it is. */
    bats_connection_send_data(connection, message, *size & 1023);
    atomic_store(&sent, 1);
    free(size);
    free(message);
  }
  return true;
}

int main(int argc, char** argv) {
  test_case = argc > 1 ? argv[1] : "none";
  int* values = malloc(4 * sizeof *values);
  if (!is_case("own") && !is_case("index")) memset(values, 0, 4 * sizeof *values);
  if (is_case("own") && values[1] == 3) puts("three");
  if (is_case("index")) {
    static int table[4];
    printf("%p\n", (void*)&table[values[1] & 3]);
    table[values[1] & 3] = 1;
  }
  if (!is_case("leak")) free(values);
  values = NULL;

  bats_context_handle_t context = bats_context_create();
  bats_config_handle_t config = bats_config_create();
  bats_config_set_mode(config, bats_transport_brtp);
  bats_config_set_timeout(config, 20000);
  bats_protocol_handle_t server = bats_protocol_create(context, config);
  bats_protocol_handle_t client = bats_protocol_create(context, config);
  bats_config_destroy(config);
  bats_protocol_start_listen(server, "127.0.0.1", 0, on_listen, NULL);
  bool ok = await(&listening);
  const uint16_t port = openbats_protocol_listen_port(server);
  bats_protocol_start_connect(client, "127.0.0.1", port, on_client, NULL);
  /* A message of an uninitialised length may be refused. */
  ok = ok && await(is_case("number") ? &sent : &received);
  bats_protocol_destroy(client);
  bats_protocol_destroy(server);
  bats_context_destroy(context);
  return ok ? 0 : 1;
}
