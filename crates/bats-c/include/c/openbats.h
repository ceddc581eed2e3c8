/* C functions of OpenBATS in addition to those of the original SDK.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef OPENBATS_OPENBATS_H
#define OPENBATS_OPENBATS_H

#include "c_bats_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Functions that fill a text take a buffer and its size. They truncate the text to fit, terminate it
 * with a zero, and return the length of the whole text. */

/* Description of the last error on this thread; inside a failed, timeout, error or send_data_error
 * callback, the reason of that event. Valid until the next error on this thread. */
const char* openbats_last_error(void);
const char* openbats_strerror(int code);
const char* openbats_version(void);

/* Releases the user_data that was passed with a callback. Called exactly once, when the library no
 * longer needs it, also if the call that it was passed to failed. */
typedef void (*openbats_release_t)(void* user_data);
typedef void (*openbats_signal_callback_t)(int sig, void* user_data);

/* Creates a context without a thread: its callbacks run in openbats_context_poll. */
bats_context_handle_t openbats_context_create_polled(void);
/* Waits at most timeout_ms for callbacks (negative: without limit) and runs the pending ones on this
 * thread. Returns their number, or -1 on an error. */
int openbats_context_poll(bats_context_handle_t context, int timeout_ms);
/* A file descriptor that is readable while callbacks are pending, for epoll etc. Do not read it. */
int openbats_context_fd(bats_context_handle_t context);
/* Sets the log file of the process. For a directory it is openbats.log there. */
bats_error_t openbats_context_set_log_path(bats_context_handle_t context, const char* path);
bats_error_t openbats_context_set_signal_callback(bats_context_handle_t context,
                                                  openbats_signal_callback_t callback,
                                                  void* user_data, openbats_release_t release);

bats_config_handle_t openbats_config_clone(bats_config_handle_t config);
/* Server certificates that a client trusts; the last of these calls counts. Without one,
 * openbats_protocol_start_connect trusts on first use with the file of the user, and
 * bats_protocol_start_connect trusts any, as the original SDK does. Mode 11 has no certificates.
 *
 * Trust on first use, as ssh has it: the certificate of a new server is recorded in the file under the
 * host and port of the call, with a warning in the log. A server whose certificate has changed is
 * refused, with an error that says what to do. NULL is the file of bats_iperf,
 * $XDG_STATE_HOME/openbats/known_hosts, by default ~/.local/state/openbats/known_hosts. */
bats_error_t openbats_config_set_known_hosts(bats_config_handle_t config, const char* file);
/* By SHA-256 fingerprint, or by certificate authorities. */
bats_error_t openbats_config_set_trusted_fingerprint(bats_config_handle_t config,
                                                     const char* sha256);
bats_error_t openbats_config_set_trusted_authorities(bats_config_handle_t config,
                                                     const char* pem_file);
/* Any certificate: an attacker on the path can pose as the server. Each connection logs a warning. */
bats_error_t openbats_config_dangerous_trust_any(bats_config_handle_t config);
/* The certificate of a server, kept in this PEM file, so that clients recognize the server after a
 * restart; the file is generated if it does not exist. NULL is the file of bats_iperf,
 * $XDG_STATE_HOME/openbats/identity.pem, by default ~/.local/state/openbats/identity.pem. It replaces
 * bats_config_cert_file and bats_config_key_file, except for what a client presents. */
bats_error_t openbats_config_set_identity_file(bats_config_handle_t config, const char* pem_file);
/* Clients that a server accepts: those whose certificate has one of the added fingerprints, or was issued
 * by the authorities; the later kind of call counts. A client presents the certificate of
 * bats_config_cert_file and bats_config_key_file. Without these calls a server accepts any client. Not
 * in mode 11. */
bats_error_t openbats_config_add_client_fingerprint(bats_config_handle_t config,
                                                    const char* sha256);
bats_error_t openbats_config_set_client_authorities(bats_config_handle_t config,
                                                    const char* pem_file);
/* Pre-shared-key (PSK) mode, for modes 0 to 3: both ends need this key in addition to certificates, as
 * 64 hexadecimal digits (`openssl rand -hex 32`) or in a file, which is refused if all users can read it.
 * A server does not answer clients without the key, so they time out. Other modes refuse a key. */
bats_error_t openbats_config_set_preshared_key(bats_config_handle_t config, const char* key);
bats_error_t openbats_config_set_preshared_key_file(bats_config_handle_t config, const char* path);
/* Mode 12: sends messages as unreliable QUIC datagrams (RFC 9221) of at most the ideal length. Both
 * ends must enable it, else the connection fails with that reason. */
bats_error_t openbats_config_enable_quic_datagrams(bats_config_handle_t config, int enable);
/* Default deadline of messages, 1 to 3600000 ms after sending, 200 ms if not set. For modes 0 and 3,
 * and datagrams of mode 12. */
