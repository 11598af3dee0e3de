from __future__ import annotations

import time
from dataclasses import replace

import pytest

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.admission import Admission
from service.auth.caller import ANYBODY, Caller, network_of, serving
from service.auth.keys import ApiKey, KeyRing, Limits, digest_of
from service.auth.limits import Accounts
from service.engines.pace import EnginePace
from service.settings import Settings
from streaming.capacity import Capacity, CapacitySettings
from streaming.errors import CapacityError, ErrorCode
from tests.service.live import SPEC, client, gateway


def test_retry_after_grows_with_time_slots_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    admission = Admission(2)
    lease = admission.acquire()
    admission.acquire()
    assert refused(admission).retry_after_ms == 2_000  # the first of two, each held for four
    now += 60.0
    lease.release()
    admission.acquire()
    assert refused(admission).retry_after_ms == 30_000  # each is expected to last for sixty


def refused(admission: Admission, speed: float = 1.0) -> CapacityError:
    with pytest.raises(CapacityError) as caught:
        admission.acquire(speed=speed)
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.retryable
    return caught.value


def test_lease_released_twice_frees_one_slot() -> None:
    admission = Admission(2)
    lease = admission.acquire()
    with admission.acquire():
        lease.release()
        lease.release()
        assert admission.active == 1
    assert admission.active == 0


def test_lease_release_counts_for_its_own_caller() -> None:
    ring = KeyRing(
        [ApiKey(id=k, tenant=k, sha256=digest_of(k)) for k in "ab"],
        {t: Limits(max_contexts=1) for t in "ab"},
    )
    accounts = Accounts(lambda: ring)
    admission = Admission(2, accounts)
    ann, ben = (Caller(name, name, frozenset()) for name in "ab")
    of_ann = admission.acquire(ann, 1.0)
    of_ben = admission.acquire(ben, 4.0)
    with pytest.raises(CapacityError) as caught:
        admission.acquire(ann)
    assert caught.value.code is ErrorCode.RATE_LIMITED
    with serving(ben):  # another caller is served during the release
        of_ann.release()
    assert {name: account.contexts for name, account in accounts.tenants()} == {"a": 0, "b": 1}
    of_ben.release()
    assert {name: account.contexts for name, account in accounts.tenants()} == {"a": 0, "b": 0}


def test_admission_capacity_is_measured_up_to_ceiling() -> None:
    admission, capacity = Admission(6), Capacity(CapacitySettings(0.04, 6))
    admission.measured = capacity
    assert admission.capacity == 6, "nothing is known yet"
    capacity.codec.observe(100, 100 * 0.0068, 0.0)  # nearly six streams, or four with a margin
    assert admission.capacity == 4
    for _ in range(4):
        admission.acquire()
    refused(admission)
    admission.ceiling = 2
    assert admission.capacity == 2


def test_admission_weighs_slots_by_speed() -> None:
    admission, capacity = Admission(8), Capacity(CapacitySettings(0.04, 8))
    admission.measured = capacity
    capacity.codec.observe(100, 100 * 0.0068, 0.0)
    leases = [admission.acquire(speed=2.0), admission.acquire(speed=2.0)]
    assert admission.capacity == 2, "what operators and the clients' shares go by"
    refused(admission, 2.0)
    for lease in leases:
        lease.release()
    assert admission.active == 0
    for _ in range(4):
        admission.acquire(speed=0.5)  # slow speech is not generated more slowly


def test_admission_always_admits_first_context() -> None:
    admission, capacity = Admission(8), Capacity(CapacitySettings(0.04, 8))
    admission.measured = capacity
    capacity.codec.observe(10, 10.0, 0.0)
    admission.acquire(speed=4.0)
    refused(admission)


def test_gaps_after_worker_restart_do_not_lower_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, codec = Clock(monkeypatch), FakeCodecEngine(SPEC)
    pace = EnginePace(Settings(), FakeTalker(), codec)
    pace.capacity = Capacity(CapacitySettings(0.04, 16))
    codec.restarts = 1
    for stream in range(4):
        pace.on_sent(stream, 0.1, 1.0, 4)
    assert pace.capacity.slots(clock.now) == 16
    clock.now += 10.0
    for stream in range(4):
        pace.on_sent(stream, 0.1, 1.0, 4)
    assert pace.capacity.slots(clock.now) < 4


