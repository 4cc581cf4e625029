"""Belief propagation: message updates, schedules, iteration loops, derivatives, diagnostics and free energies."""
