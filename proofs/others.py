"""Pairs with other rules: which are live, and the shortest run of each that is not.

A pair is live if every message is sent while applications receive, without a keepalive: the claim of liveness.py. A pair
that is live is proved so, for all numbers. The shortest run of any other pair is searched for with small credits. Both
ends then act at once on each input, so that a test can replay the run: crates/smbdirect/tests/it/literal/others.rs.
"""

import itertools
import pathlib
import time
from dataclasses import dataclass, fields, replace

import z3

import liveness
import model
import safety
from model import Channel, End, Message, both, either, ite, least, most, monus, no, posted
from prove import finish, line, prove, together
from safety import System

HERE = pathlib.Path(__file__).resolve().parent
README = HERE / "README.md"
TEST = HERE.parent / "crates/smbdirect/tests/it/literal/others.rs"
LARGEST = 65535
MOST_STEPS = 8


class Ours(End):
    """This library."""


class Weak(End):
    """This library with `strict_last_credit` off."""


class Linux(End):
    """Linux 7.2: the last send credit waits for a grant only if the peer has no credit. No grant exceeds the target."""

    def missing(self, last):
        return monus(model.limit(self), posted(self))

    def grantable(self, last):
        return least(self.Available, monus(model.limit(self), self.Granted))

    def should_grant(self, quarter):
        grant = model.grantable(self, False)
        return both(grant > 0, either(grant > 1, model.limit(self) == 1), either(self.Granted <= quarter, self.TargetRose))


class Text(End):
    """The text, in both wordings: each message is answered if there is something to grant, or always (2014). The MUST of
    3.1.5.9 for the last send credit precedes the SHOULD."""

    def missing(self, last):
        return monus(type(self).wanted(self, last), posted(self))

    def grantable(self, last):
        return least(self.Available, monus(type(self).wanted(self, last), self.Granted))

    def wanted(self, last):
        return most(model.limit(self), ite(last, self.Granted + 1, 1))

    def should_grant(self, quarter):
        return model.grantable(self, False) > 0

    def receive(self, message):
        waiting = self.SendQueue > 0
        guard, after = ORIGINAL["receive"](self, message)
        answers = either(message.Asks, both(self.V2014, no(waiting)))
        return guard, replace(after, SendImmediate=either(self.SendImmediate, answers))


class Literal(Text):
    """The current text, with the SHOULD first: nothing is granted while the peer holds its target."""

    wordings = (False,)

    def wanted(self, last):
        enough = both(self.Granted > 0, self.Granted >= self.ReceiveCreditTarget)
        return ite(enough, self.Granted, Text.wanted(self, last))


class Literal2014(Literal):
    """The text of 2014, with the SHOULD first."""

    wordings = (True,)


class Generous(End):
    """Every message grants 255 credits."""

    def missing(self, last):
        return monus(255, self.Available)

    def grantable(self, last):
        return 255


NOTHING = Channel(0, 0, 0, 0, 0)
RULES = ("missing", "grantable", "should_grant", "receive")
ORIGINAL = {name: getattr(model, name) for name in RULES}


NAMES = {
    Ours: "ours",
    Weak: "ours, not strict",
    Linux: "Linux 7.2",
    Text: "text, MUST first",
    Literal: "text, SHOULD first",
    Literal2014: "text of 2014, SHOULD first",
    Generous: "255 always",
}
LIVE = [(Ours, Weak), (Ours, Linux), (Ours, Text), (Text, Text), (Weak, Text), (Linux, Text)]
NOT_LIVE = [(Ours, Literal), (Ours, Literal2014), (Weak, Weak), (Linux, Linux)]


def install():
    """Lets the rules of the model depend on the kind of the end."""
    for name, ours in ORIGINAL.items():
        setattr(model, name, lambda end, *more, name=name, ours=ours: getattr(type(end), name, ours)(end, *more))


def is_strict(kind):
    return kind not in (Weak, Linux)


# Pairs that are live.


def prove_live(name, kinds):
    """The invariant and the rank of liveness.py, with each end in turn as the one that sends."""
    one, two = (safety.symbols(kind, end) for kind, end in zip(kinds, "ab"))
    channels = tuple(safety.symbols(Channel, channel) for channel in ("a_to_b", "b_to_a"))
    premise = both(*[end.Strict == z3.BoolVal(is_strict(type(end))) for end in (one, two)])
    now = System((one, two), channels)
    with together(f"pairs: {name}: live"):
        for now in [now, now.mirrored()] if kinds[0] is not kinds[1] else [now]:
            prove(f"{name}: the invariant holds at first", [safety.initial(now), premise], safety.holds(now))
            safety.keeps_invariant(f"{name}: an end", now, premise)
            liveness.progress(now, name, premise, z3.BoolVal(True))


# Pairs that are not.


@dataclass(frozen=True)
class State:
    ends: tuple
    channels: tuple  # the messages on the way from each end
    queued: tuple  # number of messages that each application has sent
    paused: tuple  # whether the application of each end receives nothing


def first(kinds, credits, v2014):
    """The state after the negotiation. End 0 is the initiator; `credits`: SendCreditTarget and ReceiveCreditMax of each."""
    numbers = {field.name: field.name not in safety.FLAGS and 0 for field in fields(End)}
    one, two = (
        kind(**numbers | dict(ReceiveCreditTarget=credits[1 - who], ReceiveCreditMax=credits[who], V2014=v2014[who],
                              Strict=is_strict(kind)))
        for who, kind in enumerate(kinds)
    )
    granted = model.missing(two, False)
    one = replace(one, SendCredits=granted, TargetRose=True, HoldsFirst=not isinstance(one, Linux))
    two = replace(two, Granted=granted)
    return polled(State((one, two), ((), ()), (0, 0), (False, False)), 0)


