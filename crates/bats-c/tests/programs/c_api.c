/* Tests the C interface from C11. */

#define _POSIX_C_SOURCE 200809L
#include "include/c/c_bats_types.h"

/* The types header alone defines bool. */
static bool types_header_defines_bool = true;

#include "include/c/c_bats_api.h"
#include "include/c/openbats.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check_c.h"

static atomic_int listening, established, failed, echoed, shut_down, released;

static void sleep_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static void await(atomic_int* counter, int value) {
  for (int i = 0; i < 30000 && atomic_load(counter) < value; ++i) {
    sleep_ms(2);
  }
  CHECK(atomic_load(counter) >= value);
}

static bool on_server(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  CHECK(user == &listening);
  if (event == bats_connection_data_received) {
    CHECK(bats_connection_send_data(connection, data, length) == bats_error_none);
  }
  if (event == bats_connection_shutdown_by_peer) {
    atomic_fetch_add(&shut_down, 1);
  }
  return true;
}

static void on_listen(bats_connection_handle_t connection, bats_listen_event_t event, void* user) {
  if (event == bats_listen_success) {
    CHECK(connection == NULL);
    atomic_store(&listening, 1);
  }
  if (event == bats_listen_new_connection) {
    bats_connection_set_callback(connection, on_server, user);
  }
}

static bats_connection_handle_t client_connection;

static bool on_client(bats_connection_handle_t connection, bats_conn_event_t event,
                      const unsigned char* data, int length, void* user) {
  CHECK(user == &established);
  switch (event) {
    case bats_connection_established:
      client_connection = connection;
      CHECK(openbats_connection_retain(connection) == bats_error_none);
      atomic_store(&established, 1);
      break;
    case bats_connection_failed:
      atomic_fetch_add(&failed, 1);
      break;
    case bats_connection_data_received:
      CHECK(length == 5 && memcmp(data, "hello", 5) == 0);
      atomic_fetch_add(&echoed, 1);
      break;
    default:
      break;
  }
  return true;
}

static void on_release(void* user) {
  CHECK(user == &released);
  atomic_fetch_add(&released, 1);
}

static bool on_nothing(bats_connection_handle_t connection, bats_conn_event_t event,
                       const unsigned char* data, int length, void* user) {
  (void)connection, (void)event, (void)data, (void)length, (void)user;
  return true;
}

