"""pytester runs pytest inside a test; only the plugin's own tests here need it."""

from __future__ import annotations

pytest_plugins = ["pytester"]
