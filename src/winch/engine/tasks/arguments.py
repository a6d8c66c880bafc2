"""A task's arguments: checked against its signature, stored as one JSON object, and read back.

The signature becomes a msgspec type once; enqueue encodes the call and reads it back through that
type, so what the worker will see is checked before anything is stored. Parameters annotated with an
injected type (Context, Depends) are left out: they belong to the run, not to the call.

Most calls pass a few numbers and texts to a function without stars. For those the type's own constructor
binds the call and its encoder writes it: about one microsecond. Everything else, and every call that is
wrong in any way, takes the long way, whose error explains what is wrong.
"""

from __future__ import annotations

import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from winch.core.errors import ConfigError, InvalidPayload, did_you_mean, within
from winch.core.values import codec
from winch.engine.tasks.injection import Wanted, needs_async, wanted

P = inspect.Parameter
_POSITIONAL = (P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD)
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
# What results before a job may come to together, when it takes them all.
MAX_GIVEN_BYTES = 64 * 1024 * 1024
_encode = msgspec.json.Encoder().encode
_NUL = b"\\u0000"  # as JSON has it
# Asked for first, as a number: whether bytes are in bytes is found out by way of an exception inside.
_ESCAPE = ord("\\")
_astuple = msgspec.structs.astuple


class Arguments:
    """How one task's calls are packed and unpacked."""

    def __init__(self, task: str, fn: Callable[..., Any], max_bytes: int) -> None:
        self._task = task
        self._fn = fn
        self._max_bytes = max_bytes

    def pack(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """The call as JSON text; raises InvalidPayload or PayloadTooLarge and names the argument."""
        exact, shape, ints = self._quick
        # Spelled out, not mapped: the interpreter knows `type(value)`, and calls nothing.
        if not kwargs and [type(value) for value in args] == exact:
            try:
                raw = _encode(shape(*args))
                is_kept = len(raw) <= self._max_bytes and (_ESCAPE not in raw or _NUL not in raw)
                for at in ints:
                    if not _INT_MIN <= args[at] <= _INT_MAX:  # type: ignore[operator]  # an int, as looked
                        is_kept = False
                if is_kept:
                    return raw.decode()
            except (TypeError, ValueError, OverflowError):
                pass  # the error of the long way explains what is wrong
        if self._is_flat and _are_plain(args) and _are_plain(kwargs.values()):
            try:
                raw = _encode(self._shape(*args, **kwargs))
                if len(raw) <= self._max_bytes:
                    self._decoder.decode(raw)
                    return raw.decode()
            except (TypeError, ValueError, msgspec.MsgspecError):  # no ValueError before msgspec 0.20
                pass  # the error of the long way explains what is wrong
        values = self._by_name(args, kwargs)
        text = codec.dumps(values, what=f"the arguments of {self._task}", limit=self._max_bytes)
        stored = self._decode(text)
        for name, value in values.items():
            codec.check_kept(value, getattr(stored, name), f"argument {name!r} of {self._task}")
        return text

    def pack_named(self, given: Mapping[str, Any]) -> str:
        """The call with these arguments by name, as a schedule has them."""
        return self.pack((), given)

    def pack_partial(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """A call that lacks its first argument, which a result before it will be. What is there is
        checked by name now, and with the result when it runs."""
        first = self._first
        if first in kwargs:
            raise InvalidPayload(
                f"{self._task}: argument {first!r} is the result before it; leave it out of partial(…)"
            )
        values = self._by_name([None, *args], kwargs)
        values.pop(first, None)
        text = codec.dumps(values, what=f"the arguments of {self._task}", limit=self._max_bytes)
        stored = codec.loads(text, what="arguments")
        for name in stored:
            if self._hints.get(name, Any) is Any:
                codec.check_kept(values[name], stored[name], f"argument {name!r} of {self._task}")
        return text

    def completed(self, text: str, value: Any) -> str:
        """The stored partial call with its first argument, checked."""
        values = codec.loads(text, dict[str, Any], what="arguments")
        values[self._first] = value
        whole = codec.dumps(values, what=f"the arguments of {self._task}", limit=MAX_GIVEN_BYTES)
        self._decode(whole)
        return whole

    @property
    def _first(self) -> str:
        first = next(iter(self._params.items()), None)
        if first is None or first[1].kind not in _POSITIONAL:
            raise InvalidPayload(
                f"{self._task} has no first argument that could take the result before it"
            )
        return first[0]

    def check(self, text: str) -> None:
        """Raise InvalidPayload unless this stored text would be accepted by the task."""
        self._decode(text)

    def unpack(self, text: str) -> tuple[Sequence[Any], dict[str, Any]]:
        """The stored call as (positional, keyword) arguments, injected ones left out."""
        if self._is_by_place:
            return _astuple(self._decode(text)), {}
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
        refuse_unknown(self._task, inspect.signature(self._fn).parameters, names)

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

    def with_injected(
        self, args: Sequence[Any], given: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The call's positional and keyword parts once the injected values have their places."""
        placed = list(args)
        for place, name in self._injected_places:
            placed.insert(place, given.pop(name))
        return placed, given

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
    def returns(self) -> Any:
        """The type of the result; Any where the function does not say it."""
        return self._hints.get("return", Any)

    @cached_property
    def _params(self) -> dict[str, P]:
        params = inspect.signature(self._fn).parameters
        return {name: p for name, p in params.items() if name not in self.injected}

    @property
    def parameters(self) -> tuple[tuple[str, str, Any], ...]:
        """What people see of the signature: name, type, and the default as JSON data (None: none)."""
        return tuple(
            (
                name,
                "" if p.annotation is P.empty else inspect.formatannotation(self._hints.get(name, Any)),
                None if p.default is P.empty else _plain(p.default),
            )
            for name, p in self._params.items()
            if p.kind not in (P.VAR_POSITIONAL, P.VAR_KEYWORD)
        )

    @cached_property
    def _has_star(self) -> bool:
        return any(p.kind is P.VAR_POSITIONAL for p in self._params.values())

    @cached_property
    def _is_flat(self) -> bool:
        """Whether every argument has a name, so that the shape can be made of a call as it is."""
        return all(p.kind in (P.POSITIONAL_OR_KEYWORD, P.KEYWORD_ONLY) for p in self._params.values())

    @cached_property
    def _exact(self) -> list[Any] | None:
        """The types of values that can be stored as they are, where the function asks for just those."""
        hints = [self._hints.get(name) for name in self._params]
        is_exact = self._is_by_place and all(hint in (int, str, bool) for hint in hints)
        return hints if is_exact else None

    @cached_property
    def _quick(self) -> tuple[list[Any] | None, Any, tuple[int, ...]]:
        """What the shortest way needs, read at once: those types, the shape, and where the ints are."""
        exact = self._exact
        if exact is None:
            return None, None, ()
        return exact, self._shape, tuple(at for at, kind in enumerate(exact) if kind is int)

    @cached_property
    def _is_by_place(self) -> bool:
        """Whether the function can be called with the shape's values one after the other."""
        return not self.injected and all(
            p.kind is P.POSITIONAL_OR_KEYWORD and p.default is P.empty for p in self._params.values()
        )

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._shape, dec_hook=codec.dec_hook)

    @cached_property
    def _shape(self) -> Any:
        """The arguments as a type. Its constructor takes them as the function does, where it is flat."""
        fields: list[tuple[str, Any, Any]] = []
        named: list[tuple[str, Any, Any]] = []
        for name, param in self._params.items():
            into = named if param.kind is P.KEYWORD_ONLY or not self._is_flat else fields
            hint: Any = self._hints.get(name, Any)
            if param.kind is P.VAR_POSITIONAL:
                hint = types.GenericAlias(list, (hint,))
            elif param.kind is P.VAR_KEYWORD:
                hint = types.GenericAlias(dict, (str, hint))
            elif param.default is P.empty:
                into.append((name, hint, msgspec.NODEFAULT))
                continue
            # A missing value stays missing, so that the function's own default applies when it runs.
            either = operator.or_(hint, msgspec.UnsetType) if hint is not Any else Any
            into.append((name, either, msgspec.UNSET))
        try:
            placed = msgspec.defstruct("Placed", fields, forbid_unknown_fields=True, frozen=True)
            shape = msgspec.defstruct(
                "Arguments",
                named,
                bases=(placed,),
                kw_only=True,
                forbid_unknown_fields=True,
                frozen=True,
            )
            msgspec.json.Decoder(shape, dec_hook=codec.dec_hook)  # refuses types that cannot be read
            return shape
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


def _are_plain(values: Iterable[object]) -> bool:
    """Whether these are scalars that JSON and every store hold as they are."""
    for value in values:
        kind = type(value)
        if kind is int:
            if not _INT_MIN <= value <= _INT_MAX:  # type: ignore[operator]  # kind is int
                return False
        elif kind is str:
            if "\0" in value:  # type: ignore[operator]  # kind is str
                return False
        elif kind is float:
            if not math.isfinite(value):  # type: ignore[arg-type]  # kind is float
                return False
        elif kind is not bool and value is not None:
            return False
    return True


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
        return within(problem)
    return f"argument {path!r}: {within(problem)}"


def refuse_unknown(task: str, known: Mapping[str, inspect.Parameter], names: Sequence[str]) -> None:
    """Raise ConfigError for a name that is no argument of the task."""
    if any(param.kind is P.VAR_KEYWORD for param in known.values()):
        return
    for name in names:
        if name not in known:
            raise ConfigError(f"task {task} has no argument {name!r}{did_you_mean(name, known)}")
