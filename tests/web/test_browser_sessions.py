"""A session that a browser has ended stays ended, whatever another request of it does meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from winch import App
from winch.web import sessions
from winch.web.sessions import COOKIES, BrowserSessions
from winch.web.tokens import Tokens


def test_a_request_under_way_does_not_undo_a_logout(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")
    app.migrate()
    run = app.client.run
    tokens = Tokens(app.driver)
    _, token = run(tokens.create("ada", roles=("read",)))
    here, there = BrowserSessions(app.driver), BrowserSessions(app.driver)
    cookies = {COOKIES[1]: run(here.begin(token.id))}
    assert run(there.access_of(cookies, tokens)) is not None, "known to both servers"
    run(here.end(cookies))
    # The other server still has it in its cache, and notes the use.
    monkeypatch.setattr(sessions, "TOUCH_EVERY", timedelta(0))
    run(there.access_of(cookies, tokens))
    fresh = BrowserSessions(app.driver)
    assert run(fresh.access_of(cookies, tokens)) is None
    assert run(here.access_of(cookies, tokens)) is None
    app.close()
