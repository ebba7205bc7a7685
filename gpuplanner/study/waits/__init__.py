"""Why jobs waited: what the observed occupancy left free, and what kept each job each second."""
