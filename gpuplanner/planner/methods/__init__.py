"""How plans are found: each method is a series of states, and a search lets them take turns."""
