"""A package, so that `tests` cannot mean some folder of that name in site-packages."""
