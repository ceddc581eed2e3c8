"""The blocking interface."""

from __future__ import annotations

import os
from typing import Iterable, Iterator, Optional, Tuple, Union

from . import _native
from ._types import (
    BytesLike,
    ChannelBase,
    ConnectionBase,
    File,
    Mode,
    as_bytes,
    client_trust,
    file_of,
    identity,
    local_ip,
    options,
    server_identity,
    trust,
)

#: Longest wait in seconds for unacknowledged data when a ``with`` block is left.
LINGER = 10.0


class Channel(ChannelBase):
    """A stream of bytes in each direction within a connection. A channel that is not read, or that
    waits for a lost packet, does not hold up the others. Usable from several threads.

    Leaving a ``with`` block finishes the sending direction; iterating yields what arrives. A channel
    without references is finished and stopped."""

    def __init__(self, native: "_native.Channel", connection: Connection):
        super().__init__(native)
        #: The connection of the channel.
        self.connection = connection

    def read(self, limit: int = 65536, timeout: Optional[float] = None) -> bytes:
        """Returns bytes that have arrived: at least one and at most ``limit`` or 2^20, or ``b""`` at
        the end."""
        return self._native.read(self._limit(limit)).wait(timeout)

    def write(self, data: BytesLike, timeout: Optional[float] = None) -> None:
        """Queues all bytes. After a ``TimeoutError`` a part of them may be queued."""
        self._native.write(as_bytes(data)).wait(timeout)

    def __iter__(self) -> Iterator[bytes]:
        while True:
            data = self.read()
            if not data:
                return
            yield data

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        self._leave(kind is None)


class Connection(ConnectionBase):
    """A connection for messages to and from one peer. Usable from several threads.

    Modes brtp, brctp, tcp and quic deliver messages in order, each exactly once. Modes btp,
    transparent, udp and QUIC datagrams may lose or reorder messages (udp may also duplicate them);
    see ``is_reliable``."""

    def send(
        self,
        data: BytesLike,
        timeout: Optional[float] = None,
        *,
        deadline: Optional[float] = None,
    ) -> None:
        """Sends a message; returns when it is buffered, not when it has arrived.

        The message expires after ``deadline`` seconds, at most an hour: modes btp, transparent and
        QUIC datagrams do not start sending it after that. Reliable modes always deliver it."""
        self._native.send(as_bytes(data), deadline).wait(timeout)

    def recv(self, timeout: Optional[float] = None) -> Optional[bytes]:
        """Returns the next message, or ``None`` after the peer's last one."""
        return self._native.recv().wait(timeout)

    def flush(self, timeout: Optional[float] = None) -> None:
        """Waits until the peer has acknowledged everything sent so far."""
        self._native.flush().wait(timeout)

    def finish(self, timeout: Optional[float] = None) -> None:
        """Ends sending and waits until the peer has acknowledged everything."""
        self._native.finish().wait(timeout)

    def open_channel(self, timeout: Optional[float] = None) -> Channel:
        """Opens a channel, a stream of bytes with flow control and an end of its own. Both ends must
        have been created with ``channels``, which limits how many the other may have open; while it
        allows no more, this waits. The peer learns of the channel by its first byte or its end."""
        return Channel(self._native.open_channel().wait(timeout), self)

    def accept_channel(self, timeout: Optional[float] = None) -> Channel:
        """Returns the next channel that the peer opens."""
        return Channel(self._native.accept_channel().wait(timeout), self)

    def send_file(
        self, path: Union[str, "os.PathLike[str]"], timeout: Optional[float] = None
    ) -> File:
        """Sends a file; returns when the peer has verified and stored it."""
        self._needs_reliability()
        sent = file_of(self._native.send_file(os.fspath(path)).wait(timeout))
        assert sent is not None
        return sent

    def receive_file(
        self,
        directory: Union[str, "os.PathLike[str]"],
        *,
        overwrite: bool = False,
        max_size: Optional[int] = None,
        reserve: int = 0,
        timeout: Optional[float] = None,
    ) -> Optional[File]:
        """Receives the next file into a directory; ``None`` when the peer has finished.

        A file of more than ``max_size`` bytes is refused, and one that would leave less than ``reserve`` bytes
        of the file system free, with what other files that this process receives still need."""
        self._needs_reliability()
        operation = self._native.receive_file(os.fspath(directory), overwrite, max_size, reserve)
        return file_of(operation.wait(timeout))

    def __iter__(self) -> Iterator[bytes]:
        while True:
            message = self.recv()
            if message is None:
                return
            yield message

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        if kind is None and self.close_reason is None:
            try:
                self.finish(LINGER)
            except (TimeoutError, _native.ConnectionClosed):
                pass
        self.close()


