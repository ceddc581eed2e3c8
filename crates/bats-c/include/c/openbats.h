/* What OpenBATS has beyond the original SDK, in C.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef OPENBATS_OPENBATS_H
#define OPENBATS_OPENBATS_H

#include "c_bats_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Functions that fill a text take a buffer and its size, cut the text to fit, end it with a zero,
 * and return the length of the whole text. */

/* Why the last failed call of this thread failed; inside a failed, timeout, error or
 * send_data_error callback, why that event came. Valid until the thread's next failure. */
const char* openbats_last_error(void);
const char* openbats_strerror(int code);
const char* openbats_version(void);

/* Gives a pointer back that was handed over with a callback, once, when the library has no use
 * for it any more, also if the call that took it failed. */
typedef void (*openbats_release_t)(void* user_data);
typedef void (*openbats_signal_callback_t)(int sig, void* user_data);

/* A context without a thread for callbacks: they run in openbats_context_poll. */
bats_context_handle_t openbats_context_create_polled(void);
/* Waits at most timeout_ms for something to do (negative: as long as it takes) and runs the
 * callbacks that wait, on this thread. How many ran, or -1. */
int openbats_context_poll(bats_context_handle_t context, int timeout_ms);
/* A file that is readable while callbacks wait, for epoll and its like. Do not read it. */
int openbats_context_fd(bats_context_handle_t context);
/* Where the process logs: a file, or openbats.log in a directory. */
bats_error_t openbats_context_set_log_path(bats_context_handle_t context, const char* path);
bats_error_t openbats_context_set_signal_callback(bats_context_handle_t context,
                                                  openbats_signal_callback_t callback,
                                                  void* user_data, openbats_release_t release);

bats_config_handle_t openbats_config_clone(bats_config_handle_t config);
/* Whom a client believes; anyone, unless one of these was called. */
bats_error_t openbats_config_set_trusted_fingerprint(bats_config_handle_t config,
                                                     const char* sha256);
bats_error_t openbats_config_set_trusted_authorities(bats_config_handle_t config,
                                                     const char* pem_file);
/* Closed mode, modes 0 to 3: both ends need this key of 64 hexadecimal digits beside certificates (as
 * `openssl rand -hex 32` makes it), or a file that holds one. A server answers whoever has it not
 * nothing at all; a client with another key or none times out. Other modes refuse it. */
bats_error_t openbats_config_set_closed_key(bats_config_handle_t config, const char* key);
bats_error_t openbats_config_set_closed_key_file(bats_config_handle_t config, const char* path);
/* Mode 12: messages as datagrams of QUIC (RFC 9221), each once or not at all, no longer than the
 * ideal length. If only one end wants it, the connection fails and says so. */
bats_error_t openbats_config_enable_quic_datagrams(bats_config_handle_t config, int enable);
/* Modes 0, 3 and datagrams of mode 12: for how long, 1 to 3600000 ms, a message is worth something
 * that was sent without a deadline of its own; 200 ms if nothing is said. */
bats_error_t openbats_config_set_deadline(bats_config_handle_t config, int milliseconds);
/* The fingerprint of the certificate that a server with this configuration shows. */
size_t openbats_config_fingerprint(bats_config_handle_t config, char* buffer, size_t size);
size_t openbats_config_describe(bats_config_handle_t config, char* buffer, size_t size);

bats_error_t openbats_protocol_load_config(bats_protocol_handle_t protocol,
                                           bats_config_handle_t config);
bats_error_t openbats_protocol_start_connect(bats_protocol_handle_t protocol,
                                             const char* remote_addr, uint16_t remote_port,
                                             bats_connection_callback_t callback, void* user_data,
                                             openbats_release_t release);
bats_error_t openbats_protocol_start_listen(bats_protocol_handle_t protocol,
                                            const char* local_addr, uint16_t local_port,
                                            bats_listen_callback_t callback, void* user_data,
                                            openbats_release_t release);
