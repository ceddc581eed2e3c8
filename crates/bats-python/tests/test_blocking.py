import array
import dataclasses
import os
import signal
import socket
import threading
import time

import openbats
import pytest

LIMIT = 30.0


@pytest.fixture
def pair():
    with openbats.listen("127.0.0.1") as listener:
        near = openbats.connect(
            *listener.address, fingerprint=listener.fingerprint, timeout=LIMIT
        )
        far = listener.accept(LIMIT)
        yield near, far
        near.close()


@pytest.fixture
def identities():
    """Two PEM files, each with a certificate and its key, which `wheel.rs` makes."""
    if "OPENBATS_TEST_IDENTITIES" not in os.environ:
        pytest.skip("OPENBATS_TEST_IDENTITIES names no files")
    return os.environ["OPENBATS_TEST_IDENTITIES"].split(os.pathsep)


def content(size, seed):
    return bytes((x * 31 + x // 251 + seed * 7) & 255 for x in range(size))


def test_message_boundaries_are_kept_in_both_directions(pair):
    sizes = [0, 1, 100, 1472, 70_000, 1_000_000]
    for here, there in (pair, pair[::-1]):
        for number, size in enumerate(sizes):
            here.send(content(size, number), LIMIT)
        for number, size in enumerate(sizes):
            assert there.recv(LIMIT) == content(size, number)


def test_all_bytes_types_are_accepted(pair):
    near, far = pair
    for data in (b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4]):
        near.send(data, LIMIT)
        assert far.recv(LIMIT) == b"abc"
    with pytest.raises(TypeError):
        near.send("text")


def test_finish_ends_the_iteration(pair):
    near, far = pair
    for x in range(10):
        near.send(b"%d" % x)
    received = []
    reader = threading.Thread(target=lambda: received.extend(far))
    reader.start()
    near.finish(LIMIT)
    reader.join(LIMIT)
    assert received == [b"%d" % x for x in range(10)]
    with pytest.raises(openbats.ConnectionClosed):
        near.send(b"late")


def test_leaving_a_with_block_delivers_all_messages():
    with openbats.listen("127.0.0.1") as listener:
        with openbats.connect(
            *listener.address, fingerprint=listener.fingerprint, timeout=LIMIT
        ) as near:
            near.send(content(500_000, 1))
            far = listener.accept(LIMIT)
            reader = threading.Thread(target=lambda: got.extend(far))
            got = []
            reader.start()
        reader.join(LIMIT)
        assert got == [content(500_000, 1)]
        assert near.close_reason is not None


def test_timeouts_lose_no_message(pair):
    _, far = pair
    with pytest.raises(TimeoutError):
        far.recv(0.05)
    with pytest.raises(TimeoutError):
        far.recv(0)
    with openbats.listen("127.0.0.1") as listener, pytest.raises(TimeoutError):
        listener.accept(0.05)
    # The timeout lost no message.
    pair[0].send(b"after")
    assert far.recv(LIMIT) == b"after"


def test_connect_times_out_without_an_answer():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole:
        hole.bind(("127.0.0.1", 0))
        with pytest.raises(TimeoutError):
            openbats.connect(*hole.getsockname(), insecure=True, timeout=0.2)
        with pytest.raises(openbats.ConnectError, match="handshake in time"):
            openbats.connect(
                *hole.getsockname(), insecure=True, idle_timeout=0.3, timeout=LIMIT
            )


@pytest.mark.parametrize("data", [5, 0, None, "text", [1, 2], (1, 2), range(3), 1.5, {1}, object()])
def test_only_bytes_can_be_sent(pair, data):
    near, far = pair
    with pytest.raises(TypeError):
        near.send(data)
    near.send(b"after")
    assert far.recv(LIMIT) == b"after"


def test_objects_with_a_buffer_can_be_sent(pair):
    near, far = pair
    for data in (b"ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b-")[::2]):
        near.send(data)
        assert far.recv(LIMIT) == b"ab"
    near.send(array.array("H", [1, 2]))
    assert far.recv(LIMIT) == array.array("H", [1, 2]).tobytes()


