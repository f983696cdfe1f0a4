"""Claims for icl-lab: every folder <subject>/<finding> with a claim.py is one."""
