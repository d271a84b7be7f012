"""Every strategy carried out on real ranks, with torch's own parts, and counted while it runs."""
