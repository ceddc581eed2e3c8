"""The asyncio interface: the same names as the blocking one, with ``await``.

    async with openbats.aio.connect("example.org", 4433, fingerprint="...") as connection:
        await connection.send(b"hello")
        print(await connection.recv())

Cancelling a task aborts its operation: a connection attempt is aborted, and a message that is not
buffered yet is not sent. A cancelled ``recv`` loses no message.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from typing import Any, AsyncIterator, Awaitable, Dict, Generator, Generic, Iterable, Optional
from typing import Tuple, TypeVar, Union

from . import _native
from ._blocking import LINGER
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

__all__ = ["Channel", "Connection", "Listener", "connect", "listen"]

T = TypeVar("T")

#: Longest wait in seconds for the thread of a cancelled transfer, which ends with the connection.
_THREAD_END = 1.0


class _Driver:
    """Polls operations when the I/O threads signal them. One per event loop."""

    _drivers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Driver]" = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._hub = _native.Hub()
        self._tokens = itertools.count(1)
        self._waiting: Dict[int, "asyncio.Future[None]"] = {}
        loop.add_reader(self._hub.fileno(), self._on_ready)

    @classmethod
    def current(cls) -> "_Driver":
        loop = asyncio.get_running_loop()
        driver = cls._drivers.get(loop)
        if driver is None:
            driver = cls._drivers[loop] = cls(loop)
        return driver

    def _on_ready(self) -> None:
        for token in self._hub.take():
            future = self._waiting.get(token)
            if future is not None and not future.done():
                future.set_result(None)

    async def run(self, operation: "_native.Operation[T]") -> T:
        loop = asyncio.get_running_loop()
        token = next(self._tokens)
        try:
            while True:
                future = loop.create_future()
                self._waiting[token] = future
                done = operation.poll(self._hub, token)
                if done is not None:
                    return done[0]
                await future
        finally:
            self._waiting.pop(token, None)
            operation.cancel()


async def _run(operation: "_native.Operation[T]") -> T:
    return await _Driver.current().run(operation)


def _on_own_thread(operation: "_native.Operation[T]") -> "asyncio.Future[T]":
    """Waits for an operation on its own thread.

    The loop's executor has few threads: transfers that wait for their peers would block each other
    and all other users of the executor."""
    loop = asyncio.get_running_loop()
    ended: "asyncio.Future[T]" = loop.create_future()
    # Retrieve the exception, because a cancelled caller does not.
    ended.add_done_callback(lambda future: future.cancelled() or future.exception())

    def settle(result: Any, error: Optional[BaseException]) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = operation.wait()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            # The loop was closed, so no task waits.
            pass

    threading.Thread(target=work, name="openbats file").start()
    return ended


class Channel(ChannelBase):
    """A stream of bytes in each direction within a connection; see ``openbats.Channel``."""

    def __init__(self, native: "_native.Channel", connection: Connection):
        super().__init__(native)
        #: The connection of the channel.
        self.connection = connection

    async def read(self, limit: int = 65536) -> bytes:
        """Returns bytes that have arrived: at least one and at most ``limit`` or 2^20, or ``b""`` at
        the end. A cancelled read loses none."""
        return await _run(self._native.read(self._limit(limit)))

    async def write(self, data: BytesLike) -> None:
        """Queues all bytes. When it is cancelled, a part of them may be queued."""
        await _run(self._native.write(as_bytes(data)))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            data = await self.read()
            if not data:
                return
            yield data

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, kind: object, value: object, traceback: object) -> None:
        self._leave(kind is None)


class Connection(ConnectionBase):
    """A connection for messages to and from one peer.

    Modes brtp, brctp, tcp and quic deliver messages in order, each exactly once. Modes btp,
    transparent, udp and QUIC datagrams may lose or reorder messages; udp may also duplicate
    them."""

    async def send(self, data: BytesLike, *, deadline: Optional[float] = None) -> None:
        """Sends a message; completes when it is buffered, not when it has arrived.

        ``deadline`` is as in ``openbats.Connection.send``."""
        await _run(self._native.send(as_bytes(data), deadline))

    async def recv(self) -> Optional[bytes]:
        """Returns the next message, or ``None`` after the peer's last one."""
        return await _run(self._native.recv())

    async def flush(self) -> None:
        """Waits until the peer has acknowledged everything sent so far."""
        await _run(self._native.flush())

    async def finish(self) -> None:
        """Ends sending and waits until the peer has acknowledged everything."""
        await _run(self._native.finish())

    async def open_channel(self) -> Channel:
        """Opens a channel; see ``openbats.Connection.open_channel``."""
        return Channel(await _run(self._native.open_channel()), self)

    async def accept_channel(self) -> Channel:
        """Returns the next channel that the peer opens. Cancelling loses none."""
        return Channel(await _run(self._native.accept_channel()), self)

    async def _on_thread(
        self, operation: "_native.Operation[Optional[_native.FileTuple]]"
    ) -> Optional[File]:
        # Files are read and written synchronously, which would block the event loop.
        ended = _on_own_thread(operation)
        try:
            return file_of(await asyncio.shield(ended))
        except asyncio.CancelledError:
            # A partial file is useless, and closing the connection ends the thread.
            self.close(0, "file transfer cancelled")
            await asyncio.wait([ended], timeout=_THREAD_END)
            raise
        except GeneratorExit:
            # The loop was closed without cancelling its tasks.
            self.close(0, "file transfer aborted")
            raise

    async def send_file(self, path: Union[str, "os.PathLike[str]"]) -> File:
        """Sends a file; completes when the peer has stored it. Cancelling closes the connection."""
        self._needs_reliability()
        sent = await self._on_thread(self._native.send_file(os.fspath(path)))
        assert sent is not None
        return sent

    async def receive_file(
        self,
        directory: Union[str, "os.PathLike[str]"],
        *,
        overwrite: bool = False,
        max_size: Optional[int] = None,
        reserve: int = 0,
    ) -> Optional[File]:
        """Receives the next file; ``None`` when the peer has finished. Cancelling closes the
        connection. The limits are those of the blocking interface."""
        self._needs_reliability()
        return await self._on_thread(
            self._native.receive_file(os.fspath(directory), overwrite, max_size, reserve)
        )

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self.recv()
            if message is None:
                return
            yield message

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, kind: object, value: object, traceback: object) -> None:
        if kind is None and self.close_reason is None:
            try:
                await asyncio.wait_for(self.finish(), LINGER)
            except (asyncio.TimeoutError, _native.ConnectionClosed):
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

    async def accept(self) -> Connection:
        """Returns the next incoming connection."""
        return Connection(await _run(self._native.accept()), None)

    async def close(self) -> None:
        """Closes all connections of this listener; its port is free when this completes."""
        await _run(self._native.terminate())

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while True:
            yield await self.accept()

    async def __aenter__(self) -> "Listener":
        return self

    async def __aexit__(self, kind: object, value: object, traceback: object) -> None:
        await self.close()


