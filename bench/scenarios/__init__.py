"""One module per question; each gives a list of scenarios (bench/scenario.py defines it)."""
