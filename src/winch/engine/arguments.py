"""A task's arguments: checked against its signature, stored as one JSON object, and read back.

The signature becomes a msgspec type once; enqueue encodes the call and reads it back through that
type, so what the worker will see is checked before anything is stored. Parameters annotated with an
injected type (Context, Depends) are left out: they belong to the run, not to the call.
"""

from __future__ import annotations

import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from winch.core import codec
from winch.core.errors import ConfigError, InvalidPayload, did_you_mean
from winch.engine.injection import Wanted, needs_async, wanted

P = inspect.Parameter
_POSITIONAL = (P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD)


class Arguments:
    """How one task's calls are packed and unpacked."""

    def __init__(self, task: str, fn: Callable[..., Any], max_bytes: int) -> None:
        self._task = task
        self._fn = fn
        self._max_bytes = max_bytes

    def pack(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """The call as JSON text; raises InvalidPayload or PayloadTooLarge and names the argument."""
        values = self._by_name(args, kwargs)
        text = codec.dumps(values, what=f"the arguments of {self._task}", limit=self._max_bytes)
        self._decode(text)
        return text

    def check(self, text: str) -> None:
        """Raise InvalidPayload unless this stored text would be accepted by the task."""
        self._decode(text)

    def unpack(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """The stored call as (positional, keyword) arguments, injected ones left out."""
        values = self._decode(text)
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for name, param in self._params.items():
            value = getattr(values, name)
            if value is msgspec.UNSET:
                continue
            if param.kind is P.VAR_POSITIONAL:
                positional.extend(value)
            elif param.kind is P.VAR_KEYWORD:
                keywords.update(value)
            elif param.kind is P.POSITIONAL_ONLY or self._has_star:
                positional.append(value)
            else:
                keywords[name] = value
        return positional, keywords

    def check_names(self, names: Sequence[str]) -> None:
        """Raise ConfigError for a name that is no argument of the task."""
        known = inspect.signature(self._fn).parameters
        if any(param.kind is P.VAR_KEYWORD for param in known.values()):
            return
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"task {self._task} has no argument {name!r}{did_you_mean(name, known)}"
                )

    def values(self, text: str, names: Sequence[str] = ()) -> dict[str, Any]:
        """The stored call's arguments as JSON values, or these of them. One that was left out has the
        function's own default, so that it is the same call as with the default spelled out."""
        given: dict[str, Any] = codec.loads(text, dict[str, Any], what="arguments")
        found = {}
        for name, param in self._params.items():
            if name in given:
                found[name] = given[name]
            elif param.default is not P.empty:
                found[name] = _plain(param.default)
        star = next((n for n, p in self._params.items() if p.kind is P.VAR_KEYWORD), None)
        if star is not None:
            found |= found.pop(star, None) or {}
        return {name: found.get(name) for name in names} if names else found

    def with_injected(self, args: list[Any], given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The call's positional and keyword parts once the injected values have their places."""
        for place, name in self._injected_places:
            args.insert(place, given.pop(name))
        return args, given

    @cached_property
    def _injected_places(self) -> list[tuple[int, str]]:
        """Injected parameters that can only be passed by position."""
        return [
            (place, name)
            for place, (name, p) in enumerate(inspect.signature(self._fn).parameters.items())
            if name in self.injected
            and (p.kind is P.POSITIONAL_ONLY or (p.kind is P.POSITIONAL_OR_KEYWORD and self._has_star))
        ]

    @cached_property
    def injected(self) -> Wanted:
        """Parameter name -> where its injected value comes from."""
        wants = wanted(self._fn, self._hints)
        if not inspect.iscoroutinefunction(self._fn) and needs_async(wants):
            raise ConfigError(
                f"task {self._task} is a plain function, so its dependencies must be plain too; "
                "make the task `async def`, or the dependency a plain function"
            )
        return wants

    @cached_property
    def _hints(self) -> dict[str, Any]:
        # Read at first use, not when decorated: annotations may name what the module defines later.
        try:
            return typing.get_type_hints(self._fn, include_extras=True)
        except NameError as error:
            raise ConfigError(
                f"task {self._task}: annotation cannot be resolved: {error}; "
                "import the type at run time, not only under TYPE_CHECKING"
            ) from error

    @cached_property
    def _params(self) -> dict[str, P]:
        params = inspect.signature(self._fn).parameters
        return {name: p for name, p in params.items() if name not in self.injected}

    @cached_property
    def _has_star(self) -> bool:
        return any(p.kind is P.VAR_POSITIONAL for p in self._params.values())

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        fields: list[tuple[str, Any, Any]] = []
        for name, param in self._params.items():
            hint: Any = self._hints.get(name, Any)
            if param.kind is P.VAR_POSITIONAL:
                hint = types.GenericAlias(list, (hint,))
            elif param.kind is P.VAR_KEYWORD:
                hint = types.GenericAlias(dict, (str, hint))
            elif param.default is P.empty:
                fields.append((name, hint, msgspec.NODEFAULT))
                continue
            # A missing value stays missing, so that the function's own default applies when it runs.
            either = operator.or_(hint, msgspec.UnsetType) if hint is not Any else Any
            fields.append((name, either, msgspec.UNSET))
        try:
            shape = msgspec.defstruct(
                "Arguments", fields, kw_only=True, forbid_unknown_fields=True, frozen=True
            )
            return msgspec.json.Decoder(shape, dec_hook=codec.dec_hook)
        except TypeError as error:
            raise ConfigError(
                f"task {self._task}: its annotations cannot be used for arguments: {error}"
            ) from error

    def _decode(self, text: str) -> Any:
        try:
            return self._decoder.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidPayload(f"{self._task}: {_reword(str(error))}") from error
        except (ValueError, TypeError) as error:  # from a type's own validation, pydantic's among them
            raise InvalidPayload(f"{self._task}: {error}") from error

    def _by_name(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        values: dict[str, object] = {}
        rest = list(args)
        extra: dict[str, object] = {}
        for name, param in self._params.items():
            if param.kind in _POSITIONAL and rest:
                values[name] = rest.pop(0)
            elif param.kind is P.VAR_POSITIONAL and rest:
                values[name], rest = rest, []
        if rest:
            most = sum(p.kind in _POSITIONAL for p in self._params.values())
            raise InvalidPayload(
                f"{self._task} takes at most {most} positional arguments, got {len(args)}"
            )
        star = next((n for n, p in self._params.items() if p.kind is P.VAR_KEYWORD), None)
        for name, value in kwargs.items():
            known = self._params.get(name)
            if known is None or known.kind in (P.VAR_POSITIONAL, P.VAR_KEYWORD, P.POSITIONAL_ONLY):
                if star is None:
                    raise InvalidPayload(
                        f"{self._task} has no argument {name!r}{did_you_mean(name, self._params)}; "
                        "options such as queue or delay go into using(…)"
                    )
                extra[name] = value
            elif name in values:
                raise InvalidPayload(f"{self._task} got two values for argument {name!r}")
            else:
                values[name] = value
        if star is not None and extra:
            values[star] = extra
        missing = [
            name
            for name, param in self._params.items()
            if name not in values
            and param.default is P.empty
            and param.kind not in (P.VAR_POSITIONAL, P.VAR_KEYWORD)
        ]
        if missing:
            raise InvalidPayload(f"{self._task} needs the argument {', '.join(map(repr, missing))}")
        return values


def _plain(default: object) -> Any:
    try:
        return msgspec.to_builtins(default, str_keys=True, enc_hook=codec.enc_hook)
    except (TypeError, ValueError, RecursionError):
        return repr(default)


def _reword(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.a`" as "argument 'a': expected int, got str"."""
    problem, _, where = message.partition(" - at ")
    problem = problem.replace("`", "")
    path = where.strip("`").removeprefix("$.")
    if not path or path == "$":
        return problem[:1].lower() + problem[1:]
    return f"argument {path!r}: {problem[:1].lower() + problem[1:]}"
