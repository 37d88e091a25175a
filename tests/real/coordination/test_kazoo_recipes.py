"""kazoo 2.11, unchanged, on our ensemble: its recipes, with servers killed under them."""

import threading
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from lockstep.coordination.ensemble import Ensemble

pytestmark = pytest.mark.real
Connect = Callable[..., KazooClient]
Wait = Callable[..., None]


def test_basic_operations_and_their_errors(kazoo_client: Connect) -> None:
    client = kazoo_client()
    assert client.create("/a", b"one") == "/a"
    data, stat = client.get("/a")
    assert (data, stat.version) == (b"one", 0)
    assert client.set("/a", b"two").version == 1
    with pytest.raises(BadVersionError):
        client.set("/a", b"three", version=0)
    with pytest.raises(NodeExistsError):
        client.create("/a")
    with pytest.raises(NoNodeError):
        client.get("/missing")
    client.create("/a/b/c", makepath=True)
    with pytest.raises(NotEmptyError):
        client.delete("/a")
    path, stat = client.create("/a/s-", b"x", sequence=True, include_data=True)
    assert path.startswith("/a/s-") and stat.dataLength == 1
    assert client.sync("/a") == "/a"
    acl = make_digest_acl("bob", "secret", all=True)
    client.create("/guarded", b"x", acl=[acl])
    client.add_auth("digest", "bob:secret")
    assert client.get("/guarded")[0] == b"x"
    client.delete("/a", recursive=True)
    assert client.exists("/a") is None