@pytest.mark.parametrize("mode", ["btp", "brtp", "brctp", "transparent", "tcp", "quic"])
def test_closed_ports_are_reported_at_once(mode):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        address = closed.getsockname()
    # The handshake timeout would be another error.
    with pytest.raises(openbats.ConnectError, match="refused"):
        openbats.connect(*address, insecure=True, mode=mode, idle_timeout=3600, timeout=LIMIT)


def test_budgets_can_be_set():
    budgets = {"send_budget": 1 << 20, "receive_budget": 4 << 20}
    with openbats.listen("127.0.0.1", memory_budget=16 << 20, **budgets) as listener:
        fingerprint = listener.fingerprint
        near = openbats.connect(*listener.address, fingerprint=fingerprint, timeout=LIMIT, **budgets)
        far = listener.accept(LIMIT)
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                near.send(bytes(1 << 20), timeout=1)
        assert near.stats().send_buffer_bytes <= 2 << 20
        assert far.stats().receive_buffer_bytes <= 5 << 20
    for name in ("send_budget", "receive_budget", "memory_budget"):
        for size in (-1, 0, (64 << 10) - 1, 1 << 70):
            with pytest.raises(ValueError, match=name):
                openbats.listen("127.0.0.1", **{name: size})
        with pytest.raises(TypeError):
            openbats.listen("127.0.0.1", **{name: 1e6})


def test_the_chosen_trust_is_enforced():
    with openbats.listen("127.0.0.1") as listener:
        with pytest.raises(ValueError, match="trust"):
            openbats.connect(*listener.address, insecure=True, fingerprint="00")
        with pytest.raises(ValueError, match="hexadecimal"):
            openbats.connect(*listener.address, fingerprint="12")
        with pytest.raises(ValueError, match="nowhere.pem"):
            openbats.connect(*listener.address, authorities="/nowhere.pem")
        with pytest.raises(openbats.ConnectError):
            openbats.connect(*listener.address, fingerprint="00" * 32, timeout=LIMIT)
        near = openbats.connect(
            *listener.address, fingerprint=listener.fingerprint, timeout=LIMIT
        )
        assert near.peer_fingerprint == listener.fingerprint


@pytest.mark.parametrize("mode", ["brtp", "btp", "brctp", "transparent", "tcp", "quic"])
def test_servers_accept_only_the_clients_that_they_trust(mode, identities):
    known, other = identities
    with openbats.listen("127.0.0.1", cert=known, key=known) as listener:
        known_fingerprint = listener.fingerprint
    for accepted in (
        {"client_fingerprints": ["00" * 32, known_fingerprint]},
        {"client_authorities": known},
    ):
        with openbats.listen("127.0.0.1", mode=mode, **accepted) as listener:
            chosen = {"fingerprint": listener.fingerprint, "mode": mode, "timeout": LIMIT}
            near = openbats.connect(*listener.address, cert=known, key=known, **chosen)
            far = listener.accept(LIMIT)
            assert near.peer_fingerprint == listener.fingerprint
            assert far.peer_fingerprint == known_fingerprint
            with pytest.raises(openbats.ConnectError, match="does not trust the certificate"):
                openbats.connect(*listener.address, cert=other, key=other, **chosen)
            with pytest.raises(openbats.ConnectError, match="requires a certificate"):
                openbats.connect(*listener.address, **chosen)


def test_whom_a_server_trusts_is_checked(identities):
    known, _ = identities
    with pytest.raises(ValueError, match="either"):
        openbats.listen("127.0.0.1", client_fingerprints=["00" * 32], client_authorities=known)
    with pytest.raises(TypeError, match="a list"):
        openbats.listen("127.0.0.1", client_fingerprints="00" * 32)
    with pytest.raises(ValueError, match="hexadecimal"):
        openbats.listen("127.0.0.1", client_fingerprints=["12"])
    with pytest.raises(ValueError, match="nowhere.pem"):
        openbats.listen("127.0.0.1", client_authorities="/nowhere.pem")
    with pytest.raises(openbats.ConnectError, match="mode 11"):
        openbats.listen("127.0.0.1", mode="udp", client_fingerprints=["00" * 32])
    with pytest.raises(openbats.ConnectError, match="nowhere.pem"):
        cert = {"cert": "/nowhere.pem", "key": "/nowhere.pem"}
        openbats.connect("127.0.0.1", 9, insecure=True, timeout=LIMIT, **cert)


