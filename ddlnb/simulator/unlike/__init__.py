"""Simulates workers that are not alike: slower ones, slower links, random delays.

As `ddlnb.simulator.player` and `fast_player` play one worker that stands for all, the players of
this package play one of each kind. Workers that are alike are simulated without this package.
"""
