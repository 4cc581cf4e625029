"""Infer the orientation of a rotating camera from its frames."""
