/* Stress test of the C interface: random calls from several threads with handles that they share, so
 * that calls meet objects that another thread is destroying: stress [threads] [seconds] [seed]. */

#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "include/c/c_bats_api.h"
#include "include/c/openbats.h"

#include "check_c.h"

enum { kThreads = 64, kObjects = 12, kConnections = 64, kLength = 500 };
/* A loaded machine or a sanitizer may need longer until messages have arrived. */
static const long kLongestSeconds = 120;

static const int kModes[] = {0, 1, 2, 3, 10, 11, 12};
enum { kModeCount = 7 };

/* Handles of all threads, also stale ones. */
static _Atomic(bats_context_handle_t) contexts[kObjects];
static _Atomic(bats_config_handle_t) configs[kObjects];
static _Atomic(bats_protocol_handle_t) protocols[kObjects];
static _Atomic(bats_connection_handle_t) connections[kConnections];
/* Ports of listeners, with the index of the mode in the upper 16 bits. */
static _Atomic(uint32_t) listeners[kObjects];

static atomic_long calls, events, messages;
static atomic_int releases, retained_callbacks;
static unsigned char message[kLength];
static time_t end;

static time_t now(void) {
  struct timespec time;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
  return time.tv_sec;
}

/* A generator per thread (xorshift). */
static unsigned draw(unsigned* state, unsigned below) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state % below;
}

static bool on_connection(bats_connection_handle_t connection, bats_conn_event_t event,
                          const unsigned char* data, int length, void* user) {
  CHECK(connection != NULL && user == &events);
  const long count = atomic_fetch_add(&events, 1);
  if (event == bats_connection_established || event == bats_connection_writable) {
    atomic_store(&connections[(unsigned long)count % kConnections], connection);
    bats_connection_send_data(connection, message, kLength);
  }
  /* A plain UDP port also receives datagrams of clients in other modes. */
  if (event == bats_connection_data_received && length == kLength &&
      memcmp(data, message, kLength) == 0) {
    if (atomic_fetch_add(&messages, 1) % 5 == 0) {
      bats_connection_send_data(connection, data, length);
    }
  }
  return true;
}

static void on_listen(bats_connection_handle_t connection, bats_listen_event_t event, void* user) {
  CHECK(user == &events);
  const long count = atomic_fetch_add(&events, 1);
  if (event == bats_listen_new_connection) {
    atomic_store(&connections[(unsigned long)count % kConnections], connection);
    bats_connection_set_callback(connection, on_connection, user);
  }
}

static void on_release(void* user) {
  CHECK(user == &events);
  atomic_fetch_add(&releases, 1);
}

static void new_protocol(unsigned* random, unsigned slot) {
  bats_config_handle_t config = atomic_load(&configs[draw(random, kObjects)]);
  bats_context_handle_t context = atomic_load(&contexts[draw(random, kObjects)]);
  bats_protocol_destroy(
      atomic_exchange(&protocols[slot], bats_protocol_create(context, config)));
}

static void new_config(unsigned* random, unsigned slot) {
  bats_config_handle_t config = bats_config_create();
  bats_config_set_mode(config, (bats_transport_mode_t)kModes[slot % kModeCount]);
  bats_config_set_timeout(config, 2000);
  bats_config_enable_compression(config, (int)draw(random, 2));
  bats_config_destroy(atomic_exchange(&configs[slot], config));
}

