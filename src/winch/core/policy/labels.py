"""Labels of workers, and what tasks need of them: `--label gpu=h100` and `needs={"gpu": "h100"}`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from winch.core.errors import ConfigError

MOST_CHARS = 64
MOST_LABELS = 32
_ALLOWED = frozenset("-_./")


def check_labels(value: object, what: str) -> dict[str, str]:
    """A mapping of label to value, or a list of `label=value`; raises ConfigError."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        pairs = [_pair(one, what) for one in value]
    else:
        raise ConfigError(f'{what} must be a mapping such as {{"gpu": "h100"}}, got {value!r}')
    if len(pairs) > MOST_LABELS:
        raise ConfigError(f"{what} takes up to {MOST_LABELS} labels, got {len(pairs)}")
    labels: dict[str, str] = {}
    for name, text in pairs:
        for part in (name, text):
            if not _is_word(part):
                raise ConfigError(
                    f"{what}: a label and its value have 1 to {MOST_CHARS} letters, digits or any of "
                    f"'-_./', got {part!r}"
                )
        if labels.setdefault(name, text) != text:
            raise ConfigError(f"{what} has the label {name!r} twice: {labels[name]!r} and {text!r}")
    return labels


def _pair(given: object, what: str) -> tuple[str, str]:
    name, equals, text = given.partition("=") if isinstance(given, str) else ("", "", "")
    if not equals:
        raise ConfigError(f"{what} must be name=value, such as gpu=h100, got {given!r}")
    return name, text


def _is_word(text: object) -> bool:
    return (
        isinstance(text, str)
        and 1 <= len(text) <= MOST_CHARS
        and all((c.isalnum() and c.isascii()) or c in _ALLOWED for c in text)
    )


def meets(labels: Mapping[str, str], needs: Mapping[str, str]) -> bool:
    """Whether a worker with these labels may run a task with these needs."""
    return all(labels.get(name) == text for name, text in needs.items())


def absent(workers: Iterable[Mapping[str, str]], needs: Mapping[str, str]) -> list[str]:
    """The needs that none of these workers has, as `name=value`."""
    offered = {pair for labels in workers for pair in labels.items()}
    return [f"{name}={text}" for name, text in needs.items() if (name, text) not in offered]
