"""Obligations: z3 proves each one, and cvc5 proves the same text in SMT-LIB again."""

import contextlib
import sys
import time

import cvc5
import z3

TIMEOUT = 120  # seconds, on a busy machine
WITH_CVC5 = True
failures = []
group = None


def z3_answer(formula):
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT * 1000)
    solver.add(formula)
    return str(solver.check()), solver


def _cvc5(solver):
    tm = cvc5.TermManager()
    other = cvc5.Solver(tm)
    other.setOption("tlimit-per", str(TIMEOUT * 1000))
    other.setLogic("ALL")
    symbols = cvc5.SymbolManager(tm)
    parser = cvc5.InputParser(other, symbols)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, solver.to_smt2(), "obligation")
    answer = "none"
    while not (command := parser.nextCommand()).isNull():
        answer = command.invoke(other, symbols).strip() or answer
    return answer


def line(name, solver, seconds, fault=""):
    if group is not None:
        return group.append((name, solver, seconds, fault))
    print(f"{'FAILED' if fault else 'proved'}  {name:<92} {solver:<5} {seconds:6.2f} s{fault}", flush=True)
    if fault:
        failures.append(name)


@contextlib.contextmanager
def together(name):
    """Shows all obligations within as one line for each solver, and one for each that is not proved."""
    global group
    group = parts = []
    try:
        yield
    finally:
        group = None
    for solver in dict.fromkeys(solver for _, solver, _, _ in parts):
        own = [part for part in parts if part[1] == solver]
        failed = [part for part in own if part[3]]
        for part in failed:
            line(*part)
        seconds = sum(seconds for _, _, seconds, _ in own)
        line(f"{name}, {len(own)} obligations", solver, seconds, f": {len(failed)} failed" if failed else "")


def prove(name, assumptions, claim, spent=0):
    """Proves that `claim` follows from `assumptions`, which have to be possible. `spent`: seconds that it took to make
    the claim."""
    start = time.monotonic() - spent
    if z3_answer(z3.And(*assumptions))[0] != "sat":
        return line(name, "z3", time.monotonic() - start, ": the assumptions contradict each other")
    answer, solver = z3_answer(z3.And(*assumptions, z3.Not(claim)))
    if answer == "sat":
        print(solver.model())
    line(name, "z3", time.monotonic() - start, "" if answer == "unsat" else f": {answer}")
    if not WITH_CVC5:
        return
    start = time.monotonic()
    answer = _cvc5(solver)
    line(name, "cvc5", time.monotonic() - start, "" if answer == "unsat" else f": {answer}")


def refute(name, formula):
    """Shows that `formula` is possible: a rule that is needed cannot be left out."""
    start = time.monotonic()
    answer, _ = z3_answer(formula)
    line(name, "z3", time.monotonic() - start, "" if answer == "sat" else f": {answer}")


def finish():
    sys.exit(f"not proved: {len(failures)}" if failures else 0)
