"""Teams of one fleet: what each is due, what it got, by which rules they share, and what other rules would do."""
