"""The app of the server that `million.py` measures: its store is $WINCH_URL."""

from scripts.million_store import declare
from winch import App

app = App()
declare(app)
