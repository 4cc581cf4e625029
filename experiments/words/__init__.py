"""Guess the word for a concept in one language from the words in others."""
