"""All faults, by name. The numbers are those of the plan in docs/reliability.md."""

from lab.faults import crowds, data, disks, network, nights, schedules, servers, workers
from lab.faults.base import Fault

_MODULES = (workers, servers, network, schedules, data, disks, crowds, nights)


def _all() -> dict[str, type[Fault]]:
    found: dict[str, type[Fault]] = {}
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Fault) and "name" in vars(value):
                found[value.name] = value
    return dict(sorted(found.items(), key=lambda item: (int(item[0][1:].rstrip("abc")), item[0])))


FAULTS = _all()
QUICK = ("F1", "F3", "F5", "F8", "F13", "F15", "F26", "F28", "F33")

__all__ = ["FAULTS", "QUICK", "Fault"]
