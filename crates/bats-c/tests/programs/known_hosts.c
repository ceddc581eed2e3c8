/* Trust on first use, and the default of each call, from C11. The argument is an empty directory; the
 * state directory of the user is in it. */

#define _POSIX_C_SOURCE 200809L
#include "include/c/openbats.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check_c.h"

static atomic_int listening, established, failed;
static char reason[1000];

static void await(atomic_int* first, atomic_int* second) {
  for (int i = 0; i < 30000 && atomic_load(first) + atomic_load(second) == 0; ++i) {
    struct timespec time = {0, 2000000};
    nanosleep(&time, NULL);
  }
  CHECK(atomic_load(first) + atomic_load(second) > 0);
}

static bool on_event(bats_connection_handle_t connection, bats_conn_event_t event,
                     const unsigned char* data, int length, void* user) {
  (void)data, (void)length, (void)user;
  if (event == bats_connection_failed) {
    openbats_connection_error(connection, reason, sizeof reason);
    atomic_store(&failed, 1);
  }
  if (event == bats_connection_established) atomic_store(&established, 1);
  return true;
}

static bool on_peer(bats_connection_handle_t connection, bats_conn_event_t event,
                    const unsigned char* data, int length, void* user) {
  (void)connection, (void)event, (void)data, (void)length, (void)user;
  return true;
}

static void on_listen(bats_connection_handle_t connection, bats_listen_event_t event, void* user) {
  (void)user;
  if (connection != NULL) bats_connection_set_callback(connection, on_peer, NULL);
  if (event == bats_listen_success) atomic_store(&listening, 1);
  if (event == bats_listen_failed) atomic_store(&failed, 1);
}

static bats_context_handle_t context;
static const char* directory;

static const char* path(const char* name) {
  static char text[4][1000];
  static int next;
  char* to = text[next++ % 4];
  CHECK(snprintf(to, sizeof text[0], "%s/%s", directory, name) < (int)sizeof text[0]);
  return to;
}

/* The content of a file; an empty text if it does not exist. */
static const char* content(const char* name) {
  static char text[10000];
  memset(text, 0, sizeof text);
  FILE* file = fopen(path(name), "r");
  if (file != NULL) {
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    CHECK(fclose(file) == 0);
  }
  return text;
}

/* Listens with the identity in this file, at this port or any. */
static bats_protocol_handle_t serve(const char* identity, uint16_t port) {
  bats_config_handle_t config = bats_config_create();
  bats_config_set_mode(config, bats_transport_brtp);
  CHECK(openbats_config_set_identity_file(config, path(identity)) == bats_error_none);
  bats_protocol_handle_t server = bats_protocol_create(context, config);
  bats_config_destroy(config);
  atomic_store(&listening, 0);
  atomic_store(&failed, 0);
  CHECK(openbats_protocol_start_listen(server, "127.0.0.1", port, on_listen, NULL, NULL) ==
        bats_error_none);
  await(&listening, &failed);
  CHECK(atomic_load(&listening));
  return server;
}

typedef bats_error_t (*choice_t)(bats_config_handle_t config);

static bats_error_t unchosen(bats_config_handle_t config) {
  (void)config;
  return bats_error_none;
}

static bats_error_t known_hosts_of_user(bats_config_handle_t config) {
  return openbats_config_set_known_hosts(config, NULL);
}

static bats_error_t other_known_hosts(bats_config_handle_t config) {
  return openbats_config_set_known_hosts(config, path("others"));
}

/* Whether a client connects; it uses the new call or that of the original SDK. */
static bool connects(bool new_call, choice_t choose, uint16_t port) {
  bats_config_handle_t config = bats_config_create();
  bats_config_set_mode(config, bats_transport_brtp);
  bats_config_set_timeout(config, 20000);
  CHECK(choose(config) == bats_error_none);
  bats_protocol_handle_t client = bats_protocol_create(context, config);
  bats_config_destroy(config);
  atomic_store(&established, 0);
  atomic_store(&failed, 0);
  if (new_call) {
    openbats_protocol_start_connect(client, "127.0.0.1", port, on_event, NULL, NULL);
  } else {
    bats_protocol_start_connect(client, "127.0.0.1", port, on_event, NULL);
  }
  await(&established, &failed);
  const bool connected = atomic_load(&established);
  bats_protocol_destroy(client);
  return connected;
}

