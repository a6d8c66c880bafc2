"""Build the wheel and the source archive of Winch, and check both.

    make dist                     everything below; the files are in dist/
    make dist PYTHONS=3.12        install and run on this Python only

1. `python -m build` makes the source archive, and the wheel from that archive.
2. A second build runs in the unpacked archive, in another folder. It must give the same bytes.
3. `twine check --strict` and `check-wheel-contents` read the result.
4. The wheel holds every file of src/winch, and the archive every file of the repository. Their folders
   are those that tests/golden/distribution.txt lists; `--update-golden` rewrites that list.
5. The wheel is installed into an empty environment of each Python, where the example of the README runs.
6. `scripts/release/sbom.py` writes the software bill of materials.

SOURCE_DATE_EPOCH is the time of the last commit, unless it is set. An unpacked archive has no commits:
there it is the time of pyproject.toml, which is the same. So a rebuild of the archive gives the wheel of
the release.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from scripts.release.install import find_pythons, run_readme
from scripts.release.sbom import write_sbom

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
GOLDEN = ROOT / "tests/golden/distribution.txt"
# What the repository keeps for its own host and tools, and the archive leaves out.
NOT_IN_ARCHIVE = (".ci/", ".github/", ".editorconfig", ".pre-commit-config.yaml")
# What the builder adds.
ONLY_IN_ARCHIVE = {"PKG-INFO"}


@cache  # both builds take the same, also when a commit comes in between
def epoch() -> str:
    """The time that every file in the archives carries."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = commit.stdout.strip()
    return found or str(int((ROOT / "pyproject.toml").stat().st_mtime))


def build(source: Path, into: Path) -> tuple[Path, Path]:
    """The source archive of this folder, and the wheel that is built from the archive."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch()}
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(into), str(source)],
        env=env, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (archive,) = into.glob("*.tar.gz")
    (wheel,) = into.glob("*.whl")
    return archive, wheel


def unpack(archive: Path, into: Path) -> Path:
    """The one folder that the archive holds."""
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
    (folder,) = into.iterdir()
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def require_same(first: Path, second: Path) -> None:
    if digest(first) != digest(second):
        raise SystemExit(f"{first.name} is not reproducible: {digest(first)} and {digest(second)}")
    print(f"{digest(first)}  {first.name}, twice the same")


def files_of_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist())


def files_of_archive(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        names = (PurePosixPath(member.name) for member in packed.getmembers() if member.isfile())
        return {str(PurePosixPath(*name.parts[1:])) for name in names}


def tracked() -> set[str] | None:
    """The files of the repository; None in an unpacked archive."""
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if found.returncode != 0:
        return None
    return {name for name in found.stdout.decode().split("\0") if name and (ROOT / name).is_file()}


def require_complete(in_wheel: set[str], in_archive: set[str]) -> None:
    """Every file of the repository is where it belongs, and nothing else is."""
    repository = tracked()
    if repository is None:
        return
    package = {name.removeprefix("src/") for name in repository if name.startswith("src/winch/")}
    differences = [
        f"wheel: {name}" for name in package ^ {name for name in in_wheel if ".dist-info/" not in name}
    ]
    expected = {name for name in repository if not name.startswith(NOT_IN_ARCHIVE)}
    differences += [f"archive: {name}" for name in expected ^ (in_archive - ONLY_IN_ARCHIVE)]
    if differences:
        raise SystemExit(
            "\n".join(["missing or too much; commit new files first:", *sorted(differences)])
        )


def folders(names: Iterable[str], depth: int) -> list[str]:
    """The folders of these files, at most so deep; the metadata of the wheel without its version."""
    found = set()
    for name in names:
        parts = PurePosixPath(name).parts[:-1][:depth]
        found.add("/".join("*.dist-info" if part.endswith(".dist-info") else part for part in parts))
    return sorted(f"{folder}/" for folder in found if folder)


def golden(in_wheel: Iterable[str], in_archive: Iterable[str]) -> str:
    """The text of tests/golden/distribution.txt for these files."""
    return "\n".join(
        ["# The folders of the wheel, three levels deep.", *folders(in_wheel, 3),
         "# The folders of the source archive, two levels deep.", *folders(in_archive, 2), ""]
    )  # fmt: skip


def check_golden(in_wheel: set[str], in_archive: set[str], *, is_update: bool) -> None:
    text = golden(in_wheel, in_archive)
    if is_update:
        GOLDEN.write_text(text)
    elif text != GOLDEN.read_text():
        new, old = set(text.splitlines()), set(GOLDEN.read_text().splitlines())
        changes = [f"+ {line}" for line in sorted(new - old)] + [
            f"- {line}" for line in sorted(old - new)
        ]
        where = GOLDEN.relative_to(ROOT)
        raise SystemExit("\n".join([f"{where} differs; --update-golden if that is right:", *changes]))


def check_tools(archive: Path, wheel: Path) -> None:
    tool = [sys.executable, "-m", "twine", "check", "--strict", str(archive), str(wheel)]
    subprocess.run(tool, check=True)
    subprocess.run([Path(sys.executable).with_name("check-wheel-contents"), str(wheel)], check=True)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pythons", default="3.11,3.12,3.13,3.14", help="versions to install on")
    parser.add_argument("--update-golden", action="store_true", help="rewrite the list of folders")
    options = parser.parse_args(argv)

    shutil.rmtree(DIST, ignore_errors=True)
    archive, wheel = build(ROOT, DIST)
    in_wheel, in_archive = files_of_wheel(wheel), files_of_archive(archive)
    require_complete(in_wheel, in_archive)
    check_golden(in_wheel, in_archive, is_update=options.update_golden)
    print(f"{len(in_wheel)} files in the wheel, {len(in_archive)} in the source archive")
    check_tools(archive, wheel)
    with tempfile.TemporaryDirectory(prefix="winch-dist-") as folder:
        again = build(unpack(archive, Path(folder) / "source"), Path(folder) / "dist")
        require_same(archive, again[0])
        require_same(wheel, again[1])
    failed = []
    for version, python in find_pythons(options.pythons.split(",")).items():
        if python is None:
            print(f"Python {version}: not on this machine, not run")
        elif not run_readme(python, wheel):
            failed.append(version)
    sbom = write_sbom(wheel, int(epoch()))
    print(f"{digest(sbom)}  {sbom.name}")
    if failed:
        print(f"the README example failed on Python {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