class _Begun(Generic[T]):
    """An awaitable that is also an asynchronous context manager."""

    def __init__(self, made: Awaitable[T]):
        self._made = made
        self._entered: Any = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._made.__await__()

    async def __aenter__(self) -> T:
        entered = await self._made
        self._entered = entered
        await self._entered.__aenter__()
        return entered

    async def __aexit__(self, kind: object, value: object, traceback: object) -> None:
        await self._entered.__aexit__(kind, value, traceback)


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
) -> "_Begun[Connection]":
    """Connects to a server; await it or use it with ``async with``. See ``openbats.connect``."""
    trusted = trust(fingerprint, authorities, known_hosts, insecure)
    files = identity(cert, key)
    chosen = options(
        mode, congestion, rate, goal, deadline, idle_timeout, keep_alive, max_message_size,
        compression, quic_datagrams, closed_key, send_budget, receive_budget, memory_budget,
        channels,
    )

    async def make() -> Connection:
        endpoint = _native.Endpoint.client(local, chosen)
        operation = endpoint.connect(host, port, trusted, files, chosen)
        return Connection(await _run(operation), endpoint)

    return _Begun(make())


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
) -> "_Begun[Listener]":
    """Listens for connections; await it or use it with ``async with``. See ``openbats.listen``."""
    accepted = client_trust(client_fingerprints, client_authorities)
    chosen = options(
        mode, congestion, rate, goal, deadline, idle_timeout, keep_alive, max_message_size,
        compression, quic_datagrams, closed_key, send_budget, receive_budget, memory_budget,
        channels,
    )
    files = server_identity(cert, key, identity_file)

    async def make() -> Listener:
        return Listener(_native.Endpoint.server((local_ip(host), port), files, accepted, chosen))

    return _Begun(make())
