"""Build the documentation site into build/site/<version>/ with zensical, then check it with mkdocs.

    python scripts/site.py

Either builder fails on a warning. mkdocs is the second gate because zensical does not notice a missing
picture. Beside the pages, each version holds `llms.txt` (a list of pages) and `llms-full.txt` (their
text). build/site/index.html leads to the newest version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

import winch

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build/site"
CONFIG = ROOT / "mkdocs.yml"
OFFER = (
    "Winch runs background jobs for Python on SQLite, PostgreSQL or Redis. "
    "Install it with `pip install winch-jobs`."
)


def main() -> int:
    build = SITE / "latest"
    for folder in (build, ROOT / "build/site-check"):
        shutil.rmtree(folder, ignore_errors=True)
    for script in ("reference_pages.py", "lifecycle_page.py", "diagrams.py"):
        if run(sys.executable, f"scripts/{script}", "--check"):
            print(
                f"scripts/{script} writes other pages than those in docs/: run make reference",
                file=sys.stderr,
            )
            return 1
    # Both run in this environment: what they import is what is documented.
    if run(tool("zensical"), "build", "--clean", "--strict"):
        return 1
    if run(tool("mkdocs"), "build", "--strict", "--quiet", "--site-dir", "build/site-check"):
        return 1
    pages = list(navigation(load()["nav"]))
    (build / "llms.txt").write_text(short(pages))
    (build / "llms-full.txt").write_text(full(pages))
    place(build)
    print(f"build/site/{winch.__version__}/index.html: {len(pages)} pages")
    return 0


def run(*command: str) -> int:
    return subprocess.run(
        command, cwd=ROOT, check=False, env={**os.environ, "NO_COLOR": "1", "NO_MKDOCS_2_WARNING": "1"}
    ).returncode


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def load() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    return found


def navigation(nav: list[Any], above: str = "") -> Iterator[tuple[str, str, str]]:
    """(section, title, page) of every page, in the order of the menu."""
    for entry in nav:
        if isinstance(entry, str):
            yield above, title_of(entry), entry
            continue
        [(name, below)] = entry.items()
        if isinstance(below, str):
            yield above, name, below
        else:
            yield from navigation(below, above or name)


def title_of(page: str) -> str:
    found = re.search(r"^# (.+)$", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    return found[1] if found else page


def first_sentence(page: str) -> str:
    """What the page opens with, without its title and comments."""
    text = re.sub(r"<!--.*?-->", "", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        if plain and plain[0] not in "#|!`-<:" and not plain.startswith("```"):
            plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", plain)
            return re.split(r"(?<=[.:]) ", plain)[0].rstrip(":")
    return ""


def address(page: str) -> str:
    path = page.removesuffix(".md")
    return "" if path == "index" else f"{path.removesuffix('/index')}/"


def short(pages: list[tuple[str, str, str]]) -> str:
    lines = ["# Winch", "", f"> {OFFER}", ""]
    section = ""
    for above, title, page in pages:
        if above != section:
            section = above
            lines += ["", f"## {section}", ""]
        opening = first_sentence(page)
        lines.append(f"- [{title}]({address(page)}){': ' + opening if opening else ''}")
    return "\n".join(lines) + "\n"


def full(pages: list[tuple[str, str, str]]) -> str:
    parts = [f"# Winch {winch.__version__}\n\n{OFFER}\n"]
    for _, _, page in pages:
        text = (ROOT / "docs" / page).read_text()
        text = re.sub(
            r"^::: ([\w.]+)(?:\n    .*)*", lambda found: described(found[1]), text, flags=re.MULTILINE
        )
        text = re.sub(
            r'^--8<-- "([^"]+)"$', lambda found: (ROOT / found[1]).read_text(), text, flags=re.MULTILINE
        )
        parts.append(f"<!-- page: {page} -->\n\n{text.strip()}\n")
    return "\n".join(parts)


def described(name: str) -> str:
    """A public name with its signature and docstrings, as the reference shows them."""
    import griffe

    from scripts.griffe_twins import Twins

    package = _loaded.get("winch")
    if package is None:
        extensions = griffe.load_extensions(Twins)
        package = griffe.load("winch", search_paths=[str(ROOT / "src")], extensions=extensions)
        _loaded["winch"] = package
    found: Any = package[name.removeprefix("winch.")]
    lines = [f"## {name}", "", *signature(found)]
    if found.is_class:
        for member in found.all_members.values():
            if member.name.startswith("_") or not (member.is_function or member.is_attribute):
                continue
            lines += ["", f"### {name}.{member.name}", "", *signature(member)]
    return "\n".join(lines)


_loaded: dict[str, Any] = {}


def signature(found: Any) -> list[str]:
    lines = []
    if found.is_function:
        shown = ", ".join(str(one) for one in found.parameters if one.name != "self")
        lines.append(f"`{found.name}({shown})" + (f" -> {found.returns}`" if found.returns else "`"))
    if found.docstring:
        lines += ["", found.docstring.value]
    return lines


def place(build: Path) -> None:
    """Move the build to the folder of its version, and lead the root to the newest."""
    home = SITE / winch.__version__
    shutil.rmtree(home, ignore_errors=True)
    build.rename(home)
    versions = sorted(
        (path.name for path in SITE.iterdir() if (path / "index.html").exists()),
        key=sort_key,
        reverse=True,
    )
    listed = [
        {"version": one, "title": one, "aliases": ["latest"] if one == versions[0] else []}
        for one in versions
    ]
    (SITE / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    (SITE / "index.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Winch</title>'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/">'
        f'<p>The documentation of the newest release: <a href="{versions[0]}/">Winch {versions[0]}</a>.'
        "</p></html>\n"
    )


def sort_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


if __name__ == "__main__":
    sys.exit(main())
