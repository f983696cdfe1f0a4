"""The claims as a local page: cards, explorers of closed forms, prompts, runs with their progress, and a report.

A server on this machine answers plain JavaScript in a browser. All text is escaped on the server, and an address is
compared with names and never becomes a path. The server needs no JAX: a run is a process of the command line, and
language models have a process of their own.
"""
