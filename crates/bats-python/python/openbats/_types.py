"""Types and helpers shared by the blocking and the asyncio interface."""

from __future__ import annotations

import dataclasses
import operator
import os
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from . import _native

BytesLike = Union[bytes, bytearray, memoryview]
Mode = Union[int, str]
#: Whom to trust: the kind and its values.
TrustTuple = Tuple[str, List[str]]

MODES = {
    "btp": 0,
    "brtp": 1,
    "brctp": 2,
    "transparent": 3,
    "tcp": 10,
    "udp": 11,
    "quic": 12,
}


#: The least budget in bytes.
MIN_BUDGET = 64 << 10

#: The most channels that a peer may have open.
MAX_CHANNELS = 1 << 20

#: Codes of channels are numbers of at most 62 bits.
MAX_CODE = (1 << 62) - 1

#: The most bytes of one read from a channel.
MAX_READ = 1 << 20


def mode_number(mode: Mode) -> int:
    """Returns the number of a mode given by name or number."""
    if isinstance(mode, str):
        try:
            return MODES[mode.lower()]
        except KeyError:
            names = ", ".join(MODES)
            raise ValueError(f"mode must be one of {names}, not {mode!r}") from None
    return operator.index(mode)


def as_bytes(data: BytesLike) -> Union[bytes, bytearray]:
    """Converts data to a type that the native part accepts without a copy. Raises ``TypeError`` for
    objects without a buffer: ``bytes(5)`` would be five zero bytes."""
    if isinstance(data, (bytes, bytearray)):
        return data
    return bytes(memoryview(data))


def budget(name: str, size: Optional[int]) -> Optional[int]:
    """Checks a number of bytes."""
    if size is not None and not MIN_BUDGET <= operator.index(size) < 1 << 63:
        raise ValueError(f"{name} must be at least {MIN_BUDGET} bytes, not {size}")
    return size


def channel_limit(number: Optional[int]) -> Optional[int]:
    """Checks a number of channels."""
    if number is not None and not 0 <= operator.index(number) <= MAX_CHANNELS:
        raise ValueError(f"channels must be 0 to {MAX_CHANNELS}, not {number}")
    return number


def options(
    mode: Mode,
    congestion: str,
    rate: Optional[int],
    goal: str,
    deadline: float,
    idle_timeout: float,
    keep_alive: Optional[float],
    max_message_size: Optional[int],
    compression: Optional[int],
    quic_datagrams: bool,
    closed_key: Optional[bytes],
    send_budget: Optional[int],
    receive_budget: Optional[int],
    memory_budget: Optional[int],
    channels: Optional[int],
) -> Dict[str, Any]:
    return {
        "mode": mode_number(mode),
        "congestion": congestion,
        "rate": rate,
        "goal": goal,
        "deadline": deadline,
        "idle_timeout": idle_timeout,
        "keep_alive": keep_alive,
        "max_message_size": max_message_size,
        "compression": compression,
        "quic_datagrams": quic_datagrams,
        "send_budget": budget("send_budget", send_budget),
        "receive_budget": budget("receive_budget", receive_budget),
        "memory_budget": budget("memory_budget", memory_budget),
        "channels": channel_limit(channels),
        "closed_key": None if closed_key is None else bytes(memoryview(closed_key)),
    }


def trust(
    fingerprint: Optional[str],
    authorities: Optional[Union[str, "os.PathLike[str]"]],
    known_hosts: Optional[Union[str, "os.PathLike[str]"]],
    insecure: bool,
) -> TrustTuple:
    """The kind of trust and its values: the given one, else trust on first use with the file of the
    user."""
    chosen = sum(value is not None for value in (fingerprint, authorities, known_hosts))
    if chosen + bool(insecure) > 1:
        raise ValueError(
            "choose one way to trust: fingerprint='...', authorities='file.pem', "
            "known_hosts='file' or insecure=True"
        )
    if fingerprint is not None:
        return ("fingerprint", [fingerprint])
    if authorities is not None:
        return ("authorities", [os.fspath(authorities)])
    if insecure:
        return ("insecure", [])
    return ("known_hosts", [] if known_hosts is None else [os.fspath(known_hosts)])


def client_trust(
    fingerprints: Optional[Iterable[str]],
    authorities: Optional[Union[str, "os.PathLike[str]"]],
) -> Optional[TrustTuple]:
    """Whom a server accepts; ``None`` for any client."""
    if fingerprints is not None and authorities is not None:
        raise ValueError("choose either client_fingerprints or client_authorities")
    if authorities is not None:
        return ("authorities", [os.fspath(authorities)])
    if fingerprints is None:
        return None
    if isinstance(fingerprints, str):
        raise TypeError("client_fingerprints is a list of fingerprints, not one")
    return ("fingerprint", list(fingerprints))


def identity(
    cert: Optional[Union[str, "os.PathLike[str]"]], key: Optional[Union[str, "os.PathLike[str]"]]
) -> Optional[Tuple[str, str]]:
    if (cert is None) != (key is None):
        raise ValueError("cert and key go together")
    return None if cert is None or key is None else (os.fspath(cert), os.fspath(key))


def server_identity(
    cert: Optional[Union[str, "os.PathLike[str]"]],
    key: Optional[Union[str, "os.PathLike[str]"]],
    identity_file: Optional[Union[str, "os.PathLike[str]"]],
) -> Optional[Tuple[str, Optional[str]]]:
    if identity_file is None:
        return identity(cert, key)
    if cert is not None or key is not None:
        raise ValueError("choose either cert and key, or identity_file")
    return (os.fspath(identity_file), None)


