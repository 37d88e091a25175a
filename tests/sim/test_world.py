"""The simulated host keeps the promises of `lockstep.protocol.machine`, and its faults are real."""

from collections.abc import Sequence
from random import Random

import pytest
from msgspec import Struct

from lockstep.protocol.machine import (
    Append,
    CancelTimer,
    Compact,
    Deliver,
    Effects,
    Halt,
    LogRecord,
    Machine,
    Message,
    NodeId,
    Persist,
    Send,
    SetTimer,
    Subscribe,
    Token,
)
from lockstep.sim.disk import Disk
from lockstep.sim.faults import SECOND, FaultMix, Permits, draw
from lockstep.sim.nemesis import Nemesis
from lockstep.sim.trace import show
from lockstep.sim.world import World


class Number(Struct, frozen=True):
    value: int


class Recorder(Machine):
    """Delivers every input that it gets, as text."""

    def on_start(self, durable: Sequence[Message]) -> Effects:
        yield Deliver(f"start {[record.value for record in durable]}")

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        yield Deliver(f"{sender}:{message.value}")

    def on_timer(self, name: str) -> Effects:
        yield Deliver(f"timer {name}")

    def on_persisted(self, token: Token) -> Effects:
        yield Deliver(f"persisted {token}")

    def on_peer(self, peer: NodeId, up: bool) -> Effects:
        yield Deliver(f"{peer} {'up' if up else 'lost'}")

    def on_record(self, record: LogRecord) -> Effects:
        yield Deliver(f"record {record.offset}")

    def on_appended(self, token: Token, offset: int) -> Effects:
        yield Deliver(f"appended {token}@{offset}")

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        yield Deliver(f"append {token} failed")

    def on_command(self, client: str, request: int, command: Message) -> Effects:
        """Whatever a test wants this node to do."""
        return command  # type: ignore[no-any-return]


def world_of(seed: int = 1, faults: FaultMix | None = None, nodes: int = 2) -> World:
    names = [f"n{number}" for number in range(1, nodes + 1)]
    world = World(Random(seed), faults or FaultMix(), names, lambda node: Recorder())
    for name in names:
        world.start(name)
    world.run(100_000, max_events=10_000)
    return world


def do(world: World, node: NodeId, *effects: object) -> None:
    world.command(node, "test", 1, effects)


def run(world: World, microseconds: int = SECOND) -> None:
    world.run(world.now + microseconds, max_events=100_000)


def seen(world: World, node: NodeId) -> list[str]:
    """What the node's newest incarnation delivered, without the news about peers and its start."""
    (sequence,) = [sequence for sequence in world.history.current() if sequence.node == node]
    return [item for item in sequence.items() if not item.startswith(("n1 ", "n2 ", "n3 ", "start"))]


def all_seen(world: World, node: NodeId) -> list[str]:
    (sequence,) = [sequence for sequence in world.history.current() if sequence.node == node]
    return list(sequence.items())


@pytest.mark.parametrize("seed", range(20))
def test_ordered_links_deliver_in_order_and_once(seed: int) -> None:
    world = world_of(seed, FaultMix(jitter=50_000, stragglers=0.2))
    for number in range(50):
        do(world, "n1", Send("n2", Number(number)))
        run(world, 500)
    run(world)
    assert seen(world, "n2") == [f"n1:{number}" for number in range(50)]


def test_a_loss_on_an_ordered_link_breaks_the_connection_and_both_ends_learn_of_it() -> None:
    world = world_of(3, FaultMix(loss=0.05))
    for number in range(200):
        do(world, "n1", Send("n2", Number(number)))
        run(world, 5_000)
    news = all_seen(world, "n2")
    numbers = [int(item.split(":")[1]) for item in news if ":" in item]
    assert numbers == sorted(set(numbers))
    assert len(numbers) < 200
    for place, item in enumerate(news):
        if item.startswith("n1:"):
            before = [int(other.split(":")[1]) for other in news[:place] if other.startswith("n1:")]
            if before and int(item.split(":")[1]) != before[-1] + 1:
                between = news[news.index(f"n1:{before[-1]}") : place]
                assert "n1 lost" in between
                assert "n1 up" in between
    assert "n2 lost" in all_seen(world, "n1")


def test_loose_links_lose_double_and_overtake() -> None:
    world = world_of(1, FaultMix(loose=True, loss=0.2, duplication=0.2, jitter=20_000))
    for number in range(300):
        do(world, "n1", Send("n2", Number(number)))
        run(world, 500)
    run(world)
    numbers = [int(item.split(":")[1]) for item in seen(world, "n2")]
    assert len(set(numbers)) < 300, "nothing was lost"
    assert len(numbers) > len(set(numbers)), "nothing was doubled"
    assert numbers != sorted(numbers), "nothing was overtaken"


