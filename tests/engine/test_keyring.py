"""Encrypted arguments, results and checkpoints: what is stored, what opens it, and what does not."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.engine.test_hooks import store_raw
from tests.engine.test_worker import QUICK, new_app, run, until
from winch import (
    App,
    ConfigError,
    Context,
    InvalidPayload,
    JobState,
    Keyring,
    MissingKey,
    Retry,
)
from winch.core import envelope
from winch.core.values.redact import shown
from winch.engine.base.encryption import revealed, seal, unseal
from winch.engine.base.settings import load
from winch.engine.worker import settle
from winch.storage.params import NewJob
from winch.testing import inline, virtual

K1, K2 = b"1" * 32, b"2" * 32
SECRET = "CANARY"


def both(current: str = "k2") -> Keyring:
    return Keyring({"k1": K1, "k2": K2}, current=current)


def rekey(app: App, keys: Keyring | None) -> None:
    """The same app and store as another deploy would have it."""
    app.runtime.keys = lambda: keys


# -- the keyring -------------------------------------------------------------------------------------


def test_sealed_text_opens_again_and_reveals_nothing() -> None:
    keys = both()
    stored = keys.seal('{"a":"CANARY"}', job="j", task="t", field="args")
    assert json.loads(stored).keys() == {"winch", "key", "nonce", "data"}
    assert json.loads(stored)["winch"] == "aesgcm"
    assert json.loads(stored)["key"] == "k2"
    assert SECRET not in stored
    assert shown(stored) == shown(stored, reveal=True) == "<encrypted>"
    assert unseal(keys, stored, job="j", task="t", field="args") == '{"a":"CANARY"}'
    assert keys.seal('{"a":"CANARY"}', job="j", task="t", field="args") != stored


@pytest.mark.parametrize(
    "other",
    [
        {"job": "i", "task": "t", "field": "args"},
        {"job": "j", "task": "u", "field": "args"},
        {"job": "j", "task": "t", "field": "result"},
        {"job": "j", "task": "t", "field": "checkpoint"},
    ],
)
def test_a_text_moved_elsewhere_does_not_open(other: dict[str, Any]) -> None:
    keys = both()
    stored = keys.seal("{}", job="j", task="t", field="args")
    with pytest.raises(
        InvalidPayload, match="it is damaged, or it was copied from another job or field"
    ):
        unseal(keys, stored, **other)


def spoil(name: str, change: Callable[[bytes], bytes]) -> Callable[[dict[str, str]], dict[str, str]]:
    def spoiled(found: dict[str, str]) -> dict[str, str]:
        changed = base64.b64encode(change(base64.b64decode(found[name]))).decode()
        return found | {name: changed}

    return spoiled


@pytest.mark.parametrize(
    "change",
    [
        spoil("data", lambda data: bytes([data[0] ^ 1]) + data[1:]),
        spoil("data", lambda data: data[:-1]),
        spoil("data", lambda _: b""),
        spoil("nonce", lambda nonce: bytes(12)),
        spoil("nonce", lambda nonce: b"short"),
        lambda found: found | {"data": "not base64!"},
        lambda found: found | {"key": "k1"},
    ],
)
def test_a_changed_text_does_not_open(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    keys = both()
    stored = json.loads(keys.seal("{}", job="j", task="t", field="args"))
    with pytest.raises(InvalidPayload):
        unseal(keys, json.dumps(change(stored)), job="j", task="t", field="args")


def test_old_keys_read_and_the_current_one_writes() -> None:
    before = Keyring({"k1": K1})
    stored = before.seal("{}", job="j", task="t", field="args")
    assert unseal(both(), stored, job="j", task="t", field="args") == "{}"
    newer = envelope.read(both().seal("{}", job="j", task="t", field="args"))
    assert newer is not None
    assert newer.key == "k2"
    with pytest.raises(MissingKey, match=r"key 'k1'; the keys here are k3\.") as missing:
        unseal(Keyring({"k3": K2}), stored, job="j", task="t", field="args")
    assert missing.value.key == "k1"
    with pytest.raises(MissingKey, match="no keys are configured here"):
        unseal(None, stored, job="j", task="t", field="args")


def test_plain_text_stays_plain_where_there_are_no_keys_and_is_read_where_there_are() -> None:
    assert seal(None, "{}", job="j", task="t", field="args") == "{}"
    assert unseal(both(), '{"a":1}', job="j", task="t", field="args") == '{"a":1}'
    assert envelope.read('{"winch":"aesgcm"}') is None
    assert envelope.read('{"winch":"other","key":"","nonce":"","data":""}') is None


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: Keyring({}), "at least one key"),
        (lambda: Keyring({"k": b"short"}), "key 'k' must be 32 bytes, got 5 bytes"),
        (lambda: Keyring({"k": "x" * 32}), "must be 32 bytes, got str"),  # type: ignore[dict-item]
        (lambda: Keyring({"a b": K1}), "a key's name must be"),
        (lambda: Keyring({"a": K1, "b": K2}), "choose the key that encrypts"),
        (lambda: Keyring({"a": K1}, current="b"), "'b' is not among the keys a"),
        (lambda: Keyring.parse("k1"), "name:base64"),
        (lambda: Keyring.parse("k1:???"), "key 'k1' is not valid base64"),
        (lambda: Keyring.parse("k1:aGk="), "must be 32 bytes, got 2 bytes"),
        (lambda: App(keys="k1")._code and load(code={"keys": 1}), "keys must be a Keyring"),  # type: ignore[arg-type]
    ],
)
def test_wrong_keys_are_refused_with_a_reason(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_keys_come_from_the_environment_or_a_file_and_are_never_printed(tmp_path: Any) -> None:
    coded = {name: base64.b64encode(key).decode() for name, key in (("k2", K2), ("k1", K1))}
    text = f"k2:{coded['k2']},k1:{coded['k1']}"
    keys = load(env={"WINCH_KEYS": text}, folder=tmp_path).settings.keys
    assert keys is not None
    assert (keys.current, keys.names) == ("k2", ("k2", "k1"))
    (tmp_path / "keys").write_text(text.replace(",", "\n") + "\n")
    loaded = load(env={"WINCH_KEYS_FILE": str(tmp_path / "keys")}, folder=tmp_path)
    assert loaded.settings.keys is not None
    assert loaded.origins["keys"] == "$WINCH_KEYS_FILE"
    assert repr(keys) == "<Keyring k2, k1; current k2>"
    assert coded["k2"] not in repr(loaded.settings)
    stored = keys.seal("{}", job="j", task="t", field="args")
    assert unseal(loaded.settings.keys, stored, job="j", task="t", field="args") == "{}"


# -- jobs --------------------------------------------------------------------------------------------


def test_a_job_is_stored_sealed_and_runs_in_plain() -> None:
    app = new_app(keys=both())

    @app.task(name="t", retry=Retry.fixed("10ms"))
    async def work(word: str, *, ctx: Context) -> list[object]:
        if ctx.attempt == 1:
            await ctx.acheckpoint({"at": word})
            raise ValueError("again")
        return [word, ctx.last_checkpoint]

    async def body(_: Any) -> None:
        job: Any = await work.aenqueue(SECRET)  # type: ignore[call-arg]  # ctx is injected
        assert await job == [SECRET, {"at": SECRET}]
        record = (await job.arefresh()).record
        assert SECRET not in repr(record)
        for text in (record.args, record.result, record.checkpoint):
            assert envelope.read(text) is not None
        opened = revealed(both(), record)
        assert opened.args == '{"word":"CANARY"}'
        assert opened.checkpoint == '{"at":"CANARY"}'
        rekey(app, None)
        with pytest.raises(MissingKey):
            await job.aresult()
        rekey(app, Keyring({"k3": K1, "k2": K2}, current="k3"))
        assert await job.aresult() == [SECRET, {"at": SECRET}]

    run(app, body)


def test_arguments_are_checked_and_seen_by_middleware_before_they_are_sealed() -> None:
    from winch import Middleware

    app = new_app(keys=both())
    seen: list[str] = []

    class Look(Middleware):
        def enqueue(self, job: NewJob) -> NewJob:
            seen.append(job.args)
            return job

    app.use(Look())

    @app.task(name="t")
    def work(n: int) -> None: ...

    with pytest.raises(InvalidPayload, match="argument 'n': expected int, got str"):
        work.enqueue("x")  # type: ignore[arg-type]  # what is tested
    work.enqueue(1)
    app.enqueue_many([work.bind(2), work.bind(3)])
    assert seen == ['{"n":1}', '{"n":2}', '{"n":3}']
    assert all(envelope.read(job.record.args) for job in app.jobs.list())


def test_without_its_key_a_job_waits_with_a_reason_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from datetime import timedelta

    monkeypatch.setattr(settle, "KEY_PAUSE", timedelta(milliseconds=300))
    app = new_app(keys=Keyring({"k1": K1}))

    @app.task(name="t", retry=Retry.never())
    def work(n: int) -> int:
        return n

    job = work.enqueue(7)
    rekey(app, Keyring({"k2": K2}))

    async def body(_: Any) -> None:
        await until(job, JobState.SCHEDULED)
        assert "encrypted with the key 'k1'; the keys here are k2" in (job.record.reason or "")
        assert "It was put off: waits for a worker that can read it" in await job.awhy()
        assert "key 'k1'" in await job.awhy()
        assert job.record.attempt == 0
        rekey(app, both())
        assert await job == 7
        assert job.record.attempt == 1

    run(app, body)
    assert "waits: it is encrypted with the key 'k1'" in caplog.text


def test_a_swapped_or_damaged_payload_is_dead_as_malformed() -> None:
    app = new_app(keys=both())

    @app.task(name="t")
    def work(n: int) -> int:
        return n

    first = work.enqueue(1)
    text = app.jobs.get(first.id).record.args
    swapped = store_raw(app, task="t", args=text)

    async def body(_: Any) -> None:
        job = await until(app.jobs.get(swapped), JobState.DEAD)
        assert (job.record.reason or "").startswith("malformed: the encrypted args of job")
        assert await first == 1

    run(app, body)


def test_a_moved_checkpoint_is_never_handed_to_the_handler() -> None:
    """A writer of the store gains nothing from a copy of the arguments in the checkpoint."""
    app = new_app(keys=both())
    handed: list[Any] = []

    @app.task(name="t", retry=Retry.fixed("1h"))
    def work(*, ctx: Context) -> None:
        handed.append(ctx.last_checkpoint)

    job = work.enqueue()  # type: ignore[call-arg]  # ctx is injected
    driver: Any = app.ready()
    state = driver._state
    record = state.live[job.id]
    state.live[job.id] = msgspec.structs.replace(record, checkpoint=record.args)

    async def body(_: Any) -> None:
        await until(job, JobState.DEAD)
        assert "malformed: the encrypted checkpoint" in (job.record.reason or "")
        assert handed == []

    run(app, body)


def test_a_transaction_seals_its_result(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path / 'w.db'}", keys=both(), **QUICK)

    @app.task(name="t")
    def work(word: str, *, ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.result = word

    async def body(_: Any) -> None:
        job: Any = await work.aenqueue(SECRET)  # type: ignore[call-arg]  # ctx is injected
        assert await job == SECRET
        assert envelope.read(job.record.result) is not None

    run(app, body)
    on_disk = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert SECRET.encode() not in on_disk


def test_isolated_jobs_are_opened_in_their_own_process(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engine import isolated_app as tasks

    monkeypatch.setenv("WINCH_KEYS", f"k1:{base64.b64encode(K1).decode()}")
    monkeypatch.setattr(tasks.app, "_loaded", None)

    async def body(_: Any) -> None:
        job = await tasks.where_async.using(queue="sealed").aenqueue(SECRET)
        result = await job
        assert result.startswith(f"{SECRET} ")
        assert result != f"{SECRET} {os.getpid()}"
        assert envelope.read(job.record.args) is not None
        assert envelope.read(job.record.result) is not None

    run(tasks.app, body, queues=["sealed"], concurrency=1)
    monkeypatch.setattr(tasks.app, "_loaded", None)


def test_preflight_reads_what_is_encrypted() -> None:
    app = new_app(keys=both())

    @app.task(name="t")
    def work(n: int) -> None: ...

    work.enqueue(1)
    assert app.preflight().misfits == ()
    app._loaded = None
    app._code["keys"] = Keyring({"k3": K1})
    [misfit] = app.preflight().misfits
    assert "encrypted with the key 'k2'" in misfit.problem


@pytest.mark.parametrize("is_inline", [True, False])
def test_the_test_modes_have_the_keys_of_the_app(is_inline: bool) -> None:
    """Symptom: the worker of a test mode had no keys, and every encrypted job waited for ever."""
    app = App("memory://", keys=Keyring({"k": bytes(32)}))
    seen: list[str] = []

    @app.task
    def read(text: str) -> None:
        seen.append(text)

    if is_inline:
        with inline(app):
            read.enqueue("hello")
    else:
        with virtual(app) as world:
            read.enqueue("hello")
            world.run_all()
    assert seen == ["hello"]
