"""The item-label network and the minimal induction head."""
