"""The claims as a local page: their cards, explorers of closed forms, runs as they go, and a report of one file.

A server on this machine answers plain JavaScript in a browser. What is shown is text that was escaped here, what is
downloaded has an id and no path, and files of results are opened by another process. Nothing here needs JAX: a run is
a process of the command line.
"""
