"""The claims as a local page: cards, explorers of closed forms, runs with their progress, and a report in one file.

A server on this machine answers plain JavaScript in a browser. All text is escaped on the server, and an address is
compared with names and never becomes a path. Nothing here needs JAX: a run is a process of the command line.
"""
