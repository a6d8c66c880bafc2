"""The schedules that an app's code defines: kept here until a worker's session declares them."""

from __future__ import annotations

from winch.core.errors import ConfigError
from winch.storage.decide.schedules import Definition
from winch.storage.params import Declared


class DeclaredSchedules:
    """The schedules that an app's code defines."""

    def __init__(self) -> None:
        self._by_name: dict[str, Definition] = {}

    def add(self, name: str, definition: Definition) -> None:
        if name in self._by_name:
            raise ConfigError(
                f"two schedules are named {name!r}; give one of them another name with "
                "@app.schedule(…, name=…)"
            )
        self._by_name[name] = definition

    def __len__(self) -> int:
        return len(self._by_name)

    def declared(self) -> tuple[Declared, ...]:
        return tuple(
            Declared(name, definition.text, definition.timing.key)
            for name, definition in sorted(self._by_name.items())
        )
