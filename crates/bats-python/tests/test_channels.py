import asyncio
import gc

import openbats
import pytest
from openbats import aio

LIMIT = 30.0


def content(size, seed):
    return bytes((x * 31 + x // 251 + seed * 7) & 255 for x in range(size))


@pytest.fixture(params=["brtp", "brctp"])
def pair(request):
    mode = request.param
    with openbats.listen("127.0.0.1", channels=4, mode=mode) as listener:
        near = openbats.connect(
            *listener.address,
            fingerprint=listener.fingerprint,
            timeout=LIMIT,
            channels=2,
            mode=mode,
        )
        yield near, listener.accept(LIMIT)
        near.close()


def everything(channel):
    parts = []
    while True:
        part = channel.read(timeout=LIMIT)
        if not part:
            return b"".join(parts)
        parts.append(part)


def test_channels_of_both_ends_carry_bytes_in_both_directions(pair):
    for here, there in (pair, pair[::-1]):
        opened = [here.open_channel(LIMIT) for _ in range(2)]
        for number, channel in enumerate(opened):
            channel.set_weight(number + 1)
            with channel:
                channel.write(content(300_000, number), LIMIT)
        for number, channel in enumerate(opened):
            accepted = there.accept_channel(LIMIT)
            assert accepted.id == channel.id
            assert accepted.connection is there
            assert everything(accepted) == content(300_000, number)
            accepted.write(bytearray(b"done"), LIMIT)
            accepted.finish()
            assert b"".join(channel) == b"done"
            assert channel.read(timeout=LIMIT) == b""


def test_a_channel_that_is_not_read_delays_nothing_else(pair):
    near, far = pair
    stalled = near.open_channel(LIMIT)
    with pytest.raises(TimeoutError):
        while True:
            stalled.write(content(4 << 20, 1), 1.0)
    near.send(b"message", LIMIT)
    assert far.recv(LIMIT) == b"message"
    other = near.open_channel(LIMIT)
    other.write(b"other", LIMIT)
    accepted = [far.accept_channel(LIMIT) for _ in range(2)]
    assert accepted[1].read(timeout=LIMIT) == b"other"
    assert accepted[0].read(10, timeout=LIMIT) == content(10, 1)


def test_limits_reset_and_stop(pair):
    near, far = pair
    # The client allows the server two channels.
    first, second = far.open_channel(LIMIT), far.open_channel(LIMIT)
    with pytest.raises(TimeoutError):
        far.open_channel(0.1)
    first.write(b"lost", LIMIT)
    accepted = near.accept_channel(LIMIT)
    accepted.stop(8)
    with pytest.raises(openbats.ChannelError, match="code 8") as stopped:
        while True:
            first.write(b"unwanted", LIMIT)
    assert stopped.value.code == 8
    second.write(b"x", LIMIT)
    accepted = near.accept_channel(LIMIT)
    second.reset(7)
    with pytest.raises(openbats.ChannelError, match="code 7") as reset:
        while True:
            assert accepted.read(timeout=LIMIT) == b"x"
    assert reset.value.code == 7
    with pytest.raises(openbats.ChannelError) as finished:
        second.write(b"late", LIMIT)
    assert finished.value.code is None
    # Channels without references are closed, so that others can be opened.
    accepted = first = second = stopped = reset = finished = None
    gc.collect()
    far.open_channel(LIMIT)


def test_blocks_that_raise_reset_the_channel(pair):
    near, far = pair
    with pytest.raises(KeyError):
        with near.open_channel(LIMIT) as channel:
            channel.write(b"incomplete", LIMIT)
            far.accept_channel(LIMIT)
            raise KeyError
    with pytest.raises(openbats.ChannelError):
        channel.finish()


def test_both_ends_must_allow_channels_in_modes_that_have_them():
    for there, here, mode in ((4, None, "brtp"), (None, 4, "brctp"), (4, 4, "quic")):
        with openbats.listen("127.0.0.1", channels=there, mode=mode) as listener:
            with openbats.connect(
                *listener.address,
                fingerprint=listener.fingerprint,
                timeout=LIMIT,
                channels=here,
                mode=mode,
            ) as near:
                for call in (near.open_channel, near.accept_channel):
                    with pytest.raises(openbats.UnsupportedMode, match="channels"):
                        call(LIMIT)


def test_wrong_values_are_refused(pair):
    for wrong in (-1, (1 << 20) + 1):
        with pytest.raises(ValueError, match="channels"):
            openbats.listen("127.0.0.1", channels=wrong)
    channel = pair[0].open_channel(LIMIT)
    for call, wrong in (
        (channel.set_weight, 0),
        (channel.set_weight, 256),
        (channel.read, 0),
        (channel.stop, -1),
        (channel.reset, 1 << 62),
    ):
        with pytest.raises(ValueError):
            call(wrong)
    with pytest.raises(TypeError):
        channel.write("text")


def test_the_end_of_the_connection_ends_its_channels(pair):
    near, far = pair
    channel = near.open_channel(LIMIT)
    far.close(3, "bye")
    with pytest.raises(openbats.ConnectionClosed, match="bye"):
        channel.read(timeout=LIMIT)
    with pytest.raises(openbats.ConnectionClosed):
        near.open_channel(LIMIT)


def test_asyncio_channels_are_served_concurrently():
    async def serve(connection):
        while True:
            channel = await connection.accept_channel()
            asyncio.ensure_future(echo(channel))

    async def echo(channel):
        async with channel:
            async for data in channel:
                await channel.write(data)

    async def ask(connection, number):
        async with await connection.open_channel() as channel:
            await channel.write(content(50_000, number))
        parts = [part async for part in channel]
        assert b"".join(parts) == content(50_000, number)

    async def main():
        async with aio.listen("127.0.0.1", channels=3) as listener:
            async with aio.connect(
                *listener.address, fingerprint=listener.fingerprint, channels=0
            ) as near:
                far = await listener.accept()
                serving = asyncio.ensure_future(serve(far))
                # More than may be open at once.
                await asyncio.gather(*(ask(near, number) for number in range(10)))
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(far.open_channel(), 0.05)
                serving.cancel()

    asyncio.run(asyncio.wait_for(main(), LIMIT))
