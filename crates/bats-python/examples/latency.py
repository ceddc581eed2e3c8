"""Sends small messages back and forth, one at a time, and prints the round-trip times."""

import threading
import time
from typing import List

import openbats

ROUNDS = 500

with openbats.listen("127.0.0.1") as listener:
    connection = openbats.connect(*listener.address, fingerprint=listener.fingerprint, timeout=30)
    server = listener.accept(30)

    def answer() -> None:
        for message in server:
            server.send(message)

    thread = threading.Thread(target=answer)
    thread.start()
    rounds: List[float] = []
    for number in range(ROUNDS):
        ping = number.to_bytes(64, "big")
        start = time.perf_counter()
        connection.send(ping)
        assert connection.recv(30) == ping
        rounds.append(time.perf_counter() - start)
    connection.finish(30)
    thread.join()
    rounds.sort()
    assert rounds[0] > 0
    print(
        f"latency: {ROUNDS} rounds; 50 %: {rounds[ROUNDS // 2] * 1e6:.0f} us, "
        f"99 %: {rounds[ROUNDS * 99 // 100] * 1e6:.0f} us"
    )
