"""Management of a Django project: `manage.py winch`."""
