"""The reliability lab: real stores, real processes, faults on purpose, and a verdict from the history.

    python -m lab --store postgres --fault F1 --seed 7
    make chaos            every fault on every store that has it; QUICK=1 for nine of them

It lives beside the package and not in it: it starts servers, mounts file systems, sends signals and
compiles a clock, and needs the tests' own servers for that. The parts that applications can use,
the flaky store and virtual time, are in `winch.testing`.
"""
