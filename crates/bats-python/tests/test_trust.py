import asyncio
import pathlib

import openbats
import pytest
from openbats import aio

LIMIT = 30.0
MODES = ["btp", "brtp", "brctp", "transparent", "tcp", "quic"]


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The state directory of the user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "openbats"


@pytest.mark.parametrize("mode", MODES)
def test_a_changed_certificate_is_refused(mode, tmp_path, state):
    known = tmp_path / "known_hosts"
    port = 0
    seen = []
    for name in ("first.pem", "first.pem", "second.pem"):
        with openbats.listen(
            "127.0.0.1", port, mode=mode, identity_file=tmp_path / name
        ) as listener:
            port = listener.address[1]
            seen.append(listener.fingerprint)
            chosen = {"mode": mode, "known_hosts": known, "timeout": LIMIT}
            if name == "second.pem":
                with pytest.raises(openbats.ConnectError) as refused:
                    openbats.connect("localhost", port, **chosen)
                continue
            near = openbats.connect("localhost", port, **chosen)
            assert near.peer_fingerprint == listener.fingerprint
            near.close()
    assert seen[0] == seen[1] != seen[2]
    text = str(refused.value)
    for words in (f"localhost:{port} has changed", seen[0], seen[2], f"remove line 1 of {known}"):
        assert words in text
    assert known.read_text() == f"localhost:{port} sha256:{seen[0]}\n"
    assert not state.exists()


def test_the_default_is_trust_on_first_use_with_the_file_of_the_user(state):
    with openbats.listen("127.0.0.1") as listener:
        for _ in range(2):
            openbats.connect(*listener.address, timeout=LIMIT).close()
        host, port = listener.address
    known = state / "known_hosts"
    assert known.read_text() == f"{host}:{port} sha256:{listener.fingerprint}\n"
    # Without identity_file the next listener has another certificate.
    with openbats.listen("127.0.0.1", port) as listener:
        with pytest.raises(openbats.ConnectError, match="has changed.*remove line 1"):
            openbats.connect(host, port, timeout=LIMIT)
        openbats.connect(host, port, insecure=True, timeout=LIMIT).close()
        openbats.connect(host, port, fingerprint=listener.fingerprint, timeout=LIMIT).close()
    assert len(known.read_text().splitlines()) == 1


def test_first_use_and_change_with_await(tmp_path, state):
    known = tmp_path / "known_hosts"

    async def main():
        port = 0
        for name in ("first.pem", "first.pem"):
            async with aio.listen("127.0.0.1", port, identity_file=tmp_path / name) as listener:
                host, port = listener.address
                async with aio.connect(host, port, known_hosts=known):
                    pass
        async with aio.listen("127.0.0.1", port):
            with pytest.raises(openbats.ConnectError, match="has changed"):
                await aio.connect(host, port, known_hosts=known)

    asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert not state.exists()


def test_choices_of_trust_exclude_each_other(tmp_path):
    choices = {"fingerprint": "00" * 32, "authorities": "a.pem", "known_hosts": "k", "insecure": True}
    for first in choices:
        for second in choices:
            if first != second:
                both = {first: choices[first], second: choices[second]}
                with pytest.raises(ValueError, match="choose one way to trust"):
                    openbats.connect("127.0.0.1", 9, **both)
    with pytest.raises(ValueError, match="identity_file"):
        openbats.listen("127.0.0.1", cert="c.pem", key="k.pem", identity_file="i.pem")
    with pytest.raises(openbats.ConnectError, match="nowhere"):
        openbats.listen("127.0.0.1", identity_file="/proc/nowhere/i.pem")


def test_unusable_files_of_known_servers_are_refused(tmp_path, monkeypatch):
    known = tmp_path / "known_hosts"
    known.write_text("")
    known.chmod(0o666)
    with openbats.listen("127.0.0.1") as listener:
        with pytest.raises(openbats.ConnectError, match="chmod 600"):
            openbats.connect(*listener.address, known_hosts=known, timeout=LIMIT)
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        with pytest.raises(ValueError, match="no home directory.*known_hosts='file'"):
            openbats.connect(*listener.address, timeout=LIMIT)
        chosen = pathlib.Path(tmp_path / "other")
        openbats.connect(*listener.address, known_hosts=chosen, timeout=LIMIT).close()
