"""What is asked again and again: the gate of a pipeline, month after month, look after look."""