def test_a_message_to_oneself_is_never_lost() -> None:
    world = world_of(1, FaultMix(loose=True, loss=0.9))
    do(world, "n1", *(Send("n1", Number(number)) for number in range(20)))
    run(world)
    assert seen(world, "n1") == [f"n1:{number}" for number in range(20)]


@pytest.mark.parametrize("loose", [False, True])
def test_a_one_way_partition_stops_one_direction_only(loose: bool) -> None:
    world = world_of(1, FaultMix(loose=loose))
    world.block("n1", "n2")
    do(world, "n1", Send("n2", Number(1)))
    do(world, "n2", Send("n1", Number(2)))
    run(world)
    assert (seen(world, "n1"), seen(world, "n2")) == (["n2:2"], [])
    world.unblock("n1", "n2")
    run(world)
    assert seen(world, "n2") == ([] if loose else ["n1:1"])


def test_a_timer_fires_once_and_setting_it_again_moves_it() -> None:
    world = world_of()
    do(world, "n1", SetTimer("a", 0.1), SetTimer("b", 0.2), SetTimer("c", 0.1), CancelTimer("c"))
    run(world, 50_000)
    do(world, "n1", SetTimer("a", 0.3), CancelTimer("unset"))
    run(world)
    assert seen(world, "n1") == ["timer b", "timer a"]


def test_clock_skew_scales_timers() -> None:
    world = world_of()
    world.nodes["n1"].clock, world.nodes["n2"].clock = 2.0, 1.0
    for node in ("n1", "n2"):
        do(world, node, SetTimer("a", 0.1))
    run(world, 150_000)
    assert (seen(world, "n1"), seen(world, "n2")) == ([], ["timer a"])


def test_writes_are_confirmed_in_order_and_survive_a_crash() -> None:
    world = world_of(1, FaultMix(disk_latency=1_000))
    do(world, "n1", *(Persist(Number(number), number) for number in range(5)))
    run(world, 100)
    do(world, "n1", Persist(Number(5), 5))
    run(world)
    assert seen(world, "n1") == [f"persisted {number}" for number in range(6)]
    world.crash("n1")
    world.start("n1")
    assert all_seen(world, "n1")[0] == "start [0, 1, 2, 3, 4, 5]"


def test_a_crash_keeps_a_random_front_part_of_unconfirmed_writes() -> None:
    survivors = set()
    for seed in range(60):
        world = world_of(seed, FaultMix(disk_latency=10_000))
        do(world, "n1", Persist(Number(0), 0))
        run(world)
        do(world, "n1", *(Persist(Number(number), number) for number in (1, 2, 3)))
        run(world, 1_000)
        world.crash("n1")
        world.start("n1")
        survivors.add(all_seen(world, "n1")[0])
    assert survivors == {"start [0]", "start [0, 1]", "start [0, 1, 2]", "start [0, 1, 2, 3]"}


def test_compaction_is_all_or_nothing() -> None:
    for seed in range(30):
        rng = Random(seed)
        disk = Disk(100)
        disk.safe = [Number(1), Number(2)]
        disk.write(Compact((Number(9),)))
        disk.write(Persist(Number(10)))
        disk.crash(rng)
        assert [record.value for record in disk.safe] in ([1, 2], [9], [9, 10])


def test_a_lost_disk_is_empty() -> None:
    world = world_of()
    do(world, "n1", Persist(Number(1), 1))
    run(world)
    world.crash("n1", lose_disk=True)
    world.start("n1")
    assert all_seen(world, "n1")[0] == "start []"


def test_nothing_of_an_earlier_incarnation_reaches_a_later_one() -> None:
    world = world_of(1, FaultMix(disk_latency=50_000, delay=20_000))
    do(world, "n1", SetTimer("old", 0.1), Persist(Number(1), "old"), Send("n1", Number(7)))
    do(world, "n2", Send("n1", Number(8)))
    world.run(world.now, max_events=1_000)
    world.crash("n1")
    world.start("n1")
    run(world)
    assert seen(world, "n1") == []


def test_a_paused_node_gets_its_inputs_later_and_in_order() -> None:
    world = world_of()
    world.pause("n2", 500_000)
    for number in range(10):
        do(world, "n1", Send("n2", Number(number)))
        run(world, 3_000)
    assert seen(world, "n2") == []
    run(world)
    assert seen(world, "n2") == [f"n1:{number}" for number in range(10)]


def test_halt_ends_the_node_at_once_and_it_comes_back() -> None:
    world = world_of()
    do(world, "n1", Halt("in doubt"), Deliver("never"))
    run(world)
    assert "never" not in [item for sequence in world.history.sequences for item in sequence.items()]
    assert world.nodes["n1"].up
    assert world.nodes["n1"].incarnation == 2