static void fingerprint_of(const char* identity, char text[65]) {
  bats_config_handle_t config = bats_config_create();
  CHECK(openbats_config_set_identity_file(config, path(identity)) == bats_error_none);
  CHECK(openbats_config_fingerprint(config, text, 65) == 64);
  bats_config_destroy(config);
}

static int occurrences(const char* text, const char* word) {
  int count = 0;
  while ((text = strstr(text, word)) != NULL) {
    text += strlen(word);
    ++count;
  }
  return count;
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  directory = argv[1];
  CHECK(setenv("XDG_STATE_HOME", path("state"), 1) == 0);
  const char* known = "state/openbats/known_hosts";
  context = bats_context_create();
  CHECK(openbats_context_set_log_path(context, path("log")) == bats_error_none);

  /* The first use is recorded by the new call only, and the second one is accepted. */
  bats_protocol_handle_t server = serve("first.pem", 0);
  const uint16_t port = openbats_protocol_listen_port(server);
  char first[65], second[65], line[200];
  fingerprint_of("first.pem", first);
  for (int connections = 1; connections <= 3; ++connections) {
    CHECK(connects(false, unchosen, port));
    CHECK(content(known)[0] == 0);
    CHECK(occurrences(content("log"), "accepted unchecked") == connections);
  }
  CHECK(connects(true, unchosen, port));
  snprintf(line, sizeof line, "127.0.0.1:%d sha256:%s\n", port, first);
  CHECK(strcmp(content(known), line) == 0);
  CHECK(strstr(content("log"), "recorded a new server") != NULL);
  CHECK(connects(true, unchosen, port) && connects(false, known_hosts_of_user, port));
  CHECK(strcmp(content(known), line) == 0);

  /* The identity survives a restart. */
  bats_protocol_destroy(server);
  server = serve("first.pem", port);
  CHECK(connects(true, unchosen, port));

  /* Another server at the same address. */
  bats_protocol_destroy(server);
  server = serve("second.pem", port);
  fingerprint_of("second.pem", second);
  CHECK(strcmp(first, second) != 0);
  for (int i = 0; i < 2; ++i) {
    CHECK(i == 0 ? !connects(true, unchosen, port) : !connects(false, known_hosts_of_user, port));
    printf("%s\n", reason);
    snprintf(line, sizeof line, "127.0.0.1:%d has changed", port);
    const char* const expected[] = {line, first, second, path(known), "remove line 1 of"};
    for (int word = 0; word < 5; ++word) CHECK(strstr(reason, expected[word]) != NULL);
  }
  CHECK(connects(true, other_known_hosts, port) && connects(true, other_known_hosts, port));
  CHECK(strstr(content("others"), second) != NULL);
  CHECK(connects(false, unchosen, port));
  CHECK(connects(true, openbats_config_dangerous_trust_any, port));

  /* Without a home directory nothing is accepted by accident. */
  bats_config_handle_t config = bats_config_create();
  CHECK(openbats_config_set_known_hosts(config, "") == bats_error_invalid_param);
  CHECK(unsetenv("XDG_STATE_HOME") == 0 && unsetenv("HOME") == 0);
  CHECK(openbats_config_set_known_hosts(config, NULL) == bats_error_invalid_param);
  CHECK(strstr(openbats_last_error(), "no home directory") != NULL);
  CHECK(openbats_config_set_identity_file(config, NULL) == bats_error_invalid_param);
  bats_protocol_handle_t client = bats_protocol_create(context, config);
  atomic_store(&failed, 0);
  CHECK(openbats_protocol_start_connect(client, "127.0.0.1", port, on_event, NULL, NULL) ==
        bats_error_invalid_param);
  CHECK(atomic_load(&failed));
  CHECK(strstr(reason, "openbats_config_set_known_hosts") != NULL);
  bats_protocol_destroy(client);
  bats_config_destroy(config);
  bats_protocol_destroy(server);
  bats_context_destroy(context);
  printf("known servers: ok\n");
  return 0;
}
