"""Where the database lives: from the URL to a file that is safe to open.

SQLite's locks do not work across hosts, so network file systems are refused. The file is created for
its owner alone, before SQLite opens it, whatever the umask is. An existing file is only looked
at, never opened here: closing any descriptor of it would drop the locks SQLite holds in this process.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from winch.core.errors import ConfigError, StorageError, did_you_mean

OPTIONS = {"sync": ("full", "normal"), "shared": ("1", "0")}
LOOKS_LIKE = "sqlite:///relative.db or sqlite:////absolute/path.db"
_NETWORK = frozenset(
    {
        *("9p", "afs", "ceph", "cifs", "coda", "davfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("smb", "smb2", "smb3", "smbfs"),
        *("fuse.davfs", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)


@dataclass(frozen=True, slots=True)
class Address:
    """A database file and how durably it is written. `is_shared`: other programs may use it, too."""

    path: Path
    sync: str = "full"
    is_shared: bool = False

    @property
    def url(self) -> str:
        options = ["sync=" + self.sync] * (self.sync != "full") + ["shared=1"] * self.is_shared
        return f"sqlite:///{self.path}" + ("?" + "&".join(options) if options else "")


def parse_url(url: str) -> Address:
    """The file that a sqlite URL names; raises ConfigError that shows what a URL looks like."""
    parts = urlsplit(url)
    name = unquote(parts.path)
    if parts.netloc == ":memory:" or name in ("/:memory:", "//:memory:"):
        raise ConfigError(
            "a SQLite database in memory is seen by one connection only; use memory:// for tests, "
            f"or a file: {LOOKS_LIKE}"
        )
    if parts.netloc:
        raise ConfigError(f"a sqlite URL has three slashes or four: {LOOKS_LIKE}, got {url!r}")
    if name in ("", "/"):
        raise ConfigError(
            f"a sqlite URL names a file: {LOOKS_LIKE}, got {url!r}. For a store in memory use memory://"
        )
    # Made absolute now: a later chdir must not lead to another file.
    path = Path.cwd() / name.removeprefix("/")
    options = _options(parts.query)
    return Address(path, options.get("sync", "full"), options.get("shared") == "1")


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for key, value in options.items():
        if key not in OPTIONS:
            raise ConfigError(
                f"unknown option {key!r} in the sqlite URL{did_you_mean(key, OPTIONS)}; "
                f"known: {', '.join(OPTIONS)}"
            )
        known = OPTIONS[key]
        if value not in known:
            raise ConfigError(
                f"{key} must be {known[0]!r} or {known[1]!r}, got {value!r}{did_you_mean(value, known)}"
            )
    return options


def prepare(path: Path) -> Path:
    """Check the file, or create it; returns its real path. Its errors name the remedy."""
    folder = path.parent
    if not folder.exists():
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            pass
        except OSError as error:
            raise StorageError(f"the folder {folder} of the database cannot be made: {error}") from error
    real = Path(os.path.realpath(folder)) / path.name
    refuse_network(real.parent)
    try:
        found = real.lstat()
    except FileNotFoundError:
        _create(real)
    except OSError as error:
        raise StorageError(f"{real} cannot be inspected: {error}") from error
    else:
        _refuse_unsafe(real, found)
    return real


def _create(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        _refuse_unsafe(path, path.lstat())  # another process was first
    except OSError as error:
        raise StorageError(
            f"{path} cannot be created: {error}. This user needs write permission for {path.parent}"
        ) from error


def _refuse_unsafe(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(
            f"{path} is a symbolic link, which another user may point elsewhere; give the URL of the "
            f"file itself: {os.path.realpath(path)}"
        )
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is not a file; a sqlite URL names a file: {LOOKS_LIKE}")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path} may be written by every user of this machine; take that away: chmod o-w {path}"
        )


def refuse_network(folder: Path, mountinfo: str | None = None) -> None:
    """Raise ConfigError where the folder is on a file system shared between hosts."""
    if mountinfo is None:
        if not sys.platform.startswith("linux"):
            return
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
    kind = _file_system(folder, mountinfo)
    if kind in _NETWORK:
        raise ConfigError(
            f"{folder} is on a network file system ({kind}), where SQLite's locks do not hold and jobs "
            "would be lost; put the database on a local disk, or use a postgresql:// URL"
        )


def _file_system(folder: Path, mountinfo: str) -> str | None:
    """The type of the mount that holds the folder: the longest mount point, the last one there."""
    best, kind = -1, None
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(_unescape(fields[4]))
        if (folder == point or point in folder.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split(" ")[0]
    return kind


def _unescape(text: str) -> str:
    # The kernel writes space, tab, newline and backslash in mount points as octal.
    for code, plain in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(code, plain)
    return text
