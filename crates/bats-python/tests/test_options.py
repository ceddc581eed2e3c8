import asyncio

import openbats
import pytest
from openbats import aio

LIMIT = 30.0
MODES = ["btp", "brtp", "brctp", "transparent", "tcp", "quic"]


def content(size, seed):
    return bytes((x * 31 + x // 251 + seed * 7) & 255 for x in range(size))


def pair(listener, **options):
    near = openbats.connect(
        *listener.address, fingerprint=listener.fingerprint, timeout=LIMIT, **options
    )
    return near, listener.accept(LIMIT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("there, here", [(1, 19), (3, None), (None, 1)])
def test_compression_needs_both_ends(mode, there, here):
    even = b"again and again " * 2_000
    common = {"mode": mode, "deadline": 60.0}
    with openbats.listen("127.0.0.1", compression=there, **common) as listener:
        near, far = pair(listener, compression=here, **common)
        both = there is not None and here is not None
        assert near.is_compressed == far.is_compressed == both
        for message in (even, b"", bytearray(even), memoryview(even)[5:]):
            near.send(message, LIMIT)
            assert far.recv(LIMIT) == bytes(message)
        far.send(even, LIMIT)
        assert near.recv(LIMIT) == even
        sent = near.stats().message_bytes_sent
        assert sent < 5_000 if both else sent == 3 * len(even) - 5


def test_wrong_options_are_refused():
    for wrong in ({"compression": 0}, {"compression": 20}):
        with pytest.raises(ValueError, match="1 to 19"):
            openbats.connect("127.0.0.1", 9, insecure=True, **wrong)
        with pytest.raises(ValueError, match="1 to 19"):
            openbats.listen("127.0.0.1", **wrong)
    with pytest.raises(openbats.ConnectError, match="negotiate"):
        openbats.listen("127.0.0.1", mode="udp", compression=1)
    with pytest.raises(openbats.ConnectError, match="QUIC"):
        openbats.listen("127.0.0.1", mode="tcp", quic_datagrams=True)
    with pytest.raises(openbats.ConnectError, match="QUIC"):
        openbats.connect("127.0.0.1", 9, insecure=True, quic_datagrams=True, timeout=LIMIT)


@pytest.mark.parametrize(
    "mode, has, refused",
    [
        ("tcp", "the kernel's congestion control", ["cubic", "gcc", "none", "fixed"]),
        ("quic", "'bbr' and 'cubic'", ["gcc", "none", "fixed"]),
        ("transparent", "no congestion control", ["cubic", "gcc", "fixed"]),
        ("udp", "no congestion control", ["cubic", "gcc", "fixed"]),
    ],
)
def test_unsupported_controllers_of_a_mode_are_refused(mode, has, refused):
    for name in refused:
        wrong = {"mode": mode, "congestion": name, "rate": 10**7 if name == "fixed" else None}
        with pytest.raises(ValueError, match=f"{has}.*'btp', 'brtp' and 'brctp'"):
            openbats.connect("127.0.0.1", 9, insecure=True, **wrong)
        with pytest.raises(ValueError, match=f"mode {mode} has {has}"):
            openbats.listen("127.0.0.1", **wrong)
    for name in {"bbr", "cubic", "none"} - set(refused):
        openbats.listen("127.0.0.1", mode=mode, congestion=name).close()


def test_coded_modes_support_all_controllers():
    for mode in ("btp", "brtp", "brctp"):
        for name in ("bbr", "cubic", "gcc", "none", "fixed"):
            chosen = {"congestion": name, "rate": 10**8 if name == "fixed" else None}
            with openbats.listen("127.0.0.1", mode=mode, **chosen) as listener:
                near, far = pair(listener, mode=mode, **chosen)
                near.send(b"hello", LIMIT)
                assert far.recv(LIMIT) == b"hello"
    with pytest.raises(ValueError, match="more than 0"):
        openbats.listen("127.0.0.1", congestion="fixed", rate=0)


def test_messages_can_have_their_own_deadline():
    with openbats.listen("127.0.0.1", mode="btp") as listener:
        near, far = pair(listener, mode="btp", deadline=60.0)
        near.send(b"in time", LIMIT, deadline=60.0)
        assert far.recv(LIMIT) == b"in time"
        for wrong in (0, -1, float("nan")):
            with pytest.raises(ValueError, match="deadline"):
                near.send(b"", deadline=wrong)
        # More data than the link sends in 1 us.
        for number in range(200):
            near.send(content(50_000, number), LIMIT, deadline=1e-6)
        near.finish(LIMIT)
        expired = near.stats().messages_expired
        assert expired > 0
        assert len(list(far)) <= 200 - expired


def test_quic_datagrams():
    options = {"mode": "quic", "quic_datagrams": True}
    with openbats.listen("127.0.0.1", **options) as listener:
        near, far = pair(listener, **options)
        assert near.mode == "quic" and not near.is_reliable and not far.is_reliable
        assert 1_000 < near.longest_message < 1_500
        sent = {content(10 * number, number) for number in range(100)}
        for message in sent:
            near.send(message, LIMIT, deadline=5.0)
        near.finish(LIMIT)
        received = list(far)
        assert len(set(received)) == len(received) and set(received) == sent
        with pytest.raises(ValueError, match="5000"):
            far.send(bytes(5_000), LIMIT)
        with pytest.raises(openbats.UnsupportedMode, match="files"):
            far.send_file("/dev/null")
        with pytest.raises(openbats.ConnectError, match="datagrams"):
            pair(listener, mode="quic")


def test_options_with_await():
    async def main():
        options = {"mode": "quic", "quic_datagrams": True, "compression": 1}
        async with aio.listen("127.0.0.1", **options) as listener:
            async with aio.connect(
                *listener.address, fingerprint=listener.fingerprint, **options
            ) as near:
                far = await listener.accept()
                assert near.is_compressed
                # Longer than a datagram without compression.
                await near.send(b"x" * 50_000, deadline=10.0)
                assert await far.recv() == b"x" * 50_000

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.parametrize("mode", ["btp", "brtp", "brctp", "transparent"])
def test_listener_with_psk_ignores_clients_without_it(mode):
    key = bytes(range(32))
    with openbats.listen("127.0.0.1", mode=mode, closed_key=key) as listener:
        near, far = pair(listener, mode=mode, closed_key=bytearray(key), deadline=60.0)
        near.send(b"hello", LIMIT)
        assert far.recv(LIMIT) == b"hello"
        for other in (bytes(32), None):
            with pytest.raises(TimeoutError):
                openbats.connect(
                    *listener.address,
                    fingerprint=listener.fingerprint,
                    mode=mode,
                    closed_key=other,
                    timeout=0.5,
                )


def test_invalid_pre_shared_keys_are_refused():
    for call in (
        lambda **wrong: openbats.connect("127.0.0.1", 9, insecure=True, **wrong),
        lambda **wrong: openbats.listen("127.0.0.1", **wrong),
    ):
        for length in (0, 31, 33):
            with pytest.raises(ValueError, match=f"32 bytes, not {length}"):
                call(closed_key=bytes(length))
        for no_key in (32, "0" * 32):
            with pytest.raises(TypeError):
                call(closed_key=no_key)
        for mode in ("tcp", "udp", "quic"):
            with pytest.raises(ValueError, match="modes 0 to 3"):
                call(closed_key=bytes(32), mode=mode)


def test_psk_mode_with_await():
    async def main():
        key = bytes([7]) * 32
        async with aio.listen("127.0.0.1", closed_key=key) as listener:
            address, fingerprint = listener.address, listener.fingerprint
            async with aio.connect(*address, fingerprint=fingerprint, closed_key=key) as near:
                far = await listener.accept()
                await near.send(b"hello")
                assert await far.recv() == b"hello"

    asyncio.run(asyncio.wait_for(main(), LIMIT))
