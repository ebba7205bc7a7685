"""The loops over fleets of several types of GPU, and over jobs that grow and shrink."""