/* Objects in slot i have the mode of slot i of the configurations most of the time. */
static void call(unsigned* random) {
  const unsigned slot = draw(random, kObjects);
  bats_protocol_handle_t protocol = atomic_load(&protocols[slot]);
  bats_connection_handle_t connection = atomic_load(&connections[draw(random, kConnections)]);
  atomic_fetch_add(&calls, 1);
  switch (draw(random, 16)) {
    case 0:
      if (draw(random, 8) == 0) new_config(random, slot);
      break;
    case 1:
      if (draw(random, 4) == 0) new_protocol(random, slot);
      break;
    case 2:
      if (draw(random, 32) == 0) {
        bats_context_destroy(atomic_exchange(&contexts[slot], bats_context_create()));
      }
      break;
    case 3: {
      bats_protocol_start_listen(protocol, "127.0.0.1", 0, on_listen, &events);
      const uint32_t port = openbats_protocol_listen_port(protocol);
      if (port != 0) atomic_store(&listeners[slot], port);
      break;
    }
    case 4:
      if (draw(random, 16) == 0) bats_protocol_stop_listen(protocol);
      break;
    case 5:
    case 6: {
      const uint16_t port = (uint16_t)atomic_load(&listeners[draw(random, kObjects)]);
      if (port != 0) bats_protocol_start_connect(protocol, "127.0.0.1", port, on_connection, &events);
      break;
    }
    case 7:
      if (draw(random, 4) == 0) bats_protocol_stop_connection(protocol, connection);
      break;
    case 8: {
      openbats_stats_t stats;
      stats.size = sizeof stats;
      openbats_connection_stats(connection, &stats);
      break;
    }
    case 9:
      if (openbats_connection_retain(connection) == bats_error_none) {
        bats_connection_send_data(connection, message, kLength);
        openbats_connection_release(connection);
      }
      break;
    case 10:
      atomic_fetch_add(&retained_callbacks, 1);
      openbats_connection_set_callback(connection, on_connection, &events, on_release);
      break;
    case 11: {
      char text[400];
      openbats_config_describe(atomic_load(&configs[slot]), text, sizeof text);
      openbats_last_error();
      break;
    }
    case 12:
      bats_connection_is_writable(connection);
      bats_connection_get_ideal_buffer_length(connection);
      break;
    case 13: {
      const struct timespec pause = {0, (long)draw(random, 5) * 1000000};
      nanosleep(&pause, NULL);
      break;
    }
    default:
      bats_connection_send_data(connection, message, kLength);
      break;
  }
}

static void* run(void* seed) {
  unsigned random = *(unsigned*)seed;
  const time_t limit = end + kLongestSeconds;
  while (now() < end || (now() < limit && atomic_load(&messages) <= 10)) call(&random);
  return NULL;
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 8;
  const int seconds = argc > 2 ? atoi(argv[2]) : 3;
  const unsigned first = argc > 3 ? (unsigned)atoi(argv[3]) : 1;
  CHECK(threads > 0 && threads <= kThreads);
  memset(message, 7, sizeof message);
  end = now() + seconds;
  unsigned random = first * 2654435761u | 1;
  for (unsigned slot = 0; slot < kObjects; ++slot) {
    atomic_store(&contexts[slot], bats_context_create());
    bats_context_set_log_level(atomic_load(&contexts[slot]), bats_log_level_error);
    new_config(&random, slot);
  }
  for (unsigned slot = 0; slot < kObjects; ++slot) new_protocol(&random, slot);

  pthread_t running[kThreads];
  unsigned seeds[kThreads];
  for (int i = 0; i < threads; ++i) {
    seeds[i] = (first * 1000 + (unsigned)i) * 2654435761u | 1;
    CHECK(pthread_create(&running[i], NULL, run, &seeds[i]) == 0);
  }
  for (int i = 0; i < threads; ++i) CHECK(pthread_join(running[i], NULL) == 0);
  for (unsigned slot = 0; slot < kObjects; ++slot) {
    bats_protocol_destroy(atomic_load(&protocols[slot]));
    bats_config_destroy(atomic_load(&configs[slot]));
  }
  for (unsigned slot = 0; slot < kObjects; ++slot) bats_context_destroy(atomic_load(&contexts[slot]));
  /* User data is released once per callback, at the latest with the last object. */
  for (int i = 0; i < 30000 && atomic_load(&releases) < atomic_load(&retained_callbacks); ++i) {
    const struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
  CHECK(atomic_load(&releases) == atomic_load(&retained_callbacks));
  printf("%ld calls, %ld events, %ld messages\n", atomic_load(&calls), atomic_load(&events),
         atomic_load(&messages));
  CHECK(atomic_load(&messages) > 10);
  return 0;
}
