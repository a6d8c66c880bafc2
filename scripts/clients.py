"""Plays the scenarios of clients/scenarios with every SDK on every store: `make clients`.

    python -m scripts.clients                                        everything
    python -m scripts.clients --languages go --stores sqlite         a part
    python -m scripts.clients --languages deno,bun --stores sqlite   the TypeScript SDK in other runtimes
    python -m scripts.clients --only lost --at-once 1 --no-build     scenarios whose file name has this

An SDK that is not in the source yet is named and passed over.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.clients.languages import SCENARIOS, BuildFailed, Language, languages
from tests.clients.play import Scenario, play
from tests.clients.stage import STORES, Stage, stage


def scenarios(only: str = "") -> list[Scenario]:
    """All scenarios whose file name contains this text, those that take long first."""
    paths = [path for path in sorted(SCENARIOS.glob("*.json")) if path.stem != "languages"]
    return [Scenario.read(path) for path in paths if only in path.stem]


def play_all(
    chosen: Sequence[Scenario],
    languages: Sequence[Language],
    stores: Sequence[str],
    at_once: int,
    stage: Stage,
) -> dict[tuple[str, str, str], str | None]:
    """What went wrong by scenario, language and store; None where nothing did."""
    failures: dict[tuple[str, str, str], str | None] = {}
    printing = threading.Lock()

    def one(scenario: Scenario, language: Language, store: str) -> None:
        started = time.monotonic()
        try:
            play(scenario, language, stage, store)
        except Exception as error:
            failures[scenario.file, language.name, store] = str(error) or repr(error)
            with printing:
                print(f"FAILED {language.name} {store} {scenario.file}\n{error}\n", flush=True)
            return
        failures[scenario.file, language.name, store] = None
        with printing:
            took = time.monotonic() - started
            print(f"ok     {language.name:<10} {store:<8} {scenario.file}  {took:.1f} s", flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        waiting = [
            pool.submit(one, scenario, language, store)
            for store in stores
            for language in languages
            for scenario in chosen
        ]
        for future in waiting:
            future.result()
    return failures


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = languages(is_with_runtimes=True)
    sdks = ",".join(languages())
    parser.add_argument(
        "--languages", default=sdks, help=f"of: {','.join(known)}; without it %(default)s"
    )
    parser.add_argument("--stores", default=",".join(STORES), help="of: %(default)s")
    parser.add_argument("--only", default="", help="scenarios whose file name contains this")
    parser.add_argument("--quick", action="store_true", help="only scenarios marked quick")
    parser.add_argument("--at-once", type=int, default=6, help="how many at a time: %(default)s")
    parser.add_argument("--no-build", action="store_true", help="the SDKs are built already")
    options = parser.parse_args(argv)
    wanted = [known[name] for name in options.languages.split(",")]
    for absent in [one.name for one in wanted if not one.is_here]:
        print(f"{absent}: there is no SDK for it in this source yet")
    here = [one for one in wanted if one.is_here]
    try:
        for language in [] if options.no_build else here:
            language.make()
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 2
    chosen = [one for one in scenarios(options.only) if one.is_quick or not options.quick]
    started = time.monotonic()
    with stage() as made:
        failures = play_all(chosen, here, options.stores.split(","), options.at_once, made)
    bad = sorted(key for key, reason in failures.items() if reason is not None)
    took = time.monotonic() - started
    print(f"\n{len(chosen)} scenarios, {len(here)} languages, {len(failures)} runs in {took:.0f} s")
    for key in bad:
        print(f"FAILED {' '.join(key)}")
    print(f"{len(failures) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad or not failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