@pytest.mark.parametrize("mode", [4, 200])
def test_unsupported_modes_are_refused_by_name(mode):
    with pytest.raises(openbats.UnsupportedMode, match="not available"):
        openbats.connect("127.0.0.1", 9, insecure=True, mode=mode)
    with pytest.raises(openbats.UnsupportedMode, match="not available"):
        openbats.listen("127.0.0.1", mode=mode)


@pytest.mark.parametrize("mode", ["brtp", "brctp", "tcp", "quic"])
def test_reliable_modes_deliver_messages_and_files(mode, tmp_path):
    with openbats.listen("127.0.0.1", mode=mode) as listener:
        near = openbats.connect(
            *listener.address, fingerprint=listener.fingerprint, mode=mode, timeout=LIMIT
        )
        far = listener.accept(LIMIT)
        assert (near.mode, far.mode) == (mode, mode)
        sent = [bytes([number % 256]) * (37 * number) for number in range(100)]
        for message in sent:
            near.send(message, timeout=LIMIT)
        near.flush(timeout=LIMIT)
        assert [far.recv(LIMIT) for _ in sent] == sent
        original = tmp_path / "original"
        original.write_bytes(bytes(range(256)) * 1_000)
        (tmp_path / "in").mkdir()
        receiver = threading.Thread(target=far.receive_file, args=(tmp_path / "in",))
        receiver.start()
        near.send_file(original)
        receiver.join(LIMIT)
        assert (tmp_path / "in" / "original").read_bytes() == original.read_bytes()
        near.finish(timeout=LIMIT)
        assert far.recv(LIMIT) is None


def test_plain_udp_sends_one_datagram_per_message(tmp_path):
    with openbats.listen("127.0.0.1", mode="udp") as listener:
        near = openbats.connect(*listener.address, insecure=True, mode=11, timeout=LIMIT)
        near.send(b"there", timeout=LIMIT)
        far = listener.accept(LIMIT)
        assert (near.mode, far.mode) == ("udp", "udp")
        assert far.recv(LIMIT) == b"there"
        far.send(b"back", timeout=LIMIT)
        assert near.recv(LIMIT) == b"back"
        with pytest.raises(ValueError, match="65507"):
            near.send(bytes(65_508), timeout=LIMIT)
        with pytest.raises(openbats.UnsupportedMode, match="files"):
            near.send_file(tmp_path)


@pytest.mark.parametrize("mode", ["btp", "transparent"])
def test_unreliable_modes_deliver_and_count_messages(mode, tmp_path):
    with openbats.listen("127.0.0.1", mode=mode) as listener:
        near = openbats.connect(
            *listener.address,
            fingerprint=listener.fingerprint,
            mode=mode,
            deadline=5.0,
            timeout=LIMIT,
        )
        far = listener.accept(LIMIT)
        assert (near.mode, far.mode) == (mode, mode)
        sent = [content(100 + 60 * number, number) for number in range(50)]
        for message in sent:
            near.send(message, LIMIT)
        near.finish(LIMIT)
        received = list(far)
        assert len(set(received)) == len(received) and set(received) <= set(sent)
        stats = far.stats()
        assert len(received) + stats.messages_lost == len(sent)
        assert near.stats().messages_expired == 0
        assert stats.repair_delay >= stats.longest_repair_delay >= 0
        with pytest.raises(openbats.UnsupportedMode, match="files"):
            near.send_file(tmp_path)
        with pytest.raises(openbats.UnsupportedMode, match="files"):
            far.receive_file(tmp_path)


def test_wrong_options_are_refused():
    for wrong in (
        {"mode": "pigeon"},
        {"congestion": "vegas"},
        {"congestion": "fixed"},
        {"rate": 1000},
        {"goal": "speed"},
        {"idle_timeout": 0},
        {"idle_timeout": float("nan")},
        {"keep_alive": -1},
    ):
        with pytest.raises(ValueError):
            openbats.connect("127.0.0.1", 9, insecure=True, **wrong)
    with pytest.raises(ValueError):
        openbats.listen("not an address")
    with pytest.raises(ValueError):
        openbats.listen("127.0.0.1", cert="only.pem")
    with pytest.raises(openbats.ConnectError, match="nowhere"):
        openbats.listen("127.0.0.1", cert="/nowhere/c.pem", key="/nowhere/k.pem")


