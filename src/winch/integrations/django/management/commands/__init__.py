"""The commands of `manage.py` that Winch adds."""
