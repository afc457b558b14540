"""Safety: no message without a posted receive, no target and no maximum exceeded, no overflow of 16 bits.

The numbers have no bound. The invariant holds at first, and every step of either end keeps it. The rules are the same
for both ends, so the steps of end 0 suffice.
"""

from dataclasses import dataclass, fields, replace

import z3

import model
from model import Channel, End, Message, both, either, ite, no, posted
from prove import finish, prove

FLAGS = {"SendImmediate", "Sending", "Quiet", "TargetRose", "HoldsFirst", "Strict", "V2014", "Asks", "Answered"}
LARGEST = 65535


def symbols(kind, name):
    sort = lambda field: z3.Bool if field in FLAGS else z3.Int
    return kind(**{field.name: sort(field.name)(f"{name}.{field.name}") for field in fields(kind)})


@dataclass(frozen=True)
class System:
    ends: tuple
    channels: tuple  # channel 0 leads from end 0 to end 1

    def mirrored(self):
        return System(self.ends[::-1], self.channels[::-1])


def system():
    return System(
        (symbols(End, "a"), symbols(End, "b")), (symbols(Channel, "a_to_b"), symbols(Channel, "b_to_a"))
    )


def quarter(end):
    return model.limit(end) / 4


def one_side(end, peer, out, into):
    """The invariant of one end and what it sends."""
    reach = end.Most + ite(end.SendCredits == 0, 1, 0)
    return {
        # Every granted receive belongs to a send credit, a grant on the way or a message on the way.
        "conservation": end.Granted == peer.SendCredits + out.Grants + into.Messages,
        "counts": both(
            end.SendCredits >= 0, end.Granted >= 0, end.Available >= 0, end.SendQueue >= 0, end.Owed >= 0
        ),
        "targets": both(
            end.ReceiveCreditTarget >= 1,
            end.ReceiveCreditMax >= 1,
            model.limit(end) <= end.Most,
            2 <= end.Most,
            end.Most <= model.most(2, end.ReceiveCreditMax),
        ),
        # Beyond the largest limit, one credit is granted with the last send credit, and no other.
        "bounds": both(end.Granted <= reach, posted(end) <= end.Most + 1),
        "channel": both(
            out.Messages >= 0,
            out.Grants >= 0,
            out.LastGrant >= 0,
            out.LastGrant <= out.Grants,
            either(out.Messages > 0, both(out.Grants == 0, out.LastGrant == 0)),
            either(out.Messages != 1, out.LastGrant == out.Grants),
            0 <= out.Loud,
            out.Loud <= out.Messages,
            either(out.Grants == 0, both(0 <= out.Before, out.Before < out.Messages)),
        ),
        # The last send credit of a strict end left with a grant, and nothing was sent after it.
        "last credit": either(no(end.Strict), end.SendCredits > 0, out.Messages == 0, out.LastGrant > 0),
        "answered": either(no(end.Answered), both(no(end.Quiet), end.Granted > 0)),
        # A message in progress: its next segment is queued, and its receiver knows of it once everything has arrived.
        "progress": both(
            either(no(end.Sending), end.SendQueue > 0),
            either(no(end.Sending), out.Messages > 0, both(peer.Owed > 0, no(peer.Quiet))),
        ),
    }


def invariant(system):
    (one, two), (out, into) = system.ends, system.channels
    parts = dict(one_side(one, two, out, into))
    parts |= {f"{name}, other end": part for name, part in one_side(two, one, into, out).items()}
    # Somebody holds a credit, or a grant is on its way.
    parts["token"] = either(
        both(no(one.Strict), no(two.Strict)),
        one.SendCredits + two.SendCredits + out.Grants + into.Grants >= 1,
    )
    return parts


def holds(system):
    return z3.And(*invariant(system).values())