def changed(values, who, value):
    return (value, values[1]) if who == 0 else (values[0], value)


def polled(state, who):
    """The end posts its receives, and sends until nothing more can be sent."""
    end, out = state.ends[who], state.channels[who]
    while True:
        count = 0 if state.paused[who] else model.missing(end, model.spends_last(end))
        end = replace(end, Available=end.Available + count)
        can, after, sent = model.send(end, NOTHING, model.limit(end) // 4, True, False, False, False)
        if not can:
            return replace(state, ends=changed(state.ends, who, end), channels=changed(state.channels, who, out))
        end = after
        # The peer requests what it has requested in the negotiation.
        requested = state.ends[1 - who].ReceiveCreditTarget
        out += (Message(requested, sent.Grants, sent.Loud == 0, False, 0),)


def successors(state):
    """Yields what can happen next, in words, and the state after it."""
    for who, name in enumerate(("A", "P")):
        end, queued = state.ends[who], state.queued[who]
        if queued < 4:
            after = replace(end, SendQueue=end.SendQueue + 1)
            yield f"{name} sends", who, replace(
                state, ends=changed(state.ends, who, after), queued=changed(state.queued, who, queued + 1)
            )
        if state.channels[1 - who]:
            message, *rest = state.channels[1 - who]
            guard, after = model.receive(end, message)
            assert guard, "a message without a credit"
            yield f"{name} hears", who, replace(
                state, ends=changed(state.ends, who, after), channels=changed(state.channels, 1 - who, tuple(rest))
            )
        # The initiator of the text waits for its first message, however long.
        if end.HoldsFirst and not isinstance(end, Text):
            yield f"{name} waits", who, replace(state, ends=changed(state.ends, who, replace(end, HoldsFirst=False)))
        if not state.paused[who]:
            yield f"{name} pauses", who, replace(state, paused=changed(state.paused, who, True))


def waits_for_ever(state):
    """Whether a message is never sent, though both applications receive and everything arrives, by turns."""
    state = replace(state, paused=(False, False))
    state = polled(polled(state, 0), 1)
    seen = set()
    while state not in seen and any(end.SendQueue for end in state.ends):
        seen.add(state)
        arrivals = ("A hears", "P hears") if any(state.channels) else ("A waits",)
        for arrival in arrivals:
            for step, who, after in successors(state):
                if step == arrival:
                    state = polled(after, who)
    begun = not (state.ends[0].HoldsFirst and isinstance(state.ends[0], Text))
    return begun and any(end.SendQueue for end in state.ends)


def shortest_run(kinds, credits, v2014, most_steps):
    begin = first(kinds, credits, v2014)
    seen, level = {begin}, [(begin, ())]
    for _ in range(most_steps):
        following = []
        for state, run in level:
            for step, who, after in successors(state):
                after = polled(after, who)
                if after not in seen:
                    seen.add(after)
                    following.append((after, (*run, step)))
        for state, run in following:
            if waits_for_ever(state):
                return run
        level = following
    return None


def shortest(kinds):
    """The shortest run of all pairs of 1 to 3 credits, of both roles and both wordings."""
    found = None
    for ends in [kinds, kinds[::-1]] if kinds[0] is not kinds[1] else [kinds]:
        wordings = itertools.product(*(getattr(end, "wordings", (False, True)) for end in ends))
        for v2014, *credits in itertools.product(wordings, (1, 2, 3), (1, 2, 3)):
            run = shortest_run(ends, credits, v2014, len(found[-1]) - 1 if found else MOST_STEPS)
            found = (ends, credits, v2014, run) if run else found
    return found


def too_generous():
    """The number of messages with 255 credits each until the credits of this library exceed 16 bits."""
    state, heard = first((Ours, Generous), (255, 255), (False, False)), 0
    steps = itertools.cycle(("P sends", "A hears", "P hears"))
    state = polled(next(after for step, _, after in successors(state) if step == "A waits"), 0)
    while state.ends[0].SendCredits <= LARGEST:
        wanted = next(steps)
        state = replace(state, queued=(4, 0))
        for step, who, after in successors(state):
            if step == wanted:
                state = polled(after, who)
                heard += step == "A hears"
    return heard


def described(found):
    """A run as the test replays it."""
    ends, credits, v2014, run = found
    names = " and ".join(
        f"{NAMES[end]}{' (2014)' if is_2014 and not hasattr(end, 'wordings') else ''}, {number} credits"
        for end, is_2014, number in zip(ends, v2014, credits)
    )
    return f"{names}: {', '.join(run)}"


def check_run(pair, text, start):
    """The run is the one that README.md shows and that the test replays."""
    missing = [path.name for path in (README, TEST) if text not in path.read_text()]
    title = f"pairs: {pair}: not live, {text.rpartition(': ')[2]}"
    line(title, "runs", time.monotonic() - start, f": not in {' and '.join(missing)}" if missing else "")


def obligations():
    install()
    for kinds in LIVE:
        prove_live(f"{NAMES[kinds[0]]} with {NAMES[kinds[1]]}", kinds)
    for kinds in NOT_LIVE:
        start = time.monotonic()
        check_run(f"{NAMES[kinds[0]]} with {NAMES[kinds[1]]}", described(shortest(kinds)), start)
    start = time.monotonic()
    text = f"{too_generous()} messages with 255 credits each"
    check_run(f"{NAMES[Ours]} with {NAMES[Generous]}", text, start)


if __name__ == "__main__":
    obligations()
    finish()
