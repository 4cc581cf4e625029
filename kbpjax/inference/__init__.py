"""Belief propagation: the update of messages, loops over it, and what can be said of their fixed points."""
