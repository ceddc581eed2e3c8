import pytest
from openbats import sim


def test_a_transfer_over_a_lossy_link_arrives():
    link = sim.Link(rate=20_000_000, delay=0.02, loss=0.1, queue=100_000)
    result = sim.transfer(link, message_size=10_000, total_bytes=1_000_000, duration=10)
    assert result.bytes == 1_000_000 and result.finished is not None
    assert result.finished > 0.4  # the link needs that long
    assert 0 < result.samples[-1]["delivered_bytes"] <= 1_000_000
    assert result.samples[-1]["link_lost_packets"] > 0
    assert result.receiver["message_bytes_received"] == 1_000_000


def test_the_same_seed_gives_the_same_run():
    link = sim.Link(rate=10_000_000, delay=0.01, loss=0.05, burst=3, jitter=0.002)
    runs = [sim.transfer(link, duration=1, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_matrix_is_a_table():
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


def test_wrong_values_are_refused():
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
