import openbats
import pytest
from openbats import sim


def test_transfer_over_a_lossy_link_completes():
    link = sim.Link(rate=20_000_000, delay=0.02, loss=0.1, queue=100_000)
    result = sim.transfer(link, message_size=10_000, total_bytes=1_000_000, duration=10)
    assert result.bytes == 1_000_000 and result.finished is not None
    assert result.finished > 0.4  # the link needs that long
    assert 0 < result.samples[-1]["delivered_bytes"] <= 1_000_000
    assert result.samples[-1]["link_lost_packets"] > 0
    assert result.receiver["message_bytes_received"] == 1_000_000


def test_equal_seeds_give_equal_runs():
    link = sim.Link(rate=10_000_000, delay=0.01, loss=0.05, burst=3, jitter=0.002)
    runs = [sim.transfer(link, duration=1, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_matrix_returns_a_table():
    rows = sim.matrix([0, 0.1], [0.005, 0.02], rate=20e6, duration=2)
    assert [(row["loss_percent"], row["delay_ms"]) for row in rows] == [
        (0, 5),
        (0, 20),
        (10, 5),
        (10, 20),
    ]
    for row in rows:
        assert 5 < row["goodput_mbps_steady"] < 20
    assert len(sim.cell(0, 0.005, rate=20e6, duration=1).samples) > 50


def test_invalid_values_are_refused():
    for wrong in (
        {"loss": 1.5},
        {"loss": -0.1},
        {"loss": 0.1, "burst": 0.5},
        {"delay": -1},
        {"delay": float("inf")},
        {"rate": 0},
        {"duplicate": 2},
    ):
        with pytest.raises(ValueError):
            sim.Link(**wrong)
    link = sim.Link()
    with pytest.raises(ValueError):
        sim.transfer(link, message_size=0)
    with pytest.raises(ValueError):
        sim.transfer(link, duration=1e9)
    with pytest.raises(ValueError):
        sim.transfer(link, goal="speed")
    with pytest.raises(ValueError):
        sim.matrix([2], [0])
    with pytest.raises(ValueError):
        sim.cell(0, 0.01, rate=0)


def test_recoding_relays_exceed_the_forwarding_bound():
    rows = sim.hops([1, 4], [0.1], rate=20e6, recoding=(True, False), duration=3)
    assert [(row["hops"], row["recoding"]) for row in rows] == [
        (1, True),
        (4, True),
        (1, False),
        (4, False),
    ]
    recoding, forwarding = rows[1], rows[3]
    for row in rows:
        assert row["loss_percent"] == pytest.approx(10)
        assert row["bound_mbps"] == pytest.approx(0.9 * row["lossless_mbps"])
        assert row["share"] == pytest.approx(row["goodput_mbps"] / row["bound_mbps"])
        assert 15 < row["lossless_mbps"] < 20 and row["handshake_ms"] > 0
    assert recoding["share"] > 0.85
    assert forwarding["goodput_mbps"] < 1.05 * forwarding["forwarding_mbps"]
    assert recoding["goodput_mbps"] > 1.2 * forwarding["goodput_mbps"]
    # A single run, which measures its own bound, gives the same row.
    assert sim.hops([4], [0.1], rate=20e6, duration=3) == [recoding]


def path_link(rate, delay, loss=0.0):
    return sim.Link(rate=rate, delay=delay, loss=loss, queue=int(rate * delay / 4))


def test_goodput_of_paths_adds_up():
    fast, slow = path_link(20_000_000, 0.01, loss=0.05), path_link(5_000_000, 0.04)
    alone = sim.paths([fast], duration=4)
    both = sim.paths([fast, slow], duration=4)
    frames = 1472 / 1514
    assert alone["bound_mbps"] == pytest.approx(0.95 * 20 * frames)
    assert both["bound_mbps"] == pytest.approx((0.95 * 20 + 5) * frames)
    assert (alone["paths"], both["paths"]) == (1, 2)
    for row in (alone, both):
        assert 0.8 < row["share"] < 1
        assert row["share"] == pytest.approx(row["goodput_mbps"] / row["bound_mbps"])
    assert both["goodput_mbps"] > alone["goodput_mbps"] + 2


def test_slowest_link_limits_its_path():
    narrow = [path_link(10_000_000, 0.01), path_link(10_000_000, 0.01), path_link(5_000_000, 0.01)]
    alone = sim.paths([narrow], duration=6)
    assert alone["bound_mbps"] == pytest.approx(5 * 1472 / 1514)
    assert 0.75 < alone["share"] < 1
    row = sim.paths([narrow, [path_link(8_000_000, 0.01)] * 3], duration=1)
    assert row["bound_mbps"] == pytest.approx(13 * 1472 / 1514)


def test_session_avoids_a_cut_path():
    paths = [path_link(10_000_000, 0.01), path_link(5_000_000, 0.01)]
    row = sim.paths(paths, cut=(0, 2, None), duration=6)
    assert row["bound_mbps"] == pytest.approx(5 * 1472 / 1514)
    assert 0.8 < row["share"] < 1
    back = sim.paths(paths, cut=(0, 1, 2), duration=6)
    assert back["bound_mbps"] == pytest.approx(15 * 1472 / 1514)
    assert back["goodput_mbps"] > 1.5 * row["goodput_mbps"]


def test_transfers_have_modes_and_controllers():
    link = sim.Link(rate=10_000_000, delay=0.02, loss=0.05, queue=50_000)
    rates = {}
    for congestion, rate in (("bbr", None), ("cubic", None), ("fixed", 4_000_000)):
        for mode in ("brtp", "brctp"):
            result = sim.transfer(link, duration=2, mode=mode, congestion=congestion, rate=rate)
            rates[congestion, mode] = result.bytes * 8 / 2
    assert 2e6 < rates["fixed", "brtp"] < 4e6
    assert 2e6 < rates["fixed", "brctp"] < 4e6
    # CUBIC reacts to random loss.
    assert rates["cubic", "brtp"] < rates["bbr", "brtp"] / 2
    assert rates["bbr", "brctp"] != rates["bbr", "brtp"]


def test_invalid_topologies_are_refused():
    link = path_link(10_000_000, 0.01)
    for counts, losses, wrong in (
        ([0], [0], {}),
        ([65], [0], {}),
        ([1], [2], {}),
        ([1], [0], {"rate": 0}),
        ([1], [0], {"queue": -1}),
        ([1], [0], {"delay": float("nan")}),
    ):
        with pytest.raises(ValueError):
            sim.hops(counts, losses, duration=0.1, **wrong)
    for paths, wrong in (
        ([], {}),
        ([[]], {}),
        ([link] * 17, {}),
        ([[link] * 2, link], {}),
        ([[link] * 64] * 5, {}),
        ([sim.Link()], {}),
        ([link], {"cut": (1, 0, None)}),
        ([link], {"cut": (0, -1, None)}),
        ([link], {"duration": 1e9}),
    ):
        with pytest.raises(ValueError):
            sim.paths(paths, **wrong)
    for wrong in (
        {"mode": "btp"},
        {"mode": "tcp"},
        {"mode": 99},
        {"congestion": "vegas"},
        {"congestion": "fixed"},
        {"congestion": "fixed", "rate": 0},
        {"rate": 1},
    ):
        with pytest.raises(ValueError):
            sim.transfer(link, duration=0.1, **wrong)
    with pytest.raises(ValueError, match="rate"):
        sim.transfer(sim.Link(), duration=0.1, congestion="none")
    dead = sim.Link(rate=10_000_000, loss=1.0)
    with pytest.raises(openbats.ConnectError, match="come up"):
        sim.paths([dead, link])
    with pytest.raises(openbats.ConnectError, match="come up"):
        sim.hops([2], [1.0], duration=0.1)
    # The run is too short for a figure.
    assert sim.hops([1], [0.0], duration=0)[0]["share"] is None