def test_the_log_gives_every_follower_all_records_in_order() -> None:
    world = world_of()
    do(world, "n1", *(Append("t", 0, b"x", token=number) for number in range(5)))
    run(world)
    do(world, "n2", Subscribe("t", 0, 2))
    run(world)
    assert sorted(seen(world, "n1")) == [f"appended {number}@{number}" for number in range(5)]
    assert seen(world, "n2") == ["record 2", "record 3", "record 4"]


def test_an_append_during_an_outage_fails_and_may_have_taken_place() -> None:
    ends = set()
    for seed in range(30):
        world = world_of(seed)
        do(world, "n2", Subscribe("t", 0, 0))
        world.set_log_available(False)
        do(world, "n1", Append("t", 0, b"x", token="a"))
        run(world)
        assert seen(world, "n1") == ["append a failed"]
        assert seen(world, "n2") == []
        world.set_log_available(True)
        run(world)
        ends.add(len(seen(world, "n2")))
    assert ends == {0, 1}


def test_a_machine_that_raises_is_a_finding() -> None:
    world = world_of()
    do(world, "n1", Send("nobody", Number(1)))
    run(world)
    assert [violation.promise for violation in world.history.violations] == ["a machine never raises"]


def test_messages_that_breed_messages_are_a_finding() -> None:
    class Echo(Machine):
        def on_message(self, sender: NodeId, message: Message) -> Effects:
            yield Send(sender, message)

        def on_peer(self, peer: NodeId, up: bool) -> Effects:
            yield Send(peer, Number(1))

    world = World(Random(1), FaultMix(), ["n1", "n2"], lambda node: Echo())
    world.start("n1")
    world.start("n2")
    world.run(100 * SECOND, max_events=1_000)
    assert [violation.promise for violation in world.history.violations] == ["work is bounded"]


def test_faults_vary_with_the_seed_and_stay_within_what_is_permitted() -> None:
    mixes = [draw(Random(seed), Permits()) for seed in range(300)]
    for name in (
        "loose",
        "partition_every",
        "crash_every",
        "pause_every",
        "slow_disk",
        "log_down_every",
        "ambush",
    ):
        on = sum(bool(getattr(mix, name)) for mix in mixes)
        assert 30 < on < 270, f"{name} is on in {on} of 300 seeds"
    assert not any(mix.disk_loss for mix in mixes)
    nothing = Permits(
        loose=False, loss=False, partitions=False, crashes=False, power_cuts=False, pauses=False, skew=1.0,
        log_outages=False,
    )  # fmt: skip
    for seed in range(100):
        mix = draw(Random(seed), nothing)
        assert not (mix.loose or mix.loss or mix.duplication or mix.partition_every or mix.crash_every)
        assert not (mix.pause_every or mix.slow_node or mix.log_down_every or mix.ambush or mix.skew > 1)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_no_more_nodes_are_down_at_once_than_permitted(most: int) -> None:
    faults = FaultMix(crash_every=20_000, down_for=100_000, power_cut=0.5, ambush=0.5)
    permits = Permits(max_down=most)
    world = World(Random(1), faults, ["n1", "n2", "n3"], lambda node: Recorder())
    Nemesis(world, faults, permits, 2 * SECOND).begin()
    run(world, 50_000)
    down = set()
    while world.now < 2 * SECOND - 20_000:
        do(world, "n1", Persist(Number(1), 1))
        run(world, 5_000)
        down.add(sum(not node.up for node in world.nodes.values()))
    assert max(down) == most


def test_after_the_calm_everything_works_again() -> None:
    faults = FaultMix(
        loss=0.1, partition_every=50_000, partition_for=900_000, crash_every=50_000, down_for=900_000,
        pause_every=50_000, pause_for=900_000, log_down_every=50_000, log_down_for=900_000, slow_node=50_000,
    )  # fmt: skip
    for seed in range(10):
        world = World(Random(seed), faults, ["n1", "n2", "n3"], lambda node: Recorder())
        Nemesis(world, faults, Permits(), SECOND).begin()
        world.run(SECOND + 100_000, max_events=100_000)
        assert all(node.up for node in world.nodes.values())
        assert world.log.available
        for sender, to in (("n1", "n2"), ("n2", "n3"), ("n3", "n1")):
            do(world, sender, Send(to, Number(5)))
        run(world, 50_000)
        for sender, to in (("n1", "n2"), ("n2", "n3"), ("n3", "n1")):
            assert f"{sender}:5" in seen(world, to), f"seed {seed}: {sender} does not reach {to}"


def test_text_does_not_depend_on_the_order_of_a_set() -> None:
    assert show({"b", "a", "c"}) == "{a, b, c}"
    assert show((Number(1), {"k": [b"x", None]})) == "(Number(value=1), {k: [b'x', None]})"
