/* Helpers of the C examples. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

/* For clock_gettime and nanosleep with -std=c11. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "include/c/c_bats_api.h"
#include "include/c/openbats.h"

static inline void require(bool condition, const char* what) {
  if (!condition) {
    fprintf(stderr, "failed: %s (%s)\n", what, openbats_last_error());
    exit(1);
  }
}

static inline double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Waits until a counter that callbacks increment reaches a value. */
static inline void await(atomic_llong* counter, long long value, const char* what) {
  const double end = now() + 60;
  while (atomic_load(counter) < value) {
    require(now() < end, what);
    const struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
}

static atomic_llong listening;

/* Listens on loopback and stores the port in *port. */
static inline bats_protocol_handle_t serve(bats_context_handle_t context,
                                           bats_config_handle_t config,
                                           bats_listen_callback_t on_listen, uint16_t* port) {
  bats_protocol_handle_t server = bats_protocol_create(context, config);
  require(bats_protocol_start_listen(server, "127.0.0.1", 0, on_listen, NULL) == bats_error_none,
          "start_listen succeeds");
  await(&listening, 1, "the server listens");
  *port = openbats_protocol_listen_port(server);
  return server;
}

static inline bats_config_handle_t example_config(void) {
  bats_config_handle_t config = bats_config_create();
  bats_config_set_mode(config, bats_transport_brtp);
  bats_config_set_timeout(config, 20000);
  return config;
}

/* Defines a listen callback that sets the callback of all accepted connections. */
#define LISTENER(name, on_connection)                                                \
  static void name(bats_connection_handle_t connection, bats_listen_event_t event,   \
                   void* user) {                                                     \
    if (event == bats_listen_success) atomic_store(&listening, 1);                   \
    if (event == bats_listen_new_connection)                                         \
      bats_connection_set_callback(connection, on_connection, user);                 \
  }

#endif
