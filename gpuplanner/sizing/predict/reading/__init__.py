"""What rows of a table mean: words, numbers, architectures, and the job that follows."""
