"""Findings made with icl-lab: claims on in-context learning with their data, and theories that are compared on it.

``claims/<subject>/<finding>/`` are the claims and ``arena/<table>/`` measured phenomena with theories of them.
``planted/`` has families of known answer and ``power/`` how often each verdict is given along them; ``figures/`` are
the claims' figures. The laboratory, :mod:`icllab`, finds the claims by their entry point and knows none of them.
"""