bats_error_t openbats_config_set_deadline(bats_config_handle_t config, int milliseconds);
/* Memory in bytes for each connection: for data that the peer has not acknowledged (default 128 MiB),
 * and for received data that the program has not processed (default 192 MiB, of which 256 KiB are
 * charged at the start and more with use). At least 65536; a connection uses what its coding needs,
 * about 0.7 and 2.75 MiB, even if that is more. */
bats_error_t openbats_config_set_send_budget(bats_config_handle_t config, uint64_t bytes);
bats_error_t openbats_config_set_receive_budget(bats_config_handle_t config, uint64_t bytes);
/* Limit of the received data of the connections that share a socket: those of a listener, or the client
 * connections of a protocol object (default 32 GiB, enough for 10,000 connections). Data for which there
 * is no memory count as lost; if less than 2.75 MiB are free, a new connection fails. */
bats_error_t openbats_config_set_memory_budget(bats_config_handle_t config, uint64_t bytes);
/* Channels, 0 to 1048576, that the peer of a connection in mode 1 or 2 may have open at once. Neither end
 * can open channels unless both set this. */
bats_error_t openbats_config_set_channels(bats_config_handle_t config, uint32_t channels);
/* SHA-256 fingerprint of the certificate of a server with this configuration. */
size_t openbats_config_fingerprint(bats_config_handle_t config, char* buffer, size_t size);
size_t openbats_config_describe(bats_config_handle_t config, char* buffer, size_t size);

bats_error_t openbats_protocol_load_config(bats_protocol_handle_t protocol,
                                           bats_config_handle_t config);
/* Trusts the server on first use unless the configuration says otherwise; see
 * openbats_config_set_known_hosts. Fails at once if there is no home directory for the file. */
bats_error_t openbats_protocol_start_connect(bats_protocol_handle_t protocol,
                                             const char* remote_addr, uint16_t remote_port,
                                             bats_connection_callback_t callback, void* user_data,
                                             openbats_release_t release);
bats_error_t openbats_protocol_start_listen(bats_protocol_handle_t protocol,
                                            const char* local_addr, uint16_t local_port,
                                            bats_listen_callback_t callback, void* user_data,
                                            openbats_release_t release);
/* The listening port, or 0 if there is none. Needed after listening on port 0. */
uint16_t openbats_protocol_listen_port(bats_protocol_handle_t protocol);

bats_error_t openbats_connection_set_callback(bats_connection_handle_t connection,
                                              bats_connection_callback_t callback,
                                              void* user_data, openbats_release_t release);
/* As bats_connection_send_data, with a deadline of 1 to 3600000 ms. Modes 0 and 3, and datagrams of
 * mode 12, neither start to send nor repair an expired message. Mode 11 sends immediately; the other
 * modes deliver all messages, even late ones. */
bats_error_t openbats_connection_send_within(bats_connection_handle_t connection,
                                             const unsigned char* data, int length,
                                             int milliseconds);
/* 1 if messages are compressed: both ends enabled it with bats_config_enable_compression. */
int openbats_connection_is_compressed(bats_connection_handle_t connection);
/* Keeps the handle valid after the connection's end. Each call needs one release. */
bats_error_t openbats_connection_retain(bats_connection_handle_t connection);
void openbats_connection_release(bats_connection_handle_t connection);
/* Attaches an object to the connection, which releases it when it ends. Read the object only in callbacks. */
bats_error_t openbats_connection_attach(bats_connection_handle_t connection, void* object,
                                        openbats_release_t release);
void* openbats_connection_attachment(bats_connection_handle_t connection);
size_t openbats_connection_remote_address(bats_connection_handle_t connection, char* buffer,
                                          size_t size);
size_t openbats_connection_local_address(bats_connection_handle_t connection, char* buffer,
                                         size_t size);
uint16_t openbats_connection_remote_port(bats_connection_handle_t connection);
uint16_t openbats_connection_local_port(bats_connection_handle_t connection);
/* SHA-256 fingerprint of the peer's certificate; its length is 0 if the peer presented none. */
size_t openbats_connection_peer_fingerprint(bats_connection_handle_t connection, char* buffer,
                                            size_t size);
/* Why the connection failed or ended. */
size_t openbats_connection_error(bats_connection_handle_t connection, char* buffer, size_t size);

/* Channels: streams of bytes within a connection of mode 1 or 2, each with its own order, flow control and
 * end. A channel that is not read, or that waits for a lost packet, does not delay the others.
 *
 * A handle is valid until openbats_channel_close or the end of the connection, which also ends when the
 * peer has finished its messages. Before the connection's last event the user_data of its channels are
 * released, and no event of theirs follows. */
typedef struct openbats_channel_t* openbats_channel_handle_t;

