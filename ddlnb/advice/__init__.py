"""My model, my machines: what to do, what comes of it, and why."""
