"""Icons, drawn here: 16 by 16, in the colour of the text around them.

They stand in the page itself, so that they need no request, no script and no exception from the content
policy. An icon never stands for a word: it is hidden from screen readers, and the word is beside it.
"""

from __future__ import annotations

from functools import cache

from markupsafe import Markup

from winch.core.lifecycle import JobState

# Strokes: 1.5 wide, round. A name with `!` is filled instead, with holes where paths overlap.
_PATHS = {
    # Pages.
    "overview": "M2.5 13.5h11M4 11V7.5M7 11V3.5M10 11V6M13 11V4.5",
    "jobs": "M2.5 4h.01M2.5 8h.01M2.5 12h.01M5.5 4h8M5.5 8h8M5.5 12h8",
    "queues": "M2.5 3.5h11v2.4h-11zM2.5 8h8v2.2h-8zM2.5 12.5h5",
    "flows": "M2.5 5.8h3.4v3.4H2.5zM10.2 2.5h3.3v3.3h-3.3zM10.2 10.2h3.3v3.3h-3.3z"
    "M5.9 7.5h2.2M8.1 7.5V4.2h2.1M8.1 7.5v4.4h2.1",
    "schedules": "M2.8 3.8h10.4v9.4H2.8zM2.8 6.8h10.4M5.5 2.2v2.6M10.5 2.2v2.6",
    "dead": "M5.4 12.8v-1.6C3.6 10.4 2.6 9 2.6 7.2 2.6 4.4 5 2.4 8 2.4s5.4 2 5.4 4.8c0 1.8-1 3.2-2.8 4v"
    "1.6z"
    "M5.8 7.6h.01M10.2 7.6h.01M8 10.8v2",
    "workers": "M2.6 3h10.8v4H2.6zM2.6 9h10.8v4H2.6zM5 5h.01M5 11h.01M8.5 5h2.6M8.5 11h2.6",
    "limits": "M2.9 12.2A6 6 0 1 1 13.1 12.2M8 9.2l2.6-3.4",
    "tenants": "M5.9 7.4a2.3 2.3 0 1 0 0-4.6 2.3 2.3 0 0 0 0 4.6zM1.8 13.2c.3-2.4 1.9-3.8 4.1-3.8s3.8"
    " 1.4 4.1 3.8"
    "M10.4 3a2.2 2.2 0 0 1 0 4.3M11.8 9.7c1.4.5 2.2 1.7 2.4 3.5",
    "operations": "M3 4.5 4.2 5.7 6.4 3M3 11.3l1.2 1.2 2.2-2.7M8.8 4.5h4.7M8.8 11.3h4.7",
    "audit": "M4 2.5h5.5L12.5 5.5v8H4zM9.3 2.7v3h3M6.3 8.5h4M6.3 11h4",
    "settings": "M2.5 5h5M11 5h2.5M2.5 11H5M8.5 11h5M7.5 5a1.7 1.7 0 1 0 3.5 0 1.7 1.7 0 0 0-3.5 0"
    "zM5 11a1.7 1.7 0 1 0 3.5 0A1.7 1.7 0 0 0 5 11z",
    "api": "M5.5 4.5 2.3 8l3.2 3.5M10.5 4.5 13.7 8l-3.2 3.5M9 3 7 13",
    # States; their shapes differ, so that colour is the third sign.
    "completed": "!M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM4.6 8.2l1.1-1.1 1.6 1.6 3.3-3.4"
    " 1.1 1.1-4.4 4.5z",
    "running": "M8 2.25a5.75 5.75 0 1 0 0 11.5A5.75 5.75 0 0 0 8 2.25z|!M6.6 5.3 10.8 8l-4.2 2.7z",
    "retrying": "M13.2 8.6A5.3 5.3 0 1 1 11.7 4.2M13.3 2.3v3.2h-3.2",
    "dead-state": "!M5.3 1.5h5.4l3.8 3.8v5.4l-3.8 3.8H5.3l-3.8-3.8V5.3zM5.1 6.2 6.9 8 5.1 9.8l1.1 1.1L8 "
    "9.1l1.8 1.8 1.1-1.1L9.1 8l1.8-1.8-1.1-1.1L8 6.9 6.2 5.1z",
    "scheduled": "M8 2.25a5.75 5.75 0 1 0 0 11.5A5.75 5.75 0 0 0 8 2.25zM8 4.8V8l2.2 1.6",
    "blocked": "M3.5 7.3h9v6h-9zM5.3 7.3V5.1a2.7 2.7 0 0 1 5.4 0v2.2",
    "ready": "~M8 2.25a5.75 5.75 0 1 0 0 11.5A5.75 5.75 0 0 0 8 2.25z",
    "cancelled": "M8 2.25a5.75 5.75 0 1 0 0 11.5A5.75 5.75 0 0 0 8 2.25zM4.1 11.9l7.8-7.8",
    "paused": "M5.8 3.5v9M10.2 3.5v9",
    "lost": "M2 8h2.6l1.5-3.5 1.5 5M9.6 8H14M3 13.5 13.5 3",
    # Signs and tools.
    "warning": "M8 2.6 14.2 13.3H1.8zM8 6.6v3M8 11.5h.01",
    "good": "!M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM4.6 8.2l1.1-1.1 1.6 1.6 3.3-3.4 1.1 1.1-4.4 "
    "4.5z",
    "search": "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3l3.4 3.4",
    "menu": "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
    "down": "M4 6.2 8 10.2l4-4",
    "right": "M6 4l4 4-4 4",
    "left": "M10 4 6 8l4 4",
    "more": "M3.6 8h.01M8 8h.01M12.4 8h.01",
    "plus": "M8 3v10M3 8h10",
    "minus": "M3 8h10",
    "close": "M4 4l8 8M12 4l-8 8",
    "copy": "M5.5 5.5h7.5v7.5H5.5zM3 10.5V3h7.5",
    "star": "M8 2.3l1.75 3.6 3.95.550-2.85 2.8.650 3.95L8 11.3l-3.5 1.9.650-3.95L2.3 6.45l3.95-.55z",
    "columns": "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
    "theme": "M8 2.25a5.75 5.75 0 1 0 0 11.5A5.75 5.75 0 0 0 8 2.25z|!M8 2.25v11.5a5.75"
    " 5.75 0 0 0 0-11.5z",
    "help": "M5.9 6.1a2.15 2.15 0 1 1 3 2c-.7.300-.9.700-.9 1.5M8 12.3h.01",
    "clock": "M8 2.25a5.75 5.75 0 1 0 0 11.5A5.75 5.75 0 0 0 8 2.25zM8 4.8V8l2.2 1.6",
    "edit": "M3 13l.7-3L10.5 3.2l2.3 2.3L6 12.3z",
    "download": "M8 2.5v8M4.7 7.4 8 10.7l3.3-3.3M3 13.5h10",
    "trash": "M3 4.5h10M6 4.5V3h4v1.5M4.3 4.5l.6 9h6.2l.6-9M6.8 7v4M9.2 7v4",
    "bolt": "M8.8 2 3.8 9h3.7l-.5 5 5-7H8.3z",
    "external": "M9 3h4v4M13 3 7.5 8.5M11.5 9.5v3.5H3V4.5h3.5",
}  # fmt: skip
# The icon of a job's state is the state's name, but for the one that is a page, too.
STATE_ICON = {state: "dead-state" if state is JobState.DEAD else str(state) for state in JobState}


@cache
def icon(name: str, size: int = 16) -> Markup:
    """The icon as SVG; `size` is its width and height in pixels, where the stylesheet does not say."""
    shapes = []
    for path in _PATHS[name].split("|"):
        kind, data = (path[0], path[1:]) if path[0] in "!~" else ("", path)
        attributes = {
            "!": 'fill="currentColor" fill-rule="evenodd" stroke="none"',
            "~": 'stroke-dasharray="2.26"',
            "": "",
        }[kind]
        shapes.append(f'<path {attributes} d="{data}"/>' if attributes else f'<path d="{data}"/>')
    return Markup(  # noqa: S704  # constants of this module
        f'<svg class="ic" width="{size}" height="{size}" viewBox="0 0 16 16" fill="none" '
        f'stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" '
        f'aria-hidden="true" focusable="false">{"".join(shapes)}</svg>'
    )


def state_icon(state: str) -> Markup:
    """The icon of a job's state."""
    return icon(STATE_ICON[JobState(state)], 14)
