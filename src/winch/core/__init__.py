"""Pure data and decisions: no I/O, no clock, no threads. Everything above imports from here."""
