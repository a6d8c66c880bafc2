"""The release: `winch --version`, the metadata of the distribution and every worker session name it."""

__version__ = "0.1.0"
