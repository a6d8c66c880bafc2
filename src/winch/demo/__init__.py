"""The application of `winch demo`: its tasks, and a tour that enqueues them and prints what happens.

It is written as a user would write it: with public names of Winch only. One import is private, the
process of the dashboard's server, which `winch dev` has too.
"""
