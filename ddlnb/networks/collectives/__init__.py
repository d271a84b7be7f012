"""How ranks carry out a collective, one page each: who sends which part to whom in which step."""
