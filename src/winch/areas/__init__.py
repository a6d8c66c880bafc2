"""What an App offers by name: one file per attribute."""