def steps(system):
    """The steps of end 0: name -> (guard, system after it, conditions of 16 bits)."""
    (end, peer), (out, into) = system.ends, system.channels
    count = z3.Int("count")
    last, blank, asks, held = z3.Bools("is_last blank asks held")
    message = symbols(Message, "message")

    def with_end(after):
        return System((after, peer), system.channels)

    guard, after = model.post(end, count)
    yield "posts receives", guard, with_end(after)
    yield "queues segments", count >= 1, with_end(replace(end, SendQueue=end.SendQueue + count))
    yield "is prompted", z3.BoolVal(True), with_end(replace(end, SendImmediate=True))
    yield "gives up holding the first grant", end.HoldsFirst, with_end(replace(end, HoldsFirst=False))
    guard, after, sent = model.send(end, out, quarter(end), last, blank, asks, held)
    yield "sends", guard, System((after, peer), (sent, into))
    arrives, rest = model.arrives(into, peer, message, z3.Int("before"))
    guard, after = model.receive(end, message)
    # That the end accepts the message (guard) is an obligation of its own.
    yield "receives", both(arrives, message.CreditsRequested >= 1), System((after, peer), (out, rest))


def initial(system):
    """The connecting end has received the Negotiate Response, and has posted its receives."""
    (one, two), channels = system.ends, system.channels
    fresh = lambda end: both(
        end.SendQueue == 0,
        end.Owed == 0,
        no(end.SendImmediate),
        no(end.Sending),
        no(end.Quiet),
        no(end.Answered),
        end.ReceiveCreditTarget >= 1,
        end.ReceiveCreditMax >= 1,
        end.Available >= 0,
        posted(end) <= model.limit(end),
        end.Most == model.most(2, model.limit(end)),
    )
    empty = [both(c.Messages == 0, c.Grants == 0, c.LastGrant == 0, c.Before == 0, c.Loud == 0) for c in channels]
    return both(
        fresh(one),
        fresh(two),
        *empty,
        one.Granted == 0,
        two.SendCredits == 0,
        one.SendCredits == two.Granted,
        two.Granted >= 1,
    )


def keeps_invariant(who, now, premise):
    for name, guard, after in steps(now):
        prove(f"{who} that {name} keeps the invariant", [holds(now), premise, guard], holds(after))


#= SMBD-3.1.5.1-04
#= SMBD-3.1.5.1-06
#= SMBD-3.1.5.1-06b
#= SMBD-3.1.5.8-06
#= SMBD-3.1.5.8-11
#= SMBD-3.1.5.9-02
#= SMBD-3.1.5.9-06
def obligations():
    now = system()
    prove("safety: the invariant holds after the negotiation", [initial(now)], holds(now))
    keeps_invariant("safety: an end", now, z3.BoolVal(True))

    (end, peer), (out, into) = now.ends, now.channels
    # A Send uses a receive of the peer at once, in the worst case before the peer handles earlier ones.
    unused = posted(peer) - out.Messages
    sends = next(guard for name, guard, _ in steps(now) if name == "sends")
    prove("safety: a message finds a posted receive", [holds(now), sends], unused >= 1)
    receives = next(guard for name, guard, _ in steps(now) if name == "receives")
    prove("safety: an end accepts every message of the other", [holds(now), receives], end.Granted > 0)
    # ReceiveCredits::fit_into: a provider holds two receives more than are granted ordinarily.
    fits = both(end.ReceiveCreditMax <= LARGEST - 2, peer.ReceiveCreditMax <= LARGEST - 2)
    prove(
        "safety: no sum exceeds 16 bits",
        [holds(now), fits],
        both(posted(end) < LARGEST, peer.SendCredits + out.Grants < LARGEST, end.Granted < LARGEST),
    )
    prove(
        "safety: no more receives than ReceiveCreditMax and the two that a provider keeps back",
        [holds(now)],
        posted(end) <= end.ReceiveCreditMax + 2,
    )
    # With an empty receive buffer, which holds ReceiveCreditMax + 2 receives or more, and such a provider.
    wanted = model.missing(end, model.spends_last(end))
    prove(
        "safety: every missing receive finds room once the application has taken everything",
        [holds(now)],
        posted(end) + wanted <= end.ReceiveCreditMax + 2,
    )
    # The target is exceeded by one with the last send credit, and by the second credit of a target of 1.
    grant = model.next_grant(end)[1]
    prove(
        "safety: a grant exceeds neither target nor ReceiveCreditMax, with two exceptions",
        [holds(now), sends, grant > 0],
        either(
            end.Granted + grant <= model.limit(end),
            both(end.SendCredits == 1, grant == 1),
            both(end.Quiet, end.Granted == 0, grant <= 2),
        ),
    )


if __name__ == "__main__":
    obligations()
    finish()
