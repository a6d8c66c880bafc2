"""What people do on the command line leaves the same lines in the audit as what they do elsewhere."""

from __future__ import annotations

import socket
from typing import Any

from winch.app import App
from winch.cli.output import remark
from winch.cli.text import one_line
from winch.core.errors import StorageError
from winch.core.redact import mask_text
from winch.engine.job_desk import actor
from winch.web.audit import Audit


def noted(app: App, action: str, target: str, **detail: Any) -> None:
    """Add a line about what was just done. It is done whether or not the line can be written."""
    said = {key: value for key, value in detail.items() if value is not None}
    line = Audit(app.driver).write(
        who=actor(), via="cli", origin=socket.gethostname(), action=action, target=target, detail=said
    )
    try:
        app.client.run(line)
    except StorageError as error:
        remark(f"winch: done, but the audit has no line about it: {one_line(mask_text(str(error)))}")
