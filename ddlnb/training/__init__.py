"""Training with lossy methods: what is synchronised when, and what it costs in convergence.

A method is a choice per aspect (`method`), and a generator (`synchronisation`, `gossip`) that each
worker runs and that yields what it needs. Two executors answer: `lockstep`, all workers in this
process on a virtual clock, and `distributed`, real processes and sockets.
"""
