"""The memory store."""

from winch.drivers.memory.driver import MemoryDriver

__all__ = ["MemoryDriver"]
