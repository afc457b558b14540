"""The credits of a connection: what each end may do, with the names of [MS-SMBD] 3.1.1.1.

The functions below take plain integers, unbounded integers of a solver, or bit vectors, so one text serves the proofs
(safety.py, liveness.py) and the comparison with the compiled code (compiled.py).
"""

from dataclasses import dataclass, replace
import z3


def ite(condition, yes, no):
    if isinstance(condition, bool):
        return yes if condition else no
    return z3.If(condition, yes, no)


def both(*parts):
    return all(parts) if all(isinstance(part, bool) for part in parts) else z3.And(*parts)


def either(*parts):
    return any(parts) if all(isinstance(part, bool) for part in parts) else z3.Or(*parts)


def no(part):
    return not part if isinstance(part, bool) else z3.Not(part)


def least(a, b):
    return ite(a <= b, a, b)


def most(a, b):
    return ite(a >= b, a, b)


def divided(a, b):
    """The quotient and the remainder."""
    return (a // b, a % b) if isinstance(a, int) else (z3.UDiv(a, b), z3.URem(a, b))


def monus(a, b):
    return ite(a >= b, a - b, 0 * a)


@dataclass(frozen=True)
class End:
    """One end. ReceiveCredits of the specification is Granted + Available."""

    SendCredits: object
    Granted: object  # posted receives that the peer holds a credit for
    Available: object  # posted receives that are not granted
    ReceiveCreditTarget: object
    ReceiveCreditMax: object
    SendQueue: object  # number of segments that wait
    SendImmediate: object
    Sending: object  # the last sent message was a segment, and not the last of its message
    Owed: object  # number of full segments that the peer's incomplete message still needs, 0 between messages
    Quiet: object  # the last received message was empty and requested no response, and nothing was granted since
    TargetRose: object  # the peer raised its target, and nothing was granted since
    HoldsFirst: object  # the initiator's first grant waits up to 20 ms for a message that carries it
    Strict: object  # setting: the last send credit is never spent without a grant
    V2014: object  # setting: the wording of 2014
    Most: object  # for the proof: the largest limit so far, at least 2
    Answered: object  # for the proof: credits were granted since the last message arrived


@dataclass(frozen=True)
class Channel:
    """The messages on the way in one direction, which arrive in order."""

    Messages: object
    Grants: object  # the sum of their CreditsGranted
    LastGrant: object  # CreditsGranted of the youngest
    Before: object  # number of messages before the first one that grants
    Loud: object  # number of messages that are not quiet


@dataclass(frozen=True)
class Message:
    CreditsRequested: object
    CreditsGranted: object
    Quiet: object  # empty, and no response is requested
    Asks: object  # SMB_DIRECT_RESPONSE_REQUESTED
    Owed: object  # RemainingDataLength in full segments


# 3.1.5.9: how many receives are posted and granted.


def limit(end):
    return least(end.ReceiveCreditTarget, end.ReceiveCreditMax)


def posted(end):
    return end.Granted + end.Available


def returns_token(end):
    """With targets of 1 at both ends, a single credit would be passed back and forth for ever. Two end that."""
    return both(end.Quiet, end.Granted == 0)


def spends_last(end):
    return both(end.SendCredits == 1, either(end.SendImmediate, end.SendQueue > 0))


def missing(end, last):
    """How many receives to post; `last`: a message waits to spend the last send credit."""
    wanted = limit(end)
    wanted = ite(last, most(wanted, end.Granted + 1), wanted)
    wanted = ite(returns_token(end), most(wanted, 2), wanted)
    return monus(wanted, posted(end))


def grantable(end, last):
    """CreditsGranted of a message that is sent now."""
    grant = monus(limit(end), end.Granted)
    grant = ite(returns_token(end), most(grant, 2), grant)
    grant = ite(last, most(grant, 1), grant)
    return least(end.Available, grant)


def should_grant(end, quarter):
    """Whether an end with nothing to send grants by an empty message; `quarter` is a quarter of the limit."""
    grant = grantable(end, False)
    low = both(end.Granted <= quarter, grant >= quarter)
    return both(
        grant > 0,
        no(both(end.Quiet, grant == 1)),
        either(end.Granted == 0, end.TargetRose, low, grant >= 64),
    )


def to_post(missing, affordable, owed, posted, room):
    """Ordinary receives need room in the receive buffer; those of a message that has begun do not."""
    return least(least(missing, most(monus(owed, posted), affordable)), room)


def affordable(buffer, unread, size, posted):
    """How many receives the receive buffer has room for, beside what the application has not taken."""
    return least(monus(divided(monus(buffer, unread), size)[0], posted), 65535)


def owed(remaining, size, limit):
    """How many receives the peer's incomplete message needs: a segment may be all payload."""
    quotient, rest = divided(remaining, size)
    return least(ite(rest > 0, quotient + 1, quotient), limit)


def fitted(maximum, queue):
    """ReceiveCreditMax with a provider that holds `queue` receives: two are kept back from ordinary grants."""
    return least(maximum, most(monus(least(queue, 65535), 2), 1))


# 3.1.5.1: what is sent.


def may_spend_last(grant, strict, granted):
    return either(grant > 0, both(no(strict), granted > 0))


def next_grant(end):
    """Whether a message may be sent now, and its CreditsGranted."""
    last = end.SendCredits == 1
    grant = grantable(end, last)
    return both(end.SendCredits > 0, either(no(last), may_spend_last(grant, end.Strict, end.Granted))), grant


def may_begin(end, affordable):
    """Whether an end can begin a message now, if necessary after it has posted a receive."""
    grant = most(grantable(end, True), affordable)
    return either(end.SendCredits > 1, both(end.SendCredits == 1, may_spend_last(grant, end.Strict, end.Granted)))


def is_due(end, quarter):
    """Whether an end with no queued message sends an empty one."""
    return either(end.SendImmediate, both(no(end.HoldsFirst), should_grant(end, quarter)))


# The steps of one end. Each returns (whether it can happen, the end after it, the channels after it).


def post(end, count):
    """The owner posts up to as many receives as are missing; provider and receive buffer may allow fewer."""
    return both(count >= 1, count <= missing(end, spends_last(end))), replace(end, Available=end.Available + count)


def send(end, out, quarter, is_last, blank, asks, held):
    """Sends the next segment, or an empty message. `is_last`: the segment is the last of its message; `blank`: it has no
    payload; `held`: an RDMA Write that was requested earlier holds the queue."""
    segment = both(end.SendQueue > 0, no(both(held, no(end.Sending))))
    possible, grant = next_grant(end)
    grants = grant > 0
    after = replace(
        end,
        SendCredits=end.SendCredits - 1,
        Granted=end.Granted + grant,
        Available=end.Available - grant,
        SendQueue=ite(segment, end.SendQueue - 1, end.SendQueue),
        Sending=ite(segment, both(no(is_last), end.SendQueue > 1), end.Sending),
        SendImmediate=False,
        HoldsFirst=False,
        TargetRose=both(end.TargetRose, no(grants)),
        Quiet=both(end.Quiet, no(grants)),
        Answered=either(end.Answered, grants),
    )
    out = Channel(
        Messages=out.Messages + 1,
        Grants=out.Grants + grant,
        LastGrant=grant,
        Before=ite(out.Grants > 0, out.Before, ite(grants, out.Messages, 0)),
        Loud=ite(either(both(segment, no(blank)), asks), out.Loud + 1, out.Loud),
    )
    sound = either(no(blank), both(is_last, no(end.Sending)))
    return both(either(segment, is_due(end, quarter)), possible, sound), after, out


def prompts(asks, quiet, v2014, waiting):
    """Whether a received message is answered even without credits to grant."""
    return either(asks, both(v2014, no(quiet), no(waiting)))


def receive(end, message):
    """3.1.5.8. The sums of the segments are checked elsewhere."""
    target = message.CreditsRequested
    new_limit = least(target, end.ReceiveCreditMax)
    rises = new_limit > limit(end)
    after = replace(
        end,
        Granted=end.Granted - 1,
        SendCredits=end.SendCredits + message.CreditsGranted,
        ReceiveCreditTarget=target,
        TargetRose=either(end.TargetRose, rises),
        Quiet=message.Quiet,
        SendImmediate=either(
            end.SendImmediate, prompts(message.Asks, message.Quiet, end.V2014, end.SendQueue > 0)
        ),
        Owed=message.Owed,
        Most=most(end.Most, new_limit),
        Answered=False,
    )
    return both(end.Granted > 0, target >= 1), after


def arrives(channel, sender, message, before):
    """The oldest message on the way is `message`. `before` is the position of the next one that grants."""
    rest = channel.Grants - message.CreditsGranted
    left = channel.Messages - 1
    possible = both(
        channel.Messages > 0,
        message.CreditsGranted >= 0,
        rest >= 0,
        message.Owed >= 0,
        either(no(message.Quiet), both(message.Owed == 0, no(message.Asks))),
        # The only message on the way is the youngest one.
        either(left > 0, both(rest == 0, (message.Owed > 0) == sender.Sending)),
        either(left == 0, rest >= channel.LastGrant),
        either(no(left == 1), rest == channel.LastGrant),
        either(channel.Grants == 0, (message.CreditsGranted > 0) == (channel.Before == 0)),
        either(message.Quiet, channel.Loud > 0),
        either(no(message.Quiet), channel.Loud <= left),
    )
    first = ite(channel.Before > 0, channel.Before - 1, before)
    after = Channel(
        Messages=left,
        Grants=rest,
        LastGrant=ite(left > 0, channel.LastGrant, 0),
        Before=ite(rest > 0, first, 0),
        Loud=channel.Loud - ite(message.Quiet, 0, 1),
    )
    sound = either(rest == 0, both(0 <= first, first < left))
    return both(possible, sound), after