ANN, BEN, CAT, DAN = (replace(ANYBODY, network=f"192.0.2.{number}") for number in range(4))


class Clock:
    """Monotonic time, set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Rests:
    """A SlotUser that has rested since ``since``."""

    def __init__(self, since: float) -> None:
        self.since = since

    def resting_s(self, now: float) -> float:
        return now - self.since


def code_of_refusal(admission: Admission, caller: Caller) -> ErrorCode:
    with pytest.raises(CapacityError) as caught:
        admission.acquire(caller)
    assert caught.value.retry_after_ms
    return caught.value.code


def free_two_for_those_who_wait(admission: Admission) -> None:
    """Let ANN hold all slots, refuse BEN and CAT, and free two slots."""
    leases = [admission.acquire(ANN) for _ in range(8)]
    for caller in (BEN, CAT):
        assert code_of_refusal(admission, caller) is ErrorCode.OVERLOADED
    leases.pop().release()
    leases.pop().release()


def test_single_client_may_take_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, admission = Clock(monkeypatch), Admission(8)
    admission.acquire(BEN).release()
    clock.now += 700.0
    for _ in range(8):
        admission.acquire(ANN)
    assert code_of_refusal(admission, ANN) is ErrorCode.OVERLOADED


def test_last_slot_is_reserved_for_recent_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, admission = Clock(monkeypatch), Admission(8)
    admission.acquire(BEN).release()
    clock.now += 300.0
    for _ in range(7):
        admission.acquire(ANN)
    assert code_of_refusal(admission, ANN) is ErrorCode.OVERLOADED
    admission.acquire(BEN)


def test_freed_slot_goes_to_waiting_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, admission = Clock(monkeypatch), Admission(8)
    free_two_for_those_who_wait(admission)
    assert code_of_refusal(admission, ANN) is ErrorCode.OVERLOADED
    clock.now += 1.0
    assert code_of_refusal(admission, ANN) is ErrorCode.OVERLOADED
    admission.acquire(BEN)
    assert code_of_refusal(admission, ANN) is ErrorCode.OVERLOADED
    admission.acquire(CAT)


def test_slot_goes_to_client_that_waits_longest_not_to_one_that_asks_most_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one slot, both hold less than their share whenever it is free."""
    clock, admission = Clock(monkeypatch), Admission(1)
    served, lease, ben_at = [], admission.acquire(BEN), 0.0
    for tick in range(1, 400):  # ANN asks every 50 ms, BEN when it is told to
        clock.now += 0.05
        if tick % 20 == 0:
            lease.release()
        for caller in (ANN, BEN):
            if caller is BEN and (clock.now < ben_at or (lease.is_held and lease.caller is BEN)):
                continue
            try:
                lease = admission.acquire(caller)
                served.append(caller)
            except CapacityError as refused:
                if caller is BEN:
                    ben_at = clock.now + (refused.retry_after_ms or 0) / 1000
    assert len(served) >= 6
    assert abs(served.count(ANN) - served.count(BEN)) <= 1


def test_costly_lease_counts_for_its_client_and_for_number_of_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch)
    admission, capacity = Admission(64), Capacity(CapacitySettings(0.04, 64))
    admission.measured = capacity
    for size in (1, 2, 4, 8, 16, 32, 16, 8):
        capacity.codec.observe(size, 0.008 + 0.0015 * size, 100.0)
    weight = capacity.codec.weight(1)
    assert weight == pytest.approx(0.0095 / 0.0019, rel=0.01)
    usual = admission.capacity
    assert usual == int(0.7 * 0.04 / 0.0019)
    admission.acquire(BEN)
    lease = admission.acquire(ANN)
    lease.weight = weight
    admission.acquire(BEN)
    assert sum(held.weight for held in admission._leases) + admission.capacity - 3 <= usual + 3
    admission._max_share = 0.25  # of about seven slots, of which it holds nearly five already
    assert code_of_refusal(admission, ANN) is ErrorCode.RATE_LIMITED
    admission.acquire(CAT)


