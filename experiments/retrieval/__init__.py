"""Find the Swedish translation of a document through a tree of languages."""