def test_a_lock_is_held_by_one_while_the_leader_is_killed(
    ensemble: Ensemble, kazoo_client: Connect, wait_until: Wait
) -> None:
    inside = 0
    worst = 0
    rounds = 0
    guard = threading.Lock()
    ended = threading.Event()

    def work(client: KazooClient) -> None:
        nonlocal inside, worst, rounds
        while not ended.is_set():
            lock = client.Lock("/lock")
            if not lock.acquire(timeout=20):
                continue
            with guard:
                inside += 1
                worst = max(worst, inside)
                rounds += 1
            with guard:
                inside -= 1
            KazooRetry(max_tries=-1, max_delay=0.1)(lock.release)

    threads = [threading.Thread(target=work, args=(kazoo_client(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: rounds > 20, "twenty rounds before the kill")
    before = rounds
    leader = ensemble.wait_leader()
    ensemble.kill(leader)
    wait_until(lambda: rounds > before + 20, "twenty rounds after the kill", seconds=30)
    ended.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert worst == 1


def test_an_election_has_one_winner_and_then_the_next(kazoo_client: Connect, wait_until: Wait) -> None:
    order: list[str] = []
    release = threading.Event()
    clients = {name: kazoo_client() for name in ("first", "second")}

    def lead(name: str) -> None:
        order.append(name)
        release.wait(20)

    threads = []
    for name, client in clients.items():
        election = client.Election("/election", name)
        threads.append(threading.Thread(target=election.run, args=(lead, name)))
        threads[-1].start()
        wait_until(lambda: len(election.contenders()) == len(threads), "it contends")  # noqa: B023
    wait_until(lambda: len(order) == 1, "a winner")
    release.set()
    for thread in threads:
        thread.join(20)
    assert order == ["first", "second"]


def test_a_barrier_and_a_double_barrier(kazoo_client: Connect) -> None:
    first, second = kazoo_client(), kazoo_client()
    barrier = first.Barrier("/barrier")
    barrier.create()
    assert not second.Barrier("/barrier").wait(timeout=0.1)
    barrier.remove()
    assert second.Barrier("/barrier").wait(timeout=10)
    passed: list[str] = []

    def cross(client: KazooClient, name: str) -> None:
        double = client.DoubleBarrier("/double", 2)
        double.enter()
        passed.append(name)
        double.leave()

    threads = [threading.Thread(target=cross, args=(c, n)) for c, n in ((first, "1"), (second, "2"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(passed) == ["1", "2"]


def test_a_counter_loses_no_increment_while_servers_are_killed(
    ensemble: Ensemble, kazoo_client: Connect, wait_until: Wait
) -> None:
    """An increment may count twice where a connection broke in the middle, and never not at all."""
    acknowledged = [0, 0]
    ended = threading.Event()
    lost = [0, 0]

    def count(index: int, client: KazooClient) -> None:
        counter = client.Counter("/counter")
        while not ended.is_set():
            try:
                counter += 1
                acknowledged[index] += 1
            except Exception:
                lost[index] += 1

    clients = [kazoo_client() for _ in range(2)]
    threads = [threading.Thread(target=count, args=pair) for pair in enumerate(clients)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(acknowledged) > 50, "fifty increments")
    victim = ensemble.wait_leader()
    ensemble.kill(victim)
    before = sum(acknowledged)
    wait_until(lambda: sum(acknowledged) > before + 50, "fifty more", seconds=30)
    ensemble.start_server(victim)
    ensemble.wait_serving(victim)
    ended.set()
    for thread in threads:
        thread.join(30)
    value = kazoo_client().Counter("/counter").value
    assert sum(acknowledged) <= value <= sum(acknowledged) + sum(lost) + 2 * len(clients)


def test_queues_give_every_entry_once(kazoo_client: Connect) -> None:
    producer, consumer = kazoo_client(), kazoo_client()
    queue = producer.Queue("/queue")
    for number in range(20):
        queue.put(b"%d" % number)
    taken = [consumer.Queue("/queue").get() for _ in range(20)]
    assert taken == [b"%d" % number for number in range(20)]
    assert consumer.Queue("/queue").get() is None
    locking = producer.LockingQueue("/locking")
    locking.put_all([b"a", b"b"])
    other = consumer.LockingQueue("/locking")
    assert other.get(10) == b"a"
    assert other.consume()
    assert other.get(10) == b"b"


def test_a_party_knows_who_is_there(kazoo_client: Connect, wait_until: Wait) -> None:
    first, second = kazoo_client(), kazoo_client()
    parties = [first.Party("/party", "one"), second.Party("/party", "two")]
    for party in parties:
        party.join()
    wait_until(lambda: sorted(parties[0]) == ["one", "two"], "both are there")
    second.stop()
    wait_until(lambda: list(parties[0]) == ["one"], "one is left")


def test_watchers_hear_of_every_last_state_although_their_server_dies(
    ensemble: Ensemble, kazoo_client: Connect, wait_until: Wait
) -> None:
    client, writer = kazoo_client(), kazoo_client()
    writer.create("/watched", b"0")
    data: list[bytes] = []
    children: list[list[str]] = []
    client.DataWatch("/watched", lambda value, stat: data.append(value))
    client.ChildrenWatch("/watched", lambda names: children.append(sorted(names)))
    writer.set("/watched", b"1")
    wait_until(lambda: data[-1:] == [b"1"], "the first change")
    victim = next(
        i for i, m in ensemble.members.items() if m.client_port == client._connection._socket.getpeername()[1]
    )
    ensemble.kill(victim)
    retry = KazooRetry(max_tries=-1, max_delay=0.1, ignore_expire=False)
    retry(writer.set, "/watched", b"2")
    retry(writer.ensure_path, "/watched/child")
    wait_until(lambda: data[-1:] == [b"2"], "the change during the move")
    wait_until(lambda: children[-1:] == [["child"]], "the child")


def test_a_client_of_a_survivor_keeps_its_connection_through_an_election(
    ensemble: Ensemble, kazoo_client: Connect
) -> None:
    leader = ensemble.wait_leader()
    survivor = next(server for server in ensemble.running if server != leader)
    client = KazooClient(str(ensemble.members[survivor].client), timeout=5.0)
    states: list[str] = []
    client.add_listener(states.append)
    client.start(15)
    try:
        client.create("/survivor", b"0")
        requests = [client.set_async("/survivor", b"%d" % number) for number in range(50)]
        ensemble.kill(leader)
        requests += [client.set_async("/survivor", b"%d" % number) for number in range(50, 100)]
        for request in requests:
            request.get(timeout=15)
        data, stat = client.get("/survivor")
        assert (data, stat.version) == (b"99", 100), "each write happened exactly once"
        assert states == [KazooState.CONNECTED]
    finally:
        client.stop()
        client.close()
