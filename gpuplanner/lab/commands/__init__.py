"""What ``gpuplanner simulate --jobs`` does."""
