"""Asking before something is destroyed: a page that has the number, and wants a name above a hundred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.responses import Response

from winch.web.pages.base import one, page
from winch.web.routes import WebCall

# Above this number of jobs the name must be typed.
MOST_UNNAMED = 100


def is_sure(call: WebCall, *, count: int = 0, name: str = "") -> bool:
    """Whether the form was sent from the page that asks, with the name where one is asked for."""
    if one(call.body, "sure") != "yes":
        return False
    return count <= MOST_UNNAMED or not name or one(call.body, "typed") == name


async def ask(
    call: WebCall,
    *,
    title: str,
    text: str,
    verb: str,
    back: str,
    points: Sequence[tuple[str, str]] = (),
    fields: Mapping[str, str] | None = None,
    count: int = 0,
    name: str = "",
) -> Response:
    """The page that asks. It sends the same form again with `sure`; the audit gets no line before."""
    call.is_preview = True
    given = fields
    if given is None:
        given = {key: values[0] for key, values in call.body.items() if key not in ("sure", "typed")}
    needs_name = count > MOST_UNNAMED and name != ""
    return await page(
        call,
        "sure.html",
        title=title,
        text=text,
        verb=verb,
        back=back,
        points=points,
        fields=given,
        name=name if needs_name else "",
        error=f"Type {name} to go on." if needs_name and one(call.body, "sure") == "yes" else "",
    )
