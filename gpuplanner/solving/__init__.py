"""Linear and integer models, the solver that they are handed to, and how hard a search may try."""