/* The port that is listened at, 0 if there is none: of use after listening at port 0. */
uint16_t openbats_protocol_listen_port(bats_protocol_handle_t protocol);

bats_error_t openbats_connection_set_callback(bats_connection_handle_t connection,
                                              bats_connection_callback_t callback,
                                              void* user_data, openbats_release_t release);
/* As bats_connection_send_data, for a message that is worth something for 1 to 3600000 ms: modes 0,
 * 3 and datagrams of mode 12 neither begin to send it nor repair it after that. Mode 11 sends at
 * once, and the others deliver everything, however late. */
bats_error_t openbats_connection_send_within(bats_connection_handle_t connection,
                                             const unsigned char* data, int length,
                                             int milliseconds);
/* 1 if messages are compressed: both ends wanted it, by bats_config_enable_compression. */
int openbats_connection_is_compressed(bats_connection_handle_t connection);
/* Keeps the handle valid after the connection's end, until it is released as often. */
bats_error_t openbats_connection_retain(bats_connection_handle_t connection);
void openbats_connection_release(bats_connection_handle_t connection);
/* An object that belongs to the connection until its end; to be asked for in callbacks only. */
bats_error_t openbats_connection_attach(bats_connection_handle_t connection, void* object,
                                        openbats_release_t release);
void* openbats_connection_attachment(bats_connection_handle_t connection);
size_t openbats_connection_remote_address(bats_connection_handle_t connection, char* buffer,
                                          size_t size);
size_t openbats_connection_local_address(bats_connection_handle_t connection, char* buffer,
                                         size_t size);
uint16_t openbats_connection_remote_port(bats_connection_handle_t connection);
uint16_t openbats_connection_local_port(bats_connection_handle_t connection);
/* Why the connection failed or ended. */
size_t openbats_connection_error(bats_connection_handle_t connection, char* buffer, size_t size);

/* A sample of a connection's statistics. Set size before the call; the library sets it to the
 * bytes that it knew to fill. */
typedef struct {
  uint32_t size;
  uint32_t path_mtu; /* bytes of UDP payload; 0 where the kernel knows */
  uint64_t smoothed_rtt_ns;
  uint64_t min_rtt_ns;
  uint64_t queue_delay_ns; /* forward path, above its least */
  uint64_t cwnd_bytes;
  uint64_t in_flight_bytes;
  uint64_t pacing_bps;   /* bits per second; UINT64_MAX when unpaced */
  uint64_t delivery_bps; /* bits per second */
  uint64_t bytes_sent;
  uint64_t packets_sent;
  uint64_t bytes_received;
  uint64_t packets_received;
  uint64_t packets_lost;
  uint64_t source_packets_sent;
  uint64_t repair_packets_sent;
  uint64_t coded_packets_received;
  uint64_t wasted_packets_received; /* that brought nothing new */
  uint64_t messages_sent;
  uint64_t message_bytes_sent;
  uint64_t messages_received;
  uint64_t message_bytes_received;
  uint64_t send_buffer_bytes;
  uint64_t receive_buffer_bytes;
  double loss_estimate; /* 0 to 1, before repair */
  double burst_factor;  /* 1 for losses that come alone */
  double code_rate;     /* 0 to 1 */
  /* Modes 0 and 3. */
  uint64_t messages_expired; /* too old before they were sent */
  uint64_t messages_lost;    /* of the peer, as far as it is known */
  uint64_t symbols_lost;     /* of the peer, neither arrived nor repaired in time */
  uint64_t symbols_repaired;
  uint64_t repair_delay_ns; /* how much later repairs came than the loss was seen, in all */
  uint64_t longest_repair_delay_ns;
} openbats_stats_t;

bats_error_t openbats_connection_stats(bats_connection_handle_t connection,
                                       openbats_stats_t* stats);

#ifdef __cplusplus
}
#endif

#endif
