"""The timing model against the paper's own numbers (section 4, table 3, figure 9)."""

import msgspec
import pytest

from lockstep.coordination.timing import (
    PAPER,
    Parameters,
    calibrate,
    election_rtzk,
    estimate,
    explain,
    flood,
    flood_far,
    recovery_rtzk,
    recovery_vanilla,
    wait_suffices,
    with_waits,
)
from lockstep.coordination.zab.settings import Settings, variant


def test_equation_1_recovery_latency_is_election_plus_recovery() -> None:
    found = estimate("rtzk", PAPER, 2)
    assert found.total == found.election + found.recovery


def test_equation_2_the_papers_wait_exceeds_jitter_and_transmission() -> None:
    assert wait_suffices(PAPER)
    assert not wait_suffices(msgspec.structs.replace(PAPER, w=0.016))


def test_equation_3_far_servers_cost_two_transmissions() -> None:
    assert flood_far(msgspec.structs.replace(PAPER, d=0.1)) == pytest.approx(0.220)


@pytest.mark.parametrize(("servers", "messages"), [(1, 1), (2, 3), (3, 6), (6, 21)])
def test_equation_4_the_leader_handles_n_times_n_plus_1_half_messages(servers: int, messages: int) -> None:
    assert flood(PAPER, servers) == pytest.approx(messages * 0.003 + 0.020)


def test_equation_5_rtzk_floods_twice_and_starts_once() -> None:
    assert election_rtzk(PAPER, 2) == pytest.approx(0.035 + 0.013 + 2 * (3 * 0.003 + 0.020))


def test_equation_6_vanilla_writes_epochs_four_times() -> None:
    assert recovery_vanilla(PAPER) - PAPER.s_r == pytest.approx(4 * PAPER.b)


def test_equation_7_rtzk_recovery_grows_linearly_and_without_the_disk() -> None:
    slow = msgspec.structs.replace(PAPER, b=10.0)
    steps = {round(recovery_rtzk(slow, n + 1) - recovery_rtzk(slow, n), 9) for n in range(1, 7)}
    assert steps == {PAPER.h_r}


@pytest.mark.parametrize(("ensemble", "milliseconds"), [(3, 211), (5, 303), (7, 419)])
def test_equation_8_with_table_3(ensemble: int, milliseconds: int) -> None:
    """One server has crashed: N is one less than the ensemble (section 6)."""
    n = ensemble - 1
    by_hand = 35 + 13 + 2 * (n * (n + 1) / 2 * 3 + 20) + 55 + n * 25
    assert estimate("rtzk", PAPER, n).total * 1000 == pytest.approx(by_hand)
    assert by_hand == pytest.approx(milliseconds)


def test_vanilla_pays_for_refused_connections_and_further_rounds() -> None:
    vanilla = with_waits(PAPER, variant("vanilla"))
    plain, unlucky = estimate("vanilla", vanilla, 2), estimate("vanilla", vanilla, 2, retries=1, rounds=2)
    assert unlucky.election - plain.election == pytest.approx(0.2)
    assert unlucky.recovery - plain.recovery == pytest.approx(1.0)


def test_calibration_takes_the_machines_own_times_and_the_settings_waits() -> None:
    jitter = iter(range(1000))
    found = calibrate(
        Settings(finalize_wait=0.005),
        handle=lambda: 0.0001,
        write=lambda: 0.002,
        carry=lambda: 0.0004,
        notice=lambda: 0.001 + 0.0001 * (next(jitter) % 5),
        samples=10,
    )
    assert isinstance(found, Parameters)
    assert (found.w, found.h, found.b) == (0.005, 0.0001, 0.002)
    assert found.j == pytest.approx(0.0004)
    assert found.d == pytest.approx(0.0002)
    assert wait_suffices(found)
    assert "no bound" in explain("rtzk", found, 2)