def test_lone_client_is_served_however_slow_service_is() -> None:
    admission, capacity = Admission(8), Capacity(CapacitySettings(0.04, 8))
    admission.measured = capacity
    capacity.codec.observe(1, 10.0, 0.0)
    capacity.talker.observe(1000, 1000.0, 1, 1.0)
    for stream in range(4):
        capacity.underruns.observe(stream, 0.1, 5.0, 1, 1.0)
    admission.acquire(ANN).release()
    assert max(admission.limits().values()) <= 8
    assert min(admission.limits(), key=admission.limits().__getitem__) == "codec"


def test_client_that_does_not_retry_loses_reserved_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, admission = Clock(monkeypatch), Admission(8)
    free_two_for_those_who_wait(admission)
    clock.now += 60.0
    admission.acquire(ANN)  # the other slot is left for other clients


def test_client_that_got_its_slots_is_kept_none(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    admission = Admission(8)
    leases = [admission.acquire(ANN) for _ in range(8)]
    for caller in (BEN, CAT):
        assert code_of_refusal(admission, caller) is ErrorCode.OVERLOADED
    for caller in (BEN, CAT):
        leases.pop().release()
        admission.acquire(caller)
    leases.pop().release()
    leases.pop().release()
    admission.acquire(ANN)  # the other slot is left for other clients


def test_client_refused_with_its_full_share_is_kept_none() -> None:
    admission = Admission(3)
    admission.acquire(ANN)
    leases = [admission.acquire(BEN) for _ in range(2)]
    assert code_of_refusal(admission, BEN) is ErrorCode.OVERLOADED
    for lease in leases:
        lease.release()
    for _ in range(2):
        admission.acquire(ANN)


def test_client_without_slots_gets_last_one_however_many_clients_have_asked() -> None:
    admission = Admission(4)
    many = [replace(ANYBODY, network=f"192.0.2.{number}") for number in range(20)]
    for caller in many:
        admission.acquire(caller).release()
    for caller in many[:3]:
        admission.acquire(caller)
    assert code_of_refusal(admission, many[0]) is ErrorCode.OVERLOADED
    admission.acquire(many[3])
    assert admission.active == 4


def test_clients_are_forgotten_ten_minutes_after_they_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each client that counts as present makes the share of the others smaller."""
    clock, admission = Clock(monkeypatch), Admission(8)
    for _ in range(3):
        admission.acquire(ANN).release()
        admission.acquire(BEN).release()
        clock.now += 300.0
        admission.acquire(ANN).release()
        clock.now += 400.0
    for _ in range(8):
        admission.acquire(ANN)


def test_admission_remembers_a_thousand_clients() -> None:
    admission = Admission(8)
    for number in range(3000):
        admission.acquire(replace(ANYBODY, network=str(number))).release()
    assert len(admission._asked_at) == 1024
    assert not admission._held


def test_client_holds_at_most_max_share() -> None:
    admission = Admission(8, max_share=0.25)
    leases = [admission.acquire(ANN) for _ in range(2)]
    assert code_of_refusal(admission, ANN) is ErrorCode.RATE_LIMITED
    admission.acquire(BEN)
    leases[0].release()
    admission.acquire(ANN)
    assert code_of_refusal(admission, ANN) is ErrorCode.RATE_LIMITED


def test_client_over_its_share_gives_back_all_slots_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, admission = Clock(monkeypatch), Admission(8, max_share=0.25, rest_s=5.0)
    leases = [admission.acquire(ANN) for _ in range(2)]
    for lease in leases:
        lease.user = Rests(clock.now)
    clock.now += 5.0
    admission.ceiling = 4
    admission.acquire(ANN)
    assert [lease.is_held for lease in leases] == [False, False]


@pytest.mark.parametrize("percent", [7, 14, 28, 55, 56, 57])
def test_max_share_of_hundred_slots_is_its_percentage(percent: int) -> None:
    admission = Admission(100, max_share=percent / 100)
    for _ in range(percent):
        admission.acquire(ANN)
    assert code_of_refusal(admission, ANN) is ErrorCode.RATE_LIMITED


def test_resting_slot_goes_to_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, admission = Clock(monkeypatch), Admission(3, rest_s=5.0)
    of_ben = admission.acquire(BEN)
    older, newer = admission.acquire(ANN), admission.acquire(ANN)
    of_ben.user = Rests(clock.now)
    older.user = newer.user = Rests(clock.now)
    clock.now += 3.0
    newer.user = Rests(clock.now)
    assert code_of_refusal(admission, CAT) is ErrorCode.OVERLOADED
    clock.now += 2.0
    admission.acquire(CAT)
    assert (older.is_held, newer.is_held, of_ben.is_held) == (False, True, True)
    admission.acquire(CAT)
    assert (newer.is_held, of_ben.is_held) == (True, False)
    assert admission.active == 3


def test_client_with_full_share_gets_slot_while_all_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, admission = Clock(monkeypatch), Admission(8, max_share=0.25, rest_s=5.0)
    leases = [admission.acquire(caller) for caller in (ANN, BEN, CAT, DAN) for _ in range(2)]
    clock.now += 1.0
    for number, lease in enumerate(leases):
        lease.user = Rests(clock.now - (number < 2))  # its own rest longest
    clock.now += 5.0
    admission.acquire(ANN)
    # one of its own, and one of a client with more slots to be kept free for others
    assert sum(lease.is_held for lease in leases[:2]) == 1
    assert admission.active == 7


def test_only_client_uses_its_resting_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is kept free for others, since nobody else has asked."""
    clock, admission = Clock(monkeypatch), Admission(4, rest_s=5.0)
    resting, *_ = [admission.acquire(ANN) for _ in range(4)]
    resting.user = Rests(clock.now)
    clock.now += 5.0
    admission.acquire(ANN)
    assert (resting.is_held, admission.active) == (False, 4)


def test_resting_slot_is_not_taken_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the capacity has fallen, one slot does not make room for another context."""
    clock, admission = Clock(monkeypatch), Admission(3, rest_s=5.0)
    resting, *others = [admission.acquire(ANN) for _ in range(3)]
    resting.user = Rests(clock.now)
    clock.now += 5.0
    admission.ceiling = 2
    assert code_of_refusal(admission, BEN) is ErrorCode.OVERLOADED
    assert all(lease.is_held for lease in (resting, *others))
    others[0].release()
    admission.acquire(BEN)
    assert (resting.is_held, admission.active) == (False, 2)


def test_slot_does_not_rest_from_before_it_was_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, admission = Clock(monkeypatch), Admission(1, rest_s=10.0)
    lease = admission.acquire(ANN)
    lease.user = Rests(clock.now - 100.0)
    assert code_of_refusal(admission, BEN) is ErrorCode.OVERLOADED
    clock.now += 10.0
    admission.acquire(BEN)
    assert not lease.is_held


def test_slow_speech_makes_no_room_for_faster_speech() -> None:
    admission, capacity = Admission(8), Capacity(CapacitySettings(0.04, 8))
    admission.measured = capacity
    capacity.codec.observe(100, 100 * 0.0068, 0.0)
    for _ in range(4):
        admission.acquire(speed=0.25)
    refused(admission, 0.25)


def test_slot_in_use_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, admission = Clock(monkeypatch), Admission(1, rest_s=5.0)
    lease = admission.acquire(ANN)
    clock.now += 60.0
    lease.user = Rests(clock.now)
    assert code_of_refusal(admission, BEN) is ErrorCode.OVERLOADED
    assert lease.is_held


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_network_of_is_ipv4_address_or_ipv6_prefix(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_admission_follows_measured_talker_capacity() -> None:
    # A row takes 8 ms with one stream, and 40 ms, which is real time, with nine.
    talker = FakeTalker(row_s=0.008, stream_s=0.004, frames_per_character=4, capacity=64)
    async with gateway(talker, admission="measured") as server, client(server.url) as talk:
        admission = server.runtime.admission
        assert 1 <= admission.capacity <= 9
        refused = None
        for number in range(8):
            await talk.send("context.create", context_id=f"c{number}")
            await talk.send("text.append", context_id=f"c{number}", text=80 * "long " + ". ")
        talks = server.url  # another socket: one may hold eight contexts at most
        async with client(talks) as other:
            for number in range(8):
                await other.send("context.create", context_id=f"d{number}")
            for _ in range(8):
                answer = await other.next()
                if isinstance(answer, dict) and answer["type"] == "error":
                    refused = answer
                    break
        assert refused is not None
        assert refused["code"] == "overloaded"
        assert refused["retryable"]
        assert refused["retry_after_ms"] >= 50
        assert 1 <= admission.active <= 9
    await server.until_free()
