"""Measured collectives: the columns of their table, and the logs that it is read from."""
