"""Stress test: random calls from several threads with objects that they share, so that calls meet
objects that another thread is closing: stress.py [threads] [seconds] [seed]."""

import random
import sys
import threading
import time

import openbats

MODES = ["btp", "brtp", "brctp", "transparent", "tcp", "udp", "quic"]
MESSAGE = bytes(range(250)) * 2
SHORT = 0.05
#: On a loaded machine or under a sanitizer messages may need longer to arrive.
LONGEST = 120.0
#: What a call may raise whose object was closed, or whose time is over.
EXPECTED = (openbats.OpenBatsError, TimeoutError, OSError)


class World:
    """The objects of all threads."""

    def __init__(self, seconds):
        self.listeners = [None] * 8
        self.connections = [None] * 32
        self.calls = 0
        self.messages = 0
        self.failures = []
        self.end = time.monotonic() + seconds

    def is_running(self):
        now = time.monotonic()
        return not self.failures and (
            now < self.end or (now < self.end + LONGEST and self.messages <= 10)
        )

    def keep(self, draw, connection):
        self.connections[draw.randrange(len(self.connections))] = connection


def listen(world, draw):
    slot = draw.randrange(len(world.listeners))
    mode = MODES[slot % len(MODES)]
    world.listeners[slot] = openbats.listen("127.0.0.1", mode=mode, idle_timeout=2.0), mode


def connect(world, draw):
    listener, mode = draw.choice(world.listeners) or (None, None)
    if listener is None:
        return
    trust = {"insecure": True} if mode == "udp" else {"fingerprint": listener.fingerprint}
    connection = openbats.connect(
        *listener.address, mode=mode, idle_timeout=2.0, timeout=1.0, **trust
    )
    connection.send(MESSAGE, SHORT)
    world.keep(draw, connection)
    accepted = listener.accept(SHORT)
    world.keep(draw, accepted)
    receive(world, accepted)


def receive(world, connection):
    data = connection.recv(SHORT)
    if data == MESSAGE:
        world.messages += 1
    # A plain UDP port also receives datagrams of clients in other modes, for example of those whose
    # listener had this port before.
    elif data is not None and connection.mode != "udp":
        world.failures.append(f"{len(data)} bytes that were not sent, mode {connection.mode}")


def close_listener(world, draw):
    listener, _ = draw.choice(world.listeners) or (None, None)
    if listener is not None and draw.randrange(8) == 0:
        listener.close()


def use(world, draw):
    connection = draw.choice(world.connections)
    if connection is None:
        return
    match draw.randrange(10):
        case 0:
            connection.close()
        case 1:
            connection.finish(SHORT)
        case 2:
            connection.flush(SHORT)
        case 3:
            connection.stats()
        case 4:
            assert connection.mode in MODES and connection.remote_address
        case 5 | 6:
            receive(world, connection)
        case _:
            connection.send(MESSAGE, SHORT)


def run(world, seed):
    draw = random.Random(seed)
    while world.is_running():
        world.calls += 1
        try:
            draw.choices([listen, connect, close_listener, use], [1, 4, 1, 12])[0](world, draw)
        except EXPECTED:
            pass
        except BaseException as error:  # noqa: BLE001: reported by the main thread
            world.failures.append(repr(error))


def main():
    arguments = [int(text) for text in sys.argv[1:]]
    threads, seconds, seed = arguments + [8, 3, 1][len(arguments) :]
    world = World(seconds)
    running = [
        threading.Thread(target=run, args=(world, seed * 1000 + number)) for number in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if world.failures:
        sys.exit("\n".join(world.failures))
    if world.messages <= 10:
        sys.exit(f"only {world.messages} messages")
    print(f"{world.calls} calls, {world.messages} messages")


if __name__ == "__main__":
    main()