def local_ip(host: str) -> str:
    return {"localhost": "127.0.0.1", "": "0.0.0.0"}.get(host, host)


@dataclasses.dataclass(frozen=True)
class Stats:
    """A sample of a connection's statistics. Times in seconds, sizes in bytes, rates in bit/s."""

    controller_state: str
    smoothed_rtt: float
    min_rtt: float
    queue_delay: float
    #: Sum over repaired symbols of the time from detecting the gap to recovery.
    repair_delay: float
    longest_repair_delay: float
    loss_estimate: float
    burst_factor: float
    code_rate: float
    cwnd_bytes: int
    in_flight_bytes: int
    pacing_bps: int
    delivery_bps: int
    path_mtu: int
    bytes_sent: int
    packets_sent: int
    bytes_received: int
    packets_received: int
    packets_lost: int
    source_packets_sent: int
    proactive_packets_sent: int
    top_up_packets_sent: int
    coded_packets_received: int
    wasted_packets_received: int
    symbols_decoded: int
    messages_sent: int
    message_bytes_sent: int
    #: Messages that the application has taken.
    messages_received: int
    #: Bytes of messages that arrived, taken or not.
    message_bytes_received: int
    #: Modes btp and transparent: messages that expired before they were sent.
    messages_expired: int
    #: Messages and symbols of the peer known to be lost.
    messages_lost: int
    symbols_lost: int
    symbols_repaired: int
    send_buffer_bytes: int
    receive_buffer_bytes: int


@dataclasses.dataclass(frozen=True)
class File:
    """A transferred and verified file."""

    path: Optional[str]
    size: int
    #: BLAKE3 hash of the content.
    hash: bytes


def file_of(value: Optional[Tuple[Optional[str], int, bytes]]) -> Optional[File]:
    return None if value is None else File(*value)


class ChannelBase:
    """Methods of a channel that do not wait."""

    def __init__(self, native: "_native.Channel"):
        self._native = native

    @property
    def id(self) -> int:
        """The number of the channel, which both ends know."""
        return self._native.id()

    def finish(self) -> None:
        """Ends the sending direction: the peer gets the end after all bytes."""
        self._native.finish()

    def reset(self, code: int = 0) -> None:
        """Gives up the sending direction: bytes that are not sent are dropped, and the peer gets the
        code, less than 2^62."""
        self._native.reset(self._code(code))

    def stop(self, code: int = 0) -> None:
        """Reads no more: what has arrived is dropped, and the peer gets the code, less than 2^62, when
        it writes."""
        self._native.stop(self._code(code))

    def set_weight(self, weight: int) -> None:
        """Sets the weight, 1 to 255, in proportion to which channels share the rate; 16 at first."""
        if not 1 <= operator.index(weight) <= 255:
            raise ValueError(f"weight must be 1 to 255, not {weight}")
        self._native.set_weight(weight)

    @staticmethod
    def _limit(limit: int) -> int:
        if operator.index(limit) < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        return min(limit, MAX_READ)

    @staticmethod
    def _code(code: int) -> int:
        if not 0 <= operator.index(code) <= MAX_CODE:
            raise ValueError(f"code must be 0 to {MAX_CODE}, not {code}")
        return code

    def _leave(self, is_complete: bool) -> None:
        """Ends the sending direction at the end of a block: incomplete data are given up."""
        if not is_complete:
            self._native.reset(0)
            return
        try:
            self._native.finish()
        except (_native.ChannelError, _native.ConnectionClosed):
            # It was finished before, or the peer has gone.
            pass

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Channel {self.id}>"


class ConnectionBase:
    """Methods that do not wait."""

    def __init__(self, native: "_native.Connection", endpoint: Optional["_native.Endpoint"]):
        self._native = native
        # A client's own endpoint is closed with the connection.
        self._endpoint = endpoint

    def close(self, code: int = 0, reason: str = "") -> None:
        """Closes the connection at once; unacknowledged data may be lost."""
        self._native.close(code, reason)

    def stats(self) -> Stats:
        """A sample of the statistics; after the close, the last sample."""
        return Stats(**self._native.stats())

    @property
    def mode(self) -> str:
        """The name of the connection's mode."""
        number = self._native.mode()
        return next(name for name, known in MODES.items() if known == number)

    def _needs_reliability(self) -> None:
        if not self.is_reliable:
            raise _native.UnsupportedMode(
                f"files are not available in mode {self.mode}; use 'brtp', 'brctp', 'tcp' or 'quic'"
            )

    @property
    def is_reliable(self) -> bool:
        """Whether messages are delivered reliably and in order."""
        return self._native.is_reliable()

    @property
    def is_compressed(self) -> bool:
        """Whether messages are compressed, because both ends enabled it."""
        return self._native.is_compressed()

    @property
    def longest_message(self) -> Optional[int]:
        """Length in bytes of the longest message that may be sent now, if it is known."""
        return self._native.longest_message()

    @property
    def remote_address(self) -> Tuple[str, int]:
        return self._native.remote_address()

    @property
    def peer_fingerprint(self) -> Optional[str]:
        """SHA-256 fingerprint of the peer's certificate, if connected and it presented one."""
        return self._native.peer_fingerprint()

    @property
    def close_reason(self) -> Optional[str]:
        """Why the connection was closed, if it is."""
        return self._native.close_reason()

    def __repr__(self) -> str:
        host, port = self.remote_address
        return f"<{type(self).__module__}.Connection to {host} port {port}>"