int main(void) {
  CHECK(types_header_defines_bool);
  bats_context_handle_t context = bats_context_create();
  CHECK(context != NULL);
  bats_context_set_log_level(context, bats_log_level_error);

  /* As in the original's C example: GCC, a short timeout number (seconds), and certificate files. */
  bats_config_handle_t config = bats_config_create();
  bats_config_set_mode(config, bats_transport_brtp);
  bats_config_set_timeout(config, 20);
  bats_config_set_local_addr(config, "127.0.0.1");
  bats_config_set_local_port(config, 0);
  bats_config_set_cc(config, (bats_congestion_control_t)99);
  char fallback[400];
  CHECK(openbats_config_describe(config, fallback, sizeof fallback) < sizeof fallback);
  CHECK(strstr(fallback, "control Bbr") != NULL);
  bats_config_set_cc(config, bats_cc_gcc);
  bats_config_cert_file(config, "server.crt");
  bats_config_key_file(config, "server.key");
  bats_config_enable_compression(config, 1);
  bats_config_enable_encryption(config, 1);
  CHECK(openbats_config_set_deadline(config, 0) == bats_error_invalid_param);
  CHECK(openbats_config_set_deadline(config, 500) == bats_error_none);
  CHECK(openbats_config_enable_quic_datagrams(config, 0) == bats_error_none);
  CHECK(openbats_config_set_memory_budget(config, 1000) == bats_error_invalid_param);
  CHECK(strstr(openbats_last_error(), "too small") != NULL);
  CHECK(openbats_config_set_send_budget(config, 1 << 20) == bats_error_none);
  CHECK(openbats_config_set_receive_budget(config, 1 << 20) == bats_error_none);
  CHECK(openbats_config_set_memory_budget(config, 16 << 20) == bats_error_none);
  CHECK(openbats_config_set_preshared_key(config, "12") == bats_error_invalid_param);
  CHECK(strstr(openbats_last_error(), "64 hexadecimal digits") != NULL);
  CHECK(openbats_config_set_preshared_key_file(config, "/nowhere") == bats_error_invalid_param);
  CHECK(strstr(openbats_last_error(), "/nowhere") != NULL);
  bats_config_set_frame_type(config, bats_frame_header_v1);
  char text[600];
  CHECK(openbats_config_describe(config, text, sizeof text) < sizeof text);
  CHECK(strstr(text, "Gcc") != NULL && strstr(text, "20000 ms") != NULL);

  bats_protocol_handle_t server = bats_protocol_create(context, config);
  CHECK(server != NULL);
  CHECK(bats_protocol_start_listen(server, "127.0.0.1", 0, on_listen, &listening) ==
        bats_error_none);
  await(&listening, 1);
  const uint16_t port = openbats_protocol_listen_port(server);
  CHECK(port != 0);

  bats_config_set_remote_addr(config, "127.0.0.1");
  bats_config_set_remote_port(config, port);
  bats_protocol_handle_t client = bats_protocol_create(context, config);
  bats_config_destroy(config); /* protocols hold copies */
  CHECK(bats_protocol_start_connect(client, NULL, 0, on_client, &established) == bats_error_none);
  await(&established, 1);
  CHECK(bats_connection_is_writable(client_connection) == 1);
  const int ideal = bats_connection_get_ideal_buffer_length(client_connection);
  CHECK(ideal > 361 && ideal <= 150000);
  CHECK(bats_connection_send_data(client_connection, (const unsigned char*)"hello", 5) ==
        bats_error_none);
  await(&echoed, 1);
  CHECK(openbats_connection_send_within(client_connection, (const unsigned char*)"hello", 5,
                                        1000) == bats_error_none);
  await(&echoed, 2);
  CHECK(openbats_connection_send_within(client_connection, (const unsigned char*)"hello", 5, 0) ==
        bats_error_invalid_param);
  CHECK(openbats_connection_is_compressed(client_connection) == 1);
  CHECK(bats_connection_send_data(client_connection, NULL, 5) == bats_error_invalid_param);
  CHECK(bats_connection_send_file(client_connection, "/nowhere") == bats_error_send_failed);
  CHECK(strstr(openbats_last_error(), "/nowhere") != NULL);

  /* The struct of an older version: only its fields are written. */
  struct {
    openbats_stats_t stats;
    unsigned char guard[8];
  } guarded;
  memset(&guarded, 0xaa, sizeof guarded);
  guarded.stats.size = 16;
  CHECK(openbats_connection_stats(client_connection, &guarded.stats) == bats_error_none);
  CHECK(guarded.stats.size == 16 && guarded.stats.smoothed_rtt_ns != 0);
  CHECK(guarded.stats.min_rtt_ns == 0xaaaaaaaaaaaaaaaaULL);
  guarded.stats.size = sizeof guarded.stats + 8; /* of a newer version */
  CHECK(openbats_connection_stats(client_connection, &guarded.stats) == bats_error_none);
  CHECK(guarded.stats.size == sizeof guarded.stats && guarded.guard[0] == 0xaa);
  CHECK(guarded.stats.messages_sent == 2 && guarded.stats.messages_received == 2);

  /* Replacing a callback releases its user_data. */
  CHECK(openbats_connection_set_callback(client_connection, on_nothing, &released, on_release) ==
        bats_error_none);
  CHECK(atomic_load(&released) == 0);
  bats_connection_set_callback(client_connection, on_client, &established);
  CHECK(atomic_load(&released) == 1);
  /* So does a failed call. */
  CHECK(openbats_connection_set_callback(NULL, on_nothing, &released, on_release) ==
        bats_error_connection_closed);
  CHECK(atomic_load(&released) == 2);

  CHECK(bats_protocol_stop_connection(client, NULL) == bats_error_none);
  CHECK(bats_protocol_stop_connection(client, client_connection) == bats_error_none);
  await(&shut_down, 1);
  for (int i = 0; bats_connection_send_data(client_connection, (const unsigned char*)text, 1) == bats_error_none; ++i) {
    CHECK(i < 1000);
    sleep_ms(2);
  }
  CHECK(bats_connection_send_data(client_connection, (const unsigned char*)text, 1) == bats_error_connection_closed);
  openbats_connection_release(client_connection);

  /* An unsupported mode: error code, description, and the event on this thread. */
  bats_config_handle_t other = bats_config_create();
  bats_config_set_mode(other, (bats_transport_mode_t)4);
  bats_protocol_handle_t refused = bats_protocol_create(context, other);
  CHECK(bats_protocol_start_connect(refused, "127.0.0.1", port, on_client, &established) ==
        bats_error_invalid_param);
  CHECK(atomic_load(&failed) == 1);
  CHECK(strstr(openbats_last_error(), "mode 4") != NULL);
  bats_config_destroy(other);

  CHECK(bats_protocol_stop_listen(server) == bats_error_none);
  CHECK(bats_protocol_stop_listen(server) == bats_error_invalid_param);

  /* Stale handles and handles of another type are errors. */
  bats_protocol_destroy(refused);
  bats_protocol_destroy(refused);
  CHECK(bats_protocol_start_connect(refused, "127.0.0.1", port, on_client, &established) ==
        bats_error_invalid_param);
  CHECK(bats_protocol_stop_listen((bats_protocol_handle_t)context) == bats_error_invalid_param);
  bats_protocol_destroy(client);
  bats_protocol_destroy(server);
  bats_context_destroy(context);
  bats_context_destroy(context);
  CHECK(bats_protocol_create(context, NULL) == NULL);
  CHECK(bats_connection_send_data(client_connection, (const unsigned char*)text, 1) == bats_error_connection_closed);
  CHECK(strcmp(openbats_strerror(7), "the connection is closed") == 0);
  printf("C interface of openbats %s: ok\n", openbats_version());
  return 0;
}
