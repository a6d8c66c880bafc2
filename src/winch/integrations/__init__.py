"""Winch beside other libraries. Each module needs its extra; none is imported by Winch itself."""
