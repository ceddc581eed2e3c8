/* Functions of the C interface, with the names of the original SDK. Those beyond it stand in
 * openbats.h.
 *
 * Callbacks run on the thread of their context, one at a time. A call that fails at once calls
 * the callback on the caller's thread and returns the reason, too. Do not block in callbacks. No
 * exception of C++ may leave a callback: that ends the program.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef OPENBATS_C_BATS_API_H
#define OPENBATS_C_BATS_API_H

#include "c_bats_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A context is a thread; create it first and destroy it last. No callback of its connections runs
 * once it is destroyed, other than one that destroys it. */
bats_context_handle_t bats_context_create(void);
void bats_context_destroy(bats_context_handle_t context);
void bats_context_set_log_level(bats_context_handle_t context, bats_log_level_t level);
/* SIGINT and SIGTERM, told on an ordinary thread. A null callback ends that. */
void bats_context_set_signal_callback(bats_context_handle_t context, sig_callback_t callback);

/* Configurations are copied by the objects made with them. */
bats_config_handle_t bats_config_create(void);
void bats_config_destroy(bats_config_handle_t config);
void bats_config_set_mode(bats_config_handle_t config, bats_transport_mode_t mode);
/* Milliseconds, for connecting and for silence; values below 100 are seconds; 2000 by default. */
void bats_config_set_timeout(bats_config_handle_t config, int timeout);
void bats_config_set_local_addr(bats_config_handle_t config, const char* local_addr);
void bats_config_set_local_port(bats_config_handle_t config, int local_port);
void bats_config_set_remote_addr(bats_config_handle_t config, const char* remote_addr);
void bats_config_set_remote_port(bats_config_handle_t config, int remote_port);
void bats_config_set_cc(bats_config_handle_t config, bats_congestion_control_t congestion);
/* PEM files. A server without usable ones shows a certificate made for the process. */
void bats_config_cert_file(bats_config_handle_t config, const char* cert_file);
void bats_config_key_file(bats_config_handle_t config, const char* key_file);
/* Zstandard for each message, off by default. Both ends must want it: otherwise messages go as they
 * are, with a warning in the log, and openbats_connection_is_compressed tells. Not in mode 11. */
void bats_config_enable_compression(bats_config_handle_t config, int enable);
/* Always on, but for mode 11, plain UDP, which has none. */
void bats_config_enable_encryption(bats_config_handle_t config, int enable);
void bats_config_set_frame_type(bats_config_handle_t config, bats_frame_type_t frame_type);

/* Objects that make connections and own them. Destroying one closes its connections and frees its
 * ports before it returns; what was sent last gets half a second to arrive. It waits for callbacks
 * that run on other threads: so two on two contexts must not be destroyed each by a callback of the
 * other at once, which would wait for ever. */
bats_protocol_handle_t bats_protocol_create(bats_context_handle_t context,
                                            bats_config_handle_t config);
void bats_protocol_destroy(bats_protocol_handle_t protocol);
/* A null address means the one of the configuration. */
bats_error_t bats_protocol_start_connect(bats_protocol_handle_t protocol, const char* remote_addr,
                                         uint16_t remote_port, bats_connection_callback_t callback,
                                         void* user_data);
bats_error_t bats_protocol_start_listen(bats_protocol_handle_t protocol, const char* local_addr,
                                        uint16_t local_port, bats_listen_callback_t callback,
                                        void* user_data);
bats_error_t bats_protocol_stop_listen(bats_protocol_handle_t protocol);
bats_error_t bats_protocol_stop_connection(bats_protocol_handle_t protocol,
                                           bats_connection_handle_t connection);

/* Connections belong to the library; a handle whose connection has ended is an error.
 * One message, copied before this returns. In mode 11 at most 65507 bytes; what is longer than the
 * ideal length goes in fragments. */
bats_error_t bats_connection_send_data(bats_connection_handle_t connection,
                                       const unsigned char* data, int length);
/* Reliable modes: the file's bytes as messages, then send_complete and all_data_acked. */
bats_error_t bats_connection_send_file(bats_connection_handle_t connection, const char* path);
void bats_connection_set_callback(bats_connection_handle_t connection,
                                  bats_connection_callback_t callback, void* user_data);
int bats_connection_is_writable(bats_connection_handle_t connection);
int bats_connection_get_ideal_buffer_length(bats_connection_handle_t connection);

#ifdef __cplusplus
}
#endif

#endif
