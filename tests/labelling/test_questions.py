"""Who is shown what: second opinions, catch pairs, undo; and leases, which nobody can make or read the right answer from."""

import base64
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rlhf_ray.data.comparisons import pair_id
from rlhf_ray.labelling import messages as module
from rlhf_ray.labelling.messages import Lease, Leases
from rlhf_ray.labelling.questions import ACTIVE, CATCH_AFTER, QUIET, QuestionQueue, Shown
from rlhf_ray.settings import LabellingSettings
from tests.made_up import Clock

PAIRS = [(f"a{i}", f"b{i}") for i in range(6)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def queue_of(clock: Clock, pairs: list[tuple[str, str]] = PAIRS, **options: float) -> QuestionQueue:
    queue = QuestionQueue(
        LabellingSettings(**{"lease_seconds": 100, "overlap_share": 0, "catch_share": 0} | options), 0, clock
    )
    queue.add(0, pairs)
    return queue


def test_the_oldest_come_first_and_nobody_is_shown_what_somebody_else_sees(clock: Clock) -> None:
    queue = queue_of(clock)
    ada, bob = queue.next("ada", 2), queue.next("bob", 2)
    assert [s.left for s in ada + bob] == ["a0", "a1", "a2", "a3"]
    assert len(queue.next("eve", 6)) == 2
    assert queue.next("joe", 1) == []


def test_what_a_crashed_page_held_goes_to_the_next_page_of_that_person(clock: Clock) -> None:
    queue = queue_of(clock)
    held = [s.key for s in queue.next("ada", 4, page="crashes")]
    others = [s.key for s in queue.next("ada", 1, page="beside it")]
    clock.now = 1.0  # which might be an open page between two beats
    assert queue.renew("ada", held, page="new") == held
    assert [s.key for s in queue.next("ada", 4, page="new")] == [pair_id(*PAIRS[5])]
    clock.now = 1.1 + QUIET
    queue.renew("ada", others, page="beside it")
    assert queue.next("bob", 6) == []
    assert queue.next("ada", 4) == []  # a client that names no page
    assert [s.key for s in queue.next("ada", 4, page="new")] == held
    assert queue.renew("ada", held, page="crashes") == held  # it was asleep: it may not show them any more


def test_pages_that_were_open_together_keep_what_they_hold_when_the_network_goes(clock: Clock) -> None:
    queue = queue_of(clock)
    one = [s.key for s in queue.next("ada", 3, page="one")]
    two = [s.key for s in queue.next("ada", 3, page="two")]
    for clock.now in (2.0, 60.0):
        assert queue.renew("ada", one, page="one") == queue.renew("ada", two, page="two") == []
    assert queue.next("ada", 6, page="one") == queue.next("ada", 6, page="two") == []
    queue.answered("ada", Shown(*PAIRS[0], False), "left", "e")
    assert queue.renew("ada", one, page="one") == one[:1]  # answered elsewhere


def test_both_sides_come_first_about_as_often(clock: Clock) -> None:
    queue = queue_of(clock, [(f"a{i}", f"b{i}") for i in range(400)])
    assert 160 < sum(s.swapped for s in queue.next("ada", 400)) < 240


def test_catch_pairs_of_each_kind_come_and_are_no_questions(clock: Clock) -> None:
    pairs = [(f"a{i}", f"b{i}") for i in range(300)]
    queue = queue_of(clock, pairs, catch_share=0.5)
    caught, answered = [], {}
    for i in range(300):
        shown = queue.next("ada", 1, page="page")[0]
        clock.now += 2
        assert queue.renew("ada", [shown.lease_key], "page") == []  # also those of pairs answered before
        queue.answered("ada", shown, "left", f"e{i}")
        if shown.catch is None:
            answered[f"e{i}"] = shown
        else:
            caught.append(shown)
    assert queue.left() == len(caught)
    assert {s.catch for s in caught} == {"same", "repeat"}
    for shown in caught:
        if shown.catch == "same":
            assert (shown.left, shown.expected) == (shown.right, 0.5)
        else:
            first = answered[str(shown.repeats)]
            assert (first.key, first.swapped) == (shown.key, not shown.swapped)
            assert shown.expected == first.preference("left")
    assert len(caught) < 300 / CATCH_AFTER


def test_a_catch_pair_is_no_question_although_its_clips_are_one(clock: Clock) -> None:
    queue = queue_of(clock)
    catch = Shown(*PAIRS[0], False, "repeat", 1.0)
    queue.renew("ada", [catch.lease_key])
    assert len(queue.next("bob", 6)) == 6  # ada's takes none of them
    queue.answering("ada", catch.lease_key)
    queue.answered("ada", catch, "left", "e")
    assert queue.left() == 6


PEOPLE = st.sampled_from(["ada", "bob"])


class Queue(RuleBasedStateMachine):
    """Two people at one queue, against a model that knows only what was said, who holds what, and when they were last heard."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = queue_of(self.clock, [], overlap_share=0.3)
        self.held: dict[str, list[Shown]] = {"ada": [], "bob": []}
        self.under_way: dict[str, list[Shown]] = {"ada": [], "bob": []}
        self.leased: dict[tuple[str, str], float] = {}
        self.said: dict[str, dict[str, tuple[str, str]]] = {}
        """By pair: annotator and answer of each event that stands."""
        self.heard: dict[str, float] = {}
        self.events = self.asked = 0

    def answered(self, key: str) -> set[str]:
        return {who for who, answer in self.said[key].values() if answer != "skip"}

    def lacks(self, key: str) -> int:
        """How many more people's answers are wanted."""
        if "flag" in [answer for _, answer in self.said[key].values()]:
            return 0
        return 1 + self.queue._questions[key].two - len(self.answered(key))

    def holders(self, key: str) -> set[str]:
        return {who for who in self.held if self.leased.get((who, key), -1) > self.clock.now}

    def may(self, who: str, key: str) -> bool:
        """Whether they may answer it: it is on their screen, or more answers are wanted than are on others'."""
        if key in {shown.key for shown in self.under_way[who]}:
            return False
        holders = self.holders(key)
        return who in holders or (who not in self.answered(key) and self.lacks(key) > len(holders))

    def coming(self, key: str) -> bool:
        """Whether an answer may still come."""
        there = {who for who, last in self.heard.items() if self.clock.now - last < ACTIVE}
        second = self.lacks(key) > 0 and there - self.answered(key)
        return not self.answered(key) or bool(self.holders(key) or second)

    def lease(self, who: str, key: str) -> None:
        self.leased[who, key] = self.clock.now + 100

    def renew(self, who: str, keys: list[str]) -> None:
        """As the queue does before it hands out more."""
        self.heard[who] = self.clock.now
        for key in keys:
            if self.may(who, key):
                self.lease(who, key)

    @rule(count=st.integers(1, 4))
    def ask(self, count: int) -> None:
        pairs = [(f"{self.asked}l{i}", f"{self.asked}r{i}") for i in range(count)]
        self.queue.add(1 + self.asked, pairs)
        self.said |= {pair_id(*pair): {} for pair in pairs}
        self.asked += 1

    @rule(who=PEOPLE, count=st.integers(1, 3), another_page=st.booleans())
    def take(self, who: str, count: int, another_page: bool) -> None:
        held = [] if another_page else [s.key for s in self.held[who]]
        self.renew(who, held)
        free = [key for key in self.said if self.may(who, key) and who not in self.holders(key)]
        taken = self.queue.next(who, count, held)
        assert len(taken) == min(count, len(free))
        for shown in taken:
            assert shown.key in free
            assert shown.overlap == bool(self.answered(shown.key))
            self.held[who] = [s for s in self.held[who] if s.key != shown.key] + [shown]
            self.lease(who, shown.key)

    @rule(who=PEOPLE)
    def look(self, who: str) -> None:
        """A page renews what it holds, and drops what it has lost."""
        keys = [s.key for s in self.held[who]]
        self.renew(who, keys)
        lost = self.queue.renew(who, keys)
        under_way = {s.key for s in self.under_way[who]}
        gone = [key for key in keys if not self.may(who, key) and (who in self.answered(key) or key in under_way)]
        assert lost == gone
        self.held[who] = [s for s in self.held[who] if s.key not in lost]

    @rule(who=PEOPLE)
    def leave(self, who: str) -> None:
        for shown in self.held[who]:
            self.leased.pop((who, shown.key), None)
        self.queue.release(who, [shown.lease_key for shown in self.held[who]])
        self.held[who] = []

    @rule(who=PEOPLE)
    def send(self, who: str) -> None:
        if self.held[who]:
            self.under_way[who].append(self.held[who].pop(0))
            self.queue.answering(who, self.under_way[who][-1].key)

    @rule(who=PEOPLE)
    def fail(self, who: str) -> None:
        if self.under_way[who]:
            shown = self.under_way[who].pop(0)
            self.queue.not_stored(who, shown.key)
            self.renew(who, [shown.key])
            self.held[who].append(shown)

    @rule(who=PEOPLE, answer=st.sampled_from(["left", "right", "equal", "skip", "flag"]))
    def answer(self, who: str, answer: str) -> None:
        if self.under_way[who]:
            shown = self.under_way[who].pop(0)
            self.leased.pop((who, shown.key), None)
            self.queue.answered(who, shown, answer, f"e{self.events}")  # type: ignore[arg-type]
            self.said[shown.key][f"e{self.events}"] = who, answer
            self.heard[who] = self.clock.now
            self.events += 1

    @rule(who=PEOPLE)
    def undo(self, who: str) -> None:
        latest = self.queue.latest(who)
        if latest is not None:
            event, shown = latest
            assert self.queue.undone(who, event) == shown
            assert self.said[shown.key].pop(event)[0] == who
            self.lease(who, shown.key)
            self.held[who] = [s for s in self.held[who] if s.key != shown.key] + [shown]

    @rule(seconds=st.sampled_from([1.0, 50.0, 101.0, ACTIVE]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def the_queue_says_what_the_model_says(self) -> None:
        for who in self.held:
            assert self.queue.open(who) == sum(self.may(who, key) for key in self.said)
        assert self.queue.open() == sum(self.coming(key) for key in self.said)
        assert self.queue.left() == sum(not self.answered(key) for key in self.said)

    @invariant()
    def somebody_can_give_each_answer_that_is_waited_for(self) -> None:
        for key in filter(self.coming, self.said):
            sending = [who for who, shown in self.under_way.items() if key in {one.key for one in shown}]
            assert sending or any(self.may(who, key) for who in self.held)


TestQueue = Queue.TestCase
TestQueue.settings = settings(stateful_step_count=40)


CLIP = "0123456789abcdef" * 4
SHOWN = Shown(CLIP, CLIP[::-1], True, "repeat", 1.0, "e" * 32, True)
NOW = round(time.time(), 3)
LEASE = Lease("ada", SHOWN, NOW)


@pytest.mark.parametrize("plain", [Shown("a", "b", False), Shown("a", "b", True), Shown("a", "a", False, "same", 0.5)])
def test_a_lease_is_read_as_it_was_written(plain: Shown) -> None:
    leases = Leases(b"secret")
    assert leases.read(leases.write(Lease("bob", plain, NOW)), "bob").shown == plain
    text = leases.write(LEASE)
    assert leases.read(text, "ada") == LEASE
    assert len(text) <= 400
    assert leases.write(LEASE) != text  # nor can the next one be told from the last
    assert Lease("ada", SHOWN, NOW).id != LEASE.id


def test_nobody_can_tell_a_check_from_a_question() -> None:
    leases = Leases(b"secret")
    question, check = (leases.write(Lease("ada", shown, NOW)) for shown in (Shown(CLIP, CLIP[::-1], False), SHOWN))
    assert len(question) == len(check)
    for text in (question, check):
        assert not any(word in base64.urlsafe_b64decode(text) for word in (b"repeat", b"ada", CLIP.encode(), b"e" * 8))


def test_a_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Leases(b"secret").write(LEASE)
    monkeypatch.setattr(module.time, "time", lambda: NOW + module.GOOD_FOR + 1)
    with pytest.raises(ValueError, match="7 days ago"):
        Leases(b"secret").read(text, "ada")


@pytest.mark.parametrize(
    ("change", "reader", "secret"),
    [
        *(
            (change, "ada", b"secret")
            for change in (lambda t: t[:-2], lambda t: "A" + t[1:], lambda t: t[:40] + "é", lambda t: "")
        ),
        (str, "bob", b"secret"),
        (str, "ada", b"other"),
    ],
)
def test_a_changed_lease_another_s_and_one_of_another_secret_are_refused(change, reader, secret):
    text = Leases(b"secret").write(LEASE)
    with pytest.raises(ValueError, match="belongs to another page or annotator"):
        Leases(secret).read(change(text), reader)