def test_statistics(pair):
    near, far = pair
    for x in range(5):
        near.send(content(10_000, x))
    near.flush(LIMIT)
    stats = near.stats()
    assert dataclasses.is_dataclass(stats)
    assert stats.messages_sent == 5 and stats.message_bytes_sent == 50_000
    assert stats.packets_sent > 30 and 0 < stats.min_rtt < LIMIT
    assert [far.recv(LIMIT) for _ in range(5)] == [content(10_000, x) for x in range(5)]
    assert far.stats().messages_received == 5
    near.close(7, "enough")
    with pytest.raises(openbats.ConnectionClosed, match="code 7, enough"):
        far.recv(LIMIT)
    assert near.stats().messages_sent == 5


def test_files(pair, tmp_path):
    near, far = pair
    source = tmp_path / "data.bin"
    source.write_bytes(os.urandom(1_000_000))
    target = tmp_path / "target"
    target.mkdir()
    received = []

    def receive():
        received.append(far.receive_file(target, timeout=LIMIT))
        received.append(far.receive_file(target, timeout=LIMIT))

    thread = threading.Thread(target=receive)
    thread.start()
    sent = near.send_file(source, LIMIT)
    near.finish(LIMIT)
    thread.join(LIMIT)
    assert received[1] is None
    assert received[0].size == sent.size == 1_000_000
    assert received[0].hash == sent.hash and len(sent.hash) == 32
    assert (target / "data.bin").read_bytes() == source.read_bytes()


def test_a_file_that_would_use_up_the_reserve_is_refused(pair, tmp_path):
    near, far = pair
    source = tmp_path / "data.bin"
    source.write_bytes(bytes(1_000))
    target = tmp_path / "in"
    target.mkdir()
    refused = []

    def receive():
        with pytest.raises(openbats.FileError, match="bytes free") as error:
            far.receive_file(target, reserve=2**63, timeout=LIMIT)
        refused.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    with pytest.raises(openbats.FileError, match="bytes free"):
        near.send_file(source, LIMIT)
    thread.join(LIMIT)
    assert refused and list(target.iterdir()) == []


def test_error_names_the_missing_file(pair):
    with pytest.raises(openbats.FileError, match="nowhere"):
        pair[0].send_file("/nowhere/at/all")


def test_port_is_free_after_close():
    for _ in range(5):
        with openbats.listen("127.0.0.1") as listener:
            address = listener.address
            near = openbats.connect(*address, fingerprint=listener.fingerprint, timeout=LIMIT)
            listener.accept(LIMIT)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
            again.bind(address)
        with pytest.raises(openbats.ConnectionClosed):
            near.recv(LIMIT)


def test_ctrl_c_interrupts_a_wait(pair):
    # A background process of a script starts with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pair[1].recv(LIMIT)
    timer.join()


def test_waiting_does_not_block_other_threads(pair):
    near, far = pair
    thread = threading.Thread(target=lambda: far.recv(LIMIT))
    thread.start()
    for _ in range(10):
        time.sleep(0.001)
    near.send(b"end")
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_names_are_resolved_and_all_addresses_tried():
    with openbats.listen("127.0.0.1") as listener:
        port = listener.address[1]
        # The resolver may return ::1 first, where no server listens.
        with openbats.connect(
            "localhost", port, fingerprint=listener.fingerprint, timeout=LIMIT
        ) as near:
            assert near.remote_address == listener.address
            near.send(b"by name")
            assert listener.accept(LIMIT).recv(LIMIT) == b"by name"
        with pytest.raises(openbats.ConnectError, match="no.such.name.invalid"):
            openbats.connect("no.such.name.invalid", port, insecure=True, timeout=LIMIT)


def test_plain_udp_sends_long_datagrams_and_reports_closed_ports():
    with openbats.listen("127.0.0.1", mode="udp") as listener:
        port = listener.address[1]
        with openbats.connect("127.0.0.1", port, mode="udp", insecure=True) as near:
            near.send(content(60_000, 1), LIMIT)
            assert listener.accept(LIMIT).recv(LIMIT) == content(60_000, 1)
    with openbats.connect("127.0.0.1", port, mode="udp", insecure=True) as client:
        client.send(b"hello", LIMIT)
        with pytest.raises(openbats.ConnectionClosed):
            client.recv(LIMIT)
