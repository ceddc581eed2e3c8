/* bats_protocol_start_connect accepts any certificate of a server, as the original SDK does, and logs a
 * warning at each such connection, unless the configuration says whom to trust:
 * openbats_config_set_known_hosts, openbats_config_set_trusted_fingerprint or
 * openbats_config_set_trusted_authorities. openbats_protocol_start_connect trusts on first use instead.
 *
 * Functions of the C interface, with the names of the original SDK. openbats.h has additional ones.
 *
 * Callbacks run on the thread of their context, one at a time. If a call fails immediately, it calls
 * the callback on the caller's thread and also returns the error. Do not block in callbacks. A C++
 * exception that leaves a callback terminates the program.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef OPENBATS_C_BATS_API_H
#define OPENBATS_C_BATS_API_H

#include "c_bats_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A context is a thread for callbacks. Create it first and destroy it last. After it is destroyed no
 * callback of its connections runs, except one that destroys it. */
bats_context_handle_t bats_context_create(void);
void bats_context_destroy(bats_context_handle_t context);
void bats_context_set_log_level(bats_context_handle_t context, bats_log_level_t level);
/* Called for SIGINT and SIGTERM on an ordinary thread. A null callback restores default handling. */
void bats_context_set_signal_callback(bats_context_handle_t context, sig_callback_t callback);

/* Objects copy the configuration that they are created with. */
bats_config_handle_t bats_config_create(void);
void bats_config_destroy(bats_config_handle_t config);
void bats_config_set_mode(bats_config_handle_t config, bats_transport_mode_t mode);
/* Connect timeout and idle timeout in milliseconds; values below 100 are seconds; 2000 by default. */
void bats_config_set_timeout(bats_config_handle_t config, int timeout);
void bats_config_set_local_addr(bats_config_handle_t config, const char* local_addr);
void bats_config_set_local_port(bats_config_handle_t config, int local_port);
void bats_config_set_remote_addr(bats_config_handle_t config, const char* remote_addr);
void bats_config_set_remote_port(bats_config_handle_t config, int remote_port);
void bats_config_set_cc(bats_config_handle_t config, bats_congestion_control_t congestion);
/* PEM files. A server without valid ones uses a certificate generated for the process. A client
 * presents them to a server that asks for a certificate. */
void bats_config_cert_file(bats_config_handle_t config, const char* cert_file);
void bats_config_key_file(bats_config_handle_t config, const char* key_file);
/* Zstandard compression of each message, off by default. Both ends must enable it; otherwise messages
 * are not compressed and the log has a warning. openbats_connection_is_compressed returns the result.
 * Not in mode 11. */
void bats_config_enable_compression(bats_config_handle_t config, int enable);
/* No effect: encryption is always on, except in mode 11 (plain UDP), which has none. */
void bats_config_enable_encryption(bats_config_handle_t config, int enable);
void bats_config_set_frame_type(bats_config_handle_t config, bats_frame_type_t frame_type);

/* Objects that create connections and own them. Destroying one closes its connections and frees its
 * ports before it returns; the last data sent gets half a second to arrive. It waits for callbacks
 * that run on other threads. Deadlock: if callbacks of two objects on two contexts destroy each
 * other's object at the same time, both wait forever. */
bats_protocol_handle_t bats_protocol_create(bats_context_handle_t context,
                                            bats_config_handle_t config);
void bats_protocol_destroy(bats_protocol_handle_t protocol);
/* Accepts any certificate of the server, with a warning in the log, unless the configuration says whom to
 * trust. A null address selects that of the configuration, here and in the next call. */
bats_error_t bats_protocol_start_connect(bats_protocol_handle_t protocol, const char* remote_addr,
                                         uint16_t remote_port, bats_connection_callback_t callback,
                                         void* user_data);
bats_error_t bats_protocol_start_listen(bats_protocol_handle_t protocol, const char* local_addr,
                                        uint16_t local_port, bats_listen_callback_t callback,
                                        void* user_data);
bats_error_t bats_protocol_stop_listen(bats_protocol_handle_t protocol);
/* Closed follows. A connection of another object is an error and stays open. */
bats_error_t bats_protocol_stop_connection(bats_protocol_handle_t protocol,
                                           bats_connection_handle_t connection);

/* The library owns connections. A call with the handle of an ended connection is an error. */
/* Sends one message, which is copied before this returns. In mode 11 at most 65507 bytes; messages
 * longer than the ideal length are sent as IP fragments. */
bats_error_t bats_connection_send_data(bats_connection_handle_t connection,
                                       const unsigned char* data, int length);
/* Reliable modes: sends the content of a file as messages; send_complete and all_data_acked follow. */
bats_error_t bats_connection_send_file(bats_connection_handle_t connection, const char* path);
void bats_connection_set_callback(bats_connection_handle_t connection,
                                  bats_connection_callback_t callback, void* user_data);
int bats_connection_is_writable(bats_connection_handle_t connection);
int bats_connection_get_ideal_buffer_length(bats_connection_handle_t connection);

#ifdef __cplusplus
}
#endif

#endif