class Listener:
    """Accepts connections. Iterating yields accepted connections."""

    def __init__(self, native: "_native.Endpoint"):
        self._native = native

    @property
    def address(self) -> Tuple[str, int]:
        return self._native.address()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, for clients to pin."""
        fingerprint = self._native.fingerprint()
        assert fingerprint is not None
        return fingerprint

    def accept(self, timeout: Optional[float] = None) -> Connection:
        """Returns the next incoming connection."""
        return Connection(self._native.accept().wait(timeout), None)

    def close(self) -> None:
        """Closes all connections of this listener; its port is free when this returns."""
        self._native.terminate().wait(LINGER)

    def __iter__(self) -> Iterator[Connection]:
        while True:
            yield self.accept()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<openbats.Listener at {self.address[0]} port {self.address[1]}>"


def connect(
    host: str,
    port: int,
    *,
    fingerprint: Optional[str] = None,
    authorities: Optional[Union[str, "os.PathLike[str]"]] = None,
    known_hosts: Optional[Union[str, "os.PathLike[str]"]] = None,
    insecure: bool = False,
    cert: Optional[Union[str, "os.PathLike[str]"]] = None,
    key: Optional[Union[str, "os.PathLike[str]"]] = None,
    mode: Mode = "brtp",
    congestion: str = "ltcc",
    rate: Optional[int] = None,
    goal: str = "balanced",
    deadline: float = 0.2,
    idle_timeout: float = 30.0,
    keep_alive: Optional[float] = None,
    max_message_size: Optional[int] = None,
    compression: Optional[int] = None,
    quic_datagrams: bool = False,
    closed_key: Optional[bytes] = None,
    send_budget: Optional[int] = None,
    receive_budget: Optional[int] = None,
    memory_budget: Optional[int] = None,
    channels: Optional[int] = None,
    local: Optional[Tuple[str, int]] = None,
    timeout: Optional[float] = None,
) -> Connection:
    """Connects to a server. In modes btp and transparent a message expires unsent after
    ``deadline`` seconds.

    The server is trusted on first use, as ssh does it: its certificate is recorded under ``host`` and
    ``port`` in the file ``known_hosts``, and a server whose certificate has changed is refused with a
    ``ConnectError`` that says what to do. The first connection to a server is not authenticated. The
    file is by default that of ``bats_iperf``, ``$XDG_STATE_HOME/openbats/known_hosts`` or
    ``~/.local/state/openbats/known_hosts``. Instead, ``fingerprint`` requires this SHA-256 of the
    certificate, ``authorities`` a certificate that is valid for ``host``, issued by one of this PEM
    file; ``insecure=True`` accepts any. Mode udp has no certificates.

    ``congestion`` is ``ltcc``, ``bbr3``, ``cubic``, ``gcc``, ``none``, or ``fixed`` with a ``rate`` in bit/s,
    in modes btp, brtp and brctp. Mode quic supports ``bbr`` and ``cubic``; tcp uses the kernel's
    congestion control; transparent and udp have none. Others raise ``ValueError``.

    ``cert`` and ``key`` are PEM files with the certificate of this client, for servers that ask for
    one (``client_fingerprints`` of ``listen``).

    ``compression`` is the Zstandard level, 1 to 19, for each message; messages are compressed only
    if both ends enable it (see ``Connection.is_compressed``). ``quic_datagrams`` sends the messages
    of mode quic as datagrams, each at most once; if only one end enables it, the connection fails.

    ``closed_key`` is a pre-shared key of 32 bytes (PSK mode) that both ends need in addition to
    trust, in modes btp, brtp, brctp and transparent. A listener with a key does not answer clients
    without it, and a client with another key or none times out.

    ``send_budget`` and ``receive_budget`` are the memory in bytes for data of the connection that is
    not acknowledged or not received by the application yet. ``memory_budget`` limits the
    received data of all connections of a listener: each is charged 256 KiB at its start, and with use
    up to its ``receive_budget``.

    ``channels`` is the number of channels, at most 2^20, that the peer may have open at once, in modes
    brtp and brctp; see ``Connection.open_channel``."""
    trusted = trust(fingerprint, authorities, known_hosts, insecure)
    files = identity(cert, key)
    chosen = options(
        mode, congestion, rate, goal, deadline, idle_timeout, keep_alive, max_message_size,
        compression, quic_datagrams, closed_key, send_budget, receive_budget, memory_budget,
        channels,
    )
    endpoint = _native.Endpoint.client(local, chosen)
    operation = endpoint.connect(host, port, trusted, files, chosen)
    return Connection(operation.wait(timeout), endpoint)


def listen(
    host: str = "0.0.0.0",
    port: int = 0,
    *,
    cert: Optional[Union[str, "os.PathLike[str]"]] = None,
    key: Optional[Union[str, "os.PathLike[str]"]] = None,
    identity_file: Optional[Union[str, "os.PathLike[str]"]] = None,
    client_fingerprints: Optional[Iterable[str]] = None,
    client_authorities: Optional[Union[str, "os.PathLike[str]"]] = None,
    mode: Mode = "brtp",
    congestion: str = "ltcc",
    rate: Optional[int] = None,
    goal: str = "balanced",
    deadline: float = 0.2,
    idle_timeout: float = 30.0,
    keep_alive: Optional[float] = None,
    max_message_size: Optional[int] = None,
    compression: Optional[int] = None,
    quic_datagrams: bool = False,
    closed_key: Optional[bytes] = None,
    send_budget: Optional[int] = None,
    receive_budget: Optional[int] = None,
    memory_budget: Optional[int] = None,
    channels: Optional[int] = None,
) -> Listener:
    """Listens for connections. ``cert`` and ``key`` are PEM files of its certificate; ``identity_file``
    is one file with both, which is generated if it does not exist. Without them each call makes a new
    certificate, which clients that know an earlier one refuse.

    It accepts any client, or only those whose certificate has one of ``client_fingerprints`` or was
    issued by an authority in the PEM file ``client_authorities``; others fail to connect. See
    ``Connection.peer_fingerprint``. Not in mode udp."""
    accepted = client_trust(client_fingerprints, client_authorities)
    chosen = options(
        mode, congestion, rate, goal, deadline, idle_timeout, keep_alive, max_message_size,
        compression, quic_datagrams, closed_key, send_budget, receive_budget, memory_budget,
        channels,
    )
    files = server_identity(cert, key, identity_file)
    return Listener(_native.Endpoint.server((local_ip(host), port), files, accepted, chosen))
