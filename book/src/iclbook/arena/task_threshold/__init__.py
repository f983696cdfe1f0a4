"""The error of trained linear attention of several depths."""
