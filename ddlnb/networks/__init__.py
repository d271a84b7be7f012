"""Networks as graphs: machines, switches and links; routes, flows, and collectives on them."""
