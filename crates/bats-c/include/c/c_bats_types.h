/* Types of the C interface, with the names and values of the original SDK.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef OPENBATS_C_BATS_TYPES_H
#define OPENBATS_C_BATS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles are numbers cast to pointers. A stale handle gives an error, never a crash. */
typedef struct bats_context_t* bats_context_handle_t;
typedef struct bats_protocol_t* bats_protocol_handle_t;
typedef struct bats_config_t* bats_config_handle_t;
typedef struct bats_connection_t* bats_connection_handle_t;

/* Result of a call. openbats_last_error() returns a description. */
typedef enum {
  bats_error_none = 0,
  bats_error_invalid_param = 1,
  bats_error_listen_failed = 2,
  bats_error_connect_failed = 3,
  bats_error_accept_failed = 4,
  bats_error_memory = 5,
  bats_error_timeout = 6,
  bats_error_connection_closed = 7,
  bats_error_send_failed = 8
} bats_error_t;

/* Modes. Cast 10 (TCP), 11 (UDP) and 12 (QUIC) to this type. The call that uses an unsupported mode
 * fails. */
typedef enum {
  bats_transport_btp = 0,         /* coded, partially reliable: each message until its deadline */
  bats_transport_brtp = 1,        /* coded, reliable: sliding window */
  bats_transport_brctp = 2,       /* coded, reliable: rateless blocks of RFC 9426 */
  bats_transport_transparent = 3  /* uncoded, unreliable, without congestion control */
} bats_transport_mode_t;

/* Congestion control. bbr, bbrv2, bbrv3 and unknown numbers all select `ltcc`, which is BBRv3 with loss
 * classification. Mode 12 has BBR, and CUBIC for none and gcc; modes 3, 10 and 11 ignore the choice. Such changes
 * are logged as warnings. The numbers differ from those of the C++ interface. */
typedef enum {
  bats_cc_none = 0,
  bats_cc_bbr = 1,
  bats_cc_bbrv2 = 2,
  bats_cc_bbrv3 = 3,
  bats_cc_gcc = 4
} bats_congestion_control_t;

/* Accepted for compatibility; the wire format depends only on the mode. */
typedef enum {
  bats_frame_transparent = 0,
  bats_frame_header_v0 = 1,
  bats_frame_header_v1 = 2,
  bats_frame_header_min = 3
} bats_frame_type_t;

typedef enum {
  bats_log_level_trace = 0,
  bats_log_level_debug = 1,
  bats_log_level_info = 2,
  bats_log_level_warn = 3,
  bats_log_level_error = 4
} bats_log_level_t;

/* Events of a listener. */
typedef enum {
  bats_listen_none = 0,
  bats_listen_new_connection = 1, /* set the connection's callback in this call */
  bats_listen_failed = 2,
  bats_listen_success = 3,
  bats_listen_accepted_error = 4,
  bats_listen_already_in_listen = 5,
  bats_listen_stopped = 6
} bats_listen_event_t;

/* Events of a connection. No event follows failed, shutdown_by_peer and closed. */
typedef enum {
  bats_connection_none = 0,
  bats_connection_failed = 1,
  bats_connection_established = 2,
  bats_connection_timeout = 3,          /* failed follows */
  bats_connection_shutdown_by_peer = 4,
  bats_connection_writable = 5,         /* after established, and after buffer_full */
  bats_connection_data_received = 6,    /* one message */
  bats_connection_send_complete = 7,
  bats_connection_send_data_error = 8,
  bats_connection_buffer_full = 9,
  bats_connection_closed = 10,
  bats_connection_error = 11,
  bats_connection_already_connected = 12,
  bats_connection_ideal_buffer_length = 13, /* length: the new ideal length */
  bats_connection_all_data_acked = 14
} bats_conn_event_t;

typedef void (*sig_callback_t)(int sig);

/* data is valid only during the call. Return true when it is processed or copied. */
typedef bool (*bats_connection_callback_t)(bats_connection_handle_t connection,
                                           bats_conn_event_t event, const unsigned char* data,
                                           int length, void* user_data);

typedef void (*bats_listen_callback_t)(bats_connection_handle_t connection,
                                       bats_listen_event_t event, void* user_data);

#ifdef __cplusplus
}
#endif

#endif
