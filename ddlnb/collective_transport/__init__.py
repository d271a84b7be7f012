"""Collectives carried out on real ranks: lists of transfers, over sockets of our own.

``rank_schedule.py`` says what one rank does in every step, ``connections.py`` what travels between
two, and ``transport.py`` carries messages by such schedules, which our engine asks for.
"""
