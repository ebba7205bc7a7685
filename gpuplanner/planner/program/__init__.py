"""The problem as arrays and as rows of a mathematical program, and what follows from them: bounds, prices, reasons."""
