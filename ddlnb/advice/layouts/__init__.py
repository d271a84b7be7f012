"""Advice on large models: which way to split them, how sure that is, and what would make it pay."""