typedef enum {
  openbats_channel_event_opened = 1,   /* first event of a channel that this end opened */
  openbats_channel_event_data = 2,     /* data and length: the next bytes of the stream */
  openbats_channel_event_end = 3,      /* the peer has finished: all bytes have arrived */
  openbats_channel_event_reset = 4,    /* the peer gave up sending, with this code */
  openbats_channel_event_stopped = 5,  /* the peer reads no more, with this code. Instead of writable */
  openbats_channel_event_writable = 6  /* after a write that queued less than it was given */
} openbats_channel_event_t;

/* data is valid only during the call. code is 0 except for reset and stopped. */
typedef void (*openbats_channel_callback_t)(openbats_channel_handle_t channel,
                                            openbats_channel_event_t event,
                                            const unsigned char* data, size_t length,
                                            uint64_t code, void* user_data);
typedef void (*openbats_channel_accept_callback_t)(bats_connection_handle_t connection,
                                                   openbats_channel_handle_t channel,
                                                   void* user_data);

/* Opens a channel, without a round trip: the peer learns of it by its first byte or its end. NULL on an
 * error, for instance if the connection has no channels. While the peer allows no more open channels,
 * the channel waits: it can be used from its opened event on. */
openbats_channel_handle_t openbats_channel_open(bats_connection_handle_t connection,
                                                openbats_channel_callback_t callback,
                                                void* user_data, openbats_release_t release);
/* Sets the callback for channels that the peer opens; they wait until then. It calls
 * openbats_channel_set_callback, else the channel is closed when it returns. */
bats_error_t openbats_connection_accept_channels(bats_connection_handle_t connection,
                                                 openbats_channel_accept_callback_t callback,
                                                 void* user_data, openbats_release_t release);
bats_error_t openbats_channel_set_callback(openbats_channel_handle_t channel,
                                           openbats_channel_callback_t callback, void* user_data,
                                           openbats_release_t release);
/* Queues bytes for sending and returns how many, or -1 on an error. If they are less than length (0 when
 * the send buffer is full), writable follows. */
ptrdiff_t openbats_channel_write(openbats_channel_handle_t channel, const unsigned char* data,
                                 size_t length);
/* Ends the sending direction: the peer gets the end after all bytes. */
bats_error_t openbats_channel_finish(openbats_channel_handle_t channel);
/* Gives up sending: bytes that are not sent are dropped, and the peer gets the code, less than 2^62. */
bats_error_t openbats_channel_reset(openbats_channel_handle_t channel, uint64_t code);
/* Reads no more: what has arrived is dropped, and the peer gets the code, less than 2^62. */
bats_error_t openbats_channel_stop(openbats_channel_handle_t channel, uint64_t code);
/* 1: no data, end and reset events until a call with 0; the peer can then send only as much as the
 * receive budget allows. */
bats_error_t openbats_channel_pause(openbats_channel_handle_t channel, int pause);
/* Weight of 1 to 255, in proportion to which channels with data share the rate; 16 at first, as for the
 * messages of the connection. */
bats_error_t openbats_channel_set_weight(openbats_channel_handle_t channel, int weight);
/* The number of the channel, which both ends know; 0 before it is open. */
uint64_t openbats_channel_id(openbats_channel_handle_t channel);
/* Finishes sending, stops reading and invalidates the handle. When it returns, no callback of the channel
 * runs except one that the caller is in. */
bats_error_t openbats_channel_close(openbats_channel_handle_t channel);

/* Statistics of a connection. Set size before the call; the library sets it to the number of bytes
 * that it filled. */
typedef struct {
  uint32_t size;
  uint32_t path_mtu; /* bytes of UDP payload; 0 if only the kernel knows it */
  uint64_t smoothed_rtt_ns;
  uint64_t min_rtt_ns;
  uint64_t queue_delay_ns; /* one-way, forward path, above its minimum */
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
  uint64_t wasted_packets_received; /* not innovative */
  uint64_t messages_sent;
  uint64_t message_bytes_sent;
  uint64_t messages_received;      /* that the application has taken */
  uint64_t message_bytes_received; /* of messages that arrived, taken or not */
  uint64_t send_buffer_bytes;
  uint64_t receive_buffer_bytes;
  double loss_estimate; /* 0 to 1, before repair */
  double burst_factor;  /* 1 for single losses */
  double code_rate;     /* 0 to 1 */
  /* Modes 0 and 3. */
  uint64_t messages_expired; /* their deadline passed before they were sent */
  uint64_t messages_lost;    /* messages of the peer, as far as known */
  uint64_t symbols_lost;     /* symbols of the peer, neither received nor repaired in time */
  uint64_t symbols_repaired;
  uint64_t repair_delay_ns; /* sum of the delays from detecting a loss to its repair */
  uint64_t longest_repair_delay_ns;
} openbats_stats_t;

bats_error_t openbats_connection_stats(bats_connection_handle_t connection,
                                       openbats_stats_t* stats);

#ifdef __cplusplus
}
#endif

#endif
