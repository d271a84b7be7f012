"""One iteration of a layout, played: who computes, exchanges and waits when. Simulated."""
